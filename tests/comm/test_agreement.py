"""Ranks that do not make the same call get the same error, at once; ranks that never come are named."""

from __future__ import annotations

import time

import numpy as np
import pytest
from dl_comm.errors import CommError

HOSTS = {"one node": [], "two nodes": ["a", "b", "a"], "every rank its own": ["a", "b", "c"]}


def buffer(array):
    return (array.ctypes.data, array.size, array.dtype.name)


def texts(results):
    assert all(isinstance(result, CommError) for result in results), results
    return [str(result) for result in results]


@pytest.mark.parametrize("pattern", HOSTS)
@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (
            lambda rank: [("w", np.zeros((3, 4 if rank == 2 else 5), "f4"))],
            ["w (3, 5)", "w (3, 4)", "rank 0", "rank 2"],
        ),
        (lambda rank: [("w", np.zeros((4, 3) if rank == 1 else (3, 4), "f4"))], ["(4, 3)", "(3, 4)", "rank 1"]),
        (lambda rank: [("w", np.zeros(7, "f8" if rank == 1 else "f4"))], ["float64", "float32", "rank 1"]),
        (
            lambda rank: [(name, np.zeros(7, "f4")) for name in ("ab" if rank else "ba")],
            ["b (7,)", "a (7,)", "array 0"],
        ),
        (
            lambda rank: [("w", np.zeros(7, "f4"))] * (1 + rank % 2),
            ["passes 1 array,", "2 arrays", "array 1", "nothing"],
        ),
    ],
    ids=["length", "shape", "type", "order", "number"],
)
def test_different_arrays_are_an_error_on_every_rank_that_names_the_first_that_differs(threads, pattern, mine, said):
    def body(session, rank):
        named = mine(rank)
        session.allreduce(
            [buffer(array) for _, array in named], "mean", 0, [f"{name} {array.shape}" for name, array in named]
        )

    found = texts(threads(3, body, hosts=HOSTS[pattern]))
    for text in found:
        for words in said:
            assert words in text
        assert "team 0" in text and "call 0" in text
    assert len({text.split("do not agree: ")[1] for text in found}) == 1


@pytest.mark.parametrize("pattern", HOSTS)
def test_after_a_disagreement_the_ranks_can_go_on(threads, pattern):
    def body(session, rank):
        for length in (5, 6 + rank, 7):
            mine = np.full(length, rank, "f4")
            try:
                session.allreduce([buffer(mine)], "sum")
            except CommError:
                assert length >= 6
        return np.all(mine == 3)

    assert all(threads(3, body, hosts=HOSTS[pattern]))


@pytest.mark.parametrize("pattern", HOSTS)
@pytest.mark.parametrize("other", ["nothing", "a barrier", "a broadcast", "in chunks"])
def test_after_one_rank_made_another_call_results_are_right(threads, pattern, other):
    def body(session, rank):
        mine = np.zeros({"nothing": 0, "in chunks": 20_000}.get(other, 3) if rank == 1 else 3, "f4")
        with pytest.raises(CommError, match="the ranks do not agree"):
            if rank == 1 and other == "a barrier":
                session.barrier()
            elif rank == 1 and other == "a broadcast":
                session.broadcast([buffer(mine)], 0)
            else:
                session.allreduce([buffer(mine)], "sum")
        for step in range(7):
            mine = np.full(9000 if step == 3 else 7, rank + step, "f4")
            session.allreduce([buffer(mine)], "sum")
            assert np.all(mine == 3 + 3 * step), step
        return True

    assert threads(3, body, hosts=HOSTS[pattern]) == [True] * 3


def test_different_calls_are_named(threads):
    def body(session, rank):
        mine = np.zeros(3, "f4")
        if rank == 1:
            session.barrier()
        else:
            session.allreduce([buffer(mine)], "mean")

    for text in texts(threads(2, body)):
        assert "rank 0 calls allreduce (mean), rank 1 calls barrier" in text


def test_different_operations_are_named(threads):
    def body(session, rank):
        mine = np.zeros(3, "f4")
        session.allreduce([buffer(mine)], "sum" if rank else "mean")

    for text in texts(threads(2, body)):
        assert "rank 0 calls allreduce (mean), rank 1 calls allreduce (sum)" in text


@pytest.mark.parametrize("pattern", ["one node", "every rank its own"])
def test_a_rank_that_never_comes_is_named_with_team_call_and_array_in_time(threads, pattern):
    def body(session, rank):
        mine = np.zeros(3, "f4")
        for step in range(3):
            if rank == 1 and step == 2:
                return
            session.allreduce([buffer(mine)], "mean", 0, ["layer.weight (3,)"])
        return

    begun = time.monotonic()
    results = threads(2, body, hosts=HOSTS[pattern][:2], timeout_s=1.5)
    assert 1.4 < time.monotonic() - begun < 30
    for words in ("rank 1 has not", "1.5" if pattern == "one node" else "", "team 0", "call 2", "layer.weight (3,)"):
        assert words in str(results[0])


def test_a_rank_that_has_left_is_named_at_once(threads):
    def body(session, rank):
        session.barrier()
        if rank == 1:
            session.finalize(False)
            return
        session.barrier()

    begun = time.monotonic()
    results = threads(2, body, timeout_s=100)
    assert time.monotonic() - begun < 30
    assert "rank 1 has left" in str(results[0])


def test_the_failure_of_one_rank_reaches_the_others_with_its_words(threads):
    def body(session, rank):
        session.barrier()
        if rank == 1:
            session.fail("rank 1 ended with ValueError: no such file")
            return
        session.barrier()

    results = threads(3, body, timeout_s=100)
    for rank in (0, 2):
        assert "no such file" in str(results[rank])


def test_a_team_that_failed_says_so_at_the_next_call(threads):
    def body(session, rank):
        session.barrier()
        if rank == 1:
            return
        for _ in range(2):
            try:
                session.barrier()
            except CommError as error:
                last = error
        raise last

    assert "failed before this call" in str(threads(2, body, timeout_s=1.5)[0])


@pytest.mark.parametrize(
    "call", [lambda s: s.create_team(500, 1), lambda s: s.create_team(1, 0), lambda s: s.broadcast([], 9)]
)
def test_arguments_out_of_range_are_refused_with_the_range(threads, call):
    for text in texts(threads(2, lambda session, rank: call(session))):
        assert " to " in text


def test_unknown_types_and_operations_are_refused_with_those_there_are(threads):
    def body(session, rank):
        session.allreduce([(0, 0, "complex64")], "mean")

    assert "bfloat16" in texts(threads(1, body))[0]
    assert "prod" in texts(threads(1, lambda session, rank: session.allreduce([], "median")))[0]


def test_on_several_nodes_every_rank_hears_which_rank_of_another_node_is_silent(threads):
    def body(session, rank):
        session.barrier()
        if rank == 3:
            return
        session.allreduce([buffer(np.zeros(50_000, "f4"))], "mean", 0, ["w (50000,)"])

    results = threads(4, body, hosts=["a", "a", "b", "b"], timeout_s=1.5)
    for text in texts(results[:3]):
        assert "w (50000,)" in text
    assert "rank 3 has not come" in str(results[2])
