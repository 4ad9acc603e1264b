"""Several "hosts" on one machine: network namespaces joined by a bridge, each its own node, real TCP between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from mpis import find_mpi

# Called by mpiexec as its remote shell: agent HOST COMMAND. The host's ranks get its network, a name of their own, and
# a /dev/shm of their own.
AGENT = """#!/bin/sh
host=$1; shift
name={prefix}${{host##*.}}
exec nsenter --net=/run/netns/$name unshare --uts --ipc --mount sh -c \\
    "hostname $name; mount -t sysfs none /sys; mount -t tmpfs none /dev/shm; $*"
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@dataclass(frozen=True)
class Lab:
    """Namespaces ``prefix1`` ... with addresses 10.99.0.1 ..., and ``prefix254``, where mpiexec runs."""

    prefix: str
    hosts: int
    agent: Path

    def slow(self, delay: str, rate: str) -> None:
        """Give every link between the hosts this delay and rate."""
        for host in range(1, self.hosts + 1):
            netem = ["tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "delay", delay, "rate", rate]
            subprocess.run(["ip", "netns", "exec", f"{self.prefix}{host}", *netem], check=True, capture_output=True)

    def run(
        self, mpiexec: str, per_host: int, program: Path, hosts: int, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        names = ",".join(f"10.99.0.{host}" for host in range(1, hosts + 1))
        launch = [mpiexec, "-localhost", "10.99.0.254", "-launcher", "rsh", "-launcher-exec", str(self.agent)]
        ranks = ["-hosts", names, "-ppn", str(per_host), "-n", str(hosts * per_host), sys.executable, str(program)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI_", "DL"))}
        env.pop("PYTHONUNBUFFERED", None)
        return subprocess.run(
            ["ip", "netns", "exec", f"{self.prefix}254", *launch, *ranks],
            capture_output=True,
            text=True,
            timeout=120,
            env={**env, "DL_COMM_TIMEOUT_S": "60", **environment},
            check=False,
        )


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    prefix, hosts = f"dl{os.getpid()}n", 3
    agent = tmp_path_factory.mktemp("lab") / "agent"
    agent.write_text(AGENT.format(prefix=prefix))
    agent.chmod(0o755)
    made = []
    try:
        ip("netns", "add", f"{prefix}254")
        made.append(f"{prefix}254")
        ip("-n", f"{prefix}254", "link", "add", "name", "bridge0", "type", "bridge")
        for host in range(1, hosts + 1):
            ip("netns", "add", f"{prefix}{host}")
            made.append(f"{prefix}{host}")
            ip(
                "-n",
                f"{prefix}254",
                "link",
                "add",
                "name",
                f"v{host}",
                "type",
                "veth",
                "peer",
                "eth0",
                "netns",
                made[-1],
            )
            ip("-n", f"{prefix}254", "link", "set", f"v{host}", "master", "bridge0", "up")
            ip("-n", made[-1], "addr", "add", f"10.99.0.{host}/24", "dev", "eth0")
            ip("-n", made[-1], "link", "set", "eth0", "up")
            ip("-n", made[-1], "link", "set", "lo", "up")
        ip("-n", f"{prefix}254", "addr", "add", "10.99.0.254/24", "dev", "bridge0")
        ip("-n", f"{prefix}254", "link", "set", "bridge0", "up")
        ip("-n", f"{prefix}254", "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)
        pytest.skip(f"no network namespaces with bridges here: {error.stderr.strip()}")
    yield Lab(prefix, hosts, agent)
    for name in made:
        subprocess.run(["ip", "netns", "del", name], check=False)


PROGRAM = """
    import socket, time
    import numpy as np, dl_comm
    from dl_comm import _core
    dl_comm.init()
    n, rank = dl_comm.get_nranks(), dl_comm.get_rank()
    session = _core.session()
    assert session.without_shared_memory() == "", session.without_shared_memory()
    arrays = [np.random.default_rng(one).normal(size=300_001).astype("f4") for one in range(n)]
    expected = np.mean(np.array(arrays, "f8"), axis=0)
    mean = dl_comm.gradients([arrays[rank]])[0]
    assert np.allclose(mean, expected, atol=1e-5)
    assert dl_comm.check_buffers_match([mean]) == 0
    arena = np.frombuffer(_core.arena(arrays[0].nbytes), "f4")
    arena[:] = arrays[rank]
    _core.allreduce([(arena.ctypes.data, arena.size, "float32")], "mean")
    assert np.allclose(arena, expected, atol=1e-5) and dl_comm.check_buffers_match([arena]) == 0
    values = np.full(70_000, float(rank))
    dl_comm.broadcast([values], n - 1)
    assert np.all(values == n - 1)
    try:
        dl_comm.gradients([np.zeros(5 + (rank == n - 1))])
    except dl_comm.CommError as error:
        assert f"(5,) float64, 5 elements on rank 0 but (6,) float64, 6 elements on rank {n - 1}" in str(error), error
    print(f"rank {rank} of {n} on node {session.node()} of {session.nodes()}, {socket.gethostname()}", flush=True)
"""


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2), (3, 1)])
def test_ranks_on_several_hosts_average_over_the_network(lab, tmp_path, hosts, per_host):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    ended = lab.run(find_mpi("mpich 5").mpiexec, per_host, program, hosts)
    lines = sorted(line for line in ended.stdout.splitlines() if line.startswith("rank"))
    expected = [
        f"rank {rank} of {hosts * per_host} on node {rank // per_host} of {hosts}, {lab.prefix}{rank // per_host + 1}"
        for rank in range(hosts * per_host)
    ]
    assert lines == expected, ended.stdout + ended.stderr
    assert ended.returncode == 0


PACKED = """
    import sys
    import numpy as np, dl_comm

    def sent():
        with open("/proc/net/dev") as lines:
            return sum(int(line.split(":")[1].split()[8]) for line in lines if "eth0" in line)

    dl_comm.init()
    n, rank = dl_comm.get_nranks(), dl_comm.get_rank()
    arrays = [np.random.default_rng(one).normal(size=500_001).astype("f4") for one in range(n)]
    dl_comm.gradients([arrays[rank]])
    dl_comm.barrier()
    before = sent()
    mean = dl_comm.gradients([arrays[rank]])[0]
    dl_comm.barrier()
    after = sent()
    assert dl_comm.check_buffers_match([mean]) == 0
    worst = np.max(np.abs(mean - np.mean(np.array(arrays, "f8"), axis=0)))
    if rank == 0:
        print("sent", after - before, "worst", worst, flush=True)
"""


def test_sums_packed_as_half_types_send_half_the_bytes(lab, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PACKED))
    sent, worst = {}, {}
    for how in ("same", "float16", "bfloat16"):
        ended = lab.run(find_mpi("mpich 5").mpiexec, 2, program, 2, DL_COMM_WIRE_DTYPE=how)
        words = ended.stdout.split()
        assert words[:1] == ["sent"] and ended.returncode == 0, ended.stdout + ended.stderr
        sent[how], worst[how] = int(words[1]), float(words[3])
    assert sent["same"] > 2_000_000
    assert max(sent["float16"], sent["bfloat16"]) < 0.65 * sent["same"], sent
    assert worst["same"] < 1e-6 < worst["float16"] < 3e-3 < worst["bfloat16"] < 3e-2, worst


def test_a_slow_network_changes_the_time_and_not_the_numbers(lab, tmp_path):
    if shutil.which("tc") is None:
        pytest.skip("tc is not installed")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    try:
        lab.slow("2ms", "500mbit")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"tc netem is not to be had here: {error.stderr!r}")
    begun = time.monotonic()
    ended = lab.run(find_mpi("mpich 5").mpiexec, 2, program, 2)
    assert ended.stdout.count("rank") == 4, ended.stdout + ended.stderr
    assert time.monotonic() - begun > 0.05


KILLED = """
    import os, time
    import numpy as np, dl_comm
    dl_comm.init()
    for step in range(1000):
        dl_comm.gradients([np.zeros(1000)])
        if step == 3 and dl_comm.get_rank() == 1:
            os.kill(os.getpid(), 9)
"""


def test_a_rank_killed_on_another_host_ends_the_job_and_hangs_nobody(lab, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(KILLED))
    begun = time.monotonic()
    ended = lab.run(find_mpi("mpich 5").mpiexec, 1, program, 3)
    assert ended.returncode != 0
    assert time.monotonic() - begun < 60
