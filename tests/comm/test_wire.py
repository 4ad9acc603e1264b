"""The allreduce between nodes: every algorithm, any number of nodes, any length, and the table that chooses."""

from __future__ import annotations

import numpy as np
import pytest

ALGORITHMS = ["doubling", "halving", "ring", "pairwise", "mpi"]  # threads have no MPI: there it means halving
DTYPES = {"float32": "f4", "float64": "f8", "int64": "i8", "float16": "f2", "int8": "i1"}


def means(threads, n, wire, arrays, **how):
    """Return the mean that each rank got of arrays[rank], each a node of its own unless ``hosts`` says more."""
    hosts = how.pop("hosts", [f"node{rank}" for rank in range(n)])

    def body(session, rank):
        mine = arrays[rank].copy()
        session.allreduce([(mine.ctypes.data, mine.size, mine.dtype.name)], "mean")
        return mine

    results = threads(n, body, hosts=hosts, wire=wire, pipeline_chunk_kb=how.pop("pipeline_chunk_kb", 256), **how)
    assert all(isinstance(result, np.ndarray) for result in results), results
    return results


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 12, 13])
def test_every_algorithm_gives_all_nodes_the_same_bits_of_the_right_mean(threads, algorithm, n):
    for length in (1, n - 1, n + 1, 1000, 40_003):
        arrays = [np.random.default_rng(rank).normal(size=length).astype("f4") for rank in range(n)]
        results = means(threads, n, f"*:{algorithm}", arrays)
        assert np.allclose(results[0], np.mean(np.array(arrays, "f8"), axis=0), atol=1e-5)
        assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("pattern", ["aab", "abbb", "aabbcc", "abcabcab", "aaab"])
def test_nodes_with_different_numbers_of_ranks_agree_too(threads, algorithm, pattern):
    n = len(pattern)
    for length in (1, 5, 20_001):
        arrays = [np.random.default_rng(rank).normal(size=length) for rank in range(n)]
        results = means(threads, n, f"*:{algorithm}", arrays, hosts=list(pattern), pipeline_chunk_kb=1, stage_kb=4)
        assert np.allclose(results[0], np.mean(arrays, axis=0))
        assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("wire_ranks", [1, 2, 9])
@pytest.mark.parametrize("pattern", ["aabbcc", "aaabbb", "aaab"])
def test_fewer_ranks_of_a_node_may_talk_for_all(threads, pattern, wire_ranks):
    n = len(pattern)
    for length in (1, 20_001):
        arrays = [np.random.default_rng(rank).normal(size=length) for rank in range(n)]
        how = {"hosts": list(pattern), "pipeline_chunk_kb": 1, "stage_kb": 4, "wire_ranks": wire_ranks}
        results = means(threads, n, "", arrays, **how)
        assert np.allclose(results[0], np.mean(arrays, axis=0))
        assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_types_cross_the_wire_in_their_accumulators(threads, dtype):
    arrays = [(np.arange(3001) % 5 + rank * 2).astype(DTYPES[dtype]) for rank in range(4)]
    results = means(threads, 4, "1024:doubling,*:halving", arrays, hosts=list("abab"))
    assert all(np.array_equal(result, (np.arange(3001) % 5 + 3).astype(DTYPES[dtype])) for result in results)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("op", ["min", "max", "prod"])
def test_operations_other_than_the_sum_cross_the_wire(threads, algorithm, op):
    arrays = [np.random.default_rng(rank).uniform(0.5, 2, size=2000) for rank in range(6)]
    arrays[4][7] = np.nan
    expected = {"min": np.min, "max": np.max, "prod": np.prod}[op](arrays, axis=0)

    def body(session, rank):
        session.allreduce([(arrays[rank].ctypes.data, 2000, "float64")], op)
        return np.allclose(arrays[rank], expected, equal_nan=True)

    assert threads(6, body, hosts=list("aabbcc"), wire=f"*:{algorithm}") == [True] * 6


