"""What a verification found: a ``Check`` each, and the ``Verdict`` over all."""

from __future__ import annotations

import math
from array import array
from base64 import b64decode
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["passed", "failed", "n/a", "open"]


@dataclass(frozen=True)
class Check:
    """One question and its answer.

    ``finding`` says what is so, with the numbers; ``todo`` what to do about it. ``fault`` is a stable name of what is
    wrong; a failed check without one is the consequence of another's. The rest says where it was first seen. An
    ``open`` check names a part of what is claimed that no run has come to, or that could not be compared.
    """

    name: str
    status: Status
    finding: str
    todo: str = ""
    fault: str = ""
    where: str = ""
    step: int | None = None
    rank: int | None = None
    parameter: str = ""
    size: float | None = None


@dataclass(frozen=True)
class Verdict:
    """All checks of a verification, in the order in which they are read."""

    checks: tuple[Check, ...]

    @property
    def proved(self) -> bool:
        """Whether the port is right: nothing failed or is open, and something was checked."""
        return self.holds and all(c.status != "open" for c in self.checks)

    @property
    def holds(self) -> bool:
        """Whether the port is right as far as it was run: nothing failed, and something was checked."""
        return all(c.status != "failed" for c in self.checks) and any(c.status == "passed" for c in self.checks)

    @property
    def word(self) -> str:
        """What is concluded: ``proved``, ``proved as far as it ran`` or ``not proved``."""
        return "proved" if self.proved else "proved as far as it ran" if self.holds else "not proved"

    @property
    def exit_code(self) -> int:
        """0 of a port that is proved, 3 of one that is as far as it ran, 1 of others."""
        return 0 if self.proved else 3 if self.holds else 1

    @property
    def faults(self) -> set[str]:
        """The names of what is wrong, consequences left out."""
        return {c.fault for c in self.checks if c.fault and c.status == "failed"}

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "proved": self.proved,
            "word": self.word,
            "faults": sorted(self.faults),
            "checks": [asdict(c) for c in self.checks],
        }


def passed(name: str, finding: str) -> Check:
    """Return a passed check."""
    return Check(name, "passed", finding)


def skipped(name: str, reason: str) -> Check:
    """Return a check that does not apply, and why."""
    return Check(name, "n/a", reason)


def unjudged(name: str, finding: str, todo: str = "") -> Check:
    """Return a check of what is claimed and was not reached, or not compared."""
    return Check(name, "open", finding, todo)


def failed(name: str, finding: str, todo: str = "", fault: str = "", **place: Any) -> Check:
    """Return a failed check; ``place``: where, step, rank, parameter, size."""
    return Check(name, "failed", finding, todo, fault, **place)


def each_step(steps: int) -> str:
    """Return when something was so: after each of so many optimizer steps."""
    return f"after each of {steps} steps" if steps != 1 else "after the only step"


def values(note: dict[str, Any] | None) -> array[float]:
    """Return the sampled elements of a tensor note; none of None."""
    if note is None:
        return array("d")
    return array("d" if note["type"] in ("float64", "int64") else "f", b64decode(note["sample"]))


def distance(a: dict[str, Any] | None, b: dict[str, Any] | None) -> float:
    """Return the largest absolute difference between two tensor notes' samples; infinite for other shapes."""
    left, right = values(a), values(b)
    if len(left) != len(right):
        return float("inf")
    return max((abs(x - y) for x, y in zip(left, right, strict=True)), default=0.0)


def share_of_move(serial: dict[str, Any], ported: dict[str, Any], start: dict[str, Any]) -> float:
    """Return |ported - serial| / |serial - start| (L2, over the sampled elements); 0 where nothing differs."""
    p, q, o = values(serial), values(ported), values(start)
    apart = math.sqrt(sum((x - y) ** 2 for x, y in zip(p, q, strict=False)))
    moved = math.sqrt(sum((x - y) ** 2 for x, y in zip(p, o, strict=False)))
    return apart / moved if apart > 1e-12 and moved else (0.0 if apart <= 1e-7 else math.inf)
