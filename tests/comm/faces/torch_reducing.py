"""Sums, means, extremes and gathered entries of several values, against one process on all data."""

import random
import warnings
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import NamedTuple

import dl_comm.torch as dl
import numpy as np
import torch
from dl_comm import CommError, _core
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset, TensorDataset

_r, _n = dl.get_rank(), dl.get_nranks()


class _Sums(NamedTuple):
    total: float
    seen: int


@dataclass(frozen=True)
class _Kept:
    total: float
    name: str


def _exchanges(act):
    """Return what ``act()`` returns, and the exchanges that it takes."""
    made, plain = [], {name: getattr(_core, name) for name in ("allreduce", "allgather_bytes")}

    def counted(name):
        def call(*args, **options):
            made.append(name)
            return plain[name](*args, **options)

        return call

    for name in plain:
        setattr(_core, name, counted(name))
    try:
        return act(), made
    finally:
        for name, function in plain.items():
            setattr(_core, name, function)


def _refused(act, *words):
    try:
        act()
    except CommError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("no error")


def _value(draw, rank, depth=0):
    """Return a random value, of a structure that ``draw`` gives alike on all ranks, of numbers that are ``rank``'s."""
    own = random.Random(draw.randrange(10**9) * 100 + rank)
    held = ["list", "dict", "counter", "tuple"] * (depth < 3)
    kind = draw.choice(["int", "float", "tensor", "array", "scalar", "ints", *held])
    if kind == "int":
        return own.randrange(-(10**6), 10**6)
    if kind == "float":
        return float(own.randrange(1000))
    if kind == "tensor":
        dtype = draw.choice([torch.float32, torch.float64, torch.int32, torch.int64, torch.bfloat16])
        return torch.tensor([own.randrange(50) for _ in range(draw.randrange(4))]).to(dtype)
    if kind == "array":
        dtype = draw.choice([np.float32, np.int16, np.complex128])
        return np.array([[own.randrange(50)] * draw.randrange(1, 4)], dtype=dtype)
    if kind == "scalar":
        return draw.choice([np.float32, np.int64, np.uint64])(own.randrange(50))
    if kind == "ints":
        return [own.randrange(50) for _ in range(draw.randrange(5))]
    if kind == "counter":
        return Counter(own.choices("abcd", k=own.randrange(6)))
    if kind == "dict":
        return {f"k{i}": _value(draw, rank, depth + 1) for i in range(draw.randrange(4))}
    parts = [_value(draw, rank, depth + 1) for _ in range(draw.randrange(4))]
    return tuple(parts) if kind == "tuple" else parts


def _folded(values, fold):
    """Return what the ranks' values are together, by Python's means alone."""
    first = values[0]
    if isinstance(first, dict):
        made = type(first)()
        for key in dict.fromkeys(key for value in values for key in value):
            made[key] = _folded([value[key] for value in values if key in value], fold)
        return made
    if isinstance(first, (list, tuple)):
        return type(first)(_folded(list(parts), fold) for parts in zip(*values, strict=True))
    return fold(values)


def _same(found, expected):
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            _same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    else:
        assert found == expected


def any_values_at_once_become_those_of_one_process():
    def summed(values):
        return sum(values[1:], start=values[0])

    def largest(values):
        if isinstance(values[0], torch.Tensor):
            return torch.stack(values).amax(0)
        return np.max(values, axis=0).astype(values[0].dtype) if hasattr(values[0], "dtype") else max(values)

    for seed in range(60):
        made = [
            [_value(draw, rank) for _ in range(draw.randrange(1, 6))]
            for rank in range(_n)
            for draw in [random.Random(seed)]
        ]
        found = dl.total(*made[_r])
        expected = [_folded([values[i] for values in made], summed) for i in range(len(made[0]))]
        _same(list(found) if len(expected) > 1 else [found], expected)
        if not any(isinstance(leaf, np.ndarray) and leaf.dtype.kind == "c" for leaf in _leaves(made[0])):
            made = [[_flat(value) for value in values] for values in made]
            found = dl.maximum(*made[_r])
            expected = [_folded([values[i] for values in made], largest) for i in range(len(made[0]))]
            _same(list(found) if len(expected) > 1 else [found], expected)


