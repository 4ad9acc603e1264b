"""Turns what is known about a script into what the abstract run needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Evaluation, Facts, ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.kinds import plays
from dlrun.port.facts.numbers.scalars import Scalars
from dlrun.port.facts.updates.session import SessionGradients
from dlrun.port.placement.countdowns import moved
from dlrun.port.placement.shards import Shards
from dlrun.port.program.script import calls_method

_MADE = ("loader", "iterable", "indices", "stretch")


def shards_of_keras(facts: KerasFacts, steps: Iterable[Edit]) -> Shards:
    """Return where the batches of the loops around ``train_on_batch()`` come from."""
    from dlrun.port.steps.counts.keras.loops import shared
    from dlrun.port.steps.metrics import ramps

    steps = list(steps)
    divided, counted = _counts(facts, steps)
    updates = [call for call in facts.script.calls if calls_method(call, "train_on_batch")]
    above = (up for update in updates for frame in facts.flow.frames(update) for up in facts.script.above(frame))
    return Shards(
        ramped=_ramped(facts, steps) | {e.node for e in ramps.keras(facts) if any(e.node is s.node for s in steps)},
        made=frozenset(facts.iterated),
        loops=frozenset(shared(facts)),
        training=frozenset([*facts.loops, *(up for up in above if isinstance(up, (cst.For, cst.While)))]),
        divided=divided,
        counted=counted,
        kind=facts.kinds.of,
        answers=dict(_answers(facts)),
        parts=facts.options.batch == "global",
    )


def shards_of(facts: Facts, steps: Iterable[Edit], shared: Iterable[Evaluation] = ()) -> Shards:
    """Return where the batches of a script come from; ``steps`` are the edits that divide or restore step counts.

    ``shared`` are the evaluations whose batches are sharded as they are.
    """
    from dlrun.port.steps.counts.counts import sizes_of_stretches
    from dlrun.port.steps.counts.file_numbers import numbers_read, read_back
    from dlrun.port.steps.counts.update_counts import steps_so_far
    from dlrun.port.steps.metrics import annealing, guards, ramps
    from dlrun.port.steps.shard.full import partial_sums

    whole = [e.source for e in shared]
    steps = list(steps)
    divided, counted = _counts(facts, steps)
    annealed: frozenset[cst.CSTNode] = frozenset()
    if not facts.keeps_steps and not hasattr(facts, "style"):
        annealed = frozenset(annealing.made_serial(facts, divided))
        counted |= annealed
    session = getattr(facts, "style", "") == "session"
    return Shards(
        ramped=_ramped(facts, steps) | {e.node for e in ramps.moves(facts, {e.node for e in steps})},
        made=frozenset([*(f.node for f in facts.feeds if f.how in _MADE), *whole]),
        whole=frozenset(whole),
        turns={e.source: e.trains for e in shared if e.trains is not None},
        named={f.node: f.names for f in facts.feeds if f.how == "named"},
        loops=frozenset(facts.innermost),
        training=frozenset(facts.loops),
        drawing=frozenset(f.node for f in facts.feeds if f.how == "turns"),
        divided=divided,
        counted=counted,
        annealed=annealed,
        lengths=frozenset([*facts.lengths, *sizes_of_stretches(facts), *(numbers_read(facts) if session else ())]),
        sampled=frozenset(facts.sampled),
        kind=facts.kinds.of,
        steps=frozenset([*(step.node for step in facts.steps), *(update for update, _ in facts.by_hand)]),
        before=dict(_averaged_at(facts)),
        gradients=frozenset([*getattr(facts, "averages", ()), *getattr(facts, "clipped", ())]),
        cut=frozenset(_cut(facts)),
        together=frozenset(guards.together(facts))
        if facts.framework == "torch" and not facts.keeps_steps
        else frozenset(),
        alike=frozenset([*facts.permutations, *(call for feed in facts.feeds for call in feed.alike)]),
        sliced={f.node: f.names for f in facts.feeds if f.how == "arrays" and not f.picks},
        averaged=frozenset(partial_sums(facts)) if facts.keeps_steps else frozenset(),
        runs=frozenset({*facts.runs, *(step.node for step in facts.steps)}) if session else frozenset(),
        local=facts.local,
        number=_numbers(facts),
        counts_steps=steps_so_far(facts) if session else lambda node: False,
        resumes=session and any(read_back(facts)),
        plays=frozenset(_plays(facts)) if facts.episodes else frozenset(),
        answers=dict(_answers(facts)) if facts.episodes else {},
        parts=facts.keeps_steps,
        episodes=facts.episodes,
    )


def _numbers(facts: Facts) -> Callable[[cst.CSTNode], bool]:
    """Return what tells whether an expression is one number; so is a loss that a graph minimizes, whatever is in it."""
    sure, gradients = Scalars(facts.kinds, facts.runs), getattr(facts, "gradients", None)
    losses = gradients.losses() if isinstance(gradients, SessionGradients) else []
    made = {o.node for loss in losses for o in facts.flow.origins(loss)}

    def number(node: cst.CSTNode) -> bool:
        return sure(node) or (bool(made) and made.issuperset(o.node for o in facts.flow.origins(node)))

    return number


def _averaged_at(facts: Facts) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Yield where gradients are averaged before they are read: statements, or expressions in them, and lines."""
    for step in facts.steps:
        if step.closure is None:
            place = step.within or step.before
            yield from ((node, place) for node in (place, facts.script.line_of(place)))


