"""Ranks, random numbers, learning rates and what rank 0 alone does."""

import builtins
import contextlib
import hashlib
import io
import os
import random
import tempfile
from pathlib import Path

import dl_comm.torch as dl
import numpy as np
import torch
from dl_comm import CommError, _core, stopping
from dl_comm.ranks import _faces
from torch import nn

_r, _n = dl.get_rank(), dl.get_nranks()


def ranks_are_numbered_and_local():
    assert sorted(int(b) for b in _core.allgather_bytes(str(dl.get_rank()).encode())) == list(range(_n))
    assert (dl.get_localrank(), dl.get_localsize()) == (_r, _n)
    assert dl.is_rank0() == (_r == 0)


def reseeding_changes_all_generators_but_rank_0s():
    def seeded():
        torch.manual_seed(4)
        np.random.seed(4)
        random.seed(4)

    def drawn():
        return [torch.rand(1).item(), np.random.rand(), random.random()]

    seeded()
    serial = drawn()
    seeded()
    dl.reseed()
    mine = drawn()
    assert (mine == serial) == (_r == 0)
    assert len(set(_core.allgather_bytes(repr(mine).encode()))) == _n
    seeded()
    dl.reseed()
    assert drawn() == mine
    seeded()
    first = drawn()
    seeded()
    dl.reseed()
    dl.reseed(alike=True)
    assert drawn() == first


def reseeding_generators_of_a_scripts_own_changes_those_alone_and_not_rank_0s():
    def drawn():
        own = [torch.Generator().manual_seed(3), np.random.default_rng(3), np.random.RandomState(3), random.Random(3)]
        yield own
        yield [torch.rand(1, generator=own[0]).item(), own[1].random(), own[2].rand(), own[3].random()]

    serial, mine = list(drawn())[1], drawn()
    torch.manual_seed(4)
    state = torch.get_rng_state()
    dl.reseed(*next(mine))
    numbers = next(mine)
    assert torch.equal(torch.get_rng_state(), state)
    assert [a == b for a, b in zip(numbers, serial, strict=True)] == [_r == 0] * 4
    assert len(set(_core.allgather_bytes(repr(numbers).encode()))) == _n
    with contextlib.suppress(TypeError):
        dl.reseed(3)
        raise AssertionError("a number is no generator")


def what_an_unseeded_script_draws_before_it_reseeds_is_one_for_all():
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(_r)
    _faces.clear()
    dl.init(alike=False)
    assert len(set(_core.allgather_bytes(repr(torch.randperm(9).tolist()).encode()))) == _n
    _faces.clear()
    dl.init()
    drawn = [torch.randperm(9).tolist(), np.random.permutation(9).tolist(), random.sample(range(9), 9)]
    assert len(set(_core.allgather_bytes(repr(drawn).encode()))) == 1
    dl.reseed()
    drawn = [torch.randperm(9).tolist(), np.random.permutation(9).tolist(), random.sample(range(9), 9)]
    assert len(set(_core.allgather_bytes(repr(drawn).encode()))) == _n


def rates_and_steps_follow_the_number_of_ranks():
    assert dl.lr_scale(0.1) == 0.1 * _n
    assert dl.lr_scale(0.1, "sqrt") == 0.1 * _n**0.5
    assert dl.lr_scale(0.1, rule="none") == 0.1
    assert dl.lr_scale(1) == _n
    assert dl.lr_scale() == _n
    assert dl.lr_scale([0.1, 0.2]) == [0.1 * _n, 0.2 * _n]
    assert dl.lr_scale(lambda: 0.1)() == 0.1 * _n
    assert torch.equal(dl.lr_scale(torch.tensor(0.5)), torch.tensor(0.5 * _n))
    assert [dl.steps(c) for c in (0, 1, _n, _n + 1, -1)] == [0, 1, 1, 2, -1]
    assert dl.steps(None) is None
    assert dl.serial_steps(3) == 3 * _n
    mine = torch.tensor([dl.serial_iteration(i) for i in range(3)])
    assert dl.gather(mine).tolist() == list(range(3 * _n))  # each serial iteration once, in order
    assert dl.serial_iteration(1, 1) == 1 + dl.get_rank() and dl.serial_iteration(16, 8, 8) == 8 + 8 * (
        _n + dl.get_rank()
    )
    assert dl.compound(0.5) == 0.5**_n
    assert torch.equal(dl.compound(torch.tensor(0.5)), torch.tensor(0.5**_n))
    assert dl.steps([_n, 3 * _n]) == [1, 3]
    assert dl.steps({_n, 3 * _n}) == {1, 3} and dl.steps(range(_n, 3 * _n, _n)) == (1, 2)
    assert list(dl.steps(np.array([_n, 3 * _n]))) == list(dl.steps(torch.tensor([_n, 3 * _n]))) == [1, 3]
    assert dl.steps({_n: 0.1, 3 * _n: 0.01}) == {1: 0.1, 3: 0.01}
    assert dl.steps(lambda step: step + 0.5)(3) == 3 * _n + 0.5
    for wrong, kind in (((0.1, "cubic"), ValueError), (("0.1",), TypeError), ((None,), TypeError)):
        with contextlib.suppress(kind):
            dl.lr_scale(*wrong)
            raise AssertionError(wrong)