def _flat(value):
    """Return ``value`` with lists for tuples, which are compared as wholes."""
    if isinstance(value, (list, tuple)):
        return [_flat(part) for part in value]
    return {key: _flat(part) for key, part in value.items()} if type(value) is dict else value


def _leaves(value):
    if isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def several_values_take_one_exchange_and_a_second_only_where_their_sizes_differ():
    one = {"loss": 1.0, "of": {"right": _r}}
    _, made = _exchanges(lambda: dl.total(1, 2.0, torch.ones(3), [1, 2], one, None, np.ones((2, 2))))
    assert made == ["allreduce"]
    found, made = _exchanges(lambda: dl.total(_r, Counter({_r: 1})))
    assert found == (_n * (_n - 1) // 2, dict.fromkeys(range(_n), 1))
    assert made == (["allreduce", "allgather_bytes"] if _n > 1 else [])
    _, made = _exchanges(lambda: dl.gather([1] * _r, torch.ones(_r + 1), {_r}))
    assert made == ["allgather_bytes"]


def a_rank_without_batches_brings_nothing_and_gets_the_types_of_the_others():
    lacks = _r == _n - 1
    total, best, means, seen = dl.total(
        0 if lacks else torch.ones(2), None if lacks else 2.5, {} if lacks else {"loss": 1.0}, 0 if lacks else 0.5
    )
    assert torch.equal(total, torch.full((2,), _n - 1.0)) and total.dtype == torch.float32
    assert (best, means, seen) == (2.5 * (_n - 1), {"loss": _n - 1.0}, 0.5 * (_n - 1))
    assert dl.maximum(None if lacks else 3, float("-inf") if lacks else 1.0) == (3, 1.0)
    assert dl.average(None if lacks else 4.0) == 4.0
    scores, rows = dl.gather([] if lacks else [0.5], None if lacks else torch.ones(1))
    assert scores == [0.5] * (_n - 1) and torch.equal(rows, torch.ones(_n - 1))
    assert dl.total(None, 1) == (None, _n)


def dicts_in_dicts_of_other_keys_are_added_up_and_stay_what_they_are():
    counts = defaultdict(lambda: defaultdict(int))
    counts["all"][_r] += 1
    counts[_r]["own"] += 2
    found = dl.total(counts)
    assert type(found) is defaultdict and type(found[_n - 1]) is defaultdict
    assert found == {"all": dict.fromkeys(range(_n), 1), **{rank: {"own": 2} for rank in range(_n)}}
    assert len(set(_core.allgather_bytes(repr([*found]).encode()))) == 1  # in one order
    found["new"]["key"] += 1
    assert dl.maximum({_r: _r, "worst": -_r}) == {**{rank: rank for rank in range(_n)}, "worst": 0}
    assert dl.minimum([_r, -_r], (_r, "rank")) == ([0, 1 - _n], (0, "rank"))
    assert dl.maximum((0.5, f"run {_r}")) == (0.5, f"run {_n - 1}")


def values_that_do_not_fit_are_an_error_that_names_them():
    last = _r == _n - 1
    _refused(lambda: dl.total(1, torch.ones(2 + last)), "value 2", "(2,)", "(3,)")
    _refused(lambda: dl.total(1, {"a": [1, [2] if last else 2]}), "value 2 of 2['a'][1]")
    _refused(lambda: dl.total(*[1] * (1 + last)), f"2 on rank {_n - 1}")
    _refused(lambda: dl.gather({1} if last else [1]), "its value", "set")
    _refused(lambda: dl.gather([1], torch.ones(2, 1 + last)), "value 2", "(2, 2)")
    assert dl.total(1) == _n  # and the ranks go on


def _gathers_like_one_process(loader, serial, over=None):
    """Assert that what a loop over a rank's loader collects is gathered to what one over the serial loader does."""

    def collected(batches):
        kept = {"scores": [], "rows": [], "tensors": [], "lists": [], "pairs": [], "by": {}}
        for x in batches:
            kept["scores"] += x[:, 0].tolist()
            kept["rows"] += list(x)
            kept["tensors"].append(x * 2)
            kept["lists"].append(x[:, 0].tolist())
            kept["pairs"] += [value for row in x.tolist() for value in row]  # two a sample
            kept["by"] |= {int(row[0]): row.tolist() for row in x}
        return kept

    mine, all_of = collected(loader), collected(serial)
    whole = torch.cat(mine["tensors"]) if mine["tensors"] else None
    found = dl.gather(*mine.values(), whole, set(mine["scores"]), over=loader if over is None else over)
    for name, one in zip(mine, found, strict=False):
        expected = all_of[name]
        if name in ("rows", "tensors"):
            assert len(one) == len(expected), (name, one, expected)
            assert all(map(torch.equal, one, expected)), (name, one, expected)
        elif name != "by":
            assert one == expected, (name, one, expected)
        else:
            assert one == expected
    assert torch.equal(found[6], torch.cat(all_of["tensors"]))
    assert found[7] == set(all_of["scores"])


class _Rows(Dataset):
    def __init__(self, length):
        self.rows = torch.arange(2.0 * length).view(length, 2)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def entries_of_a_loader_come_back_in_the_serial_order_and_without_padding():
    for length in (_n, 7, 12, 13, 29):
        for size in (1, 2, 4):
            serial = DataLoader(_Rows(length), size)
            together = dl.shard(DataLoader(_Rows(length), size * _n), batch="global")
            _gathers_like_one_process(together, DataLoader(_Rows(length), size * _n))
            uneven = dl.shard(DataLoader(_Rows(length), size * _n + 1), batch="global")
            _gathers_like_one_process(uneven, DataLoader(_Rows(length), size * _n + 1))
            _gathers_like_one_process(dl.shard(DataLoader(_Rows(length), size)), serial)
            _gathers_like_one_process(DataLoader(dl.shard(_Rows(length)), size), serial)
            shared = dl.shard(_Rows(length).rows)
            slices = [shared[i : i + size] for i in range(0, len(shared), size)]
            if len(shared) >= size:  # else nothing tells the size of the serial slices
                _gathers_like_one_process(slices, serial, over=shared)
    torch.manual_seed(3)
    serial = list(DataLoader(_Rows(13), 2, shuffle=True))
    torch.manual_seed(3)
    _gathers_like_one_process(dl.shard(DataLoader(_Rows(13), 2, shuffle=True)), serial)


def losses_of_batches_take_turns_and_deques_keep_the_last():
    loader = dl.shard(DataLoader(_Rows(4 * _n), 2))
    found = dl.gather([(batch, _r) for batch, _ in enumerate(loader)], over=loader)
    assert found == [(batch, rank) for batch in range(2) for rank in range(_n)]
    kept = deque([(step, _r) for step in range(3)], maxlen=3)
    found = dl.gather(kept)
    assert found.maxlen == 3
    assert list(found) == [(step, rank) for step in range(3) for rank in range(_n)][-3:]
    lists = dl.gather({"loss": [float(_r)], "array": np.array([_r])}, {_r: [_r], "all": [1]}, {f"id {_r}": np.ones(2)})
    assert lists[0]["loss"] == list(map(float, range(_n))) and lists[0]["array"].tolist() == list(range(_n))
    assert lists[1] == {"all": [1] * _n, **{rank: [rank] for rank in range(_n)}}
    assert sorted(lists[2]) == [f"id {rank}" for rank in range(_n)]
    rows = {_r: [_r, "own"], "all": {_r: 1}, "old": (7, 8), "set": 9}
    before = dl.snapshot({"old": (7, 8), "set": 3, -1: [0]})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = dl.gather({**rows, "last": _r, -1: [0]}, since=before, by_key=True)
    ranks = range(_n)
    assert found == {
        **{rank: [rank, "own"] for rank in ranks},
        "all": dict.fromkeys(ranks, 1),
        "old": (7, 8),
        "set": 9,
    } | {
        "last": _n - 1,
        -1: [0],
    }
    assert len(told) == (_r == 0) and all("'last' by ranks 0 and 1" in str(each.message) for each in told)
    mixed = dl.gather([None, "text", torch.tensor(_r), (1, np.float32(_r))])
    assert [entry.item() for entry in mixed[2 * _n : 3 * _n]] == list(range(_n))
    assert dl.gather([True, _r > 0]) == [True] * _n + [rank > 0 for rank in range(_n)]


def what_goes_on_from_before_a_loop_is_added_to():
    window = deque([0.5, 1.5, 2.5], maxlen=4)
    before = dl.snapshot(window)
    window.extend(10.0 * step + _r for step in range(3))  # two of the old ones drop out
    serial = [0.5, 1.5, 2.5, *(10.0 * step + rank for step in range(3) for rank in range(_n))]
    assert list(dl.gather(window, since=before)) == serial[-4:]
    sums = _Sums(2.0, 5)
    before = dl.snapshot(sums)
    assert dl.total(_Sums(2.0 + _r, 5 + 1), since=before) == _Sums(2.0 + sum(range(_n)), 5 + _n)
    kept = _Kept(1.0, "name")
    assert dl.total(_Kept(1.0 + _r, "name"), since=dl.snapshot(kept)) == _Kept(1.0 + sum(range(_n)), "name")
    by_name = {"old": 1, "same": 2}
    before = dl.snapshot(by_name)
    by_name.update({"old": 7, _r: _r})
    found = dl.gather(by_name, since=before)
    assert found == {"old": 7, "same": 2, **{rank: rank for rank in range(_n)}}


def what_each_rank_has_whole_is_not_exchanged():
    whole = DataLoader(_Rows(13), 2)
    values = (1, [2.0], Counter("a"), torch.ones(1))
    for call in (dl.total, dl.average, dl.maximum, dl.minimum):
        found, made = _exchanges(lambda call=call: call(*values, over=whole))
        assert not made and all(one is other for one, other in zip(found, values, strict=True))
    found, made = _exchanges(lambda: dl.gather([1], over=whole))
    assert (found, made) == ([1], [])


def every_share_is_known_as_one():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(2 * _n))

        def __len__(self):
            return 2 * _n

    rows = _Rows(4 * _n)
    x, y = dl.shard((rows.rows, list(range(4 * _n))))
    loader = dl.shard(DataLoader(rows, 2, num_workers=0))
    shares = [loader, iter(loader), dl.shard(rows), x, y, (x, y), {"x": x}, x[1:], dl.shard(rows.rows.numpy())[1:3]]
    shares += [dl.shard(range(2 * _n)), dl.turns(range(2 * _n)), dl.stretch(rows.rows), dl.stretch([1] * _n)]
    shares += [dl.shard(Stream()), dl.shard(i for i in range(2 * _n)), dl.shard(lambda: 1), Subset(shares[2], [0])]
    loaders = [DataLoader(Stream(), 2), DataLoader(rows, batch_size=None)]
    loaders += [DataLoader(rows, batch_sampler=[[0, 1]] * 2 * _n)]
    shares += [*map(dl.shard, loaders), dl.stretch(DataLoader(rows, 1)), DataLoader(shares[2], 2)]
    shares += [DataLoader(rows, 2, sampler=DistributedSampler(rows, _n, _r)), DataLoader(TensorDataset(x), 2)]
    assert [i for i, share in enumerate(shares) if not dl.is_shard(share)] == []
    alone = DataLoader(rows, 2, sampler=DistributedSampler(rows, 1, 0))
    whole = [rows, rows.rows, rows.rows.numpy(), [1, 2], range(3), Stream(), None, (1, 2), {}, 3, alone, *loaders]
    assert not any(map(dl.is_shard, [*whole, iter(alone), TensorDataset(rows.rows)]))


