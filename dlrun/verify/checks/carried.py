"""Is what the ranks compute on from step to step, besides parameters, the same on all of them?"""

from __future__ import annotations

from typing import Any

from dlrun.verify.trace import Run, Step
from dlrun.verify.verdict import Check, distance, failed

# How a value that differs came about.
HOW = {"accumulated": "each rank computes it on and on from its own samples", "reduced": "a sum over its own samples"}


def carried(run: Run, name: str, cause: str = "") -> Check | None:
    """Return a check that failed because a loss has in it what a rank made of its own samples in earlier steps.

    ``cause``: the failed check that explains a difference. A hidden state that a model is given is local, as
    its samples are; so is all where the ranks go through stretches of a stream.
    """
    if any(run.root.returns("stretch")):
        return None
    for together in zip(*(trace.steps for trace in run.traces), strict=False):
        for key, entry in _carried(together[0]).items():
            for rank, step in enumerate(together[1:], 1):
                theirs = _carried(step).get(key)
                own = entry.get("own") and theirs is not None and theirs.get("own")
                if theirs is None or own or theirs["note"]["hash"] == entry["note"]["hash"]:
                    continue
                size, number = distance(entry["note"], theirs["note"]), together[0].number
                finding = f"{key}, which the loss of step {number} depends on, differs by {size:.1e} on rank {rank}"
                place = {"where": entry["at"], "step": number, "rank": rank, "parameter": key, "size": size}
                if cause:
                    return failed(name, f"{finding}: see {cause}", **place)
                todo = (
                    f"average {key} over the ranks once it has changed, with dl.average(), or what it is made of before"
                )
                return failed(name, f"{finding}: {HOW[entry['kind']]}", todo, "state-differs", **place)
    return None


def _carried(step: Step) -> dict[str, dict[str, Any]]:
    return {key: entry for e in step.before if e.kind == "carried" for key, entry in e["tensors"].items()}
