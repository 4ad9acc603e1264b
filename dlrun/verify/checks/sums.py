"""Is each sum over ranks one of parts, or of what all ranks have alike, counted n times? What is divided by it?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from dlrun.verify.checks.data import batch_factor
from dlrun.verify.checks.numbers import NAME as EVERY
from dlrun.verify.checks.scaled import weights_of
from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.verdict import Check, failed, passed

NAME = "sums over ranks"


def sums(identity: Run, run: Run) -> Check | None:
    """Return a check that failed because dl.total() of the training sums what all ranks share; None of none.

    Counts of parts may be equal: a number is known to be shared where it is no whole one, or the length of all the
    data, of which each rank reads its part. Of an evaluation another run tells. Where all of a line's sums are of
    shared numbers they are n times too large together: their quotient is right.
    """
    epochs = [epoch for epoch in identity.root.epochs if epoch.trains and epoch.complete]
    lengths = {float(len(epoch.samples)) for epoch in epochs if epoch.samples}
    for at, calls in _by_line(run).items():
        alike = {call for call, given in calls.items() if _shared(given, lengths)}
        if not alike or len(alike) == len(calls) > 1:
            continue
        number, n = calls[min(alike)][0][0]["local"], len(run.traces)
        finding = f"dl.total() at {at} sums {number:.6g}, which all {n} ranks have alike: it counts {n} times"
        return failed(
            NAME,
            finding,
            "leave dl.total() out there: it is for what each rank has of its own",
            "total-of-shared",
            where=at,
        )
    return None


def doubted(check: Check, numbers: Sequence[Check], run: Run) -> Check:
    """Return the check of the sums, passed where every number that is shown is the serial one, and none is of a loss.

    A norm of the mean gradient, say, is alike on all ranks: added up over an epoch it is 1/n of the serial sum.
    """
    every = any(each.name == EVERY and each.status == "passed" for each in numbers)
    if check.fault != "total-of-shared" or not every or _total_for_loss(run.root) is not None:
        return check
    return passed(NAME, f"dl.total() at {check.where} sums what all ranks have alike, each of 1/n of the iterations")


def divided(identity: Run, run: Run) -> Check | None:
    """Return a check that failed because a loss is divided by dl.total(), and by dl.gradients() once more; None else.

    As a sum over tokens by their number on all ranks: the mean over ranks of that is 1/n of the mean over all tokens.
    Where each rank has a serial batch, a part of the loss then weighs about 1/n of what it does on 1 rank.
    """
    n, total = len(run.traces), _total_for_loss(run.root)
    if total is None or batch_factor(identity, run) != n:
        return None
    alone, now = _weights(identity.root), _weights(run.root)
    for line, weight in now.items():
        if alone.get(line) and 1 / n / 1.3 < weight / alone[line] < 1.3 / n:
            finding = f"the loss is divided by a sum over {n} ranks (dl.total() at {total.at}), and dl.gradients() "
            finding += f"makes the mean over ranks: it counts 1/{n} as much as on 1 rank"
            todo = "divide by dl.average() of what is counted, instead of dl.total(): the mean over ranks is the mean "
            return failed(NAME, finding, f"{todo}over all samples then", "no-mean", where=line)
    return None


def _total_for_loss(trace: Trace) -> Event | None:
    """Return the first call of dl.total() between a step's batch and its backward; None of none."""
    for step in trace.steps:
        called = None
        for event in step.before:
            if event.kind == "batch":
                called = None  # it was of an epoch before
            elif event.kind == "return" and event["fn"] == "total" and not event["evaluates"]:
                called = event
            elif event.kind == "weight" and called is not None:
                return called
    return None


def _weights(trace: Trace) -> Counter[str]:
    """Return how much the numbers made at a line weigh in the losses of all steps, on the average."""
    sums: Counter[str] = Counter()
    for step in trace.steps:
        for line, weight in weights_of(step):
            sums[line] += weight / len(trace.steps)  # type: ignore[assignment]
    return sums


def _by_line(run: Run) -> dict[str, dict[int, list[tuple[Event, ...]]]]:
    """Return, by line and by place among the line's calls in a row, what the ranks gave to dl.total() together."""
    found: dict[str, dict[int, list[tuple[Event, ...]]]] = defaultdict(lambda: defaultdict(list))
    traces = [list(trace.all("return", "step", "batch")) for trace in run.traces]
    calls = [_turns(events) for events in traces]
    for together in zip(*calls, strict=False):
        if len({(turn, e.at) for turn, e in together}) == 1 and all(not e["evaluates"] for _, e in together):
            found[together[0][1].at][together[0][0]].append(tuple(e for _, e in together))
    return found


def _turns(events: list[Event]) -> list[tuple[int, Event]]:
    """Return the calls of dl.total(), each with its number among those of its line that follow each other."""
    found, last, turn = [], "", 0
    for event in events:
        if event.kind != "return" or event["fn"] != "total":
            last = ""
            continue
        turn = turn + 1 if event.at == last else 0
        last = event.at
        found.append((turn, event))
    return found


def _shared(given: list[tuple[Event, ...]], lengths: set[float]) -> bool:
    return all(_alike([event.facts.get("local") for event in together], lengths) for together in given)


def _alike(numbers: list[float | None], lengths: set[float]) -> bool:
    first = numbers[0]
    return first is not None and set(numbers) == {first} and (first in lengths or not float(first).is_integer())
