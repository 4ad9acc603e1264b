"""The runs of a script that goes on from a checkpoint, where the serial script has written one and none lay there."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from dlrun.verify.checks import gradients, ranks
from dlrun.verify.checks.choices import choices
from dlrun.verify.checks.held import held
from dlrun.verify.checks.iterations import other_epochs
from dlrun.verify.checks.numbers import RATES, alike, is_rate, numbers_of
from dlrun.verify.checks.reached import left
from dlrun.verify.checks.same import same
from dlrun.verify.checks.start import broadcast
from dlrun.verify.trace import Run
from dlrun.verify.tracer.sites import LOAD
from dlrun.verify.verdict import Check, failed, passed

if TYPE_CHECKING:
    from dlrun.verify.job import Runs

NAME = "resumed"
LARGEST = 1 << 30  # bytes of a file that is laid there


def resumed(runs: Runs, serial: Run, again: Run, sharded: Run) -> tuple[Check | None, list[Run], list[Run]]:
    """Run both scripts beside what the serial one has written, where they read a checkpoint that was not there.

    Return the check, None where they do not go on from it either, the port's run, and the serial one up to its first
    batch: what is shown until then is compared.
    """
    files = {way: file for way, file in serial.written.items() if file.stat().st_size <= LARGEST}
    if not left(sharded)[1] or not files:
        return None, [], []
    beside = replace(runs, files=files)
    one, many = runs.both(lambda: beside.longer("resumed-serial"), lambda: beside.sharded(name="resumed"))
    if one.error or one.hung or not one.root.steps or left(one)[1] == left(serial)[1]:
        return None, [], []
    check = _judged(one, many, (serial, again))
    if check.status == "passed" and not any(trace.first("asked") for trace in many.traces):
        alone, twice = runs.both(lambda: beside.port("resumed-alone", 1), lambda: beside.longer("resumed-again"))
        check = _alone(one, twice, alone) or check
    own = {way: file for way, file in sharded.written.items() if file.stat().st_size <= LARGEST}
    if check.status == "passed" and own:
        back = replace(runs, files=own).sharded(name="resumed-own")
        check = _rate_of_own((serial, sharded), (one, back)) or check
    return check, [many], [_begun(one)]


def _alone(one: Run, twice: Run, alone: Run) -> Check | None:
    """Return a check that failed because 1 rank does not do what the serial script does beside its checkpoint."""
    if alone.error:
        event = alone.error[1]
        said = f"beside a checkpoint of the serial script 1 rank fails: {event['type']}: {event['message']}"
        return failed(NAME, said.splitlines()[0][:300], "the serial script goes on", "fails", where=event["line"])
    check = same(NAME, one, twice, alone)
    said = f"on 1 rank, beside a checkpoint of the serial script, {check.finding}"
    return replace(check, finding=said) if check.status == "failed" else None


def _rate_of_own(first: tuple[Run, Run], later: tuple[Run, Run]) -> Check | None:
    """Return a check that failed because ranks go on from their own checkpoint with a rate scaled once more, or less.

    ``first``, ``later``: a serial run and one of the ranks, from the beginning, and each from its own checkpoint.
    """
    n = len(later[1].traces)
    if n == 1 or any(run.error or run.hung or not run.root.steps for run in (*first, *later)):
        return None
    (x, y), (one, other) = (tuple(run.root.steps[0].lr for run in pair) for pair in (first, later))
    for a, b, c, d in zip(x, y, one, other, strict=False):
        for fold in (float(n), 1 / n):
            if a and c and math.isclose(d / c, fold * b / a, rel_tol=1e-6):
                said = f"from its own checkpoint the port goes on with the rate {d:.4g}, after {b:.4g} at first, where "
                said += f"the serial script goes on with {c:.4g}, after {a:.4g}"
                todo = "a checkpoint of the ranks holds the scaled rate already: scale it once"
                fault = "double-scaling" if fold > 1 else "lost-scaling"
                return failed(NAME, said, todo, fault, where=later[1].root.steps[0].at)
    return None


def _begun(run: Run) -> Run:
    """Return a run up to its first batch, or step."""
    kinds = [event.kind for event in run.root.events]
    first = min((kinds.index(kind) for kind in ("batch", "step") if kind in kinds), default=len(kinds))
    return replace(run, traces=(replace(run.root, events=run.root.events[:first]),), texts={}, written={})


def _shown_otherwise(one: Run, many: Run) -> Check | None:
    """Return a check that failed because of a number that is shown before the first batch, of both runs; else None."""
    mine, theirs = (numbers_of(_begun(run)) for run in (one, many))
    rates = [{f"{lr:.4g}" for step in run.root.steps for lr in step.lr} for run in (one, many)]
    for key, ones in mine.items():
        twos = theirs.get(key, ())
        if key[0] != "shown" or key[2].startswith(RATES) or len(ones) != len(twos):
            continue
        for x, y in zip(ones, twos, strict=True):
            if not alike(x.digits, y.digits) and not (is_rate(x, rates[0]) and is_rate(y, rates[1])):
                said = f"{y.text[:70]!r}, where the serial script shows {x.text[:70]!r}"
                todo = "show what was read as the serial script does"
                return failed(NAME, said, todo, "shown-otherwise", where=y.at)
    return None


def _judged(one: Run, many: Run, serial: tuple[Run, Run]) -> Check:
    read = [event.at for event in (*many.root.all("restores"), *many.root.returns(LOAD))]
    n, lines = len(many.traces), ", ".join(dict.fromkeys(read)) or "a load"
    beside = f"beside a checkpoint of the serial script, which {lines} reads, "
    if many.error and not many.hung and not ranks.of_dl_comm(many.error[1]):
        rank, event = many.error
        said = f"{beside}rank {rank} fails: {event['type']}: {event['message']}".splitlines()[0][:300]
        return failed(NAME, said, "1 rank goes on from it", "fails", where=event["line"], rank=rank)
    start, equal = broadcast(many, bool(gradients.otherwise(many))), ranks.equal(many)
    found = [start, equal, held(many), ranks.steps(many), choices(*serial, many)]
    if bad := next((check for check in found if check and check.status == "failed"), None):
        todo = "let rank 0 read it, and broadcast all of it: the model, the optimizer and numbers such as the epoch"
        return replace(bad, name=NAME, finding=f"{beside}{bad.finding}", todo=f"{todo}; or let all ranks read it")
    if length := other_epochs(one, many):
        todo = "begin with the epoch behind the one that was saved"
        return replace(length, name=NAME, finding=f"{beside}{length.finding}", todo=todo)
    for names, a, b in zip(one.root.names.values(), one.root.starts.values(), many.root.starts.values(), strict=False):
        for name, p, q in zip(names, a, b, strict=False):
            if p["hash"] != q["hash"]:
                said = f"{beside}{name} is another one on {n} ranks than on 1"
                return failed(NAME, said, "load it before dl.broadcast()", "missing-restore", parameter=name)
    if wrong := _shown_otherwise(one, many):
        return replace(wrong, finding=f"{beside}{n} ranks show {wrong.finding}")
    return passed(NAME, f"{beside}{n} ranks go on alike, from its parameters")
