"""Instruments of the tracer, each alone: ranks' numbers, what loops carry on, schedules' peaks, quiet training."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from dlrun.verify.tracer import generators, keras_schedules  # noqa: E402
from dlrun.verify.tracer.counted import carried_in  # noqa: E402
from dlrun.verify.tracer.loaders import Epoch, Loaders  # noqa: E402
from dlrun.verify.tracer.schedules import Schedules  # noqa: E402
from dlrun.verify.tracer.tensors import tensor_note  # noqa: E402
from dlrun.verify.tracer.told import Part, Whole, is_part, tell, tell_of_mpi  # noqa: E402


class Journal:
    """What instruments note their events in."""

    inside, line, orders = 0, "train.py:3", SimpleNamespace(alone=False)

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def note(self, kind: str, **facts: Any) -> None:
        self.events.append((kind, facts))

    def aside(self) -> Any:
        return nullcontext()


def test_numbers_that_are_computed_of_ranks_are_known_and_compute_as_others_do() -> None:
    n = Whole(4)
    assert [n + 1, 1 + n, n - 1, 9 - n, n * 2, 9 // n, n**2] == [5, 5, 3, 5, 8, 2, 16]
    assert [1 / n, n * 0.5, 0.5 * n] == [0.25, 2.0, 2.0]
    assert all(isinstance(number, (Whole, Part)) for number in (n + 1, 9 // n, 1 / n, (1 / n) * 2, n * 0.5))
    assert list(range(n)) == [0, 1, 2, 3]
    assert torch.arange(8)[Whole(1) :: n].tolist() == [1, 5]


def test_a_loss_with_such_a_number_in_it_is_told_from_data_that_are_cut_by_it() -> None:
    loss, n = torch.ones(2, requires_grad=True).sum(), Whole(2)
    assert is_part("__truediv__", (loss, n), loss / n)
    assert is_part("div", (loss, 1 / n), loss * (1 / n))
    assert not is_part("__truediv__", (loss, 2), loss / 2)
    assert not is_part("__mul__", (torch.ones(2), n), torch.ones(2) * n)
    assert not is_part("reshape", (loss, n), loss)


def test_a_script_is_told_its_rank_or_that_it_is_alone() -> None:
    for alone, expected in ((False, [1, 2]), (True, [0, 1])):
        face, journal = ModuleType("face"), Journal()
        vars(face).update(get_rank=lambda: 1, get_nranks=lambda: 2)
        journal.orders = SimpleNamespace(alone=alone)
        tell(journal, face)  # type: ignore[arg-type]
        assert [vars(face)[name]() for name in ("get_rank", "get_nranks", "get_rank", "get_nranks")] == expected * 2
        assert [kind for kind, _ in journal.events] == ["asked", "asked"]


@pytest.mark.parametrize(("alone", "world"), [(False, "all"), (True, "itself")])
def test_a_rank_that_is_to_be_alone_is_so_in_mpi4py(alone: bool, world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [])
    mpi, journal = ModuleType("MPI"), Journal()
    vars(mpi).update(COMM_WORLD="all", COMM_SELF="itself")
    journal.orders = SimpleNamespace(alone=alone)
    tell_of_mpi(journal)  # type: ignore[arg-type]
    sys.meta_path[0]._then(mpi)  # type: ignore[attr-defined]
    assert vars(mpi)["COMM_WORLD"] == world
    assert [kind for kind, _ in journal.events] == ["asked"]


@pytest.mark.parametrize("made", ["default_rng", "RandomState"])
def test_orders_that_a_generator_of_the_scripts_draws_are_noted(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (np.random, random, torch):
        for name in ("Random", "RandomState", "default_rng", *generators.NOISE, *generators.ORDERS):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))
    journal = Journal()
    generators.install(journal)  # type: ignore[arg-type]
    hashes = []
    for seed in (0, 0, 1):
        journal.events.clear()
        generator = getattr(np.random, made)(seed)
        generator.shuffle([*generator.permutation(8)])
        assert {(kind, facts["size"]) for kind, facts in journal.events} == {("order", 8)}
        hashes.append([facts["hash"] for _, facts in journal.events])
    assert hashes[0] == hashes[1] != hashes[2]


def cut(batches: Iterable[list[int]]) -> dict[str, Any]:
    """Cut an epoch over 8 samples; return what was noted."""
    journal = Journal()
    iterator = SimpleNamespace(_dlrun=Epoch(0, 0, 0), _dataset=range(8), _dataset_kind=0, _sampler_iter=iter(batches))
    Loaders(journal, SimpleNamespace()).cut(iterator)  # type: ignore[arg-type]
    return journal.events[-1][1]


def test_what_an_epoch_would_still_have_read_is_noted_unless_its_sampler_has_no_end() -> None:
    assert cut([[1, 2], [5]]) == {"epoch": 0, "rest": [[1, 2], [5]], "endless": False}
    assert cut([i % 8] for i in itertools.count()) == {"epoch": 0, "rest": [], "endless": True}


def carried(source: str) -> set[str]:
    return {name for names in carried_in(dedent(source)).values() for name in names}


def test_what_a_loop_carries_on_and_its_loss_is_made_of_is_found() -> None:
    found = carried(
        """
        for x, y in loader:
            counts += np.bincount(y)
            weight = torch.tensor(counts.sum() / counts)
            loss = cross_entropy(model(x), y, weight=weight)
            smooth = 0.9 * smooth + 0.1 * loss.item()
            running += loss.item()
            (loss / smooth).backward()
        """
    )
    assert found == {"counts", "smooth"}


def test_what_each_turn_begins_with_is_not_carried_on() -> None:
    loop = """
        for rows, rest in folds:
            rows = shard(rows)
            for step in range(9):
                model(x[rows]).mean().backward()
        """
    assert carried(loop) == set()
    assert carried(loop.replace("rows, rest in", "fold in")) == {"rows"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (
            """
            class Trainer:
                def __init__(self):
                    self.smooth = self.count = 1.0
                def step(self, x):
                    loss = model(x) / self.smooth
                    self.count += 1
                    loss.backward()
                    self.follow(loss.item())
                def follow(self, loss):
                    self.smooth = 0.9 * self.smooth + 0.1 * loss
            """,
            {"self.smooth"},
        ),
        (
            """
            def step(x):
                global smooth
                local = 0.0
                local += x.mean()
                loss = model(x) / smooth + local
                smooth = 0.9 * smooth + 0.1 * loss.item()
                loss.backward()
            """,
            {"smooth"},
        ),
        (
            """
            class Trainer:
                def step(self, x):
                    self.loss = model(x)
                    self.loss = self.loss / 2
                    self.loss.backward()
            """,
            set(),
        ),
    ],
)
def test_what_outlives_the_functions_that_call_backward_is_carried_on(source, names) -> None:
    assert carried(source) == names


def test_what_a_loop_carries_into_the_loss_of_a_tape_is_found() -> None:
    found = carried(
        """
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) * (reward - base))
            base = 0.9 * base + 0.1 * float(loss)
            seen += len(x)
            grads = dl.gradients(tape.gradient(loss, model.trainable_variables))
        """
    )
    assert found == {"base"}


def test_what_a_loop_sets_anew_is_not_carried_on() -> None:
    assert not carried(
        """
        for x, y in loader:
            count = 0
            loss = 0.0
            for part in x:
                count += 1
                loss = loss + model(part)
            (loss / count).backward()
        """
    )


SCHEDULES = {
    "a warm-up": (lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: min(1.0, (k + 1) / 500)), [0.1]),
    "a cycle that ends": (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, total_steps=90), [0.3]),
    "a rate that rises on": (lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: k + 1.0), [None]),
    "parts of another": (
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.ConstantLR(o, 0.1, total_iters=50),
                torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
            ],
            [50],
        ),
        [0.1],
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("make", "peaks"), SCHEDULES.values(), ids=SCHEDULES)
def test_the_highest_rate_of_a_schedule_is_known_before_it_comes(make, peaks, monkeypatch) -> None:
    scheduling = torch.optim.lr_scheduler
    journal = Journal()
    schedules = Schedules(journal)  # type: ignore[arg-type]
    for kind in (scheduling.LRScheduler, scheduling.SequentialLR):
        monkeypatch.setattr(kind, "step", vars(kind)["step"])
        schedules.follow(kind)
    scheduler = make(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
    scheduler.step()
    now = scheduler.get_last_lr()[0]
    schedules.look_ahead(lambda optimizer: 0)
    (event,) = [facts for kind, facts in journal.events if kind == "peaks"]
    assert event["rates"] == pytest.approx(peaks)
    assert (event["made"], event["where"], event["ahead"][0]) == (1, "train.py:3", pytest.approx(now, rel=1e-5))


def test_a_schedule_that_is_told_parts_of_epochs_is_followed_from_the_first_one_on(monkeypatch) -> None:
    kind = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
    monkeypatch.setattr(kind, "step", kind.step)
    schedules = Schedules(journal := Journal())  # type: ignore[arg-type]
    schedules.follow(kind)
    scheduler = kind(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), T_0=2)
    scheduler.step(3 + 1 / 8)
    schedules.look_ahead(lambda optimizer: 0)
    (event,) = [facts for kind, facts in journal.events if kind == "peaks"]
    assert event["told"]
    assert event["ahead"][:9:4] == pytest.approx([0.1, 0.05, 0.1])


def test_a_schedule_of_keras_is_as_far_as_its_optimizer_has_made_steps() -> None:
    class Optimizer:
        iterations = 3

        def _learning_rate(self, step: int) -> float:
            return 0.1 if step < 5 else 0.05

    keras_schedules.look_ahead(journal := Journal(), [(0, Optimizer())])  # type: ignore[arg-type]
    (event,) = [facts for kind, facts in journal.events if kind == "peaks"]
    assert (event["made"], event["rates"], event["ahead"][:4]) == (3, [0.1], [0.1, 0.1, 0.05, 0.05])


def test_quiet_training_has_no_dropout_and_leaves_batch_norms_statistics() -> None:
    source = """
    from dlrun.verify.tracer import quiet
    quiet.install()
    import torch
    from torch import nn
    x = torch.randn(8, 4)
    assert torch.equal(nn.Dropout(0.9)(x), x)
    norm = nn.BatchNorm1d(4)
    assert torch.allclose(norm(x), x, atol=1e-4) and not norm.running_mean.any()
    assert abs(nn.BatchNorm1d(4, track_running_stats=False)(x).mean()) < 1e-6
    layer = nn.TransformerEncoderLayer(4, 2, dropout=0.5)
    assert torch.equal(layer(x), layer(x))
    """
    subprocess.run([sys.executable, "-c", dedent(source)], check=True, timeout=120)


def test_a_tensor_of_a_class_that_cannot_be_cut_is_noted_as_any_other() -> None:
    class Scan(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            assert func is not torch.Tensor.__getitem__, "its lines belong together"
            return super().__torch_function__(func, types, args, kwargs or {})

    plain = torch.randn(3, 4)
    assert tensor_note(plain.as_subclass(Scan)) == tensor_note(plain)
