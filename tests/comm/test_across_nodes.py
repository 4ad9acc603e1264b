"""Ranks on several hosts (hosts.py): they average over the network, and a rank that dies there ends the job."""

from __future__ import annotations

import textwrap
import time

import pytest
from hosts import network
from mpis import find_mpi


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with network(tmp_path_factory.mktemp("lab"), hosts=3) as made:
        yield made


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


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2), (3, 1), (2, 1)])
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
