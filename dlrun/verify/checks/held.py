"""Are the ranks alike in what they hold besides parameters: optimizers' state, copies of models, buffers?"""

from __future__ import annotations

from typing import Any

from dlrun.verify.checks.carried import carried
from dlrun.verify.trace import Event, Run
from dlrun.verify.verdict import Check, distance, failed, passed, skipped

NAME = "state and copies"
# What all ranks compute alike, with its fault; batch norm's statistics alone may come from local samples.
SHARED = {
    "slot": "slots-differ",
    "trained": "copies-differ",
    "copy": "copies-differ",
    "buffer": "buffers-differ",
    "variable": "state-differs",
}
OWN = {"statistics": "batch norm's statistics are", "memory": "buffers that keep samples, as a queue does, are"}
WHAT = {
    "slot": "the optimizer's state",
    "trained": "a parameter that another optimizer trains",
    "copy": "a copy",
    "buffer": "a buffer of the model",
    "variable": "a variable of the script's own",
}
AVERAGE = "dl.average(model) before it saves those of all ranks"
Difference = tuple[str, str, int, float]  # name, kind, rank, size


def held(run: Run, cause: str = "") -> Check:
    """Compare what the ranks hold after the last step. ``cause``: the failed check that explains a difference."""
    if differs := carried(run, NAME, cause):
        return differs
    events = [trace.first("held") for trace in run.traces]
    if not all(events) or not events[0]["tensors"]:  # type: ignore[index]
        return skipped(NAME, "nothing is held besides the parameters" if all(events) else "a rank was not seen to end")
    apart = _apart([event for event in events if event])
    shared = [difference for difference in apart if difference[1] in SHARED]
    if shared:
        name, kind, rank, size = shared[0]
        more = f", and {len(shared) - 1} more" if len(shared) > 1 else ""
        finding = f"{name}{more}: {WHAT[kind]} that differs by {size:.1e} on rank {rank} after the last step"
        place: dict[str, Any] = {"rank": rank, "parameter": name, "size": size, "where": run.root.steps[-1].at}
        if cause:
            return failed(NAME, f"{finding}: see {cause}", **place)
        todo = "broadcast it once it is made, and change it from averaged gradients and equal parameters alone"
        if kind in ("buffer", "variable"):
            todo = "average it over the ranks once it has changed, with dl.average(), or what it is made of before"
        return failed(NAME, finding, todo, SHARED[kind], **place)
    count = len(events[0]["tensors"])  # type: ignore[index]
    if not apart:
        return passed(NAME, f"{count} tensors besides the parameters are the same on all ranks after the last step")
    same = f"{count - len(apart)} tensors besides the parameters are the same on all ranks"
    return passed(NAME, f"{same}; {_own(run, apart)}")


def _own(run: Run, apart: list[Difference]) -> str:
    """Say which statistics and memories are local, and what becomes of them in files."""
    said = []
    for kind, what in OWN.items():
        if mine := [difference for difference in apart if difference[1] == kind]:
            name, _, rank, size = max(mine, key=lambda difference: difference[3])
            said.append(f"{len(mine)} {what} local ({name} differs by {size:.1e} on rank {rank})")
    told = ", ".join(said)
    saved = _apart(saves) if all(saves := [trace.last("saved") for trace in run.traces]) else None  # type: ignore[arg-type]
    if saved is None:
        return told + _plainly_saved(run)
    return f"{told}, saved are rank 0's" if saved else f"{told}, and the same on all ranks where they are saved"


def _plainly_saved(run: Run) -> str:
    """Say whose statistics a plain torch.save() on rank 0 has written, where it did."""
    save = run.root.last("plain save")
    if save is None:
        return ""
    averaged = [{event.facts.get("statistics") for event in trace.returns("average")} for trace in run.traces]
    alike = all(save["statistics"] in each for each in averaged)
    return f", averaged before {save.at} saves them" if alike else f", and rank 0's are saved at {save.at}: " + AVERAGE


def _apart(events: list[Event]) -> list[Difference]:
    """Return what differs between rank 0 and others."""
    found = []
    for name, entry in events[0]["tensors"].items():
        for rank, other in enumerate(events[1:], 1):
            theirs = other["tensors"].get(name)
            if theirs and (theirs["note"] or {}).get("hash") != (entry["note"] or {}).get("hash"):
                found.append((name, entry["kind"], rank, distance(entry["note"], theirs["note"])))
                break
    return found
