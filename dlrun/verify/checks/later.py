"""Does what is shared in the first epoch stay so in later ones, and does rank 0 write what the serial script writes?"""

from __future__ import annotations

from dlrun.verify.checks.data import SHARD, training
from dlrun.verify.checks.same import files_of, without_time
from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.tracer.sites import LOAD
from dlrun.verify.verdict import Check, failed

NAME = "later epochs"


def later(serial: Run, run: Run) -> Check | None:
    """Return a check that failed by what frozen runs show of later epochs, or of the files in the end; None of none."""
    if any((each.root.last("end") or {"how": ""})["how"] != "finished" for each in (serial, run)):
        return _shared_once(run)
    return _shared_once(run) or _missing(serial, run) or _restored(serial, run)


def _shared_once(run: Run) -> Check | None:
    """Tell of an epoch in which ranks read the same samples, where they had shared those of the first one."""
    together = list(zip(*(training(trace) for trace in run.traces), strict=False))
    shared: set[int] = set()  # data sets
    for number, epochs in enumerate(together, 1):
        parts = [set(epoch.samples or ()) for epoch in epochs]
        if not all(parts):
            continue
        twice = sum(map(len, parts)) - len(set.union(*parts))
        if 10 * twice <= min(map(len, parts)):
            shared.add(epochs[0].data)
        elif epochs[0].data in shared and 2 * twice > min(map(len, parts)):
            finding = (
                f"in pass {number} through the data {len(parts)} ranks read {twice} samples more than once, which "
            )
            finding += "they had shared before"
            return failed(NAME, finding, SHARD, "unsharded-loader", where=epochs[0].at)
    return None


def _missing(serial: Run, run: Run) -> Check | None:
    """Tell of a file that the serial script has written at its end, and the ranks have not at theirs."""
    written = {without_time(name) for name in files_of(run)}
    missing = sorted(name for name in files_of(serial) if without_time(name) not in written)
    if not missing:
        return None
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    finding = f"{missing[0]}{more}, which the serial script has written at its end, is not written by rank 0"
    todo = "let ranks save after as many samples as the serial script: if step % dl.steps(1000) == 0"
    return failed(NAME, finding, todo, "missing-file")


def _restored(serial: Run, run: Run) -> Check | None:
    """Tell of a model that the serial script takes from a file, such as its best one, and no rank does."""
    made = _restores(serial.root)
    if not made or any(map(_restores, run.traces)):
        return None
    finding = f"no rank reads what the serial script reads at {made[0].at}"
    return failed(NAME, finding, "let all ranks read it: dl.load()", "missing-restore")


def _restores(trace: Trace) -> list[Event]:
    return [*trace.all("restores"), *trace.returns(LOAD)]
