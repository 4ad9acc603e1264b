"""Nodes of one rank each: the mean straight from the caller's memory, little data along with the agreement."""

from __future__ import annotations

import numpy as np
import pytest

LENGTHS = (1, 500, 5000, 20_001, 300_003)  # with the agreement, partly with it, in several pieces


def reduced(threads, arrays, op="mean", **how):
    """Return what each rank's list of arrays became, every rank a node of its own."""

    def body(session, rank):
        mine = [array.copy() for array in arrays[rank]]
        session.allreduce([(array.ctypes.data, array.size, array.dtype.name) for array in mine], op)
        return mine

    n = len(arrays)
    results = threads(n, body, hosts=[f"node{rank}" for rank in range(n)], **how)
    assert all(isinstance(result, list) for result in results), results
    for others in results[1:]:
        assert all(np.array_equal(one, other) for one, other in zip(results[0], others, strict=True))
    return results[0]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_every_rank_holds_the_same_bits_of_the_right_mean(threads, n, dtype):
    for length in LENGTHS:
        arrays = [[np.random.default_rng(rank).normal(size=length).astype(dtype)] for rank in range(n)]
        expected = np.mean(np.array([array[0] for array in arrays], "f8"), axis=0)
        close = {"rtol": 2e-3 if dtype == "f2" else 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(reduced(threads, arrays)[0], expected, **close)


def test_two_ranks_add_halves_in_float32_and_round_once(threads):
    for length in LENGTHS:
        arrays = [[np.random.default_rng(rank).normal(size=length).astype("f2")] for rank in range(2)]
        expected = ((arrays[0][0].astype("f4") + arrays[1][0].astype("f4")) / 2).astype("f2")
        assert np.array_equal(reduced(threads, arrays)[0], expected)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("op", ["min", "max", "prod", "sum", "mean"])
def test_integers_and_every_operation_are_exact(threads, n, op):
    of = {"min": np.min, "max": np.max, "prod": np.prod, "sum": np.sum, "mean": np.sum}[op]
    for dtype in ("i1", "i4", "i8"):
        arrays = [[(np.arange(70_001) % 3 + rank % 2).astype(dtype)] for rank in range(n)]
        expected = of(np.array([array[0] for array in arrays], "i8"), axis=0) // (n if op == "mean" else 1)
        assert np.array_equal(reduced(threads, arrays, op)[0], expected.astype(dtype))


@pytest.mark.parametrize("n", [2, 3])
def test_many_arrays_of_several_types_lie_anywhere(threads, n):
    counts = [3, 0, 40_000, 1, 65_537, 100, 9000]
    types = ["f4", "f4", "f4", "f8", "f4", "f2", "f4"]
    arrays = [
        [(np.arange(count) % 50 + rank * 2).astype(dtype) for count, dtype in zip(counts, types, strict=True)]
        for rank in range(n)
    ]
    for count, array in zip(counts, reduced(threads, arrays), strict=True):
        assert np.array_equal(array, (np.arange(count) % 50 + n - 1).astype(array.dtype))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_ranks_that_disagree_all_say_so_and_go_on(threads, n):
    def body(session, rank):
        from dl_comm import CommError

        said = []
        for length in (10, 20_000, 400_000):  # one rank brings another length, and so another cargo
            odd = np.ones(length + 7 * (rank == n - 1), "f4")
            try:
                session.allreduce([(odd.ctypes.data, odd.size, "float32")], "sum")
            except CommError as error:
                said.append(f"{length + 7} elements on rank {n - 1}" in str(error))
            short_or_long = np.ones(10 if rank == 0 else 400_000, "f4")
            try:
                session.allreduce([(short_or_long.ctypes.data, short_or_long.size, "float32")], "sum")
            except CommError as error:
                said.append("10 elements on rank 0" in str(error) and bool(np.all(short_or_long == 1)))
            right = np.ones(length, "f4")
            session.allreduce([(right.ctypes.data, right.size, "float32")], "sum")
            said.append(bool(np.all(right == n)))
        return said

    assert threads(n, body, hosts=[f"node{rank}" for rank in range(n)]) == [[True] * 9] * n


KINDS = (0, 10, 2047, 2048, 20_000, 65_536, 65_537, 400_000)  # nothing, with the claim, behind it, afterwards


@pytest.mark.parametrize("one", KINDS)
def test_two_ranks_that_bring_data_in_other_ways_are_told_and_go_on(threads, one):
    def body(session, rank):
        from dl_comm import CommError

        said = []
        for other in KINDS:
            brought = np.full((one, other)[rank], rank, "f4")
            halves = [
                np.full(length, rank, "f4") for length in (brought.size // 3, 9, brought.size - brought.size // 3)
            ]
            for arrays in ([brought], halves):
                before = [array.copy() for array in arrays]
                try:
                    session.allreduce([(array.ctypes.data, array.size, "float32") for array in arrays], "sum")
                    said.append(one == other and all(bool(np.all(array == 1)) for array in arrays))
                except CommError as error:
                    kept = all(np.array_equal(array, old) for array, old in zip(arrays, before, strict=True))
                    said.append(one != other and "the ranks do not agree" in str(error) and kept)
            with pytest.raises(CommError, match="rank 0 calls barrier, rank 1 calls allreduce"):
                if rank == 0:
                    session.barrier()
                else:
                    session.allreduce([(brought.ctypes.data, brought.size, "float32")], "sum")
        return said

    assert threads(2, body, hosts=["a", "b"]) == [[True] * 2 * len(KINDS)] * 2
