"""Did each update use the mean of the local gradients?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.verdict import Check, failed, passed, skipped, values

NAME = "mean gradient"
ROUNDING = {"float64": 1e-12, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}


@dataclass(frozen=True)
class Use:
    """How one rank's step used one parameter's gradient.

    ``used``: at the step. ``made``: by backward, where ``own`` is another. ``own``, ``mean``: before and after the last
    averaging since the parameter's last step, None if there was none; what backward made, and what is used, where that
    is another without one. ``late``: an averaging came after the step
    instead. ``clip``: the event that changed gradients between backward and averaging. ``backward``: the one that came
    after averaging.
    """

    step: int
    at: str
    name: str
    used: dict[str, Any] | None
    own: dict[str, Any] | None = None
    mean: dict[str, Any] | None = None
    averaged: bool = False
    late: str = ""
    clip: Event | None = None
    backward: Event | None = None
    made: dict[str, Any] | None = None


def mean_gradients(run: Run, identity: Run | None = None) -> Check:
    """Judge every step of the sharded run; ``identity``: that of 1 rank, which may change the mean, as by clipping."""
    ranks = [uses(trace) for trace in run.traces]
    if not ranks[0]:
        return skipped(NAME, "no step was made")
    worst, others = 0.0, otherwise(run)
    for together in zip(*ranks, strict=False):
        if all(use.used is None for use in together):
            continue
        by_values = (together[0].step, together[0].name) in others
        problem = _by_values(together) if by_values else _problem(together)
        if problem:
            return problem
        worst = worst if by_values else max(worst, _deviation([u.own for u in together], together[0].mean))
    if identity is not None and (grown := _grown(uses(identity.root), ranks[0], len(ranks))):
        return grown
    made = f"{len(run.root.steps)} update{'s' * (len(run.root.steps) != 1)}"
    if others:
        return passed(
            NAME,
            f"{made} used what something else than dl_comm.torch made equal: the mean of {len(ranks)} "
            "ranks' gradients, by their values",
        )
    return passed(NAME, f"{made} used the mean of {len(ranks)} ranks' gradients (to {worst:.0e})")


def _grown(alone: list[Use], found: list[Use], n: int) -> Check | None:
    """Return a check that failed because a step takes n times the mean, where 1 rank takes it as it is, or clips it."""
    if any(ratio > 1 + 1e-3 for _, ratio in _ratios(alone)):
        return None
    for use, ratio in _ratios(found):
        if math.isclose(ratio, n, rel_tol=1e-3):
            finding = f"step {use.step} takes {n} times the mean of {n} ranks' gradients: it is multiplied after "
            todo = "leave the mean as it is: the learning rate alone is scaled, by dl.lr_scale()"
            place = {"where": use.at, "step": use.step, "parameter": use.name}
            return failed(NAME, f"{finding}dl.gradients()", todo, "no-mean", **place)
    return None


def _ratios(found: list[Use]) -> list[tuple[Use, float]]:
    """Return how many times the mean each use takes."""
    return [(use, use.used["norm"] / use.mean["norm"]) for use in found if use.used and use.mean and use.mean["norm"]]


def uses(trace: Trace) -> list[Use]:
    """Return the uses of gradients in a trace, in order of steps and parameters."""
    found: list[Use] = []
    owners: dict[int, list[int]] = {}
    averages: dict[int, tuple[int, Any, Any, Any, Event | None]] = {}
    backward, clip = (-1, None), (-1, None)  # type: tuple[int, Event | None], tuple[int, Event | None]
    backwards = 0  # since the last step: of several, what a script adds up itself is seen only in part
    for i, event in enumerate(trace.events):
        if event.kind == "backward":
            backward, backwards = (i, event), backwards + 1
        elif event.kind in ("clip", "unscale"):
            clip = (i, event)
        elif event.kind == "return" and event["fn"] == "gradients":
            before = clip[1] if clip[0] > backward[0] else None
            made = event.facts.get("made") if backwards == 1 else None
            made = made or [None] * len(event["ids"])
            for key, raw, own, mean in zip(event["ids"], made, event["before"], event["after"], strict=True):
                averages[key] = (i, raw, own, mean, before)
        elif event.kind in ("optimizer", "joined"):
            owners[event["optimizer"]] = owners.get(event["optimizer"], []) + list(event["ids"])
        elif event.kind == "step":
            backwards = 0
            names = trace.names[event["optimizer"]]
            for position, key in enumerate(owners[event["optimizer"]]):
                use = Use(event["step"], event.at, names[position], event["grads"][position])
                if key in averages:
                    when, raw, own, mean, before = averages.pop(key)
                    after = backward[1] if backward[0] > when else None
                    use = Use(use.step, use.at, use.name, use.used, own, mean, True, "", before, after, raw)
                else:
                    own = event.facts["made"][position] if "made" in event.facts else None
                    use = Use(use.step, use.at, use.name, use.used, own, use.used, late=_late(trace, i, key))
                found.append(use)
    return found


def _late(trace: Trace, since: int, key: int) -> str:
    """Return the line of an averaging of this parameter between its step and the next backward."""
    for event in trace.events[since:]:
        if event.kind == "backward":
            break
        if event.kind == "return" and event["fn"] == "gradients" and key in event["ids"]:
            return event.at
    return ""


def otherwise(run: Run) -> set[tuple[int, str]]:
    """Return the steps and parameters whose gradients became equal on all ranks without dl.gradients().

    As by ``dl_comm.gradients()`` of arrays, or by another library.
    """
    found: dict[tuple[int, str], bool] = {}
    for together in zip(*map(uses, run.traces), strict=False):
        known = all(use.own and use.used and not use.averaged and not use.late for use in together)
        if known and len({(use.used or {})["hash"] for use in together}) == 1:
            found[together[0].step, together[0].name] = len({(use.own or {})["hash"] for use in together}) > 1
    return set(found) if any(found.values()) else set()


def _by_values(together: tuple[Use, ...]) -> Check | None:
    """Return what is wrong with a gradient that was not averaged by dl.gradients(); it may be a part of the mean.

    As after clipping. Clipped before, the mean is no multiple of that of what backward made.
    """
    use, n = together[0], len(together)
    own, place = [u.own for u in together], {"step": use.step, "parameter": use.name, "where": use.at}
    ratio = _ratio(own, use.used)
    mean = [x * ratio for x in _mean(own)]
    largest = max(map(abs, mean), default=0.0)
    apart = max((abs(x - y) for x, y in zip(values(use.used), mean, strict=False)), default=0.0)
    if apart > 1e-3 * largest:
        finding = (
            f"the gradient of {use.name} in step {use.step} is equal on all ranks, and no multiple of the mean of "
        )
        finding += "what backward() made on them, as where each rank clips by itself"
        todo = "average right after backward(), before anything changes gradients"
        return failed(NAME, finding, todo, "average-after-clip", **place)
    if largest and any(math.isclose(ratio, times, rel_tol=1e-3) for times in (n, 1 / n)):
        finding = f"the gradient of {use.name} in step {use.step} is {ratio:.4g} times the mean of {n} ranks' gradients"
        return failed(NAME, finding, "the mean is the sum divided by the number of ranks", "no-mean", **place)
    return None


def _problem(together: tuple[Use, ...]) -> Check | None:
    """Return what is wrong with one parameter's gradient in one step, over all ranks."""
    use, n = together[0], len(together)
    rank = next((r for r, u in enumerate(together) if not u.averaged), None)
    equal = len({(u.used or {}).get("hash") for u in together}) == 1
    place: dict[str, Any] = {"step": use.step, "parameter": use.name, "where": use.at}
    if rank is not None and use.late:
        todo = "call dl.gradients(optimizer) before the step, right after backward()"
        finding = f"the gradients of step {use.step} were averaged after the step had used them ({use.late})"
        return failed(NAME, finding, todo, "missing-average", **place | {"where": use.late})
    if rank is not None:
        todo = "call dl.gradients(optimizer) after backward(), before clipping and before the step"
        finding = f"step {use.step} used gradients of {use.name} that were never averaged"
        return failed(NAME, finding, todo, "missing-average", **place, rank=rank)
    averaged_before = len({(u.own or {}).get("hash") for u in together}) == 1
    if use.clip and not averaged_before:
        finding = f"step {use.step} averaged after {use.clip['function']}, which saw one rank's gradient only"
        todo = "move dl.gradients(optimizer) up, between backward() and the clipping"
        return failed(NAME, finding, todo, "average-after-clip", **place | {"where": use.clip.at})
    if not averaged_before and _bent(together):
        finding = (
            f"step {use.step} averaged what each rank made of its gradient of {use.name} by itself, as clipping does"
        )
        todo = "move dl.gradients(optimizer) up, to right after backward()"
        return failed(NAME, finding, todo, "average-after-clip", **place)
    if not equal and use.backward:
        finding = f"step {use.step} averaged before backward(): the update used a stale mean and one rank's gradient"
        todo = "call dl.gradients(optimizer) after backward()"
        return failed(NAME, finding, todo, "stale-gradient", **place | {"where": use.backward.at})
    if not equal:
        finding = f"the gradient of {use.name} changed differently on the ranks between averaging and step {use.step}"
        return failed(NAME, finding, "let nothing but the mean decide the update", "gradient-changed", **place)
    deviation = _deviation([u.own for u in together], use.mean)
    if deviation > ROUNDING.get((use.mean or {}).get("type", ""), 2e-5):
        ratio = _ratio([u.own for u in together], use.mean)
        finding = f"the gradient of {use.name} in step {use.step} is {ratio:.4g} times the mean of {n} ranks' gradients"
        return failed(NAME, finding, "the mean is the sum divided by the number of ranks", "no-mean", **place)
    return None


