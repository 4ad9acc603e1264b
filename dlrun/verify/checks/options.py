"""Are the updates made with the options of the serial script? With the batch only the learning rate grows."""

from __future__ import annotations

from dlrun.verify.trace import Run, Trace
from dlrun.verify.verdict import Check, failed

NAME = "options"
CYCLED = ("betas", "momentum")  # by schedules such as OneCycleLR


def options(identity: Run, run: Run, by_rate: bool = False) -> Check | None:
    """Return a check that failed because ranks take another weight decay, momentum or limit to clip at than 1 rank.

    None where they take the same. Ranks that repeat the serial run do not show it: there a rate is not scaled.
    ``by_rate``: the rates are wrong, and with them a momentum that their schedule cycles.
    """
    if any(run.root.returns("lars")):
        return None  # those are the recipe's
    alone = _taken(identity.root)
    for trace in run.traces:
        for name, (at, now) in _taken(trace).items():
            before = alone.get(name, (at, now))[1]
            if before != now and not (by_rate and name.startswith(CYCLED)):
                finding = f"{name} is {_shown(now)} on {len(run.traces)} ranks, {_shown(before)} on 1"
                todo = "leave it as in the serial script: it is the learning rate that grows with the batch"
                return failed(NAME, finding, todo, "other-options", where=at, rank=trace.rank)
    return None


def _taken(trace: Trace) -> dict[str, tuple[str, list[float]]]:
    """Return line and numbers of each option of the optimizers, and of the limits to clip at that stay the same."""
    found: dict[str, tuple[str, list[float]]] = {}
    optimizers = list(trace.all("optimizer"))
    for event in optimizers:
        groups = event.facts.get("options", [])
        for number, group in enumerate(groups, 1):
            of = f"optimizer {event['optimizer'] + 1}, {event['type']}" if len(optimizers) > 1 else event["type"]
            of += f", group {number}" if len(groups) > 1 else ""
            found |= {f"{name} of {of}": (event.at, numbers) for name, numbers in group.items()}
    limits: dict[tuple[str, str], set[float]] = {}
    for event in trace.all("clip"):
        if event.facts.get("limit") is not None:
            limits.setdefault((event["function"], event.at), set()).add(event["limit"])
    steady = {key: limit for key, limit in limits.items() if len(limit) == 1}
    return found | {f"the limit of {function} ({at})": (at, [*limit]) for (function, at), limit in steady.items()}


def _shown(numbers: list[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
