"""Are the numbers that ranks show those of the serial script, and not n times as much, or 1/n of it?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dlrun.verify.checks.output import NUMBER, is_time, shown
from dlrun.verify.checks.shown import NAME
from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.verdict import Check, failed

EXACT, NEAR = 0.03, 0.25  # how far from n the means of all, and most of the single numbers, may be, relative
FIGURES = "0123456789"
MOSTLY = 0.75  # the part of the lines from which on a number rises
TODO = {
    "shown-in-part": "a sum over one rank's samples or steps is shown alone, or divided by a number of all: dl.total() "
    "of the sum, or dl.steps(N) of the number of steps",
    "shown-n-fold": "a mean is summed over the ranks, or a sum of all divided by one rank's count: dl.average() of it",
}


@dataclass(frozen=True)
class Series:
    """The numbers in one place of the lines that one line of a script prints; ``text``: the first of them."""

    numbers: tuple[str, ...]
    text: str
    at: str
    made: tuple[int, ...]  # steps before each

    @property
    def values(self) -> list[float]:
        """The numbers as such."""
        return [float(number) for number in self.numbers]


def folds(serial: Run, run: Run) -> Check | None:
    """Return a check that failed because of such numbers, in runs whose updates were all taken back; else None.

    Lines are told by their words. Left aside are times and rates, learning rates, and what counts: steps, batches,
    samples. The number of lines may differ: what is shown every so many steps is shown by ranks after their own.
    """
    n = len(run.traces)
    theirs, sizes = _by_words(run.root), _sizes(serial.root)
    rest = [_by_words(trace, "shown") for trace in run.traces[1:]]
    for words, mine in _by_words(serial.root).items():
        for place, (one, other) in enumerate(zip(mine, theirs.get(words, ()), strict=False)):
            rates = [{f"{lr:.3g}" for step in r.root.steps for lr in step.lr} for r in (serial, run)]
            pairs = list(zip(one.values, other.values, strict=False))
            named = any(f"{a:.3g}" in rates[0] and f"{b:.3g}" in rates[1] for a, b in pairs)
            shown_by_all = _over_ranks(other, place, [found.get(words, []) for found in rest])
            counted = _counts(one.values, one.made) or _counts(shown_by_all, other.made)
            by_chance = len(pairs) == 1 and one.numbers[0] in FIGURES  # of a drawn sample, say
            if named or counted or by_chance or sizes.issuperset(one.values):
                continue
            for fold, fault in ((1 / n, "shown-in-part"), (n, "shown-n-fold")):
                if _is_fold(one.values, shown_by_all, fold):
                    said = "1 / {n} of" if fold < 1 else "{n} times"
                    finding = f"{other.text[:70]!r}, where the serial script with the same parameters shows "
                    finding += f"{one.text[:70]!r}: {other.numbers[0]} is {said.format(n=n)} {one.numbers[0]}"
                    return failed(NAME, finding, TODO[fault], fault, where=other.at)
    return None


def _over_ranks(root: Series, place: int, rest: Sequence[Sequence[Series]]) -> list[float]:
    """Return the numbers as all ranks have them, on average, where each would show as many: rank 0's may be its own."""
    others = [found[place].values for found in rest if place < len(found)]
    alike = len(others) == len(rest) and all(len(values) == len(root.numbers) for values in others)
    return [math.fsum(each) / len(each) for each in zip(root.values, *(others if alike else ()), strict=True)]


def _counts(values: Sequence[float], made: Sequence[int]) -> bool:
    """Whether these count something: whole numbers are the steps so far, ``made``, or mostly rise from line to line.

    So do parts of an epoch. What is measured with parameters that stay does not rise.
    """
    whole = all(value.is_integer() for value in values)
    steps = whole and all(abs(value - before) <= 1 for value, before in zip(values, made, strict=True))
    rises = [b > a for a, b in pairwise(values)]
    return steps or (len(values) > (1 if whole else 2) and sum(rises) >= MOSTLY * len(rises))


def _is_fold(one: Sequence[float], other: Sequence[float], fold: float) -> bool:
    """Whether the numbers ``other`` are as many times, ``fold``, the numbers ``one``."""
    mean, theirs = (math.fsum(values) / len(values) for values in (one, other))
    if not all(map(math.isfinite, (mean, theirs))) or abs(mean) < 1e-12:
        return False
    near = sum(math.isclose(value, fold * mean, rel_tol=NEAR) for value in other)
    return math.isclose(theirs, fold * mean, rel_tol=EXACT) and 2 * near > len(other)


def _by_words(trace: Trace, kind: str = "print") -> dict[str, list[Series]]:
    """Return the numbers that are printed, by the words around them: a series for each place in a line.

    Of ranks that do not print what they would show (``kind``).
    """
    lines: dict[str, list[tuple[Event, int]]] = {}
    made = 0
    for event in trace.events:
        made += event.kind == "step"
        if event.kind == kind and NUMBER.search(text := shown(event["text"])):
            lines.setdefault(NUMBER.sub("#", text).strip(), []).append((event, made))
    return {words: list(_series(events)) for words, events in lines.items()}


def _series(events: Sequence[tuple[Event, int]]) -> Iterator[Series]:
    texts = [shown(event["text"]).strip() for event, _ in events]
    places = list(zip(*(list(NUMBER.finditer(text)) for text in texts), strict=False))
    for place in places:
        timed = is_time(texts[0], place[0])
        numbers = tuple("0" if timed else match.group() for match in place)  # a time is none of the training
        if not any(number.lower().startswith("0x") for number in numbers):
            yield Series(numbers, texts[0], events[0][0].at, tuple(made for _, made in events))


def _sizes(trace: Trace) -> set[float]:
    """Return how many samples and batches there are: of data sets, epochs and single batches."""
    found = set[float]()
    for epoch in trace.epochs:
        batches = [*epoch.batches, *epoch.rest]
        found |= {float(len(batches)), float(epoch.size or 0), float(sum(len(b or ()) for b in batches))}
        found |= {float(len(batch)) for batch in batches if batch is not None}
    return found | {float(len(rows)) for event in trace.all("forward") for rows in event["rows"].values()}
