"""Allreduce with threads as ranks; NumPy is the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from dl_comm import _core

SIZES = [0, 1, 2, 63, 64, 65, 1000, 4096, 100_003]
HOSTS = {
    "one node": [],
    "two nodes": ["a", "b"],
    "uneven nodes": ["a", "a", "b"],
    "no shared memory": ["a", "b", "c", "d"],
}
FLOATS = ["float64", "float32", "float16"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]
OPS = {"sum": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


def buffer(array):
    return (array.ctypes.data, array.size, array.dtype.name)


def hosts_for(n, pattern):
    names = HOSTS[pattern]
    return [names[rank % len(names)] for rank in range(n)] if names else []


def rank_order(arrays, combine=np.add):
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = combine(total, array)
    return total


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("count", SIZES)
def test_a_float32_mean_on_one_node_is_the_sum_in_rank_order_over_n_to_the_bit(threads, n, count):
    arrays = [np.random.default_rng(rank).normal(size=count).astype("f4") for rank in range(n)]

    def body(session, rank):
        mine = arrays[rank].copy()
        session.allreduce([buffer(mine)], "mean")
        return mine

    for result in threads(n, body):
        np.testing.assert_array_equal(result, rank_order(arrays) / np.float32(n))


@pytest.mark.parametrize("pattern", HOSTS)
@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("count", [0, 1, 7, 1000, 50_001])
def test_all_ranks_of_several_nodes_get_the_same_bits_and_the_right_sum(threads, pattern, n, count):
    arrays = [np.random.default_rng(rank).normal(size=count) for rank in range(n)]

    def body(session, rank):
        mine = arrays[rank].copy()
        session.allreduce([buffer(mine)], "sum")
        return mine

    results = threads(n, body, hosts=hosts_for(n, pattern))
    for result in results:
        assert result.tobytes() == results[0].tobytes()
        np.testing.assert_allclose(result, rank_order(arrays), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernels", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_every_type_and_operation_on_every_kind_of_kernel(threads, kernels, op, dtype):
    here = _core.kernels()
    if not _core.use_kernels(kernels):
        pytest.skip(f"this processor lacks {kernels}")
    try:
        rng = np.random.default_rng(7)
        arrays = [rng.integers(0 if dtype == "uint8" else -9, 9, size=777).astype(dtype) for _ in range(3)]

        def body(session, rank):
            mine = arrays[rank].copy()
            session.allreduce([buffer(mine)], op)
            return mine

        with np.errstate(over="ignore"):
            expected = rank_order(arrays, OPS[op])
        for result in threads(3, body):
            np.testing.assert_array_equal(result, expected)
    finally:
        _core.use_kernels(here)


def test_all_kernels_give_the_same_bits(threads):
    here = _core.kernels()
    arrays = [np.random.default_rng(rank).normal(size=5000) for rank in range(3)]
    seen = {}
    try:
        for kernels in ("portable", "avx2", "avx512"):
            if not _core.use_kernels(kernels):
                continue
            for dtype in ("f8", "f4", "f2"):

                def body(session, rank, dtype=dtype):
                    mine = arrays[rank].astype(dtype)
                    session.allreduce([buffer(mine)], "mean")
                    return mine.tobytes()

                seen.setdefault(dtype, set()).update(threads(3, body))
    finally:
        _core.use_kernels(here)
    assert [len(bits) for bits in seen.values()] == [1, 1, 1]


def test_every_float16_passes_through_every_kernel_unchanged(threads):
    here = _core.kernels()
    every = np.arange(65536, dtype="u2").view("f2")
    try:
        for kernels in ("portable", "avx2", "avx512"):
            if not _core.use_kernels(kernels):
                continue

            def body(session, rank):
                mine = every.copy()
                session.allreduce([buffer(mine)], "max")
                return mine

            for result in threads(2, body):
                same = result.view("u2") == every.view("u2")
                assert np.all(same | (np.isnan(result) & np.isnan(every)))
    finally:
        _core.use_kernels(here)


def test_float16_is_summed_in_float32_and_rounded_once(threads):
    arrays = [np.full(100, value, "f2") for value in (2048, 1, 1, 1)]

    def body(session, rank):
        mine = arrays[rank].copy()
        session.allreduce([buffer(mine)], "sum")
        return mine

    for result in threads(4, body):
        assert np.all(result == 2052)  # in float16 each 2048 + 1 would stay 2048; 2051 rounds to even


def test_level_1_sums_floats_in_double(threads):
    arrays = [np.full(9, value, "f4") for value in (1e8, 1, -1e8)]

    def body(session, rank):
        session.create_team(3, 1, 1)
        mine = arrays[rank].copy()
        session.allreduce([buffer(mine)], "sum", 3)
        return mine

    for result in threads(3, body):
        assert np.all(result == 1)


def test_bfloat16_is_the_upper_half_of_a_float32(threads):
    values = np.array([1.0, 3.0, 256.0, 1.0078125, np.inf, np.nan, -0.0], "f4")

    def body(session, rank):
        mine = (values.view("u4") >> 16).astype("u2")
        session.allreduce([(mine.ctypes.data, mine.size, "bfloat16")], "mean")
        return (mine.astype("u4") << 16).view("f4")

    for result in threads(2, body):
        np.testing.assert_array_equal(result, values)


def test_infinities_and_nans_of_one_rank_arrive_on_every_rank(threads):
    arrays = [np.zeros(300, "f4") for _ in range(4)]
    arrays[2][5], arrays[1][299], arrays[3][299] = np.nan, np.inf, -np.inf

    def body(session, rank):
        results = []
        for op in ("mean", "min", "max", "prod"):
            mine = arrays[rank].copy()
            session.allreduce([buffer(mine)], op)
            results.append(mine)
        return results

    for mean, low, high, product in threads(4, body):
        assert np.isnan(mean[[5, 299]]).all()
        assert np.isnan(low[5]) and low[299] == -np.inf
        assert np.isnan(high[5]) and high[299] == np.inf
        assert np.isnan(product[[5, 299]]).all()


def test_many_arrays_of_mixed_types_in_one_call(threads):
    shapes = [(0, "f4"), (3, "f4"), (70_000, "f8"), (1, "f2"), (12_345, "f4"), (2, "i8"), (0, "f8")]

    def body(session, rank):
        mine = [np.full(count, rank, dtype) for count, dtype in shapes]
        session.allreduce([buffer(array) for array in mine], "sum")
        return mine

    for hosts in ([], ["a", "b", "a"]):
        for result in threads(3, body, hosts=hosts):
            for array in result:
                assert np.all(array == 3)


def test_calls_back_to_back_reuse_the_stage_without_mixing_their_data(threads):
    def body(session, rank):
        rng = np.random.default_rng(5)  # the same on all ranks
        for step in range(300):
            mine = np.full(int(rng.integers(0, 20_000)), rank + step, "f4")
            session.allreduce([buffer(mine)], "sum")
            if not np.all(mine == 3 * step + 3):
                return step
        return "right"

    assert threads(3, body, stage_kb=4) == ["right"] * 3


def test_arrays_in_the_arena_are_reduced_where_they_lie(threads):
    def body(session, rank):
        memory = np.frombuffer(session.arena(40_000), "f4")
        other = np.frombuffer(session.arena(100), "f4")
        for step in range(20):
            memory[:], other[:] = rank + step, rank
            session.allreduce([buffer(memory[:5001]), buffer(memory[6000:]), buffer(other[3:9])], "sum")
            assert np.all(memory[:5001] == 6 + 4 * step) and np.all(memory[6000:] == 6 + 4 * step)
            assert np.all(memory[5001:6000] == rank + step)
            assert np.all(other[3:9] == 6) and np.all(other[:3] == rank)
        return True

    for hosts in ([], ["a", "b", "a", "b"], ["a", "a", "a", "b"]):
        for shared_memory in ("threads", "memfd", "shm"):
            assert threads(4, body, hosts=hosts, shared_memory=shared_memory) == [True] * 4


def test_one_rank_outside_the_arena_sends_all_through_the_stage(threads):
    def body(session, rank):
        memory = np.frombuffer(session.arena(80_000), "f8")
        mine = memory if rank != 1 else np.empty(10_000)
        mine[:] = rank
        session.allreduce([buffer(mine)], "mean")
        return np.all(mine == 1)

    assert all(threads(3, body))


def test_several_threads_of_a_team_share_a_long_message(threads):
    arrays = [np.random.default_rng(rank).normal(size=400_001).astype("f4") for rank in range(2)]

    def body(session, rank):
        session.create_team(1, 3)
        mine = arrays[rank].copy()
        session.allreduce([buffer(mine)], "sum", 1)
        return mine

    for result in threads(2, body):
        np.testing.assert_array_equal(result, rank_order(arrays))


def test_started_reductions_are_done_in_order_and_waited_for_in_any(threads):
    def body(session, rank):
        arrays = [np.full(1000, rank + step, "f4") for step in range(8)]
        tickets = [session.start([buffer(array)], "sum", 0) for array in arrays]
        session.barrier()
        for ticket in reversed(tickets):
            session.wait(ticket)
        return all(np.all(array == 1 + 2 * step) for step, array in enumerate(arrays))

    assert threads(2, body) == [True, True]


def test_two_teams_reduce_at_once_from_two_threads_of_each_rank(threads):
    import threading

    def body(session, rank):
        right = []

        def reduce_on(team):
            for step in range(30):
                mine = np.full(3000, rank * (team + 1) + step, "f4")
                session.allreduce([buffer(mine)], "sum", team)
                right.append(np.all(mine == team + 1 + 2 * step))

        both = [threading.Thread(target=reduce_on, args=(team,)) for team in range(2)]
        for one in both if rank == 0 else reversed(both):
            one.start()
        for one in both:
            one.join()
        return len(right) == 60 and all(right)

    assert threads(2, body) == [True, True]


@pytest.mark.parametrize("pattern", HOSTS)
@pytest.mark.parametrize("root", [0, 2, 4])
def test_broadcast_gives_every_rank_the_values_of_the_root(threads, pattern, root):
    def body(session, rank):
        mine = [np.full(30_000, rank, "f4"), np.full(0, rank, "f8"), np.full(3, rank, "i2")]
        session.broadcast([buffer(array) for array in mine], root)
        return all(np.all(array == root) for array in mine)

    assert threads(5, body, hosts=hosts_for(5, pattern)) == [True] * 5


def test_bytes_are_broadcast_and_gathered(threads):
    def body(session, rank):
        return session.broadcast_bytes(b"x" * rank, 2), session.allgather_bytes(bytes([rank]) * rank)

    for text, all_texts in threads(4, body, hosts=["a", "b", "b", "a"]):
        assert text == b"xx"
        assert all_texts == [bytes([rank]) * rank for rank in range(4)]


def test_all_kernels_round_every_bfloat16_mean_alike(threads):
    here = _core.kernels()
    every = np.arange(65536, dtype="u4").astype("u2")  # all bit patterns, infinities and NaNs too
    arrays = [every, np.roll(every, 12_345), np.roll(every, 777)]
    seen = {}
    try:
        for kernels in ("portable", "avx2", "avx512"):
            if not _core.use_kernels(kernels):
                continue
            for n in (2, 3):

                def body(session, rank):
                    mine = arrays[rank].copy()
                    session.allreduce([(mine.ctypes.data, mine.size, "bfloat16")], "mean")
                    exponent, fraction = mine & 0x7F80, mine & 0x7F
                    mine[(exponent == 0x7F80) & (fraction != 0)] = 0x7FC0  # one NaN is as good as another
                    return mine.tobytes()

                seen.setdefault(n, set()).update(threads(n, body))
    finally:
        _core.use_kernels(here)
    assert [len(bits) for bits in seen.values()] == [1, 1]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integer_means_round_towards_zero(threads, n, dtype):
    arrays = [np.arange(-100, 100, dtype=dtype) // (rank + 1) for rank in range(n)]

    def body(session, rank):
        mine = arrays[rank].copy()
        session.allreduce([buffer(mine)], "mean")
        return mine

    total = np.sum([array.astype("i8") for array in arrays], axis=0)
    for result in threads(n, body):
        np.testing.assert_array_equal(result, np.trunc(total / n).astype(dtype))