def ranks_agree_on_what_clocks_and_draws_decide():
    assert dl.agree(("stop", _r)) == ("stop", 0)
    assert dl.agree(_r > 0) is False
    assert dl.any_rank(_r == _n - 1) is True and dl.all_ranks(_r == _n - 1) is (_n == 1)
    assert dl.any_rank(torch.tensor(False)) is False and dl.all_ranks(np.bool_(True)) is True


def _same_batches(share, serial):
    """Assert that what a loop over a share of whole batches adds up and collects becomes that of the serial loop."""
    batches = [np.asarray(batch) for batch in share]
    serial = [np.asarray(batch) for batch in serial]
    assert len(batches) == len(range(_r, len(serial), _n))
    for mine, batch in zip(batches, serial[_r::_n], strict=True):
        assert np.array_equal(mine, batch)
    flat = [value for batch in batches for value in batch.ravel().tolist()]
    means = [batch.mean() for batch in batches]
    values = sum(len(batch) for batch in batches), len(batches), sum(batch.sum() for batch in batches)
    expected = sum(len(batch) for batch in serial), len(serial), sum(batch.sum() for batch in serial)
    assert dl.is_shard(share)
    assert np.allclose(dl.total(*values, over=share), expected)
    found = dl.gather(means, batches, flat, over=share)
    assert found[0] == [batch.mean() for batch in serial]
    assert all(map(np.array_equal, found[1], serial)) and len(found[1]) == len(serial)
    assert found[2] == [value for batch in serial for value in batch.ravel().tolist()]


