"""Noise that is drawn for samples: the ranks' parts together are what the serial script draws."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from dlrun.verify.tracer import noise  # noqa: E402

BATCH, RANKS = 12, 3


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``draws(text, rank, ranks)``: two draws in a row, in which ``b`` is the rank's batch; and what it marked."""
    names = [
        *((module, name) for module, known in noise.SIZED.items() for name in known),
        *((module, name) for module, known in noise.LIKE.items() for name in known),
        *((torch.Tensor, name) for name in noise.IN_PLACE),
    ]
    plain = [(owner, name, getattr(owner, name)) for owner, name in names]

    def drawn(text: str, rank: int = 0, ranks: int = 1, reading: bool = False) -> list[Any]:
        for owner, name, function in plain:
            monkeypatch.setattr(owner, name, function)
        monkeypatch.setenv("DLRUN_SIZE", str(ranks))
        recorder = SimpleNamespace(rank=rank, inside=0, note=lambda kind: None, aside=nullcontext)
        recorder.orders = SimpleNamespace(global_batch=False)
        watch = SimpleNamespace(mark=lambda count=True: None)
        loaders = SimpleNamespace(local=BATCH // ranks, sizes={0: BATCH // ranks, 1: 24 // ranks}, reading=reading)
        noise.Noise(recorder, watch, loaders).install()  # type: ignore[arg-type]
        torch.manual_seed(1)
        np.random.seed(1)
        space = {"torch": torch, "np": np, "b": BATCH // ranks, "B": BATCH}
        found = [np.asarray(eval(text, space)) for _ in range(2)]
        for owner, name, function in plain:
            setattr(owner, name, function)
        return found

    return drawn


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("torch.randn(b, 5)", 0),
        ("torch.randn((b, 12))", 0),  # of which one is as many as the serial batch
        ("torch.rand(b, 5, dtype=torch.float64)", 0),
        ("torch.rand(size=(7, b))", 1),
        ("torch.randint(0, 100, (b,))", 0),
        ("torch.randint(100, (b,))", 0),
        ("torch.randn_like(torch.zeros(b, 5))", 0),
        ("torch.normal(torch.zeros(b, 5), torch.ones(b, 5))", 0),
        ("torch.distributions.Normal(torch.zeros(b, 5), 1.0).rsample()", 0),
        ("torch.empty(b, 5).normal_(1.0, 2.0)", 0),
        ("torch.bernoulli(torch.full((b, 5), 0.5))", 0),
        ("np.random.normal(0, 1, (b, 5))", 0),
        ("np.random.randint(0, 100, b)", 0),
        ("np.random.uniform(size=(b, 1))", 0),
    ],
)
def test_each_rank_draws_the_rows_of_its_samples(text, axis, draws) -> None:
    parts = [draws(text, rank, RANKS) for rank in range(RANKS)]
    for turn, serial in enumerate(draws(text)):
        assert len(np.unique(serial)) > 1
        for rank in range(RANKS):
            rows = np.take(serial, range(rank, BATCH, RANKS), axis)
            assert np.array_equal(parts[rank][turn], rows)


def test_samples_of_each_of_two_loaders_have_their_noise(draws) -> None:
    serial = draws("torch.randn(24, 5)")
    for rank in range(RANKS):
        mine = draws("torch.randn(8, 5)", rank, RANKS)
        assert all(np.array_equal(a[rank::RANKS], b) for a, b in zip(serial, mine, strict=True))


@pytest.mark.parametrize("text", ["torch.randn(B, 4)", "torch.rand(())", "np.random.rand()", "torch.randn(5)"])
def test_what_is_not_drawn_for_a_ranks_samples_is_the_same_on_all_ranks(text, draws) -> None:
    serial = draws(text)
    assert all(np.array_equal(draws(text, rank, RANKS), serial) for rank in range(RANKS))


def test_what_a_data_set_draws_for_its_samples_is_left_alone(draws) -> None:
    assert np.array_equal(*(draws("torch.randn(b)", rank, RANKS, reading=True) for rank in range(2)))
