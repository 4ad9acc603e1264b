"""The runs of a script that goes on from a checkpoint, where the serial script has written one and none lay there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dlrun.verify.checks import gradients, ranks
from dlrun.verify.checks.choices import choices
from dlrun.verify.checks.held import held
from dlrun.verify.checks.iterations import other_epochs
from dlrun.verify.checks.reached import left
from dlrun.verify.checks.start import broadcast
from dlrun.verify.trace import Run
from dlrun.verify.tracer.sites import LOAD
from dlrun.verify.verdict import Check, failed, passed

if TYPE_CHECKING:
    from dlrun.verify.job import Runs

NAME = "resumed"
LARGEST = 1 << 30  # bytes of a file that is laid there


def resumed(runs: Runs, serial: Run, again: Run, sharded: Run) -> tuple[Check | None, list[Run]]:
    """Run both scripts beside what the serial one has written, where they read a checkpoint that was not there.

    Return the check, None where they do not go on from it either, and the port's run.
    """
    files = {way: file for way, file in serial.written.items() if file.stat().st_size <= LARGEST}
    if not left(sharded)[1] or not files:
        return None, []
    beside = replace(runs, files=files)
    one, many = runs.both(lambda: beside.longer("resumed-serial"), lambda: beside.sharded(name="resumed"))
    if one.error or one.hung or not one.root.steps or left(one)[1] == left(serial)[1]:
        return None, []
    return _judged(one, many, (serial, again)), [many]


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
    return passed(NAME, f"{beside}{n} ranks go on alike, from its parameters")
