"""Traces written by hand: what a run leaves, without running anything."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from struct import pack

from dlrun.verify.trace import Event, Run, Trace


def note(*values: float) -> dict[str, object]:
    sample = b64encode(pack(f"{len(values)}f", *values)).decode()
    return {"hash": str(values), "norm": sum(v * v for v in values) ** 0.5, "type": "float32", "sample": sample}


def event(kind: str, at: str = "train.py:1", **facts: object) -> Event:
    return Event(kind, at, 0.0, facts)


def optimizer(start: float = 1.0, broadcast: bool = True) -> Event:
    facts = {"names": ["weight"], "ids": [0], "broadcast": [broadcast], "params": [note(start)]}
    return event("optimizer", optimizer=0, type="SGD", **facts)


def step(number: int, after: float, grad: float = 0.5, lr: float = 0.1, **facts: object) -> Event:
    given = {"states": {"torch": "a"}, "drew": [], **facts}
    given = {"grads": [note(grad)], "params": [note(after)], "lr": [lr]} | given
    return event("step", "train.py:9", step=number, optimizer=0, **given)


def averaged(own: float, mean: float, at: str = "train.py:8") -> Event:
    return event("return", at, fn="gradients", ids=[0], before=[note(own)], after=[note(mean)])


def run(*ranks: Sequence[Event], **facts: object) -> Run:
    return Run("test", tuple(Trace(i, tuple(events)) for i, events in enumerate(ranks)), **facts)  # type: ignore[arg-type]


def epoch(batches: list[list[int]], rest: list[list[int]] | None = None, complete: bool = True) -> list[Event]:
    """A training epoch's events; the second batch and on come after the first backward."""
    events = [event("epoch", epoch=0, loader=0, data=0, size=100)]
    events += [event("batch", epoch=0, indices=b, hash=str(b)) for b in batches]
    events += [event("trains", epoch=0)]
    return events + ([event("cut", epoch=0, rest=rest or [])] if complete else [])
