"""Threads that call in another order on every rank: all calls are made in rank 0's."""

from __future__ import annotations

import pytest

PROGRAM = """
    import random, threading, time
    import numpy as np, dl_comm
    from dl_comm import _core
    dl_comm.init()
    rank, n = dl_comm.get_rank(), dl_comm.get_nranks()
    from dl_comm.rank0s_order import Rank0sOrder
    order, made = Rank0sOrder(), []

    def call(name, size):
        array = np.full(size, float(rank + size))
        def act(team):
            made.append(name)
            _core.allreduce([(array.ctypes.data, size, "float64")], "sum", team, [name])
        order.run(name, act)
        assert np.all(array == size * n + n * (n - 1) / 2), (name, array)

    for turn in range(20):
        sizes = list(range(1, 9))
        random.Random(100 * turn + rank).shuffle(sizes)
        threads = []
        for size in sizes:
            threads.append(threading.Thread(target=call, args=(f"op {size}", size)))
            threads[-1].start()
            time.sleep(0.001)
        for thread in threads:
            thread.join()
    assert len(made) == 160
    orders = set(_core.allgather_bytes(" ".join(made).encode()))
    assert len(orders) == 1, orders
    dl_comm.finalize()
    print("rank", rank, "is right", flush=True)
"""

ALONE = """
    import dl_comm, sys
    dl_comm.init()
    from dl_comm.rank0s_order import Rank0sOrder
    order = Rank0sOrder()
    if dl_comm.get_rank() > 0:
        try:
            order.run("an op that rank 0 does not run", lambda team: None)
        except dl_comm.CommError as error:
            print("told", error, flush=True)
"""


@pytest.mark.parametrize("n", [2, 3])
def test_calls_of_threads_are_made_in_one_order(job, any_mpi, n):
    ended = job(any_mpi, n, PROGRAM, DL_COMM_TIMEOUT_S="30")
    assert ended.lines("rank") == [f"rank {rank} is right" for rank in range(n)], ended.output
    assert ended.code == 0


def test_a_call_that_rank_0_does_not_make_is_told(job, any_mpi):
    ended = job(any_mpi, 2, ALONE, DL_COMM_TIMEOUT_S="3")
    (told,) = ended.lines("told")
    assert "an op that rank 0 does not run" in told, ended.output
