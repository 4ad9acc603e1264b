"""Networks that take turns: one loop holds several of a few updates each, for a critic and then for a generator."""

from __future__ import annotations

import re
from itertools import pairwise

import libcst as cst

from dlrun.port.facts.loops import Loops
from dlrun.port.feeds.iterated import Iterated

# What loops are called whose iterations are whole trainings, or parts of one that is long.
_STAGES = re.compile(r"epoch|fold|run|trial|repeat|task|stage|seed|phase", re.IGNORECASE)
_MOST_TURNS = 20  # of one network before another's turn comes
_Loop = cst.For | cst.While


def in_turns(loops: Loops, iterated: Iterated, drawn: list[_Loop]) -> list[_Loop]:
    """Return ``drawn``, loops that count updates, with the loop around several that take turns in their place."""
    inside: dict[_Loop, dict[_Loop, None]] = {}
    for _, us in loops.nests:
        for loop, around in pairwise(us):
            if loop in drawn and isinstance(loop, cst.For) and not _is_long(iterated, loop):
                inside.setdefault(around, {})[loop] = None
    turns = {around: parts for around, parts in inside.items() if len(parts) > 1 and not _is_stage(loops, around)}
    parts = {loop for some in turns.values() for loop in some}
    return [*(loop for loop in drawn if loop not in parts), *turns]


def is_part(loops: Loops, iterated: Iterated, loop: _Loop, around: _Loop | None) -> bool:
    """Tell whether ``loop`` makes the few updates that one iteration of ``around``, which is no epoch, takes."""
    short = isinstance(loop, cst.For) and not _is_long(iterated, loop)
    return around is not None and short and not _is_stage(loops, around)


def _is_stage(loops: Loops, loop: _Loop) -> bool:
    """Tell whether each iteration of ``loop`` is a training by itself, or an epoch, as what it counts is called."""
    header = (loop.target, loop.iter) if isinstance(loop, cst.For) else (loop.test,)
    return any(_STAGES.search(loops.script.code(node)) for node in header)


def _is_long(iterated: Iterated, loop: cst.For) -> bool:
    """Tell whether ``loop`` is known to make more iterations than one network has before another's turn."""
    call = iterated.of(loop)
    bounds = [a.value for a in call.args] if isinstance(call, cst.Call) else []
    found = [o.node for bound in bounds for o in iterated.flow.origins(bound)]
    return any(isinstance(n, cst.Integer) and n.evaluated_value > _MOST_TURNS for n in found)
