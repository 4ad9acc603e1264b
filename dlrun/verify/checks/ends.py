"""Do ranks that keep their parameters end as the serial script does: after as many epochs, with its exit code?"""

from __future__ import annotations

from dlrun.verify.checks.data import training
from dlrun.verify.checks.numbers import NAME
from dlrun.verify.trace import Run, Trace
from dlrun.verify.verdict import Check, failed

FINE = "0"  # the exit code of a script that ends by itself


def exits(serial: Run, run: Run) -> Check | None:
    """Return a check that failed because a rank ends with another exit code, or by an assertion; None of none."""
    if not (finished(serial.root) and run.whole):
        return None
    due = _code(serial.root)
    other = next((trace for trace in run.traces if _code(trace) != due and finished(trace)), None)
    if other is None:
        return None
    finding = f"rank {other.rank} {_ends(_code(other))}, and the serial script {_ends(due)}, with the same parameters"
    todo = "let all ranks end by numbers that are those of all: dl.total() of sums, dl.average() of means"
    return failed(NAME, finding, todo, "other-exit-code", where=_where(other) or _where(serial.root), rank=other.rank)


def ends_elsewhere(serial: Run, run: Run) -> str:
    """Return that both scripts came to their end, after other numbers of epochs; empty if not.

    One whose epochs were ended from outside would have gone on.
    """
    if not (finished(serial.root) and finished(run.root)):
        return ""
    one, other = (sum(epoch.complete for epoch in training(each.root)) for each in (serial, run))
    n = len(run.traces)
    if one != other:
        return f"with the same parameters {n} ranks end after {other} epochs, the serial script after {one}"
    left, goes_on = (each.root.first("ended") for each in (serial, run))
    if one and not left and goes_on:
        return f"with the same parameters {n} ranks go on after {one} epochs, where the serial script ends"
    if one and left and not goes_on:
        return f"with the same parameters {n} ranks end after {one} epochs, and the serial script goes on"
    return ""


def finished(trace: Trace) -> bool:
    """Whether a script came to its end."""
    return bool((trace.last("end") or {"how": ""})["how"] == "finished")


def _code(trace: Trace) -> str:
    last = trace.last("end")
    return str(last.facts.get("left", FINE)) if last else FINE


def _ends(code: str) -> str:
    return f"ends with exit code {code}" if code.isdigit() else f"ends by {code}"


def _where(trace: Trace) -> str:
    last = trace.last("end")
    return str(last.facts.get("line", "")) if last else ""
