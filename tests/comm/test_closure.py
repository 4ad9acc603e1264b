"""Variables that a function shares with the function around it."""

from __future__ import annotations

import threading

import pytest
from dl_comm.reduction.closure import closure


def counter():
    total, names = 0, []

    def add(number, name=""):
        nonlocal total
        total += number
        names.append(name)
        return total

    return add


def test_a_shared_variable_is_read_and_set():
    add = counter()
    add(3)
    assert closure(add).total == 3
    closure(add).total = 10
    assert add(1) == 11
    assert closure(add).names == ["", ""]


def test_each_function_that_was_made_has_its_own():
    one, other = counter(), counter()
    closure(one).total = 5
    assert (one(0), other(0)) == (5, 0)


def test_a_variable_that_is_not_shared_is_named_with_those_that_are():
    with pytest.raises(AttributeError, match="no variable 'count' around the function; it has names, total"):
        _ = closure(counter()).count
    with pytest.raises(AttributeError, match="no variable 'count'"):
        closure(counter()).count = 1


def test_a_function_of_its_own_shares_nothing():
    with pytest.raises(AttributeError, match="no variable 'total'"):
        _ = closure(counter).total


def test_what_one_thread_sets_the_function_sees_in_another():
    add, found = counter(), []
    closure(add).total = 7
    thread = threading.Thread(target=lambda: found.append(add(1)))
    thread.start()
    thread.join()
    assert found == [8] and closure(add).total == 8


RANKS = """
    import dl_comm.torch as dl
    dl.init()
    rank, n = dl.get_rank(), dl.get_nranks()
    def meter():
        total = 0
        def add(number):
            nonlocal total
            total += number
            return total
        return add
    add = meter()
    for k in range(rank + 1):
        add(k + 1)
    dl.closure(add).total = dl.total(dl.closure(add).total)
    assert add(0) == sum((r + 1) * (r + 2) // 2 for r in range(n)), add(0)
    print("rank", rank, "is right", flush=True)
"""


@pytest.mark.parametrize("n", [2, 3])
def test_what_ranks_added_up_behind_a_function_is_summed(job, any_mpi, n):
    pytest.importorskip("torch")
    ended = job(any_mpi, n, RANKS)
    assert ended.lines("rank") == [f"rank {rank} is right" for rank in range(n)], ended.output
