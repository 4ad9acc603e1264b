"""Overlapped averaging gives, in every situation, what plain averaging gives."""

import contextlib
import copy
import gc
import io
import os
import sys
import weakref

import dl_comm.torch as dl
import torch
from dl_comm import CommError
from dl_comm.torch import overlap_buffers
from dl_comm.torch import overlap_choice as choice
from dl_comm.torch.overlap import _overlaps, overlaps
from torch import nn
from torch_versions import with_a_scaler

_r, _n = dl.get_rank(), dl.get_nranks()
os.environ["DL_COMM_BUCKET_MB"] = "0.001"  # a few parameters in each bucket


class _Net(nn.Module):
    """Layers, one of them used or not as the step says, a sparse table, a channels_last convolution, a tied weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(9, 18, sparse=True)
        self.conv = nn.Conv2d(2, 2, 3, padding=1).to(memory_format=torch.channels_last)
        self.first, self.second, self.maybe = nn.Linear(18, 18), nn.Linear(18, 18), nn.Linear(18, 18)
        self.tied = nn.Linear(18, 18)
        self.tied.weight = self.first.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, x, rows, maybe=True):
        x = x + self.table(rows)
        x = self.conv(x.reshape(-1, 2, 3, 3).to(memory_format=torch.channels_last)).reshape(-1, 18)
        x = self.second(torch.tanh(self.tied(torch.tanh(self.first(x)))))
        return self.maybe(x) if maybe else x


def _assert_same_as_plain(step, steps=5, build=_Net, optimizer=lambda p: torch.optim.SGD(p, 0.1)):
    """``step(k, model, optimizer, generator)`` trains alike with and without overlap."""
    results = []
    for overlapped in (False, True):
        model = build().double()
        made = optimizer(model.parameters())
        if overlapped:
            dl.overlap(made)
        generator = torch.Generator().manual_seed(100 + _r)
        for k in range(steps):
            step(k, model, made, generator)
        results.append(model)
    for (name, plain), (_, overlapped) in zip(*(m.named_parameters() for m in results), strict=True):
        assert torch.equal(plain, overlapped), name
    assert results[0].unused.weight.grad is None
    assert results[1].unused.weight.grad is None


def _backward(model, generator, **how):
    x = torch.randn(4, 18, dtype=torch.float64, generator=generator)
    model(x, torch.randint(9, (4,), generator=generator), **how).square().mean().backward()


def one_backward_a_step():
    def step(k, model, optimizer, generator):
        optimizer.zero_grad()
        _backward(model, generator)
        dl.gradients(optimizer)
        optimizer.step()

    _assert_same_as_plain(step)


def reductions_start_while_backward_runs():
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
    dl.overlap(model)
    started = []
    for _ in range(2):
        model.zero_grad()
        x = torch.ones(2, 16, requires_grad=True)
        x.register_hook(
            lambda grad: started.append(sum(b.ticket is not None for b in _overlaps[model[0].bias]().buckets))
        )
        model(x).sum().backward()
        dl.gradients(model)
    assert started[0] == 0
    assert started[1] >= 3  # all but the layer that backward reaches last


def gradients_zeroed_in_place():
    def step(k, model, optimizer, generator):
        optimizer.zero_grad(set_to_none=False)
        _backward(model, generator)
        dl.gradients(optimizer)
        optimizer.step()

    def build():
        model = _Net()
        model.table = nn.Embedding(9, 18)
        return model

    _assert_same_as_plain(step, build=build)


def any_number_of_backwards_also_changing_and_different_between_ranks():
    def step(k, model, optimizer, generator):
        optimizer.zero_grad()
        for _ in range([1, 3, 2, 2 + _r, 1][k]):
            _backward(model, generator)
        dl.gradients(optimizer)
        optimizer.step()

    _assert_same_as_plain(step)


def accumulation_with_no_sync():
    def step(k, model, optimizer, generator):
        optimizer.zero_grad()
        with dl.no_sync():
            _backward(model, generator)
        _backward(model, generator)
        dl.gradients(optimizer)
        optimizer.step()

    _assert_same_as_plain(step)


def parameters_without_gradients_on_some_ranks_and_steps():
    def step(k, model, optimizer, generator):
        optimizer.zero_grad()
        _backward(model, generator, maybe=(k + _r) % 2 == 0)
        dl.gradients(optimizer)
        optimizer.step()

    _assert_same_as_plain(step)


def gradients_changed_after_backward():
    def step(k, model, optimizer, generator):
        optimizer.zero_grad()
        _backward(model, generator)
        if k % 2:
            model.second.weight.grad.mul_(1 + _r)
        if k == 2:
            model.first.weight.grad = torch.full_like(model.first.weight, _r)
        if k == 3 and _r == 0:
            model.maybe.weight.grad = None
        dl.gradients(optimizer)
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p is not model.table.weight], 0.1)
        optimizer.step()

    _assert_same_as_plain(step)


def an_abandoned_backward_is_forgotten():
    def step(k, model, optimizer, generator):
        _backward(model, generator)
        optimizer.zero_grad()
        if k % 2:
            _backward(model, generator)
        dl.gradients(optimizer)
        optimizer.step()

    _assert_same_as_plain(step)


def two_networks_against_each_other():
    results = []
    for overlapped in (False, True):
        torch.manual_seed(1)
        g, d = nn.Linear(4, 6).double(), nn.Linear(6, 1).double()
        optimizer_g, optimizer_d = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
        if overlapped:
            dl.overlap(optimizer_g)
            dl.overlap(optimizer_d)
        generator = torch.Generator().manual_seed(_r)
        for _ in range(4):
            z, real = (torch.randn(3, k, dtype=torch.float64, generator=generator) for k in (4, 6))
            optimizer_d.zero_grad()
            d(real).mean().backward()
            (-d(g(z).detach()).mean()).backward()
            dl.gradients(optimizer_d)
            optimizer_d.step()
            optimizer_g.zero_grad()
            d(g(z)).mean().backward()
            dl.gradients(optimizer_g)
            optimizer_g.step()
        results.append([*g.parameters(), *d.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@with_a_scaler
def mixed_dtypes_and_the_scaler():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4).half())
    dl.overlap(model)
    for _ in range(3):
        model.zero_grad()
        x = model[0](torch.ones(2, 4) * (_r + 1))
        for layer in model[1:]:
            x = layer(x.to(layer.weight.dtype))
        x.float().sum().backward()
        mine = [p.grad.clone() for p in model.parameters()]
        dl.gradients(model)
        for p, grad in zip(model.parameters(), mine, strict=True):
            plain = nn.Parameter(torch.zeros_like(p))
            plain.grad = grad
            dl.gradients([plain])
            assert torch.equal(plain.grad, p.grad)


def compiled_models_overlap_too():
    def step(k, model, optimizer, generator):
        optimizer.zero_grad()
        _backward(torch.compile(model, backend="aot_eager"), generator)
        dl.gradients(optimizer)
        optimizer.step()

    def build():
        model = _Net()
        model.table = nn.Embedding(9, 18)
        return model

    _assert_same_as_plain(step, steps=2, build=build)


def a_part_of_what_overlaps_is_refused():
    model = nn.Linear(3, 3)
    dl.overlap(model)
    for call, kind in ((lambda: dl.gradients([model.weight]), CommError), (lambda: dl.overlap(model), ValueError)):
        try:
            call()
        except kind:
            continue
        raise AssertionError("no error")


def models_that_come_one_after_the_other_are_let_go_and_share_threads_and_memory():
    gone, teams = [], []
    for size in (30, 20, 30, 10):
        before = {buffer.team for buffer in overlap_buffers._left.values()}
        model = nn.Linear(size, size)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        dl.overlap(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.ones(1, size)).sum() * _r).backward()
            dl.gradients(optimizer)
            assert (model.bias.grad == (_n - 1) / 2).all()
            optimizer.step()
        teams.append(_overlaps[model.bias]().team)
        assert size == 30 or teams[-1] in before
        gone.append(weakref.ref(model.weight))
        del model, optimizer
        gc.collect()
        assert all(parameter() is None for parameter in gone)
    assert teams[2] == teams[0]


@contextlib.contextmanager
def _chosen(mode, gain):
    """``gradients`` tries overlap, as between nodes, and keeps it if its time is below ``gain`` of that without."""
    before = choice._mode, choice.GAIN, choice.LEAST, choice.TIMED
    choice._mode, choice.GAIN, choice.LEAST, choice.TIMED = mode, gain, 0, 2
    try:
        yield
    finally:
        choice._mode, choice.GAIN, choice.LEAST, choice.TIMED = before


def _train(mode, gain, steps, edit=lambda model, k: None):
    """Return a model that so many steps have trained, and whether its gradients overlap in the end."""
    model = _Net().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(100 + _r)
    with _chosen(mode, gain):
        for k in range(steps):
            optimizer.zero_grad()
            _backward(model, generator)
            edit(model, k)
            dl.gradients(optimizer)
            optimizer.step()
    return model, overlaps(model.parameters())


def _assert_same_parameters(one, other):
    for (name, first), second in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second), name


def what_was_faster_in_the_first_steps_is_kept():
    plain, overlapped = _train("off", 1.0, 14)
    assert not overlapped
    for mode, gain, steps, kept in (("auto", 1e9, 14, True), ("auto", 0.0, 14, False), ("on", 0.0, 14, True)):
        chosen, overlapped = _train(mode, gain, steps)
        assert overlapped == kept, (mode, gain)
        _assert_same_parameters(plain, chosen)


def edits_through_data_are_seen_where_no_script_asked_for_overlap():
    def clamp(model, k):
        if k % 3 == 0:
            model.first.weight.grad.data.clamp_(-1e-3, 1e-3)

    _assert_same_parameters(_train("off", 1.0, 14, clamp)[0], _train("on", 0.0, 14, clamp)[0])


def gradients_of_a_part_end_what_no_script_asked_for():
    def part(model, k):
        if k == 4:
            dl.gradients([model.second.weight, model.first.bias])

    plain, _ = _train("off", 1.0, 7, part)
    ended, overlapped = _train("on", 0.0, 7, part)
    assert not overlapped
    _assert_same_parameters(plain, ended)


def where_there_is_no_memory_for_it_gradients_are_averaged_as_before():
    module = sys.modules["dl_comm.torch.overlap"]
    take = module.take

    def refused(*_):
        raise CommError("no shared memory is left")

    module.take = refused
    try:
        spared, overlapped = _train("auto", 1e9, 14)
    finally:
        module.take = take
    assert not overlapped
    _assert_same_parameters(_train("off", 1.0, 14)[0], spared)


def a_model_whose_gradients_overlap_is_copied_and_saved():
    model, overlapped = _train("on", 0.0, 3)
    assert overlapped
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        _assert_same_parameters(model, other)
        assert not overlaps(other.parameters())
