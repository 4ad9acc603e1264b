"""What ``gradients`` and ``average`` must do on every rank."""

import contextlib
import copy
import os
import warnings
from collections import Counter, defaultdict

import dl_comm.torch as dl
import numpy as np
import torch
from agreement import same_bits
from dl_comm import CommError
from torch import nn
from torch_versions import with_a_scaler

_r, _n = dl.get_rank(), dl.get_nranks()


def _net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def _batches(count, size=12):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, size, 6, dtype=torch.float64, generator=generator)
    return zip(x, torch.randn(count, size, 2, dtype=torch.float64, generator=generator), strict=True)


def _train(model, optimizer, average, mine, clip=None):
    for x, y in _batches(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
        average(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def _assert_trains_like_one_process(build, clip=None):
    serial, ported = _net(), _net()
    _train(serial, build(serial.parameters()), lambda optimizer: None, slice(None), clip)
    _train(ported, build(ported.parameters()), dl.gradients, slice(_r, None, _n), clip)
    for one, many in zip(serial.parameters(), ported.parameters(), strict=True):
        torch.testing.assert_close(many, one, rtol=1e-11, atol=1e-13)
    same_bits(ported.parameters())


def parameters_equal_those_of_one_process_on_the_whole_batch():
    _assert_trains_like_one_process(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
    _assert_trains_like_one_process(lambda p: torch.optim.Adam(p, 0.01))
    _assert_trains_like_one_process(lambda p: torch.optim.AdamW(p, 0.01, foreach=True))


def the_averaged_gradient_is_what_is_clipped():
    _assert_trains_like_one_process(lambda p: torch.optim.SGD(p, 0.1), clip=0.05)


def a_closure_averages_inside_itself():
    def train(model, average, mine):
        x, y = next(_batches(1))
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=8, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[mine]), y[mine])
            loss.backward()
            average(optimizer)
            return dl.average(loss) if average is dl.gradients else loss

        optimizer.step(closure)

    serial, ported = _net(), _net()
    train(serial, lambda optimizer: None, slice(None))
    train(ported, dl.gradients, slice(_r, None, _n))
    for one, many in zip(serial.parameters(), ported.parameters(), strict=True):
        torch.testing.assert_close(many, one, rtol=1e-7, atol=1e-9)
    same_bits(ported.parameters())


def accumulated_gradients_are_averaged_once():
    model = _net()
    expected = copy.deepcopy(model)
    for x, y in _batches(3):
        nn.functional.mse_loss(expected(x), y).backward()
        nn.functional.mse_loss(model(x[_r::_n]), y[_r::_n]).backward()
    dl.gradients(model)
    for one, many in zip(expected.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(many.grad, one.grad, rtol=1e-11, atol=1e-13)


def two_optimizers_average_their_own_parameters():
    one, two = _net(), _net()
    for p in [*one.parameters(), *two.parameters()]:
        p.grad = torch.full_like(p, _r)
    dl.gradients(torch.optim.SGD(one.parameters(), 0.1))
    assert all((p.grad == (_n - 1) / 2).all() for p in one.parameters())
    assert all((p.grad == _r).all() for p in two.parameters())
    dl.gradients([two, torch.optim.SGD(two.parameters(), 0.1)])
    assert all((p.grad == (_n - 1) / 2).all() for p in two.parameters())


def a_gradient_missing_on_some_ranks_counts_as_zero_and_everywhere_stays_none():
    a, b, c = (nn.Parameter(torch.ones(3)) for _ in range(3))
    if _r == 0:
        a.grad = torch.full((3,), 6.0)
    if _r == 1:
        b.grad = torch.full((3,), 12.0)
    dl.gradients([a, b, c])
    assert a.grad.tolist() == [6.0 / _n] * 3
    assert b.grad.tolist() == [12.0 / _n] * 3
    assert c.grad is None


def shared_parameters_are_averaged_once():
    first = nn.Linear(4, 4)
    second = nn.Linear(4, 4)
    second.weight = first.weight
    first.weight.grad = torch.full((4, 4), float(_r))
    dl.gradients([first, second, first.weight])
    assert (first.weight.grad == (_n - 1) / 2).all()


def sparse_gradients_are_averaged_over_the_union_of_rows():
    def train(rows, average):
        torch.manual_seed(3)
        table = nn.Embedding(50, 4, sparse=True).double()
        optimizer = torch.optim.SparseAdam(table.parameters(), 0.1)
        for row in rows:
            optimizer.zero_grad()
            if len(row):
                (table(torch.tensor(row)).square().sum() / 3).backward()
            average(optimizer)
            optimizer.step()
        return table.weight

    # The sum of three rows' losses on rank 0, of one row on rank 1, and nothing on the others.
    steps = [[1, 7, 7], [0, 49, 3]]
    mine = [(row[:2], row[2:], [])[_r] for row in steps]
    ported = train(mine, dl.gradients)
    serial = train(steps, lambda o: o.param_groups[0]["params"][0].grad.div_(_n))
    torch.testing.assert_close(ported, serial, rtol=1e-12, atol=1e-14)
    same_bits([ported])


def half_precision_sums_neither_overflow_nor_lose_bits():
    for dtype, big in ((torch.float16, 60000.0), (torch.bfloat16, 1e38)):
        p = nn.Parameter(torch.zeros(5, dtype=dtype))
        p.grad = torch.full((5,), big, dtype=dtype)
        dl.gradients([p])
        assert (p.grad == torch.tensor(big, dtype=dtype)).all()
        generator = torch.Generator().manual_seed(5)
        everyone = torch.randn(_n, 1000, generator=generator).to(dtype)
        p = nn.Parameter(torch.zeros(1000, dtype=dtype))
        p.grad = everyone[_r].clone()
        dl.gradients([p])
        torch.testing.assert_close(p.grad, everyone.double().mean(0).to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
        same_bits([p.grad.float()])


def any_memory_format_gives_the_same_mean():
    torch.manual_seed(4)
    everyone = torch.randn(_n, 6, 4, 3, 3)
    conv = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    layouts = [
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t.contiguous(),
        lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        lambda t: torch.stack([t, t], -1)[..., 0],
    ]
    conv.weight.grad = layouts[(_r + 1) % 4](everyone[_r].clone())
    kept = conv.weight.grad
    dl.gradients(conv.weight)
    assert conv.weight.grad is kept
    torch.testing.assert_close(kept, everyone.mean(0))


def complex_and_empty_and_scalar_parameters_work():
    z = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    z.grad = torch.full((3,), complex(_r, -_r), dtype=torch.complex64)
    empty, scalar = nn.Parameter(torch.zeros(0, 4)), nn.Parameter(torch.tensor(1.0))
    empty.grad, scalar.grad = torch.zeros(0, 4), torch.tensor(float(_r))
    dl.gradients([empty, z, scalar])
    assert (z.grad == complex((_n - 1) / 2, -(_n - 1) / 2)).all()
    assert scalar.grad.item() == (_n - 1) / 2


def gradients_as_autograd_returns_them_are_averaged_themselves():
    x = torch.ones(4, requires_grad=True)
    grads = torch.autograd.grad((x * _r).square().sum(), [x], create_graph=True)
    dl.gradients(grads)
    torch.testing.assert_close(grads[0].detach(), torch.full((4,), 2 * sum(r * r for r in range(_n)) / _n))


def a_plain_tensor_that_an_optimizer_steps_keeps_its_values_while_it_is_frozen():
    trained, frozen = torch.zeros(3, requires_grad=True), torch.full((3,), float(_r), requires_grad=True)
    optimizer = torch.optim.SGD([trained, frozen], 1.0)
    frozen.requires_grad_(False)
    (trained.sum() * _r).backward()
    dl.gradients(optimizer)
    assert (trained.grad == (_n - 1) / 2).all()
    assert (frozen == _r).all() and frozen.grad is None


def gradients_of_sums_are_averaged_whose_elements_are_one_in_memory():
    w = torch.ones(4, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(w.sum() * _r, [w])
    assert grad.stride() == (0, 0)
    dl.gradients([grad])
    assert (grad == (_n - 1) / 2).all()
    for overlapped in (False, True):
        p = nn.Parameter(torch.zeros(4))
        if overlapped:
            dl.overlap([p])
        for _ in range(3):
            p.grad = torch.ones(1).expand(4) if _r == 0 else torch.arange(4.0)
            dl.gradients([p])
            torch.testing.assert_close(p.grad, (torch.ones(4) + (_n - 1) * torch.arange(4.0)) / _n)


@with_a_scaler
def an_overflow_on_one_rank_skips_the_step_on_all():
    model = _net().float()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    x = torch.ones(2, 6)
    x[0, 0] = float("inf") if _r == _n - 1 else 1.0
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(model(x if step == 0 else torch.ones(2, 6)).square().mean()).backward()
        dl.gradients(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if step == 0:
            assert scaler.get_scale() == 2.0
            assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert scaler.get_scale() == 4.0
    assert not torch.equal(model[0].weight, before[0])
    same_bits(model.parameters())


def different_shapes_are_an_error_on_every_rank_that_names_the_parameter():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2 if _r == 0 else 5))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with contextlib.suppress(ZeroDivisionError):
        try:
            dl.gradients(model)
        except CommError as error:
            assert "1.weight" in str(error), error
            assert "(2, 2)" in str(error), error
            assert "(5, 2)" in str(error), error
            1 / 0  # noqa: B018
        raise AssertionError("no error")
    more = nn.Sequential(*(nn.Linear(2, 2) for _ in range(1 + min(_r, 1))))
    remembered = torch.optim.SGD(more.parameters(), 0.1)
    for p in more.parameters():
        p.grad = torch.ones_like(p)
    for _ in range(2):
        try:
            dl.gradients(remembered)
        except CommError as error:
            assert "2" in str(error), error
            assert "4" in str(error), error
        else:
            raise AssertionError("no error")
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.full((3,), float(_r))
    dl.gradients([p])  # and the ranks go on
    assert (p.grad == (_n - 1) / 2).all()


def what_holds_no_gradients_is_refused():
    for wrong in ("model", 3, [], (p for p in ()), [1, 2], object()):
        try:
            dl.gradients(wrong)
        except TypeError:
            continue
        raise AssertionError(wrong)


def averages_keep_the_kind_of_their_argument():
    mean = (_n - 1) / 2
    assert dl.average(float(_r)) == mean
    assert type(dl.average(float(_r))) is float
    assert dl.average(_r) == mean
    assert (type(dl.average(2 + (_r == 0))), type(dl.average(23)), type(dl.average(23.0))) == (float, int, float)
    assert dl.average((float(_r), _r)) == (mean, mean)
    assert [type(entry) for entry in dl.average([23, 23.0, 2 + (_r == 0)])] == [int, float, float]
    assert dl.average({"loss": float(_r), "split": "val", "best": None}) == {"loss": mean, "split": "val", "best": None}
    lists = defaultdict(list, loss=[float(_r), 2.0])
    assert dl.average(lists) == {"loss": [mean, 2.0]} and type(dl.average(lists)) is defaultdict
    names = ("a", "b") if _r == 0 else ("b", "a")  # as out of a set of texts, whose order is each process's own
    # All ranks then have them in rank 0's, so that what goes through them does alike.
    assert list(dl.average({name: float(ord(name)) for name in names}).items()) == [("a", ord("a")), ("b", ord("b"))]
    try:
        dl.average({"a" if _r == 0 else "b": 1.0})
    except CommError as error:
        assert "'a' on rank 0" in str(error) and "has 'b'" in str(error)
    else:
        raise AssertionError("no error")
    assert dl.average(_r > 0) == (_n - 1) / _n
    t = torch.full((2, 3), float(_r), dtype=torch.bfloat16, requires_grad=True)
    assert dl.average(t).dtype == torch.bfloat16
    assert (dl.average(t) == mean).all()
    assert (t == _r).all()
    counts = dl.average(torch.arange(4) * _r)
    assert counts.dtype == torch.float32
    torch.testing.assert_close(counts, torch.arange(4) * mean)
    assert dl.average(torch.tensor(float(_r), dtype=torch.float64)).item() == mean
    a = np.full((3, 2), _r, dtype=np.float32)[:, ::-1]
    assert dl.average(a).dtype == np.float32
    assert (dl.average(a) == mean).all()
    assert dl.average(np.int64(_r)) == mean
    assert isinstance(dl.average(np.float32(_r)), np.float32)
    assert np.isnan(dl.average(float("nan") if _r == 0 else 1.0))


def buffers_of_a_module_are_averaged():
    norm = nn.BatchNorm1d(3)
    norm.running_mean.fill_(_r)
    norm.num_batches_tracked.fill_(7)
    assert dl.average(norm) is norm
    assert (norm.running_mean == (_n - 1) / 2).all()
    assert norm.num_batches_tracked == 7


def totals_keep_the_kind_of_their_argument():
    total = _n * (_n - 1) // 2
    assert dl.total(_r) == total
    assert type(dl.total(_r)) is int
    assert dl.total(2**60 + _r) == _n * 2**60 + total
    assert type(dl.total(float(_r))) is float
    assert dl.total(_r / 2) == total / 2
    t = torch.full((2, 3), _r, dtype=torch.int32)
    assert dl.total(t).dtype == torch.int32
    assert (dl.total(t) == total).all()
    assert (t == _r).all()
    assert dl.total(torch.tensor([True, _r > 0])).tolist() == [_n, _n - 1]
    loss = torch.tensor(float(_r), requires_grad=True)
    assert dl.total(loss).item() == total

    assert not dl.total(loss).requires_grad

    def large(rank: int) -> list[int]:
        return [2**62 if rank % 2 else -(2**62), -rank if rank else 2**63 - 1, 2**32 - 1, -1]

    exact = [sum(each) for each in zip(*map(large, range(_n)), strict=True)]
    assert dl.total(torch.tensor([large(_r)])).tolist() == [exact]
    assert [dl.total(each) for each in large(_r)] == exact
    assert dl.total(2**62 + 2**61) == _n * (2**62 + 2**61)
    wrapping = (np.array([-(2**63)]), np.uint64(2**63 + 5), torch.tensor([[2**63 - 1]]))
    for narrow in (torch.tensor([1, 200], dtype=torch.uint8), np.array([-100], dtype=np.int8), *wrapping):
        try:
            dl.total(narrow)
        except CommError as error:
            assert f"the sum over the ranks is {_n * int(np.ravel(narrow)[-1]):.0f}, and " in str(error), error
        else:
            raise AssertionError("no error")
    a = np.full((3, 2), _r, dtype=np.float32)
    assert dl.total(a).dtype == np.float32
    assert (dl.total(a) == total).all()
    os.environ["DL_COMM_REPLICATE"] = "1"
    assert dl.total(_r) == _r
    del os.environ["DL_COMM_REPLICATE"]
    try:
        dl.total("3")
    except TypeError as error:
        assert "str" in str(error)
    else:
        raise AssertionError("no error")


def totals_of_lists_and_dicts_are_sums_of_their_entries():
    total = _n * (_n - 1) // 2
    assert dl.total([_r, 0.5, np.int32(1)]) == [total, 0.5 * _n, _n]
    assert dl.total((2**62, _r)) == (_n * 2**62, total)
    counts = dl.total(Counter({"all": 1, f"rank {_r}": 3}))
    assert type(counts) is Counter
    assert counts == {"all": _n, **{f"rank {k}": 3 for k in range(_n)}}
    own = {0: _r}
    assert dl.total(own) == {0: total}
    assert own == {0: _r}
    if _n > 1:
        try:
            dl.total([0] * (1 + (_r > 0)))
        except CommError as error:
            assert "entries on ranks 0 to" in str(error)
        else:
            raise AssertionError("no error")
    assert dl.total([1]) == [_n]


def parameters_that_differ_before_their_first_update_are_told_once():
    def told(net, optimizer, steps):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(steps):
                net(torch.ones(3, 4)).mean().backward()
                dl.gradients(optimizer)
                optimizer.step()
        return [str(w.message) for w in found if "before its first update" in str(w.message)]

    for seed, expected in ((7, 0), (_r, 1)):
        torch.manual_seed(seed)
        net = nn.Linear(4, 1)
        found = told(net, torch.optim.SGD(net.parameters(), 0.1), 3)
        assert len(found) == (expected if _r == 0 else 0), found
        assert all("parameter 0" in text and "broadcast(model, optimizer)" in text for text in found)
    torch.manual_seed(_r)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    dl.broadcast(net, optimizer)
    assert not told(net, optimizer, 2)
