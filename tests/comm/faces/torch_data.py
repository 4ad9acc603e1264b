"""What ``shard`` must do on every rank."""

import json
import math
import pickle
import random
import warnings
from collections import Counter
from itertools import chain

import dl_comm.torch as dl
import numpy as np
import torch
from dl_comm import CommError, _core
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

_r, _n = dl.get_rank(), dl.get_nranks()


class _Numbers(Dataset):
    """Entry i is the number i."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return i


class _Stream(IterableDataset):
    """The numbers from 0, split among workers if asked to."""

    def __init__(self, length, split):
        self.length, self.split = length, split

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker and self.split else (0, 1)
        yield from range(first, self.length, step)


def _everyone(batches):
    """Per rank, the list of its batches as lists of numbers."""
    mine = [b.tolist() if hasattr(b, "tolist") else list(b) for b in batches]
    return [json.loads(b) for b in _core.allgather_bytes(json.dumps(mine).encode())]


def _gathered(mine):
    """Per rank, what it has."""
    return [pickle.loads(b) for b in _core.allgather_bytes(pickle.dumps(mine))]


def _global_batches(batches):
    """The union over ranks of their k-th batches, sorted; fails if the ranks have different numbers of batches."""
    return [sorted(chain(*parts)) for parts in zip(*_everyone(batches), strict=True)]


def every_global_batch_is_the_serial_runs_batch():
    local, length = 4, 4 * _n * 5
    weights = np.linspace(0.1, 2, length)
    makers = [
        lambda b: DataLoader(_Numbers(length), b),
        lambda b: DataLoader(_Numbers(length), b, shuffle=True),
        lambda b: DataLoader(_Numbers(length), b, shuffle=True, generator=torch.Generator().manual_seed(3)),
        lambda b: DataLoader(_Numbers(length), b, sampler=SubsetRandomSampler(range(0, length, 2))),
        lambda b: DataLoader(_Numbers(length), b, sampler=WeightedRandomSampler(weights, length)),
        lambda b: DataLoader(_Numbers(length), b, sampler=RandomSampler(range(length), replacement=True)),
        lambda b: DataLoader(_Numbers(length), batch_sampler=BatchSampler(RandomSampler(range(length)), b, False)),
        lambda b: DataLoader(_Numbers(length), b, shuffle=True, num_workers=2, persistent_workers=True),
    ]
    for make in makers:
        torch.manual_seed(11)
        serial = make(local * _n)
        expected = [[sorted(batch.tolist()) for batch in serial] for epoch in range(2)]
        torch.manual_seed(11 if _r == 0 else 99)
        sharded = dl.shard(make(local))
        assert len(sharded) == len(serial)
        for epoch in range(2):
            assert _global_batches(sharded) == expected[epoch]
        assert expected[0] != expected[1] or isinstance(serial.sampler, SequentialSampler)


def uneven_lengths_are_shared_with_no_sample_twice_or_dropped():
    length = 4 * _n * 2 + _n + 1
    uneven = dl.shard(DataLoader(_Numbers(length), 4))
    batches = _everyone(uneven)
    assert {len(b) for b in batches} == {len(uneven)} == {3}
    assert [len(rank[-1]) for rank in batches] == [2] + [1] * (_n - 1)
    assert sorted(x for rank in batches for batch in rank for x in batch) == list(range(length))
    dropped = dl.shard(DataLoader(_Numbers(length), 4, drop_last=True))
    assert len(dropped) == 2
    assert _global_batches(dropped) == [list(range(4 * _n)), list(range(4 * _n, 8 * _n))]
    assert _global_batches(dl.shard(DataLoader(_Numbers(0), 4))) == []


def a_global_batch_that_the_ranks_do_not_divide_is_shared_unevenly():
    for size, length in ((2 * _n + 1, 29), (3 * _n - 1, 31), (_n, 7)):
        for drop in (False, True):
            serial = [sorted(b.tolist()) for b in DataLoader(_Numbers(length), size, drop_last=drop)]
            loader = dl.shard(DataLoader(_Numbers(length), size, drop_last=drop), batch="global")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shared = _global_batches(loader)
            assert len(loader) == len(serial) and loader.batch_size == size
            assert shared[:-1] == serial[:-1]
            assert set(shared[-1]) == set(serial[-1])
            assert len(serial[-1]) < _n or shared[-1] == serial[-1]


def ranks_without_a_sample_of_the_last_batch_are_told_of():
    loader = dl.shard(DataLoader(_Numbers(4 * _n + 1), 4))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ranks = [_everyone(loader) for _ in range(2)][1]
    assert [rank[-1] for rank in ranks] == [[4 * _n]] * _n
    expected = [f"the last global batch has 1 sample for {_n} ranks: those without one work on another's"]
    assert [str(w.message).split(", which")[0] for w in told] == (expected if _r == 0 else [])


def ranks_that_do_not_divide_a_batch_are_told_what_is_exact():
    loader = dl.shard(DataLoader(_Numbers(8 * _n + 4), 2 * _n + 1), batch="global")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        list(loader)
    expected = [f"{_n} ranks do not divide a global batch of {2 * _n + 1}: gradients count by a rank's samples"]
    assert [str(w.message).split(", and")[0] for w in told] == (expected if _r == 0 else [])


def positions_that_the_ranks_do_not_divide_are_told_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        shares = [list(dl.shard(range(0, 8 * (3 * _n - 1), 8))) for _ in range(2)]
        even, whole = dl.shard(range(2 * _n)), dl.shard(range(3 * _n - 1), whole="batches")
    expected = [f"{_n} ranks do not divide {3 * _n - 1} positions: 1 of them is taken twice"] if _r == 0 else []
    assert [str(w.message).split(", and")[0] for w in told] == (expected if _n > 1 else [])
    assert len(shares[0]) == 3 and len(even) == 2 and len(list(whole)) <= 3


def a_stream_that_the_ranks_do_not_divide_is_told_of_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        shares = [list(dl.shard(x for x in range(3 * _n - 1))) for _ in range(2)]
        even = list(dl.shard(x for x in range(2 * _n)))
    expected = [f"{_n} ranks do not divide {3 * _n - 1} entries of a stream: 1 of them is taken twice"]
    assert [str(w.message).split(", and")[0] for w in told] == (expected if _n > 1 and _r == 0 else [])
    assert len(shares[0]) == 3 and len(even) == 2


def what_drop_last_leaves_out_more_than_the_serial_script_is_told():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        less = list(dl.shard(DataLoader(_Numbers(4 * (2 * _n + 1) + 3), 4, drop_last=True)))
        same = list(dl.shard(DataLoader(_Numbers(4 * 2 * _n + 3), 4, drop_last=True)))
    expected = [f"drop_last leaves out 4 of the {4 * (2 * _n + 1)} samples that the serial script takes"]
    assert [str(w.message).split(": ")[0] for w in told] == (expected if _n > 1 and _r == 0 else [])
    assert len(less) == 2 + (_n == 1) and len(same) == 2


def _trained(model, batches, passes, accumulated=1, summed=False, overlapped=False):
    optimizer = torch.optim.SGD(model.parameters(), 0.02 / (8 if summed else 1), momentum=0.9)
    if overlapped:
        dl.overlap(optimizer)
    for _ in range(passes):
        for k, (x, y) in enumerate(batches):
            errors = (model(x) - y).pow(2)
            (dl.partial_sum(errors.sum()) if summed else errors.mean()).backward()
            if (k + 1) % accumulated == 0 or k + 1 == len(batches):
                dl.gradients(optimizer)
                optimizer.step()
                optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def _net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def gradients_count_by_the_samples_of_a_rank_where_shares_differ():
    torch.manual_seed(1)
    x = torch.randn(29, 3, dtype=torch.double)
    data = TensorDataset(x, x.sum(1, keepdim=True) ** 2)
    several = ({}, {"accumulated": 2}, {"summed": True}, {"overlapped": True}, {"overlapped": True, "accumulated": 3})
    for size in (2 * _n, 2 * _n + 1, 3 * _n - 1):
        for options in several:
            many = dl.shard(DataLoader(data, size), batch="global")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shared = _trained(_net(), many, 3, **options)
            alone = _net()
            optimizer = torch.optim.SGD(alone.parameters(), 0.02 / (8 if "summed" in options else 1), momentum=0.9)
            for _ in range(3):
                batches = list(DataLoader(data, size))
                for k, (a, b) in enumerate(batches):
                    errors = (alone(a) - b).pow(2)
                    (errors.sum() if "summed" in options else errors.mean()).backward()
                    if (k + 1) % options.get("accumulated", 1) == 0 or k + 1 == len(batches):
                        optimizer.step()
                        optimizer.zero_grad()
            for mine, serial in zip(shared, alone.parameters(), strict=True):
                torch.testing.assert_close(mine, serial.detach(), rtol=1e-10, atol=1e-12)


def loops_that_are_nested_or_left_leave_each_batch_its_own_weight():
    def loader(length, size):
        return dl.shard(DataLoader(TensorDataset(torch.ones(length, 1)), size), batch="global")

    def mean():
        weight.grad = torch.full((1,), float(_r))
        dl.gradients([weight])
        return weight.grad.item()

    weight, first = torch.nn.Parameter(torch.ones(1)), 2 * _n + 1
    uneven = sum(r * (2 + (r == 0)) for r in range(_n)) / first  # by samples
    peeked = iter(loader(first, first))  # and kept
    next(peeked)
    for _ in loader(first, first):
        for _ in loader(4 * _n, _n):
            assert mean() == (_n - 1) / 2
        assert math.isclose(mean(), uneven, rel_tol=1e-6)
        list(loader(first, first))
        assert math.isclose(mean(), uneven, rel_tol=1e-6)
    del peeked
    assert mean() == (_n - 1) / 2


def a_loop_that_is_left_early_leaves_no_weight_behind():
    loader = dl.shard(DataLoader(TensorDataset(torch.ones(2 * _n + 1, 1)), 2 * _n + 1), batch="global")
    weight = torch.nn.Parameter(torch.ones(1))
    for (rows,) in loader:
        assert len(rows) == 2 + (_r == 0)
        break
    weight.grad = torch.full((1,), float(_r))
    dl.gradients([weight])
    assert weight.grad.item() == (_n - 1) / 2


def what_the_loader_was_given_stays():
    def collate(batch):
        return torch.tensor(batch) * 10

    data = _Numbers(40)
    loader = DataLoader(data, 4, shuffle=True, collate_fn=collate, num_workers=1, prefetch_factor=3, timeout=50)
    loader.note = "mine"
    sharded = dl.shard(loader)
    for name in ("batch_size", "collate_fn", "num_workers", "prefetch_factor", "timeout", "drop_last", "note"):
        assert getattr(sharded, name) == getattr(loader, name)
    assert sharded.dataset is data
    assert all(x % 10 == 0 for rank in _everyone(sharded) for batch in rank for x in batch)
    assert dl.shard(sharded) is sharded
    assert dl.shard(loader) is sharded
    assert len(loader) == 10


def the_serial_length_of_a_loader_is_known_where_ranks_do_not_divide_it():
    class Ones(BatchSampler):
        def __iter__(self):
            return iter([[i] for i in self.sampler])

        def __len__(self):
            return len(self.sampler)

    for length, size, drop in ((130, 10, False), (130, 10, True), (131, 7, False), (97, 12, True), (60, 12, False)):
        data = _Numbers(length)
        drawn = RandomSampler(data, num_samples=length - 5)
        loaders = [
            lambda data=data, size=size, drop=drop: DataLoader(data, size, shuffle=True, drop_last=drop),
            lambda data=data, size=size, drop=drop, by=drawn: DataLoader(data, size, sampler=by, drop_last=drop),
            lambda data=data: DataLoader(data, batch_sampler=Ones(SequentialSampler(data), 1, False)),
        ]
        for make in loaders:
            assert dl.serial_length(make()) == len(make())
            for share in (dl.shard(make()), dl.shard(make(), batch="global"), dl.shard(make(), whole="batches")):
                assert dl.serial_length(share) == len(make()), (length, size, drop)
            assert dl.serial_length(dl.shard(make()).batch_sampler) == len(make())


def batches_that_a_script_makes_itself_are_divided_too():
    x = torch.arange(4.0 * 2 * _n)
    serial = [b.tolist() for b in x.split(2 * _n)]
    picks = BatchSampler(range(8 * _n), 2 * _n, False)

    class Moved:
        def __iter__(self):
            yield from ((b, {"twice": 2 * b.numpy(), "names": list(map(str, b))}) for b in x.split(2 * _n))

    own = type("Own", (BatchSampler,), {})(range(8 * _n), 2 * _n, False)
    assert type(own) is not type(picks)
    for batches in (iter(x.split(2 * _n)), DataLoader(_Numbers(8 * _n), batch_sampler=own)):
        divided = dl.shard(batches, batch="global")
        assert _global_batches(divided) == serial
    (first, more), *_ = dl.shard(Moved(), batch="global")
    assert first.tolist() == serial[0][_r::_n] and more["twice"].tolist() == (2 * first).tolist()
    assert len(more["names"]) == 2
    if _n > 1:
        for sample in ((x[:4], x[:1]), (x, 3), "text"):
            assert "is it a batch, or a sample" in _refusal(lambda s=sample: list(dl.shard(iter([s]), batch="global")))
        assert "has no batches to divide" in _refusal(lambda: dl.shard(TensorDataset(x), batch="global"))


def batches_that_a_script_cuts_are_weighed_by_their_samples():
    x = torch.arange(8 * _n + 5, dtype=torch.float64)
    weight = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    opt = torch.optim.SGD([weight], 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in (2 * _n, 2 * _n + 1):
            seen = 0
            for at in range(0, len(x), size):
                part, same = dl.part(x[at : at + size]), dl.part({"x": x[at : at + size].numpy()})["x"]
                assert part.tolist() == same.tolist() and 1 <= len(part) <= -(-size // _n)
                opt.zero_grad()
                (weight * part**2).mean().backward()
                dl.gradients(opt)
                torch.testing.assert_close(weight.grad, (x[at : at + size] ** 2).mean())
                seen += len(part)
            least = len(x) if len(x) % size >= _n or not len(x) % size else len(x) - len(x) % size
            assert least <= dl.total(seen)
    assert dl.part(list(range(3 * _n))) == list(range(_r, 3 * _n, _n))
    rows = torch.arange(4 * _n).view(2 * _n, 2)
    assert torch.equal(dl.part(rows).view(-1), rows[_r::_n].reshape(-1))  # laid out as the batch is, as view() asks
    assert _n == 1 or "takes a batch" in _refusal(lambda: dl.part(3.0))
    assert dl.part(3 * _n) == 3 and dl.part(3 * _n + 1) == 3 + (_r == 0) and dl.part(0) == 0


def _refusal(call):
    try:
        call()
    except TypeError as error:
        return str(error)
    return ""


def gradients_count_by_the_samples_of_a_rank_in_batches_of_the_scripts_own():
    torch.manual_seed(1)
    x = torch.randn(29, 3, dtype=torch.double)
    y = x.sum(1, keepdim=True) ** 2
    serial = list(zip(x.split(2 * _n + 1), y.split(2 * _n + 1), strict=True))
    own = type("Own", (BatchSampler,), {})(range(29), 2 * _n + 1, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = _net()
        optimizer = torch.optim.SGD(alone.parameters(), 0.02, momentum=0.9)
        for a, b in serial * 2:
            (alone(a) - b).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        loader = dl.shard(DataLoader(TensorDataset(x, y), batch_sampler=own), batch="global")
        for mine, theirs in zip(_trained(_net(), loader, 2), alone.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-10, atol=1e-12)


def batch_samplers_of_ones_own_are_shared_batch_by_batch():
    class Buckets:
        def __init__(self):
            self.epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            yield from ([k, k + self.epoch] for k in range(2 * _n + 1))

        def __len__(self):
            return 2 * _n + 1

    sampler = Buckets()
    loader = dl.shard(DataLoader(_Numbers(100), batch_sampler=sampler))
    assert len(loader) == 3
    for epoch in (0, 50):
        loader.batch_sampler.set_epoch(epoch)
        ranks = _everyone(loader)
        assert ranks[_r][0] == [_r, _r + epoch]
        assert {len(b) for b in ranks} == {3}
    assert dl.shard(DataLoader(_Numbers(10), batch_size=None, sampler=[3, 1, 2])).sampler is not None


def what_a_sampler_of_ones_own_puts_side_by_side_stays_in_one_batch():
    order = [k for k in range(8 * _n + 5) for _ in range(4)]  # four samples of each class, two classes a batch
    loader = dl.shard(DataLoader(_Numbers(100), 8, sampler=order))
    ranks = _everyone(loader)
    assert all(sorted(Counter(batch).values()) == [4, 4] for rank in ranks for batch in rank[:-1])
    assert ranks[_r][0] == [2 * _r] * 4 + [2 * _r + 1] * 4
    assert {len(rank) for rank in ranks} == {len(loader)} and len({len(rank[-1]) for rank in ranks}) <= 2
    assert set(chain(*chain(*ranks))) == set(order)


def endless_samplers_stay_endless_and_long_ones_begin_at_once():
    class Forever:
        def __iter__(self):
            k = 0
            while True:
                yield k
                k += 1

    batches = iter(dl.shard(DataLoader(_Numbers(10**9), 8, sampler=Forever())))
    for k in range(300):
        batch = next(batches)
        assert batch.tolist() == list(range(8 * (k * _n + _r), 8 * (k * _n + _r + 1)))
    drawn = RandomSampler(_Numbers(10), replacement=True, num_samples=10**10)
    assert next(iter(dl.shard(DataLoader(_Numbers(10), 8, sampler=drawn)))).shape == (8,)


def a_loader_of_ones_own_that_begins_anew_at_iter_is_gone_through_once_in_each_epoch():
    class Batches:
        def __iter__(self):
            self.at = 0
            return self

        def __next__(self):
            if self.at == 3 * _n:
                raise StopIteration
            self.at += 1
            return self.at - 1

    batches = dl.shard(Batches())
    for _ in range(2):
        assert list(batches) == list(range(_r, 3 * _n, _n))
    assert [next(batches) for _ in range(3)] == list(batches)
    sampled = DataLoader(_Numbers(99), 1, sampler=Batches())
    assert [int(x) for x in dl.shard(sampled)] == list(range(_r, 3 * _n, _n))


def samplers_advance_on_every_rank_as_in_the_serial_run():
    torch.manual_seed(5)
    for _ in DataLoader(_Numbers(4 * _n), 4, shuffle=True):
        pass
    expected = torch.rand(1)
    torch.manual_seed(5)
    for _ in dl.shard(DataLoader(_Numbers(4 * _n), 4, shuffle=True)):
        pass
    assert torch.equal(torch.rand(1), expected)


def a_users_distributed_sampler_is_left_alone():
    data = _Numbers(4 * _n)
    loader = DataLoader(data, 2, sampler=DistributedSampler(data, _n, _r))
    assert dl.shard(loader) is loader
    alone = DistributedSampler(data, 1, 0)
    sharded = dl.shard(DataLoader(data, 2, sampler=alone))
    assert len(sharded.sampler) == 4 * _n and dl.shard(sharded) is sharded
    sharded.sampler.set_epoch(4)
    assert alone.epoch == 4
    assert sorted(chain(*_global_batches(sharded))) == list(range(4 * _n))


def workers_of_different_ranks_augment_differently():
    class Noise(_Numbers):
        def __getitem__(self, i):
            return int(torch.randint(1 << 40, ()))

    for given in ({}, {"generator": torch.Generator().manual_seed(1)}):
        torch.manual_seed(1)
        dl.reseed()
        ranks = _everyone(dl.shard(DataLoader(Noise(8 * _n), 4, num_workers=2, **given)))
        drawn = [x for rank in ranks for batch in rank for x in batch]
        assert len(set(drawn)) == len(drawn)


def iterable_data_sets_are_split():
    for workers in (0, 2):
        for length in (8 * _n, 8 * _n + 1):
            loader = dl.shard(DataLoader(_Stream(length, split=True), 4, num_workers=workers))
            for _ in range(2):
                ranks = _everyone(loader)
                assert len({len(rank) for rank in ranks}) == 1
                assert len({tuple(map(len, rank)) for rank in ranks}) == 1
                assert {x for rank in ranks for batch in rank for x in batch} == set(range(length))
    assert loader.dataset.length == 8 * _n + 1
    assert list(dl.shard(_Stream(2 * _n, split=False))) == [_r, _n + _r]


def iterable_data_sets_that_shuffle_in_workers_give_all_ranks_one_stream():
    class Shuffled(_Stream):
        def __iter__(self):
            numbers = list(range(self.length))
            random.shuffle(numbers)
            yield from numbers

    random.seed(1)
    torch.manual_seed(1)
    dl.reseed()
    loader = dl.shard(DataLoader(Shuffled(6 * _n, split=False), 3, num_workers=1))
    first, second = (_everyone(loader) for _ in range(2))
    assert sorted(x for rank in first for batch in rank for x in batch) == list(range(6 * _n))
    assert first != second


def streams_that_shuffle_with_the_random_numbers_of_the_process_are_one_for_all_ranks():
    class Shuffled(_Stream):
        def __iter__(self):
            buffer = [0, 1, 2, 3]
            for number in range(4, self.length):
                at = random.randrange(4) if number % 2 else np.random.randint(4)
                yield buffer[at]
                buffer[at] = number
            dl.reseed(alike=True)  # as ports have it before a shuffle
            random.shuffle(buffer)
            dl.reseed()
            yield from buffer

    random.seed(1)
    np.random.seed(1)
    serial = list(Shuffled(6 * _n, split=False))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    dl.reseed()
    stream = Shuffled(6 * _n, split=False)
    for data in (DataLoader(stream, 3), DataLoader(stream, 4), stream, iter(stream)):
        taken, own = [], []
        for batch in dl.shard(data):
            taken.append(batch.tolist() if isinstance(batch, torch.Tensor) else [batch])
            own.append((random.random(), np.random.rand()))  # what the training draws stays local
        assert sorted(x for rank in _gathered(taken) for batch in rank for x in batch) == list(range(6 * _n))
        assert len({number for rank in _gathered(own) for pair in rank for number in pair}) == 2 * len(own) * _n
    random.seed(1)
    np.random.seed(1)
    dl.reseed()
    ranks = _gathered(list(dl.shard(stream)))
    assert [x for group in zip(*ranks, strict=True) for x in group] == serial
    abandoned = iter(dl.shard(stream))
    next(abandoned)
    assert ranks != _gathered(list(dl.shard(stream)))


def tensors_arrays_and_lists_give_equal_parts():
    length = 5 * _n
    x = torch.arange(2 * length).reshape(length, 2)
    assert torch.equal(dl.shard(x), x[_r::_n])
    assert dl.shard(x).is_contiguous()
    assert np.array_equal(dl.shard(x.numpy()), x.numpy()[_r::_n])
    assert dl.shard(list(range(length))) == list(range(_r, length, _n))
    assert dl.shard(range(length + 1)) == [i % (length + 1) for i in range(_r, length + _n, _n)]
    a, b = dl.shard((x, x.numpy()))
    assert len(a) == len(b) == 5
    assert len(dl.shard({"x": x, "y": [1] * length})["y"]) == 5
    part = dl.shard(TensorDataset(x))
    assert [t[0].tolist() for t in part] == x[_r::_n].tolist()
    assert dl.shard(part) is part
    assert list(dl.shard(i for i in range(2 * _n))) == [_r, _n + _r]
    for wrong in (3, "text", None, object(), torch.tensor(1.0)):
        try:
            dl.shard(wrong)
        except TypeError:
            continue
        raise AssertionError(wrong)


def one_batch_of_all_ranks_gives_exact_means_and_sums_whatever_its_length():
    for length in (_n * 4, 7, 5):
        x = torch.arange(float(length))
        mine, same = dl.shard((x, x.tolist()), batch="global")
        assert mine.tolist() == same
        assert len(mine) == length // math.gcd(length, _n)
        assert dl.average(mine.mean().item()) == x.mean().item()
        rest = dl.shard(x, equal=False)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert dl.total(len(rest)) == dl.total(len(rest)) == length
            assert dl.average(dl.partial_sum(rest.sum().item())) == x.sum().item()
        warned = [str(w.message).partition(" samples do not divide")[0] for w in said]
        assert warned == [f"total: {length}", f"partial_sum: {length}"] * bool(length % _n and _r == 0)
    try:
        dl.shard((torch.zeros(6), torch.zeros(5)), batch="global")
    except CommError as error:
        assert "arrays of one batch have 6 and 5 entries" in str(error), error
    else:
        raise AssertionError("no error")


def data_of_different_lengths_are_an_error_on_every_rank():
    for data in (list(range(10 + _r)), DataLoader(_Numbers(10 + _r), 2)):
        try:
            dl.shard(data)
        except CommError as error:
            assert "10 entries on rank 0 and 11 on rank 1" in str(error), error
        else:
            raise AssertionError("no error")


def data_that_are_fewer_than_the_ranks_are_refused():
    few = _n - 1
    for data in (
        torch.zeros(few, 2),
        np.zeros(few),
        list(range(few)),
        TensorDataset(torch.zeros(few)),
        DataLoader(_Numbers(few), 4),
        DataLoader(_Numbers(10), 4, sampler=[0] * few),
        DataLoader(_Numbers(10), batch_sampler=[[0, 1]] * few),
    ):
        try:
            dl.shard(data)
        except CommError as error:
            assert f"{few} " in str(error), error
            assert f"{_n} ranks" in str(error), error
        else:
            raise AssertionError("no error")


def data_of_which_drop_last_leaves_nothing_are_refused():
    try:
        dl.shard(DataLoader(_Numbers(4 * _n - 1), 4, drop_last=True))
    except CommError as error:
        assert f"{4 * _n - 1} entries on {_n} ranks make no batch of 4" in str(error), error
    else:
        raise AssertionError("no error")
    assert len(dl.shard(DataLoader(_Numbers(3), 4, drop_last=True))) == 0  # as in the serial script


def a_loader_that_already_runs_is_refused():
    class Running(DataLoader):
        def __init__(self, *args):
            super().__init__(*args)
            self.running = super().__iter__()

        def __iter__(self):
            return self.running

    try:
        dl.shard(Running(_Numbers(8), 2))
    except TypeError as error:
        assert "running" in str(error)
    else:
        raise AssertionError("no error")


def a_function_that_returns_the_next_samples_is_asked_in_turn():
    numbers = iter(range(100))
    take = dl.shard(lambda scale: scale * next(numbers))
    assert _everyone([[take(10) for _ in range(2)]]) == [[[10 * r, 10 * (r + _n)]] for r in range(_n)]


def all_ranks_count_the_same_steps_and_take_turns_at_the_positions():
    pairs = dl.turns(range(1, 2 * _n))
    assert [step for step, _ in pairs] == [1, 2]
    whole = [own for (mine,) in _everyone([[own for _, own in pairs]]) for own in mine]
    assert set(whole) == set(range(1, 2 * _n))  # one of them twice: all make as many steps
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dl.turns(range(100 * _n + 1))
    assert ["taken twice" in str(w.message) for w in told] == [True] * (_r == 0)


def a_stretch_is_a_stream_of_its_own_as_many_columns_as_the_serial_run_would_have():
    steps, columns, stream = 6, 2, torch.arange(6 * 2 * _n)

    def batchify(tokens, size):
        return tokens.view(size, -1).t()

    serial = {tuple(column.tolist()) for column in batchify(stream, columns * _n).t()}
    for mine in (
        dl.stretch(batchify(stream, columns)),
        batchify(dl.stretch(stream), columns),
        dl.stretch(batchify(stream, columns).t(), axis=1).t(),
        dl.stretch(batchify(stream, columns).numpy()),
        dl.stretch((stream.view(columns, -1).t(), np.zeros(6 * _n)))[0],
    ):
        assert tuple(mine.shape) == (steps, columns)
        assert {tuple(c) for c in chain(*_everyone([mine[:, k] for k in range(columns)]))} == serial
    assert dl.stretch("abcdef"[: 2 * _n]) == "abcdef"[2 * _r : 2 * _r + 2]
    assert dl.stretch(range(10 * _n + 1), multiple=4) == range(8 * _r, 8 * _r + 8)


def a_stretched_loader_reads_whole_batches_in_order():
    loader = DataLoader(_Numbers(9 * _n + 1), 4, num_workers=1)
    stretched = dl.stretch(loader)
    assert dl.stretch(loader) is stretched
    assert dl.shard(stretched) is stretched
    assert len(stretched) == 2
    assert list(chain(*chain(*_everyone(stretched)))) == list(range(8 * _n))


def a_stretch_of_batches_that_an_object_makes_is_the_same_in_every_pass():
    class Ordered:
        def __iter__(self):
            yield from range(3 * _n + 1)

    stretched = dl.stretch(Ordered())
    assert dl.stretch(stretched) is stretched
    for _ in range(2):
        assert list(stretched) == [3 * _r, 3 * _r + 1, 3 * _r + 2]


def what_cannot_be_cut_into_stretches_says_why():
    for data, error, words in [
        (iter([1, 2]), TypeError, "what has a length"),
        (DataLoader(_Stream(8, False)), TypeError, "whose end is not known"),
        ([0] * (4 * _n - 1), CommError, f"cannot be divided into {_n} stretches of whole batches of 4"),
        ([0] * (8 * _n + _r), CommError, "entries on rank 0 and"),
    ]:
        try:
            dl.stretch(data, multiple=4)
        except error as raised:
            assert words in str(raised), raised
        else:
            raise AssertionError(words)
