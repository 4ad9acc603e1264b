"""What a training script prints about itself: its rate, its epochs, its accuracy, its loss."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from dlrun.errors import DlrunError

NUMBER = r"([-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?)"
RATE = NUMBER + r"\s*(?:samples|images|examples|sequences|tokens)\s*(?:/\s*s\b|/\s*sec\b|per second)"
ACCURACY = r"(?<!best )\bacc(?:uracy)?\b\s*[:=]?\s*" + NUMBER + r"(?:/(?P<of>\d+))?\s*(?P<percent>%)?"
EPOCH = r"\b(?:[eé]po(?:che?|ca|que))\b\s*[:=#(\[]?\s*(\d+)"
LOSS = r"loss\b\s*[:=]?\s*" + NUMBER


@dataclass(frozen=True)
class Patterns:
    """Regular expressions whose first group is the number.

    An accuracy is divided by its group `of` (as in 9900/10000), or by 100 where its group `percent` matched.
    """

    rate: str = RATE
    accuracy: str = ACCURACY
    loss: str = LOSS


@dataclass(frozen=True)
class Point:
    """The accuracy, and the loss on the same line if there is one, `seconds` after the script's first line."""

    seconds: float
    accuracy: float
    loss: float | None


@dataclass(frozen=True)
class Reading:
    """The rates over all ranks in order, in `unit`, and the curve of accuracy and loss.

    A script that prints no samples per second has its epochs timed: an epoch is the same work for any number of ranks.
    `begins` is the number of the first epoch that it speaks of.
    """

    rates: tuple[float, ...]
    points: tuple[Point, ...]
    unit: str = "samples/s"
    begins: int | None = None

    @property
    def settled_rates(self) -> tuple[float, ...]:
        """The rates without the first, which holds the warming up, where there are more."""
        return self.rates[1:] if len(self.rates) > 1 else self.rates


def number(match: re.Match[str]) -> float:
    """Return the number in the match's first group; raises DlrunError where it holds none."""
    try:
        return float(match[1])
    except (TypeError, ValueError):
        said = f"'{match.re.pattern}' finds {match[1]!r} in '{match.string.strip()}', and that is no number"
        raise DlrunError(said, "its first group holds the number alone, as ([0-9.]+) does") from None


def _share(match: re.Match[str]) -> float:
    """An accuracy between 0 and 1, from 0.99, 99 % or 9900/10000."""
    groups = match.groupdict()
    if groups.get("of"):
        return number(match) / float(groups["of"])
    return number(match) / (100 if groups.get("percent") else 1)


def read(lines: Iterable[tuple[float, str]], patterns: Patterns) -> Reading:
    """Read timed lines: (seconds on any clock, text). Of several matches on a line the last counts (validation)."""
    rates: list[float] = []
    points: list[Point] = []
    epochs: dict[int, float] = {}  # when each was last spoken of
    start: float | None = None
    for seconds, text in lines:
        start = seconds if start is None else start
        rates += [number(match) for match in re.finditer(patterns.rate, text, re.I)][-1:]
        epochs |= {int(match[1]): seconds for match in re.finditer(EPOCH, text, re.I)}
        accuracies = list(re.finditer(patterns.accuracy, text, re.I))
        if accuracies:
            last = accuracies[-1]
            losses = [number(match) for match in re.finditer(patterns.loss, text, re.I)]
            points.append(Point(seconds - start, _share(last), losses[-1] if losses else None))
    times = list(epochs.values())
    if not rates and patterns.rate == RATE and len(times) > 1 and times == sorted(set(times)):
        rates = [1 / (b - a) for a, b in itertools.pairwise(times)]
        return Reading(tuple(rates), tuple(points), "epochs/s", min(epochs))
    return Reading(tuple(rates), tuple(points), begins=min(epochs, default=None))
