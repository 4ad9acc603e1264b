"""Checks of dl_comm.torch with tensors on a real GPU, which any number of ranks share."""

import warnings

import dl_comm.torch as dl
import torch
from torch import nn

_r, _n = dl.get_rank(), dl.get_nranks()


def _drawn(rank, shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64).to(dtype)


def _mean(shape, dtype=torch.float32):
    return sum(_drawn(rank, shape, dtype).double() for rank in range(_n)) / _n


def means_agree_with_float64_for_every_type_and_size():
    tolerances = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
    for dtype, allowed in tolerances.items():
        for size in (1, 1000, 3_000_001):
            got = dl.average(_drawn(_r, size, dtype).cuda())
            assert got.is_cuda
            assert got.dtype == dtype
            assert torch.allclose(got.cpu().double(), _mean(size, dtype), rtol=allowed, atol=allowed), (dtype, size)


def gradients_that_come_late_are_waited_for_on_the_device():
    parameter = nn.Parameter(torch.zeros(2_000_000, device="cuda"))
    for step in range(5):
        parameter.grad = torch.full_like(parameter, float("nan"))
        torch.cuda._sleep(200_000_000)  # cycles
        parameter.grad.copy_(_drawn(_r + 10 * step, 2_000_000))
        dl.gradients([parameter])
        doubled = parameter.grad * 2  # on the same stream, so after the mean is there
        expected = sum(_drawn(r + 10 * step, 2_000_000).double() for r in range(_n)) / _n
        assert torch.allclose(doubled.cpu().double() / 2, expected, rtol=1e-5, atol=1e-5)


def no_call_of_a_step_waits_for_the_gpu():
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(20))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    dl.broadcast(model)
    dl.overlap(optimizer)
    x = torch.randn(64, 256, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    warnings.filterwarnings("ignore", "Warning: Profiler clears events at the end of each cycle")  # it has one cycle
    for step in range(4):
        with torch.profiler.profile(activities=activities) as seen:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            dl.gradients(optimizer)
            optimizer.step()
        waits = [e.key for e in seen.key_averages() if "Synchronize" in e.key and "Device" not in e.key]
        assert step < 2 or not waits, waits
    torch.cuda.synchronize()


def training_with_overlap_accumulation_and_clipping_is_as_without():
    ends = []
    for overlapped in (False, True):
        torch.manual_seed(1)
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)]
        model = nn.Sequential(*layers).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        dl.broadcast(model, optimizer)
        if overlapped:
            dl.overlap(optimizer)
        generator = torch.Generator().manual_seed(50 + _r)
        for _ in range(6):
            optimizer.zero_grad()
            for _ in range(2):
                model(torch.randn(4, 3, 8, 8, generator=generator).cuda()).square().mean().backward()
            dl.gradients(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        ends.append([p.detach().cpu() for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*ends, strict=True))


def half_precision_with_a_scaler_skips_on_all_ranks():
    model = nn.Linear(64, 64).cuda()
    dl.broadcast(model)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda", init_scale=256.0)
    before = model.weight.detach().clone()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    if _r == _n - 1:
        model.weight.grad[0, 0] = float("inf")
    dl.gradients(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, model.weight)