def _cut(facts: Facts) -> Iterator[cst.CSTNode]:
    """Yield the expressions that are this rank's samples of an array."""
    for feed in facts.feeds:
        if feed.how == "array":
            yield feed.node
        elif feed.how in ("arrays", "cut", "drawn"):
            yield from feed.picks


def _answers(facts: Facts | KerasFacts) -> Iterator[tuple[cst.CSTNode, int]]:
    """Yield what environments answer to an action, and how many values: a state, a reward, an end, ..."""
    for node in facts.script.of(cst.Assign):
        if plays(facts.kinds, node):
            target = node.targets[0].target
            yield node.value, len(target.elements) if isinstance(target, cst.Tuple) else 1


def _plays(facts: Facts) -> Iterator[cst.CSTNode]:
    """Yield the loops that play: an episode may be over sooner on one rank."""
    for node in facts.script.of(cst.Assign):
        if plays(facts.kinds, node):
            loops = (up for up in facts.script.above(node) if isinstance(up, (cst.For, cst.While)))
            yield from (loop for loop in list(loops)[:1] if loop not in facts.loops)


def _ramped(facts: ScriptFacts, steps: Iterable[Edit]) -> frozenset[cst.CSTNode]:
    """Return the factors that are raised to the power of the ranks, and the fractions that their number multiplies."""
    found = [e for e in steps if isinstance(e.node, cst.BaseExpression)]
    texts = [(e.node, facts.script.module.code_for_node(e.rewrite(e.node))) for e in found]
    lines = (*facts.script.of(cst.AugAssign), *facts.script.of(cst.Assign))
    by = {change[1] for line in lines if (change := moved(line)) is not None}  # rate -= 0.001
    found_moved = {
        n for n, text in texts if n in by and isinstance(n, cst.Float) and f"{facts.alias}.serial_steps(" in text
    }
    return frozenset(n for n, text in texts if text.startswith(f"{facts.alias}.compound(")) | found_moved


def _counts(facts: ScriptFacts, steps: Iterable[Edit]) -> tuple[frozenset[cst.CSTNode], frozenset[cst.CSTNode]]:
    """Return the expressions that are divided by the ranks, and those that are made serial again."""
    divided, counted = set(), set()
    for edit in steps:
        if isinstance(edit.node, cst.BaseExpression):
            text = facts.script.module.code_for_node(edit.rewrite(edit.node))
            name = text.partition("(")[0]
            if name in (f"{facts.alias}.steps", f"{facts.alias}.rest_of_steps", f"{facts.alias}.last_step"):
                divided.add(edit.node)
            elif name == f"{facts.alias}.serial_steps":
                counted.add(edit.node)
    return frozenset(divided), frozenset(counted)