@pytest.mark.parametrize("hosts", ["aabb", "abab", "abcd", "aaab"])
def test_many_arrays_of_the_arena_share_the_wire(threads, hosts):
    def body(session, rank):
        memory = np.frombuffer(session.arena(120_000), "f4")
        pieces = [
            memory[first : first + length] for first, length in ((0, 7), (100, 9000), (9200, 1), (10_000, 19_000))
        ]
        for step in range(3):
            for piece in pieces:
                piece[:] = np.arange(piece.size) + rank * 2 + step
            session.allreduce([(piece.ctypes.data, piece.size, "float32") for piece in pieces], "mean")
            session.barrier()
            for piece in pieces:
                if not np.array_equal(piece, np.arange(piece.size, dtype="f4") + 3 + step):
                    return piece
        return True

    assert threads(4, body, hosts=list(hosts), pipeline_chunk_kb=4) == [True] * 4


@pytest.mark.parametrize("pattern", ["ab", "aabb", "abcd", "aabbcc", "aaab"])
@pytest.mark.parametrize("wire", ["", "timed"])
def test_ways_that_take_turns_are_all_right_and_the_ranks_agree_on_one(threads, pattern, wire):
    n = len(pattern)
    arrays = {
        length: [np.random.default_rng(rank).normal(size=length).astype("f4") for rank in range(n)]
        for length in (500, 60_000, 200_001)
    }

    def body(session, rank):
        found, kinds = [], set()
        for _ in range(26):
            for length, those in arrays.items():
                mine = those[rank].copy()
                session.allreduce([(mine.ctypes.data, mine.size, "float32")], "mean")
                assert np.allclose(mine, np.mean(np.array(those, "f8"), axis=0), atol=1e-5)
                kinds.add((length, mine.tobytes()))
            found.append(session.wire())
        return found, kinds

    results = threads(n, body, hosts=list(pattern), wire=wire, stage_kb=64)
    assert all(isinstance(result, tuple) for result in results), results
    assert all(result == results[0] for result in results)
    found, kinds = results[0]
    if wire == "" or pattern == "aaab":  # those who talk to nobody cannot take turns
        assert len(kinds) == len(arrays)  # the same bits whatever was tried
    timed = pattern != "aaab" and (wire == "timed" or len(set(pattern)) == 2)
    assert (found[0], bool(found[-1])) == ("", timed)
    if timed:
        again = means(threads, n, found[-1], arrays[200_001], hosts=list(pattern))
        assert np.allclose(again[0], np.mean(np.array(arrays[200_001], "f8"), axis=0), atol=1e-5)


@pytest.mark.parametrize(
    "table",
    ["ring", "*:tree", "100:ring", "*:ring,*:ring", "9:ring,4:halving,*:mpi", "0:ring,*:mpi", "*:ring,", "-1:ring"],
)
def test_a_table_that_cannot_be_is_refused_and_shown(table):
    from dl_comm import CommError, _core

    with pytest.raises(CommError, match=r"DL_COMM_WIRE is .* is no rule"):
        _core.local_sessions(2, wire=table)


HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # what one rounding changes, at most, relatively


def summed_error(arrays, result):
    """Return the largest error of a mean, relative to what was summed."""
    wide = np.array(arrays, "f8")
    return np.max(np.abs(result - wide.mean(axis=0)) / np.abs(wide).mean(axis=0).max())


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("n", [2, 3, 4, 6, 7, 8, 13])
def test_packed_sums_are_the_same_bits_everywhere_and_rounded_once_a_round(threads, half, n):
    for length in (3000, 40_003):
        arrays = [np.random.default_rng(rank).normal(size=length).astype("f4") for rank in range(n)]
        results = means(threads, n, "", arrays, wire_dtype=half)
        assert all(np.array_equal(result, results[0]) for result in results)
        assert 0 < summed_error(arrays, results[0]) < (np.log2(n) + 1) * HALVES[half]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("pattern", ["aab", "abcabcab", "aaab"])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_packed_sums_of_uneven_nodes_agree_too(threads, half, pattern, dtype):
    n = len(pattern)
    arrays = [np.random.default_rng(rank).normal(size=50_001).astype(dtype) for rank in range(n)]
    results = means(threads, n, "", arrays, hosts=list(pattern), stage_kb=4, wire_dtype=half)
    assert all(np.array_equal(result, results[0]) for result in results)
    assert summed_error(arrays, results[0]) < 3 * HALVES[half]


