"""Several "hosts" on one machine: network namespaces, each its own node, with real TCP between them, fast or slow.

Needs root, the programs ip, nsenter and unshare, and MPICH's mpiexec.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlrun.errors import DlrunError

# Called by mpiexec as its remote shell: agent HOST COMMAND. The host's ranks get its network, a name of their own, and
# a /dev/shm of their own.
AGENT = """#!/bin/sh
host=$1; shift
name={prefix}${{host##*.}}
exec nsenter --net=/run/netns/$name unshare --uts --ipc --mount sh -c \\
    "hostname $name; mount -t sysfs none /sys; mount -t tmpfs none /dev/shm; $*"
"""
LAUNCHER = 254  # where mpiexec runs: last number of its address, end of its namespace's name
OTHERS = ("PMI", "OMPI_", "DL", "UCX_NET")  # variables that the ranks must not get from around here


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

    def command(self, mpiexec: str, per_host: int, hosts: int, *program: str) -> list[str]:
        """Return the command that runs a Python program on ``per_host`` ranks of each of the first ``hosts`` hosts."""
        names = ",".join(f"10.99.0.{host}" for host in range(1, hosts + 1))
        launch = [mpiexec, "-localhost", f"10.99.0.{LAUNCHER}", "-launcher", "rsh", "-launcher-exec", str(self.agent)]
        ranks = ["-hosts", names, "-ppn", str(per_host), "-n", str(hosts * per_host), sys.executable, *program]
        return ["ip", "netns", "exec", f"{self.prefix}{LAUNCHER}", *launch, *ranks]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process' variables without those that would tell the ranks of another job, and ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
    kept.pop("PYTHONUNBUFFERED", None)  # lines of several ranks would be mixed
    return {**kept, "DLRUN_LAB": "1", "GLOO_SOCKET_IFNAME": "eth0", **more}


def layout_from_text(text: str) -> tuple[int, int]:
    """'2x4' -> (2, 4): two hosts of four ranks each."""
    found = re.fullmatch(r"(\d+)x(\d+)", text.strip())
    if not found or not 2 <= int(found[1]) < LAUNCHER or int(found[2]) < 1:
        raise DlrunError(f"'{text}' is no lab", "2x1 is two hosts of one rank each, 4x2 four of two; at least 2 hosts")
    return int(found[1]), int(found[2])


def run(
    lab: Lab,
    hosts: int,
    per_host: int,
    program: tuple[str, ...],
    env: Mapping[str, str],
    on_line: Callable[[str], None],
) -> tuple[int, str]:
    """Run a program there; return its exit code and the end of what it said on stderr.

    ``on_line`` gets every line that a rank prints, as it comes.
    """
    mpiexec = hydra()
    command = lab.command(mpiexec, per_host, hosts, *program)
    with (
        (lab.agent.parent / "stderr").open("w+") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment(env)) as job,
    ):
        assert job.stdout is not None
        try:
            for line in job.stdout:
                on_line(line.rstrip("\n"))
        except BaseException:
            job.terminate()
            raise
        code = job.wait()
        said.seek(0)
        return code, said.read()[-2000:]


def hydra() -> str:
    """Return MPICH's mpiexec, beside this Python or on PATH; raises DlrunError without one."""
    beside = Path(sys.executable).parent / "mpiexec"
    for found in (str(beside) if beside.exists() else None, shutil.which("mpiexec.hydra"), shutil.which("mpiexec")):
        if found is not None:
            said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=False)
            if "HYDRA" in said.stdout:
                return found
    raise DlrunError("a lab needs MPICH's mpiexec, which is not here", "pip install mpich")


def ip(*words: str) -> None:
    """Run the program ip."""
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


def slow_down_in_kernel(prefix: str, numbers: list[int], slow: Slow) -> bool:
    """Give every link this delay and rate. Returns whether the kernel can: by netem, or by tbf where nothing delays."""
    if shutil.which("tc") is None or slow.rails > 1:
        return False
    ways = [f"netem delay {slow.delay * 1e6:.0f}us rate {slow.rate * 8:.0f}bit limit 100000"]
    if slow.delay == 0:
        ways.append(f"tbf rate {slow.rate * 8:.0f}bit burst {max(slow.rate / 1000, 2**18):.0f} limit {2**28}")
    hosts = [number for number in numbers if number != LAUNCHER]
    return any(all(_queue(f"{prefix}{number}", way) for number in hosts) for way in ways)


def _queue(namespace: str, how: str) -> bool:
    command = f"ip netns exec {namespace} tc qdisc replace dev eth0 root {how}"
    return subprocess.run(command.split(), check=False, capture_output=True).returncode == 0


@contextmanager
def joined_by_pump(prefix: str, numbers: list[int], slow: Slow) -> Iterator[None]:
    """Give each host an eth0 whose packets a process of ours carries, slowly (programs/slow_link.py)."""
    ends = [f"{prefix}{number}={number}" + (":free" if number == LAUNCHER else "") for number in numbers]
    program = Path(__file__).parent / "programs" / "slow_link.py"
    command = [sys.executable, str(program), str(slow.delay), str(slow.rate), str(slow.rails), *ends]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "ready\n":
                raise DlrunError(f"there are no tun devices here: {process.stderr.read()}", "nor netem in this kernel")
            yield
        finally:
            process.kill()


@contextmanager
def network(folder: Path, hosts: int, slow: Slow | None = None) -> Iterator[Lab]:
    """Make ``hosts`` hosts, joined by fast links or by slow ones; raises DlrunError where that cannot be.

    ``folder`` holds what they need; they are gone at the end.
    """
    if os.geteuid() != 0:
        raise DlrunError("network namespaces need root", "")
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            raise DlrunError(f"{program} is not installed", "install iproute2 and util-linux")
    prefix, numbers = f"dl{os.getpid()}n", [*range(1, hosts + 1), LAUNCHER]
    agent = folder / "agent"
    agent.write_text(AGENT.format(prefix=prefix))
    agent.chmod(0o755)
    with ExitStack() as undo:
        try:
            _make(prefix, numbers, slow, undo)
        except subprocess.CalledProcessError as error:
            raise DlrunError(
                f"there are no network namespaces with bridges here: {error.stderr.strip()}", ""
            ) from error
        yield Lab(prefix, agent)


def _make(prefix: str, numbers: list[int], slow: Slow | None, undo: ExitStack) -> None:
    for number in numbers:
        ip("netns", "add", f"{prefix}{number}")
        undo.callback(subprocess.run, ["ip", "netns", "del", f"{prefix}{number}"], check=False)
    join_by_bridge(prefix, numbers)
    if slow is not None and not slow_down_in_kernel(prefix, numbers, slow):
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
