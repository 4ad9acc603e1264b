"""Several "hosts" on one machine: network namespaces, each its own node, with real TCP between them, fast or slow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

# Called by mpiexec as its remote shell: agent HOST COMMAND. The host's ranks get its network, a name of their own, and
# a /dev/shm of their own.
AGENT = """#!/bin/sh
host=$1; shift
name={prefix}${{host##*.}}
exec nsenter --net=/run/netns/$name unshare --uts --ipc --mount sh -c \\
    "hostname $name; mount -t sysfs none /sys; mount -t tmpfs none /dev/shm; $*"
"""
LAUNCHER = 254  # where mpiexec runs: last number of its address, end of its namespace's name


@dataclass(frozen=True)
class Slow:
    """What every host's link is like: seconds one way, bytes per second, and how many rails of that rate it has."""

    delay: float
    rate: float
    rails: int = 1


@dataclass(frozen=True)
class Lab:
    """Namespaces ``prefix1`` ... with addresses 10.99.0.1 ..., and ``prefix254``, where mpiexec runs."""

    prefix: str
    agent: Path

    def run(
        self, mpiexec: str, per_host: int, program: Path, hosts: int, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program on ``per_host`` ranks of each of the first ``hosts`` hosts."""
        names = ",".join(f"10.99.0.{host}" for host in range(1, hosts + 1))
        launch = [mpiexec, "-localhost", f"10.99.0.{LAUNCHER}", "-launcher", "rsh", "-launcher-exec", str(self.agent)]
        ranks = ["-hosts", names, "-ppn", str(per_host), "-n", str(hosts * per_host), sys.executable, str(program)]
        others = ("PMI", "OMPI_", "DL", "UCX_NET")
        env = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        env.pop("PYTHONUNBUFFERED", None)
        return subprocess.run(
            ["ip", "netns", "exec", f"{self.prefix}{LAUNCHER}", *launch, *ranks],
            capture_output=True,
            text=True,
            timeout=120,
            env={**env, "DL_COMM_TIMEOUT_S": "60", **environment},
            check=False,
        )


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


def join_by_bridge(prefix: str, numbers: list[int]) -> None:
    """Give each host an eth0, one end of a cable whose other end is in a bridge at the launcher's."""
    centre = f"{prefix}{LAUNCHER}"
    ip("-n", centre, "link", "add", "name", "bridge0", "type", "bridge")
    for number in numbers:
        if number != LAUNCHER:
            cable = f"link add name v{number} type veth peer eth0 netns {prefix}{number}"
            ip("-n", centre, *cable.split())
            ip("-n", centre, "link", "set", f"v{number}", "master", "bridge0", "up")
    ip("-n", centre, "link", "set", "bridge0", "name", "eth0")


def slow_down_by_netem(prefix: str, numbers: list[int], slow: Slow) -> bool:
    """Give every link this delay and rate. Returns whether the kernel can."""
    if shutil.which("tc") is None or slow.rails > 1:
        return False
    for number in numbers:
        if number != LAUNCHER:
            netem = f"netem delay {slow.delay * 1e6:.0f}us rate {slow.rate * 8:.0f}bit limit 100000"
            command = f"ip netns exec {prefix}{number} tc qdisc replace dev eth0 root {netem}"
            if subprocess.run(command.split(), check=False, capture_output=True).returncode != 0:
                return False
    return True


@contextmanager
def joined_by_pump(prefix: str, numbers: list[int], slow: Slow) -> Iterator[None]:
    """Give each host an eth0 whose packets a process of ours carries, slowly (slow_link.py)."""
    ends = [f"{prefix}{number}={number}" + (":free" if number == LAUNCHER else "") for number in numbers]
    program = Path(__file__).with_name("slow_link.py")
    command = [sys.executable, str(program), str(slow.delay), str(slow.rate), str(slow.rails), *ends]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "ready\n":
                pytest.skip(f"no tun devices here: {process.stderr.read()}")
            yield
        finally:
            process.kill()


@contextmanager
def network(folder: Path, hosts: int, slow: Slow | None = None) -> Iterator[Lab]:
    """Make ``hosts`` hosts, joined by fast links or by slow ones; skip the test where that cannot be."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    prefix, numbers = f"dl{os.getpid()}n", [*range(1, hosts + 1), LAUNCHER]
    agent = folder / "agent"
    agent.write_text(AGENT.format(prefix=prefix))
    agent.chmod(0o755)
    with ExitStack() as undo:
        try:
            for number in numbers:
                ip("netns", "add", f"{prefix}{number}")
                undo.callback(subprocess.run, ["ip", "netns", "del", f"{prefix}{number}"], check=False)
            join_by_bridge(prefix, numbers)
            if slow is not None and not slow_down_by_netem(prefix, numbers, slow):
                ip("-n", f"{prefix}{LAUNCHER}", "link", "del", "eth0")
                for number in numbers[:-1]:
                    ip("-n", f"{prefix}{number}", "link", "del", "eth0")
                undo.enter_context(joined_by_pump(prefix, numbers, slow))
                for number in numbers:
                    ip(*f"-n {prefix}{number} link set eth0 mtu 9000 txqueuelen 10000".split())
            for number in numbers:
                ip("-n", f"{prefix}{number}", "addr", "add", f"10.99.0.{number}/24", "dev", "eth0")
                ip("-n", f"{prefix}{number}", "link", "set", "eth0", "up")
                ip("-n", f"{prefix}{number}", "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces with bridges here: {error.stderr.strip()}")
        yield Lab(prefix, agent)