def warming_up_composes_with_a_scheduler():
    def rates(warm):
        p = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.SGD([p], 1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.1)
        if warm:
            dl.warmup(optimizer, 4)
        used, shown = [], []
        for _ in range(8):
            before = p.item()
            p.grad = torch.ones_like(p)
            optimizer.step()
            shown.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
            used.append(before - p.item())
        return used, shown

    plain, shown_plain = rates(False)
    warm, shown = rates(True)
    assert shown == shown_plain
    factors = [1 / _n + (1 - 1 / _n) * k / 4 for k in range(4)] + [1.0] * 4
    torch.testing.assert_close(torch.tensor(warm), torch.tensor([p * f for p, f in zip(plain, factors, strict=True)]))


def rates_decay_over_the_epochs_also_when_a_run_is_resumed():
    def rates(epochs, state=None, lr=0.5):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr)
        if state:
            optimizer.load_state_dict(state)
        seen = []
        for epoch in epochs:
            dl.decay(optimizer, epoch, (2, 4), 0.1)
            seen.append(optimizer.param_groups[0]["lr"])
        return seen, optimizer.state_dict()

    decayed = [0.5, 0.5, 0.05, 0.05, 0.005, 0.005] if _n > 1 else [0.5] * 6
    whole, _ = rates(range(6))
    first, state = rates(range(3))
    np.testing.assert_allclose(whole, decayed)
    np.testing.assert_allclose(first + rates(range(3, 6), state)[0], decayed)
    np.testing.assert_allclose(first + rates(range(3, 6))[0], decayed)
    with contextlib.suppress(ValueError):
        dl.decay(torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), 0, (1,), 10)
        raise AssertionError


def lars_takes_the_steps_of_the_paper():
    generator = np.random.default_rng(3)
    weights, bias = generator.normal(size=(3, 4)), generator.normal(size=4)
    model = nn.ParameterList([torch.tensor(weights), torch.tensor(bias), torch.zeros(2, 2, dtype=torch.float64)])
    optimizer = dl.lars(torch.optim.SGD(model, 2.0, momentum=0.9, weight_decay=0.01), trust=0.02)
    velocity, plain = np.zeros_like(weights), np.zeros_like(bias)
    for _ in range(4):
        g, b = generator.normal(size=weights.shape), generator.normal(size=bias.shape)
        model[0].grad, model[1].grad = torch.tensor(g), torch.tensor(b)
        model[2].grad = torch.zeros(2, 2, dtype=torch.float64)
        optimizer.step()
        norm = np.linalg.norm
        local = 0.02 * norm(weights) / (norm(g) + 0.01 * norm(weights)) if _n > 1 else 1.0
        velocity = 0.9 * velocity + local * (g + 0.01 * weights)
        plain = 0.9 * plain + b + 0.01 * bias
        weights, bias = weights - 2.0 * velocity, bias - 2.0 * plain
        np.testing.assert_allclose(model[0].detach().numpy(), weights, rtol=1e-12)
        np.testing.assert_allclose(model[1].detach().numpy(), bias, rtol=1e-12)
        assert not model[2].any()
        assert optimizer.param_groups[0]["weight_decay"] == 0.01
    others = (lambda p: torch.optim.Adam(p), TypeError), (lambda p: torch.optim.SGD(p, 1, maximize=True), ValueError)
    for make, kind in others:
        with contextlib.suppress(kind):
            dl.lars(make([model[0]]))
            raise AssertionError(kind)
    if _n > 1:
        with contextlib.suppress(ValueError):
            optimizer.step(lambda: None)
            raise AssertionError


