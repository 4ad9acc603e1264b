"""What was there before a loop over a shard counts once: snapshots, and what a loop has added to them."""

from __future__ import annotations

from collections import Counter, defaultdict, deque

import numpy as np
import pytest
from dl_comm.reduction.since import added, changed, grown, joined, merged, of_kind, put_back, snapshot


def test_a_snapshot_does_not_change_with_what_it_was_taken_of():
    rows, sums, seen, last = [[1], [2]], {"loss": [1.0], "n": np.zeros(2)}, {1, 2}, deque([[1]], 5)
    before = snapshot(rows, sums, seen, last)
    rows[0].append(9)
    rows.append([3])
    sums["loss"][0] += 1
    sums["n"] += 1
    sums["new"] = 1
    seen.add(3)
    last[0].append(2)
    assert before[0] == [[1], [2]]
    assert before[1]["loss"] == [1.0] and before[1]["n"].tolist() == [0, 0] and "new" not in before[1]
    assert before[2:] == ({1, 2}, deque([[1]]))


def test_a_snapshot_of_one_value_is_no_tuple_and_keeps_the_kind():
    assert snapshot(3) == 3
    counts = snapshot(Counter(a=2))
    assert type(counts) is Counter and counts == {"a": 2}
    assert snapshot(defaultdict(list, a=[1]))["b"] == []


def test_a_snapshot_of_a_tensor_is_detached_and_apart():
    torch = pytest.importorskip("torch")
    total = torch.ones(2, requires_grad=True) * 2
    before = snapshot(total)
    total.data += 1
    assert before.tolist() == [2, 2] and not before.requires_grad


VALUES = [
    (3, 10, 7),
    (1.5, 4.0, 2.5),
    ([1, 2], [4, 2], [3, 0]),
    ((1, 2.0), (4, 2.5), (3, 0.5)),
    ({"a": 1}, {"a": 3, "b": 5}, {"a": 2, "b": 5}),
    ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 6}]}, {"a": [0, {"b": 4}]}),
    ([1], [3, 7], [2, 7]),
    (Counter(x=1), Counter(x=2, y=1), Counter(x=1, y=1)),
    (None, 4, 4),
    ({"name": "a", "n": 1}, {"name": "a", "n": 4}, {"name": "a", "n": 3}),
]


@pytest.mark.parametrize(("before", "value", "more"), VALUES)
def test_what_was_added_is_told_by_number_by_entry_and_by_key(before, value, more):
    found = added(value, before)
    assert found == more and type(found) is type(more)
    again = put_back(found, before)
    assert again == value and type(again) is type(value)


def test_arrays_and_what_is_added_to_them():
    before, value = np.array([1.0, 2.0]), np.array([4.0, 2.0])
    assert added(value, before).tolist() == [3, 0]
    assert put_back(np.array([6.0, 1.0]), before).tolist() == [7, 3]


def test_a_key_that_other_ranks_alone_have_added_counts_whole():
    assert put_back({"a": 4, "b": 2}, {"a": 1}) == {"a": 5, "b": 2}


ENTRIES = [
    ([1, 2], [1, 2, 3], [3]),
    ((1,), (1, 2, 3), (2, 3)),
    ({1}, {1, 4}, {4}),
    ({"a": [1]}, {"a": [1, 2], "b": [3]}, {"a": [2], "b": [3]}),
    (deque([1], 9), deque([1, 2], 9), deque([2], 9)),
]


@pytest.mark.parametrize(("before", "value", "more"), ENTRIES)
def test_entries_that_a_loop_has_appended_are_taken_off_and_joined_again(before, value, more):
    found = grown(value, before)
    assert found == more and type(found) is type(more)
    again = joined(before, found)
    assert again == value and type(again) is type(value)


def test_a_deque_keeps_its_length():
    assert joined(deque([1, 2], 3), deque([3, 4], 3)) == deque([2, 3, 4], 3)
    assert joined(deque([1], 3), deque([3], 3)).maxlen == 3


