"""Messages that a script logs are lines that it shows: on rank 0 those that come out, elsewhere all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dlrun.verify.tracer import logged


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[tuple[str, str]]]]:
    """``noting(rank)``: what is noted from now on, as (kind, text)."""
    kept = {name: vars(logging.Logger)[name] for name in ("handle", *logged.METHODS)}

    def follow(rank: int) -> list[tuple[str, str]]:
        noted: list[tuple[str, str]] = []
        note: Any = lambda kind, text: noted.append((kind, text))  # noqa: E731
        logged.install(SimpleNamespace(rank=rank, inside=0, note=note, orders=SimpleNamespace(scratch="/s")))  # type: ignore[arg-type]
        return noted

    yield follow
    for name, method in kept.items():
        monkeypatch.setattr(logging.Logger, name, method)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_rank_0_logs_is_shown_and_what_other_ranks_would_log_is_known(
    noting: Callable[[int], list[tuple[str, str]]], rank: int
) -> None:
    log = logging.Logger(f"train {rank}", logging.WARNING if rank else logging.INFO)
    noted = noting(rank)
    log.info("loss %.1f", 0.25)
    log.debug("batch %d", 3)
    assert ("shown", "loss 0.2") in noted
    assert (("print", "loss 0.2") in noted) == (rank == 0)
    assert all("batch" not in text for _, text in noted)