def whole_batches_are_those_of_the_serial_script_uneven_or_fewer_than_the_ranks_too():
    class Stream(IterableDataset):
        def __init__(self, length):
            self.length = length

        def __iter__(self):
            yield from _Rows(self.length).rows

    for length in (1, 2, 5, 12, 13, 29):
        for size in (1, 4):
            rows = _Rows(length)
            serial = list(DataLoader(rows, size))
            loader = dl.shard(DataLoader(rows, size, num_workers=0), whole="batches")
            assert len(loader) == len(serial[_r::_n]) and dl.total(len(loader)) == len(serial)
            assert dl.shard(loader, whole="batches") is loader and dl.shard(loader) is loader
            _same_batches(loader, serial)
            assert dl.serial_steps(len(loader), over=loader) == len(serial)
            assert dl.serial_steps(len(serial), over=DataLoader(rows, size)) == len(serial)
            full = dl.shard(DataLoader(rows, size, drop_last=True), whole="batches")
            _same_batches(full, [batch for batch in serial if len(batch) == size])
            _same_batches(dl.shard(serial, whole="batches"), serial)
            _same_batches(dl.shard(DataLoader(Stream(length), size), whole="batches"), serial)
            batches = dl.shard((batch for batch in serial), whole="batches")
            _same_batches(batches, serial)
            own = DataLoader(rows, batch_sampler=[[0], list(range(length)), [0]])
            _same_batches(dl.shard(own, whole="batches"), list(own))
            starts = dl.shard(range(0, length, size), whole="batches")
            assert dl.serial_steps(len(starts), over=starts) == len(serial)
            kept = dl.gather([rows.rows[i : i + size] for i in starts], over=starts)
            assert all(map(torch.equal, kept, serial))
    torch.manual_seed(_r)  # each rank would draw another order: rank 0's counts
    loader = dl.shard(DataLoader(_Rows(13), 2, shuffle=True), whole="batches")
    kept = dl.gather([x[:, 0].tolist() for x in loader], over=loader)
    assert sorted(value for batch in kept for value in batch) == list(range(0, 26, 2))
    assert len(kept) == 7