def test_rows_of_arrays_and_tensors_are_joined():
    torch = pytest.importorskip("torch")
    for make in (np.array, torch.tensor):
        before, value = make([[1.0], [2.0]]), make([[1.0], [2.0], [3.0]])
        more = grown(value, before)
        assert more.tolist() == [[3]]
        assert joined(before, more).tolist() == [[1], [2], [3]]


RANKS = """
    from collections import Counter
    import numpy as np, torch
    import dl_comm.torch as dl
    dl.init()
    rank, n = dl.get_rank(), dl.get_nranks()
    total, seen, sums, rows = 100.0, Counter(a=10), torch.full((2,), 5.0), [0, 0]
    before = dl.snapshot(total, seen, sums)
    kept = dl.snapshot(rows)
    for k in range(rank + 1):
        total += 1
        seen["b" if rank else "a"] += 1
        sums = sums + 1
        rows.append(10 * rank + k)
    total, seen, sums = dl.total(total, seen, sums, since=before)
    rows = dl.gather(rows, since=kept)
    added = n * (n + 1) // 2
    assert total == 100 + added, total
    assert dict(seen) == {"a": 11, "b": added - 1}, seen
    assert sums.tolist() == [5 + added] * 2, sums
    assert rows == [0, 0, *(10 * r + k for k in range(n) for r in range(k, n))], rows
    print("rank", rank, "is right", flush=True)
"""


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.wide("2")
def test_what_was_there_before_counts_once_on_ranks(job, any_mpi, n):
    pytest.importorskip("torch")
    ended = job(any_mpi, n, RANKS)
    assert ended.lines("rank") == [f"rank {rank} is right" for rank in range(n)], ended.output


def test_a_snapshot_of_an_object_keeps_its_lists_as_they_were():
    class Metric:
        def __init__(self):
            self.all, self.n = [1], np.zeros(2)

    metric = Metric()
    before = snapshot([metric])[0]
    metric.all.append(2)
    metric.n += 1
    assert before.all == [1] and before.n.tolist() == [0, 0] and grown(metric.all, before.all) == [2]


def test_what_was_marked_as_unset_takes_the_value_of_the_rank_that_set_it():
    before, nan = np.array([np.nan, np.nan, np.nan, 1.0]), np.nan
    shares = [np.array([2.0, nan, nan, 1.5]), np.array([nan, -3.0, nan, 1.25])]
    total = sum(added(share, before) for share in shares)
    np.testing.assert_array_equal(put_back(total, before), [2.0, -3.0, nan, 1.75])


def test_what_has_changed_in_a_dict_by_key_is_told_by_its_numbers():
    before = {"old": [1, np.nan], "array": np.array([np.nan, 2.0]), "set": {"in": 1, "out": 2}}
    now = {"old": [1, before["old"][1]], "array": np.array([np.nan, 2.0]), "set": {"in": 1, "out": 3}, "new": (4,)}
    assert changed(now, before) == {"set": {"out": 3}, "new": (4,)}
    assert merged({"set": {"in": 1, "out": 2}, "old": 5}, changed(now, before)) == {
        "set": {"in": 1, "out": 3},
        "old": 5,
        "new": (4,),
    }


def test_a_list_that_was_not_there_before_is_gathered_whole():
    assert grown([1, 2], None) == [1, 2] and joined(None, [1, 2, 3]) == [1, 2, 3]


class Rows(list):
    """A list of a script's class."""


class Elsewhere(list):
    """Keeps its entries elsewhere than in the list that it is, as Keras' ListWrapper does."""

    def __init__(self, entries=()):
        self.kept = [*entries]

    def __len__(self):
        return len(self.kept)


def test_a_list_keeps_its_class_and_attributes_where_it_holds_its_entries_itself() -> None:
    rows = Rows([1.0])
    rows.n = 3
    made = of_kind(rows, [1.0, 2.0])
    assert type(made) is Rows and made == [1.0, 2.0] and made.n == 3
    assert of_kind([1.0], [2.0]) == [2.0] and of_kind(Elsewhere([1.0]), [2.0]) == [2.0]
    assert type(of_kind(Elsewhere([1.0]), [2.0])) is list
