"""What ranks send over a link between their hosts: all peers a share each, or the leader all of it, and no more bytes.

Seconds are not looked at here: they are what the link and the machine's other programs make of them (comm/README.md).
"""

from __future__ import annotations

import json
import textwrap

import pytest
from hosts import Slow, network
from mpis import find_mpi

PROGRAM = """
    import json, os, socket, struct
    import numpy as np, dl_comm
    from dl_comm import _core
    TCP_INFO, BYTES_ACKED = 11, 120

    def sent():
        # what the other ends have got, of all TCP connections of this rank that leave its host
        total = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                with socket.socket(fileno=os.dup(int(name))) as s:
                    if s.family == socket.AF_INET and s.getpeername()[0] != s.getsockname()[0]:
                        told = s.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 232)
                        total += struct.unpack_from("Q", told, BYTES_ACKED)[0]
            except OSError:  # not a connection
                pass
        return total

    dl_comm.init()
    n, rank = dl_comm.get_nranks(), dl_comm.get_rank()
    mine = np.full(FLOATS, 2 * rank, "f4")
    dl_comm.barrier()
    before = sent()
    for call in range(CALLS):
        mean = dl_comm.gradients([mine])[0]
        assert np.all(mean == n - 1), mean
    dl_comm.barrier()
    share = (sent() - before) / (CALLS * mine.nbytes)
    shares = [json.loads(text) for text in _core.allgather_bytes(json.dumps(share).encode())]
    if rank == 0:
        print("shares", json.dumps(shares), flush=True)
"""

# What a link is like, and how many floats are averaged over it.
LINKS = {
    "a fast one": (None, 1_000_000),
    "a long one, whose delay counts": (Slow(delay=0.02, rate=100e6), 1_000_000),
    "of two rails, of which one leader fills one": (Slow(delay=0.0005, rate=10e6, rails=2), 500_000),
}


@pytest.mark.parametrize("link", LINKS)
def test_all_peers_share_what_one_leader_sends_alone(tmp_path, link):
    slow, floats = LINKS[link]
    program = tmp_path / "program.py"
    text = textwrap.dedent(PROGRAM).replace("FLOATS", str(floats)).replace("CALLS", "3")
    program.write_text(text)
    shares: dict[str, list[float]] = {}  # of a gradient's bytes a call, by rank
    with network(tmp_path, 2, slow) as lab:
        for ranks in ("0", "1"):  # DL_COMM_WIRE_RANKS: all, one leader
            ended = lab.run(find_mpi("mpich 5").mpiexec, 2, program, 2, DL_COMM_WIRE_RANKS=ranks)
            assert ended.returncode == 0 and ended.stdout.startswith("shares"), ended.stdout + ended.stderr
            shares[ranks] = json.loads(ended.stdout.partition(" ")[2])
    assert shares["0"] == pytest.approx([0.5] * 4, rel=0.05)
    for host in (shares["1"][:2], shares["1"][2:]):
        assert sorted(host) == pytest.approx([0, 1], rel=0.05, abs=0.01)
