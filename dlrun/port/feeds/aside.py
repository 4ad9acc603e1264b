"""Batches that a training loop takes only now and then, to show what the model makes of them."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from dlrun.port.facts.loops import Loops
from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.program.script import names_in, walk


def only_shown(
    loops: Loops, loop: cst.For | cst.While, draw: cst.Call, reached: Collection[cst.Call], depth: int = 4
) -> bool:
    """Tell whether a branch in ``loop`` takes what ``draw`` brings, and no update nor anything after the branch does.

    ``if step % 100 == 0: x = next(test_batches); save_image(model(x))`` in a loop that runs over the training batches;
    ``if step == last: print(evaluate(loader))`` likewise. ``reached`` are the calls that an iteration may make.
    """
    script = loops.script
    if not script.inside(draw, loop):
        home = script.function_of(draw)
        if not depth or not isinstance(home, cst.FunctionDef) or loops.gradients.runs_backward(home.body):
            return False
        calls = [c for c in loops.flow.callers(home) if c in reached]
        return bool(calls) and all(only_shown(loops, loop, c, reached, depth - 1) for c in calls)
    within = [up for up in script.above(draw) if script.inside(up, loop) and up is not loop]
    branch = next((up for up in reversed(within) if isinstance(up, cst.If)), None)
    if branch is None or loops.gradients.runs_backward(branch):
        return False
    bound = _holding(branch, draw)
    target = names_in(loop.target) if isinstance(loop, cst.For) else set()
    others = [n for n in walk(loop.body) if isinstance(n, cst.Name) and not script.inside(n, branch)]
    read = [n for n in others if n.value not in target or script.order[n] > script.order[branch]]
    return not any(n.value in bound for n in read)


def _holding(branch: cst.If, draw: cst.Call) -> set[str]:
    """Return the names that ``branch`` binds to what ``draw`` brings, and to what it computes from that."""
    bound: set[str] = set()
    while True:
        known = len(bound)
        for n in walk(branch):
            match n:
                case cst.Assign():
                    targets: list[cst.CSTNode] = [t.target for t in n.targets]
                case cst.AugAssign() | cst.AnnAssign() | cst.NamedExpr() | cst.For() | cst.CompFor():
                    targets = [n.target]
                case _:
                    continue
            value = n.iter if isinstance(n, (cst.For, cst.CompFor)) else n.value
            if value is not None and (mentions(value, bound) or any(m is draw for m in walk(value))):
                bound.update(name for t in targets for name in names_in(t))
        if len(bound) == known:
            return bound
