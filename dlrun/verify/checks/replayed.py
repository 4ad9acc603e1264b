"""Do ranks that share their evaluations by their own numbers show what 1 rank with the same parameters finds?

Such ports share the training by those numbers, too, so that no run can repeat it and share the evaluations alone.
Instead 1 rank takes over the parameters of each step. Which numbers are of an evaluation, and of nothing else, two
further runs tell: they stay where the training is another one, and they change with the parameters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from dlrun.verify.checks.metrics import NAME, counted_twice, counts_of
from dlrun.verify.checks.output import DURATION, NUMBER, close, is_time, shown
from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check, failed, passed, skipped

NEARLY = 0.05  # of a number: more does not come of a few samples that are counted twice
Key = tuple[str, str, str | int]  # line or file; what is shown, without its numbers; which of them


@dataclass(frozen=True)
class Shown:
    """A number that a run shows, acts on or saves: after how many steps, with which rates, and the words around it."""

    number: str
    steps: int
    rates: tuple[float, ...]
    before: str
    after: str
    at: str


def replayed(run: Run, alone: Run, shaken: Run, other: Run) -> Check:
    """Compare ``run``, on n ranks, with 1 rank that took its parameters over, ``alone``.

    ``shaken``: it took them over, too, and learnt from other outputs. ``other``: 1 rank with parameters of its own.
    """
    if any(each.root.first("astray") for each in (alone, shaken)):
        return skipped(NAME, "the steps of 1 rank are not those of the ranks: other parameters are trained")
    if name := _other_copy(run, alone):
        return skipped(NAME, f"{name} is made of each run's own training: what is evaluated with it is not compared")
    found, expected, loose, own = (_all_shown(each) for each in (run, alone, shaken, other))
    compared = 0
    for key, mine in expected.items():
        known, apart = loose.get(key, []), own.get(key, [])
        if [x.number for x in known] != [x.number for x in mine] or all(
            x.number == y.number for x, y in zip(mine, apart, strict=False)
        ):
            continue  # of the training, or of no model
        for x, y in zip(mine, found.get(key, []), strict=False):
            if x.steps != y.steps:
                break
            if _is_rate(x) and _is_rate(y):
                continue
            compared += 1
            if not close(x.number, y.number):
                return _judged(x, y, run)
    if not compared:
        return skipped(NAME, "no number of an evaluation alone is shown, decided by or saved in these steps")
    n = len(run.traces)
    said = f"{n} ranks show what 1 rank with their parameters does: {compared} numbers of evaluations"
    return passed(NAME, f"{said}, printed, decided by or saved")


def _other_copy(run: Run, alone: Run) -> str:
    """Return the name of a copy of the weights, or a buffer, that is not the same in both runs; empty of none."""
    mine, other = (each.root.first("held") for each in (run, alone))
    theirs = other["tensors"] if other is not None else {}
    for name, entry in mine["tensors"].items() if mine is not None else ():
        hashes = {(each["note"] or {}).get("hash") for each in (entry, theirs.get(name, entry))}
        if entry["kind"] != "slot" and len(hashes) > 1:
            return str(name)
    return ""


def _judged(one: Shown, mine: Shown, run: Run) -> Check:
    """Return a check that failed because rank 0 shows ``mine`` where 1 rank with the same parameters shows ``one``."""
    n, (x, y) = len(run.traces), (float(each.number) for each in (one, mine))
    said = " became ".join(repr(f"{one.before}{each.number}{one.after}") for each in (one, mine))
    said += ", with the same parameters"
    both = (
        "sum over the ranks what is counted, and what it is divided by: right, count = dl.total(right), dl.total(count)"
    )
    if x and math.isclose(y / x, n, rel_tol=0.05):
        finding = f"{said}: a sum over {n} ranks, divided by what one of them counts"
        return failed(
            NAME, finding, f"{both}; or neither, where each rank evaluates all", "metric-counted-by-all", where=mine.at
        )
    if x and math.isclose(y / x, 1 / n, rel_tol=0.05):
        todo = f"divide by the number of samples that were counted; or {both}"
        return failed(
            NAME, f"{said}: one rank's count over the whole data set", todo, "metric-divided-by-whole", where=mine.at
        )
    means = [event for event in run.root.returns("average") if event["mean"] is not None]
    averaged = next((event for event in means if math.isclose(event["mean"], y, rel_tol=1e-3)), None)
    if averaged is not None and averaged["local"] != averaged["mean"]:
        return failed(NAME, f"{said}: a mean of the ranks' means", both, "metric-mean-of-means", where=averaged.at)
    padding = 0 < counts_of(run)[1] < n  # more are the numbers of samples in each local part
    if x and abs(y / x - 1) < NEARLY and padding and any(run.root.returns("total")):
        return counted_twice(run, said, mine.at)
    finding = f"{said}: each rank evaluates a part of its own, and this is not made of all parts"
    return failed(NAME, finding, f"{both}; or evaluate all on every rank", "metric-of-one-rank", where=mine.at)


def _is_rate(shown: Shown) -> bool:
    return any(close(shown.number, f"{rate:.17g}") for rate in shown.rates)


def _all_shown(run: Run) -> dict[Key, list[Shown]]:
    found: dict[Key, list[Shown]] = defaultdict(list)
    for key, each in (*_in_trace(run), *_in_files(run)):
        found[key].append(each)
    return found


def _in_trace(run: Run) -> Iterator[tuple[Key, Shown]]:
    """Yield the numbers that rank 0 prints, compares in a condition, or saves."""
    steps, rates = 0, tuple[float, ...]()
    printed = set(map(id, run.root.printed))
    for event in run.root.events:
        if event.kind == "step":
            steps, rates = steps + 1, tuple(event["lr"])
        elif event.kind == "print" and id(event) in printed:
            yield from _in_line(event.at, event["text"], steps, rates, event.at)
        elif event.kind in ("decision", "choice", "stored"):
            what = "what is saved" if event.kind == "stored" else f"`{event['what']}`"
            for name, value in event["values"].items():
                shown = Shown(f"{value:.6g}", steps, rates, f"{name} is ", f" in {what}", event.at)
                yield (event.at, what, name), shown


def _in_files(run: Run) -> Iterator[tuple[Key, Shown]]:
    for name, text in run.texts.items():
        for line in text.splitlines():
            yield from _in_line(name, line, 0, (), name)


def _in_line(place: str, text: str, steps: int, rates: tuple[float, ...], at: str) -> Iterator[tuple[Key, Shown]]:
    line = DURATION.sub("a while", shown(text)).strip()
    template = NUMBER.sub("#", line)
    for i, match in enumerate(NUMBER.finditer(line)):
        if not is_time(line, match):
            before, after = line[: match.start()], line[match.end() :]
            yield (place, template, i), Shown(match.group(), steps, rates, before, after, at)
