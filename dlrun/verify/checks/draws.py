"""What ranks have alike in runs in which they draw the same random numbers: is it for these, or for other reasons?"""

from __future__ import annotations

from dlrun.verify.checks.whole import is_eager
from dlrun.verify.trace import Event, Run, Trace

HEADS = ("kernel", "weight")


def beside_draws(run: Run, kind: str) -> set[str]:
    """Return the lines of events of a kind that random numbers may have gone into; ``run`` keeps its parameters.

    Not where none were drawn since the step before. Nor where parameters begin with 0: what a model makes is the same
    of all samples then, and so are the ranks' numbers. In ``fit()``, in sessions and behind the last step draws are not
    seen.
    """
    if _begins_with_zeros(run.root):
        return set()
    seen = is_eager(run) and not any(event.facts.get("fit") for event in run.root.all("epoch"))
    seen = seen and all(event["type"] != "by hand" for event in run.root.all("optimizer"))
    found, waiting = set[str](), set[str]()
    for event in run.root.events:
        if event.kind == kind:
            waiting.add(event.at)
        elif event.kind == "step":
            found |= waiting if event["drew"] or not seen else set()
            waiting = set()
    return found | waiting


def _begins_with_zeros(trace: Trace) -> bool:
    """Whether all parameters of an optimizer, or the weights of its last layer, are 0 before its first step."""
    return any(_are_zeros(event) for event in trace.all("optimizer"))


def _are_zeros(made: Event) -> bool:
    norms = [(name, note["norm"]) for name, note in zip(made["names"], made["params"], strict=False) if note]
    heads = [norm for name, norm in norms if name.replace("/", ".").rsplit(".", 1)[-1] in HEADS]
    return bool(norms) and (not any(norm for _, norm in norms) or heads[-1:] == [0.0])
