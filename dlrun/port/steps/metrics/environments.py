"""Part of step "metrics": environments, of which each rank plays its own, said with the line to write."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.models.kinds import plays, to_an_end
from dlrun.port.program.script import argument, calls_method, dotted, walk
from dlrun.port.steps.metrics.divergence import seeded_draws

_NORMALISES = re.compile(
    r"^(gym|gymnasium|stable_baselines3)\..*(NormalizeObservation|NormalizeReward|VecNormalize|"
    r"RunningMeanStd)$"
)


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about environments that each rank plays for itself."""
    yield from _environments(facts)
    yield from list(_normalised(facts))[:1]
    yield from _uneven_episodes(facts)


def _environments(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where all ranks' environments begin alike: a library's, or by a generator of the script's own."""
    script, makes = facts.script, ("gym.make", "gymnasium.make", "gymnasium.vector.SyncVectorEnv")
    made = [call for call in script.calls if script.name_of(call.func) in makes]
    steps = [n for n in script.nodes if plays(facts.kinds, n)] if facts.episodes else []
    played = [n for n in steps if not _classes_at(facts, n)]
    seeded = [c for c in script.calls if calls_method(c, "reset") and argument(c, "seed") is not None]
    homes = {script.function_of(loop) for loop in facts.loops}  # not of an evaluation, which may begin alike
    every = [*(seeded if made or steps else ()), *made, *played]
    why = "every rank plays episodes of its own; with one seed they begin alike"
    for node in sorted(every, key=lambda n: script.function_of(n) not in homes)[:1]:
        seed = argument(node, "seed") if isinstance(node, cst.Call) else None
        given = script.code(seed) if seed is not None else "seed"
        yield Doubt(node, why, "medium", f"env.reset(seed={given} + {facts.alias}.get_rank())", name="same-samples")
    for call in [] if every else [c for owner in environments(facts) for c, _ in seeded_draws(facts, owner)][:1]:
        drawn = dotted(call.func.value)  # type: ignore[attr-defined]
        name = re.sub(r"^self\b", "env", drawn)
        yield Doubt(call, why, "medium", f"{facts.alias}.reseed({name}) before the loop", name="same-samples")


def environments(facts: Facts) -> set[cst.ClassDef]:
    """Return the script's own classes whose objects are played: each rank's are its own."""
    return {owner for n in facts.script.nodes for owner in _classes_at(facts, n)} if facts.episodes else set()


def _classes_at(facts: Facts, node: cst.CSTNode) -> list[cst.ClassDef]:
    """Return the script's own classes of which ``node`` plays an object: ``state, reward, done = env.step(action)``."""
    if not plays(facts.kinds, node):
        return []
    calls = [n for n in walk(node.value) if calls_method(n, "step")]  # type: ignore[attr-defined]
    owners = [facts.script.class_of(f) for call in calls for f in facts.flow.targets(call)]
    return [owner for owner in owners if owner is not None]


def _normalised(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt about each library's environment that scales observations or rewards by what it has seen so far.

    Also where a class of the script's own is made of one, and about the means and variances themselves.
    """
    for call in facts.script.calls if facts.episodes else ():
        local = facts.flow.definition(call.func)
        bases = [facts.script.name_of(base.value) for base in local.bases] if isinstance(local, cst.ClassDef) else []
        found = [name for name in (facts.script.name_of(call.func), *bases) if _NORMALISES.search(name)]
        if found:
            of = (
                "the mean and var of it"
                if found[0].endswith("RunningMeanStd")
                else ("the mean and var of its obs_rms (or return_rms)")
            )
            yield Doubt(
                call,
                "this goes by the mean and the variance of local episodes: each rank's model is given others",
                "medium",
                f"average {of} with {facts.alias}.average() before each update",
                name="ranks-diverge",
            )


def _uneven_episodes(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where an update is made at every step of an episode, whose length is local."""
    if (loop := uneven(facts)) is not None:
        why = "episodes differ in length: a rank that makes fewer updates leaves the others waiting for ever"
        yield Doubt(loop, why, "high", "count updates, not episodes, so that all ranks make as many", name="may-hang")


def uneven(facts: Facts) -> cst.CSTNode | None:
    """Return a loop that plays an episode to its end and updates at each of its iterations, if there is one."""
    return next((loop for loop in facts.loops if to_an_end(facts.kinds, loop)), None)