def a_step_that_failed_leaves_the_full_rate():
    p = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], 1.0)
    dl.warmup(optimizer, 2)

    def closure():
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        optimizer.step(closure)
    for _ in range(2):
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 1.0


def only_rank_0_prints():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        dl.print("one", 2, sep="-")
    assert out.getvalue() == ("one-2\n" if _r == 0 else "")
    assert builtins.print is not dl.print


def other_ranks_hold_something_silent():
    calls = []
    result = dl.rank0(calls.append)(3)
    assert calls == ([3] if _r == 0 else [])
    assert not result
    made = []

    class Writer:
        def __init__(self, folder):
            made.append(folder)
            self.steps = 3

    writer = dl.rank0(Writer)("runs")
    assert made == (["runs"] if _r == 0 else [])
    assert bool(writer) == (_r == 0)
    writer.steps += 1
    writer.note = "x"
    if _r > 0:
        assert f"{writer.loss:.3f}{writer}" == ""
        os.fsync(writer.fileno())
        assert not writer.steps > 3
        assert "x" not in writer
        with writer.anything(1)["x"].y as inner:
            inner.add_scalar("loss", 1.0)
        assert list(writer) == []
        assert not writer.ready
        for uses in (os.fspath, Path):  # as os.path.join() does
            try:
                uses(writer.log_dir)
            except TypeError as error:
                assert "only rank 0 has" in str(error)
                assert "dl.broadcast(writer.log_dir)" in str(error)
            else:
                raise AssertionError("a path of nothing")


def rank_0_goes_first():
    order = []

    def visit(x):
        order.append(x)
        return x + _r

    assert dl.rank0_first(visit)(5) == 5 + _r
    assert order == [5]

    with dl.rank0_first():  # a rank that comes to it in its own turn does not wait for the others
        if not (found := (file := Path(f"fetched-{dl.get_nranks()}")).exists()):
            dl.rank0_first(file.touch)()
    assert found == (_r > 0)

    class OddError(Exception):  # nothing that another rank could make
        def __init__(self, code):
            super().__init__(f"code {code}")

    for error, elsewhere in ((OSError("no disk"), OSError), (OddError(3), CommError)):

        def fail(error=error):
            raise error

        try:
            dl.rank0_first(fail)()
        except (OSError, OddError, CommError) as caught:
            assert str(error) in str(caught)
            assert caught is error if _r == 0 else type(caught) is elsewhere and "rank 0" in str(caught)
        else:
            raise AssertionError("no error")


def threads_are_shared_among_ranks():
    assert torch.get_num_threads() == 1


def all_ranks_train_to_the_same_bits_on_sharded_data():
    torch.manual_seed(0)
    x, y = torch.randn(96, 6), torch.randint(3, (96,))
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=dl.lr_scale(1e-3))
    dl.warmup(optimizer, 4)
    loader = dl.shard(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 8, shuffle=True))
    dl.broadcast(model, optimizer)
    dl.reseed()
    for _ in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            dl.gradients(optimizer)
            optimizer.step()
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    assert len(set(_core.allgather_bytes(hashlib.sha256(bits).digest()))) == 1


def asking_at_every_step_costs_no_broadcast_a_step_and_all_ranks_stop_in_one():
    folder, asked, plain = Path(dl.broadcast(tempfile.mkdtemp())), [], _core.broadcast_bytes

    def counted(*args):
        asked.append(args)
        return plain(*args)

    os.environ["DLRUN_RUN_DIR"] = str(folder)
    _core.broadcast_bytes = counted
    try:
        for step in range(5000):
            if step == 1000 + 10 * _r and dl.is_rank0():
                (folder / "stop").touch()
            if dl.should_stop():
                break
        assert 1000 <= step <= 1000 + 64
        assert len(asked) < 100
        assert dl.should_stop()
    finally:
        _core.broadcast_bytes = plain
        del os.environ["DLRUN_RUN_DIR"]
        stopping._folder, stopping._told = None, False
    assert set(_core.allgather_bytes(str(step).encode())) == {str(step).encode()}