def test_packed_as_float16_neither_large_sums_nor_small_gradients_are_lost(threads):
    for scale in (1e-42, 1e-30, 1e-8, 1.0, 1e5, 1e30):
        arrays = [np.full(5000, scale, "f4") for _ in range(4)]
        result = means(threads, 4, "", arrays, wire_dtype="float16")[0]
        np.testing.assert_allclose(result, arrays[0], rtol=2e-3, atol=1.5e-45)


@pytest.mark.parametrize("half", HALVES)
def test_inf_and_nan_pass_packed_and_spoil_nothing_else(threads, half):
    arrays = [np.ones(5000, "f4") for _ in range(4)]
    arrays[1][7], arrays[2][8], arrays[3][4999] = np.inf, np.nan, -np.inf
    for result in means(threads, 4, "", arrays, wire_dtype=half):
        assert result[7] == np.inf and np.isnan(result[8]) and result[4999] == -np.inf
        assert np.count_nonzero(result == 1) == 4997


@pytest.mark.parametrize("half", HALVES)
def test_what_is_no_float32_sum_or_is_small_crosses_the_wire_as_it_is(threads, half):
    rng = np.random.default_rng(3)
    for dtype, length in (("f8", 5000), ("i8", 5000), ("f4", 500)):
        arrays = [(rng.normal(size=length) * 1000).astype(dtype) for _ in range(4)]
        packed = means(threads, 4, "*:halving", arrays, wire_dtype=half)
        plain = means(threads, 4, "8192:doubling,*:halving", arrays)
        assert np.allclose(packed[0], plain[0], rtol=1e-6)

    def largest(session, rank):
        mine = np.full(5000, 1.0 + rank * 1e-6, "f4")
        session.allreduce([(mine.ctypes.data, mine.size, "float32")], "max")
        return mine[0] == np.float32(1.0 + 3e-6)

    assert threads(4, largest, hosts=list("abcd"), wire_dtype=half) == [True] * 4


@pytest.mark.parametrize("pattern", ["aab", "aabb", "abab", "aaab", "aabbcc", "aabbccddee"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4"])
def test_little_and_much_data_of_nodes_with_several_ranks_take_turns(threads, pattern, dtype):
    n = len(pattern)

    def body(session, rank):
        for step, length in enumerate((1, 700, 1024, 1025, 3, 20_000, 40, 16_384, 5)):
            mine = (np.arange(length) % 7 + 2 * rank + step).astype(dtype)
            session.allreduce([(mine.ctypes.data, mine.size, mine.dtype.name)], "mean")
            if not np.array_equal(mine, (np.arange(length) % 7 + n - 1 + step).astype(dtype)):
                return length, mine
        return True

    assert threads(n, body, hosts=list(pattern), stage_kb=4) == [True] * n
    assert threads(n, body, hosts=list(pattern)) == [True] * n


@pytest.mark.parametrize("pattern", ["aab", "aabb", "aabbcc"])
def test_ranks_of_a_node_that_bring_other_little_data_are_told_and_go_on(threads, pattern):
    n = len(pattern)

    def body(session, rank):
        from dl_comm import CommError

        said = []
        for odd_one in range(n):
            odd = np.ones(10 + (rank == odd_one), "f4")
            try:
                session.allreduce([(odd.ctypes.data, odd.size, "float32")], "sum")
            except CommError as error:
                said.append("the ranks do not agree" in str(error) and bool(np.all(odd == 1)))
            right = np.ones(10, "f4")
            session.allreduce([(right.ctypes.data, right.size, "float32")], "sum")
            said.append(bool(np.all(right == n)))
        return said

    assert threads(n, body, hosts=list(pattern)) == [[True] * 2 * n] * n
