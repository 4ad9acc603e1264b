"""Batches that a training loop takes only now and then, to show what the model makes of them."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts.loops import Loops
from dlrun.port.program.script import names_in, walk


def only_shown(loops: Loops, loop: cst.For | cst.While, draw: cst.Call) -> bool:
    """Tell whether a branch in ``loop`` takes what ``draw`` brings, and no update nor anything after the branch does.

    ``if step % 100 == 0: x = next(test_batches); save_image(model(x))`` in a loop that runs over the training batches.
    """
    script = loops.script
    within = [up for up in script.above(draw) if script.inside(up, loop) and up is not loop]
    branch = next((up for up in reversed(within) if isinstance(up, cst.If)), None)
    if branch is None or loops.gradients.runs_backward(branch):
        return False
    bound = {
        n.value
        for t in walk(branch)
        if isinstance(t, cst.AssignTarget)
        for n in walk(t.target)
        if isinstance(n, cst.Name)
    }
    target = names_in(loop.target) if isinstance(loop, cst.For) else set()
    others = [n for n in walk(loop.body) if isinstance(n, cst.Name) and not script.inside(n, branch)]
    read = [n for n in others if n.value not in target or script.order[n] > script.order[branch]]
    return not any(n.value in bound for n in read)