def _bent(together: tuple[Use, ...]) -> bool:
    """Whether the ranks changed what backward made in different ways: the mean of that is not the mean, changed.

    Where all scale by c and add d, two ranks' gradients differ by c times what they did.
    """
    own, made = (
        [values(note) for note in notes] for notes in zip(*((u.own, u.made or u.own) for u in together), strict=True)
    )
    if all(use.made is None for use in together) or len({len(each) for each in (*own, *made)}) > 1:
        return False
    now = [x - y for each in own[1:] for x, y in zip(each, own[0], strict=True)]
    once = [x - y for each in made[1:] for x, y in zip(each, made[0], strict=True)]
    c = sum(x * y for x, y in zip(now, once, strict=True)) / (sum(y * y for y in once) or 1.0)
    apart = max((abs(x - c * y) for x, y in zip(now, once, strict=True)), default=0.0)
    rounding = max(ROUNDING.get((use.own or {}).get("type", ""), 0.0) for use in together)
    return apart > max(1e-3, rounding) * max(map(abs, now), default=0.0)


def _deviation(own: list[dict[str, Any] | None], mean: dict[str, Any] | None) -> float:
    """Return the largest |mean - sum / n|, relative to the ranks' largest gradient, over the sampled elements."""
    got, expected = values(mean), _mean(own)
    largest = max((abs(x) for note in own for x in values(note)), default=0.0)  # means may cancel
    return max((abs(x - y) for x, y in zip(got, expected, strict=False)), default=0.0) / (largest or 1.0)


def _mean(own: list[dict[str, Any] | None]) -> list[float]:
    parts = [values(note) for note in own if note is not None]
    return [sum(column) / len(own) for column in zip(*parts, strict=True)]


def _ratio(own: list[dict[str, Any] | None], mean: dict[str, Any] | None) -> float:
    pairs = list(zip(values(mean), _mean(own), strict=False))
    product, square = sum(x * y for x, y in pairs), sum(y * y for _, y in pairs)
    return product / square if square else float("inf")
