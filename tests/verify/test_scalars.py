"""Scalars for TensorBoard are lines that are shown, with their steps; a writer is a file that a rank writes."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dlrun.verify.tracer import scalars


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_added_for_tensorboard_is_shown_with_its_step(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            self.log_dir, self.added = log_dir, list[Any]()

        def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
            self.added.append((tag, scalar_value, global_step))

        def add_scalars(self, main_tag: str, tag_scalar_dict: dict[str, float], global_step: int | None = None) -> None:
            self.added.append((main_tag, tag_scalar_dict, global_step))

    module = ModuleType(scalars.WRITERS[0])
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, scalars.WRITERS[0], module)
    noted: list[tuple[str, str]] = []
    note: Any = lambda kind, **facts: noted.append((kind, facts.get("text", facts.get("path"))))  # noqa: E731
    scalars.install(SimpleNamespace(rank=rank, note=note))  # type: ignore[arg-type]
    writer = SummaryWriter("/runs")
    writer.add_scalar("train/loss", 0.25, 12)
    writer.add_scalars("accuracy", {"top1": 0.5, "top5": 1.0}, global_step=3)
    writer.add_scalar("best", 0.5)
    lines = ["train/loss: 0.25 at step 12", "accuracy/top1: 0.5 at step 3", "accuracy/top5: 1 at step 3", "best: 0.5"]
    assert [text for kind, text in noted if kind == "shown"] == lines
    assert [text for kind, text in noted if kind == "print"] == (lines if rank == 0 else [])
    assert ("file", "/runs/tfevents") in noted
    assert len(writer.added) == 3


def test_what_tf_summary_is_given_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    module, noted = ModuleType(scalars.FUNCTIONS), list[str]()
    module.scalar = lambda name, data, step=None, description=None: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, scalars.FUNCTIONS, module)
    note: Any = lambda kind, text: noted.append(text) if kind == "print" else None  # noqa: E731
    scalars.install(SimpleNamespace(rank=0, note=note))  # type: ignore[arg-type]
    assert module.scalar("loss", 0.5, step=2) and module.scalar(data=1.5, name="norm")
    assert noted == ["loss: 0.5 at step 2", "norm: 1.5"]
