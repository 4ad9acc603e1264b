"""The distributed optimizer, and BatchNorm over the global batch."""

import copy
import io
from contextlib import redirect_stdout

import dl_comm.torch as dl
import torch
from agreement import same_bits
from torch import nn
from torch_versions import with_a_scaler

_r, _n = dl.get_rank(), dl.get_nranks()


def _net(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def _data():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(12, 6, dtype=torch.float64, generator=generator), torch.ones(12, 2, dtype=torch.float64)


def _assert_trains_alike(serial, plain, ported, distributed):
    """Four steps of one model on all the data leave what four of the other leave on the ranks' shares."""
    x, y = _data()
    for model, optimizer, mine in ((serial, plain, slice(None)), (ported, distributed, slice(_r, None, _n))):
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
            optimizer.step()
    for one, many in zip(serial.parameters(), ported.parameters(), strict=True):
        torch.testing.assert_close(many, one, rtol=1e-11, atol=1e-13)
    same_bits(ported.parameters())


def steps_average_first():
    for overlap in (False, True):
        for build in (lambda p: torch.optim.SGD(p, 0.1, momentum=0.5), lambda p: torch.optim.Adam(p, 0.01)):
            serial, ported = _net(), _net(1 + _r)
            plain, distributed = build(serial.parameters()), build(ported.parameters())
            assert dl.DistributedOptimizer(distributed, overlap=overlap) is distributed
            assert dl.DistributedOptimizer(distributed) is distributed
            _assert_trains_alike(serial, plain, ported, distributed)


def steps_average_first_although_something_is_compiled_between():
    for build in (lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.Adam(p, 0.01), torch.optim.RAdam):
        serial, ported = _net(), _net()
        plain, distributed = build(serial.parameters()), dl.DistributedOptimizer(build(ported.parameters()))
        torch.compile(nn.Tanh(), backend="aot_eager")(torch.ones(1))  # a process's first may matter
        _assert_trains_alike(serial, plain, ported, distributed)


def the_first_generations_optimizer_trains_like_one_process():
    from ml_comm_torch import DistributedOptimizer

    serial, ported = _net(), _net(1 + _r)
    plain = torch.optim.Adam(serial.parameters(), 0.01)
    distributed = DistributedOptimizer(torch.optim.Adam(ported.parameters(), 0.01), 4, warmup=1.0, verb=0)
    _assert_trains_alike(serial, plain, ported, distributed)


def closures_average_at_every_evaluation():
    serial, ported = _net(), _net()
    x, y = _data()
    for model, mine in ((serial, slice(None)), (ported, slice(_r, None, _n))):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
        if model is ported:
            dl.DistributedOptimizer(optimizer)

        def closure(model=model, optimizer=optimizer, mine=mine):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[mine]), y[mine])
            loss.backward()
            return loss

        optimizer.step(closure)
        optimizer.step(closure=closure)
    for one, many in zip(serial.parameters(), ported.parameters(), strict=True):
        torch.testing.assert_close(many, one, rtol=1e-6, atol=1e-8)
    same_bits(ported.parameters())


@with_a_scaler
def the_scaler_sees_an_overflow_of_any_rank():
    # A fused optimizer unscales and skips inside its own step.
    for build in (lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.Adam(p, 0.1, fused=True)):
        model = _net().float()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = dl.DistributedOptimizer(build(model.parameters()))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(3):
            optimizer.zero_grad()
            x = torch.full((2, 6), float("inf") if step == 0 and _r == 1 else 1.0 + _r)
            scaler.scale(model(x).square().mean()).backward()
            if step == 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            if step == 0:
                assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
                assert scaler.get_scale() == 2.0
                optimizer.zero_grad()
                model(x.clamp(max=3)).square().mean().backward()
                optimizer.step()  # without the scaler, after a step that it skipped
        assert not torch.equal(model[0].weight, before[0])
        same_bits(model.parameters())


def time_waited_is_reported():
    model = nn.Linear(2, 2)
    optimizer = dl.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), verbosity=1, frequency=2)
    out = io.StringIO()
    with redirect_stdout(out):
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    lines = out.getvalue().splitlines()
    assert len(lines) == (2 if _r == 0 else 0)
    assert all(line.startswith("Rank 0 has waited a total of ") for line in lines)
    assert _r or lines[1].endswith("on team 0 (calls = 2)")


def batch_norm_over_all_ranks_is_batch_norm_of_the_global_batch():
    cases = [
        (nn.BatchNorm1d(3), (12, 3)),
        (nn.BatchNorm2d(3, momentum=None), (12, 3, 4, 4)),
        (nn.BatchNorm1d(3, affine=False), (12, 3, 5)),
        (nn.BatchNorm3d(3, track_running_stats=False), (12, 3, 2, 2, 2)),
    ]
    for layer, shape in cases:
        torch.manual_seed(1)
        serial = nn.Sequential(nn.Conv1d(3, 3, 1) if len(shape) == 3 else nn.Identity(), layer).double()
        ported = dl.sync_batchnorm(copy.deepcopy(serial))
        assert ported.state_dict().keys() == serial.state_dict().keys()
        x = torch.randn(shape, dtype=torch.float64) * 3 + 5
        weight = torch.randn(shape, dtype=torch.float64)
        whole = x.clone().requires_grad_()
        part = x[_r::_n].clone().requires_grad_()
        for _ in range(2):
            expected, got = serial(whole), ported(part)
            torch.testing.assert_close(got, expected[_r::_n], rtol=1e-10, atol=1e-10)
        (expected * weight).mean().backward()
        (got * weight[_r::_n]).mean().backward()
        torch.testing.assert_close(part.grad / _n, whole.grad[_r::_n], rtol=1e-9, atol=1e-10)
        if list(ported.parameters()):
            dl.gradients(ported)
        for one, many in zip(serial.parameters(), ported.parameters(), strict=True):
            torch.testing.assert_close(many.grad, one.grad, rtol=1e-9, atol=1e-10)
        for one, many in zip(serial.buffers(), ported.buffers(), strict=True):
            torch.testing.assert_close(many, one, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ported.eval()(x), serial.eval()(x), rtol=1e-10, atol=1e-10)


def batch_norm_takes_uneven_batches_and_half_precision():
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        torch.manual_seed(3)
        x = torch.randn(3 * _n + 1, 4, dtype=dtype)
        serial = nn.BatchNorm1d(4)
        ported = dl.sync_batchnorm(copy.deepcopy(serial))
        got = ported(x[_r::_n])
        assert got.dtype == dtype
        torch.testing.assert_close(got.float(), serial(x.float())[_r::_n], rtol=tolerance, atol=tolerance)
