"""Do all ranks start from one broadcast?"""

from __future__ import annotations

from dlrun.verify.trace import Run, Trace
from dlrun.verify.verdict import Check, failed, passed, skipped

NAME = "broadcast"


def broadcast(run: Run, otherwise: bool = False) -> Check:
    """Every parameter of every optimizer was broadcast before the optimizer's first step.

    ``otherwise``: something else than dl_comm averages the gradients, and may have sent the parameters.
    """
    count, unseen = 0, 0
    for turn, event in enumerate(run.root.all("optimizer", "joined")):
        left = [name for name, sent in zip(event["names"], event["broadcast"], strict=True) if not sent]
        count += len(event["names"])
        others = [e for t in run.traces[1:] for e in [*t.all("optimizer", "joined")][turn : turn + 1]]
        apart = [
            name
            for e in others
            for name, p, q in zip(event["names"], event["params"], e["params"], strict=False)
            if p["hash"] != q["hash"]
        ]
        if not left and not apart:
            continue
        if otherwise and not apart:
            unseen += len(left)
            continue
        todo = "call dl.broadcast(model, optimizer) before the training loop, after all weights are set"
        if not left and (line := _unaveraged(run.root)):
            finding = f"{apart[0]} was broadcast, and differs between the ranks at the first step: it was changed by "
            finding += f"what backward() at {line} made, one rank's gradient"
            todo = "call dl.gradients(optimizer) right after that backward()"
            return failed(NAME, finding, todo, "missing-average", where=line, step=1, parameter=apart[0])
        if not left:
            finding = f"{apart[0]} was broadcast, and differs between the ranks at the first step: it was set again"
            return failed(NAME, finding, todo, "missing-broadcast", where=event.at, step=1, parameter=apart[0])
        what = f"{len(left)} of {len(event['names'])} parameters ({left[0]}, ...)" if len(left) > 1 else left[0]
        now = "the ranks start from different weights" if apart else "the ranks start alike by their equal seeds alone"
        return failed(
            NAME, f"{what} never broadcast: {now}", todo, "missing-broadcast", where=event.at, step=1, parameter=left[0]
        )
    if unseen:
        return skipped(NAME, f"{unseen} of {count} parameters start alike on all ranks; what sent them was not dl_comm")
    return passed(NAME, f"{count} parameters come from rank 0 before the first step")


def _unaveraged(trace: Trace) -> str:
    """Return the line of a backward before the first step that another one follows, without an averaging between.

    As where an optimizer looks ahead before it steps (SAM).
    """
    first = ""
    for event in trace.steps[0].before if trace.steps else ():
        if event.kind == "backward" and first:
            return first
        if event.kind == "backward":
            first = event.at
        elif event.kind == "return" and event["fn"] == "gradients":
            first = ""
    return ""
