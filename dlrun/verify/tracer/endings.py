"""What follows a loop through batches is reached: an evaluation, a plateau, what is saved.

An epoch over a DataLoader is cut short by ``loaders``. One that the script goes through by itself, by numbers or
slices, has more iterations than a run makes steps: it ends when all steps are made, and the script goes on to its next
backward.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from dlrun.verify.tracer.recorder import UNCUT, Recorder
from dlrun.verify.tracer.syntax import Loop, callee, inside

BATCHES, UNTIL = "batches", "until"  # loops with ``for`` and with ``while`` that are ended


def batched(tree: ast.Module, stepping: set[int]) -> set[int]:
    """Return the lines of the innermost loops, of those ``stepping``, that are gone through again and again.

    As a loop through batches is by one through epochs, around it or around a call of its function.
    """
    loops = [node for node in ast.walk(tree) if isinstance(node, Loop)]
    called = {callee(n) for loop in loops for n in ast.walk(loop) if isinstance(n, ast.Call)}
    found = set()
    for scope in (n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.FunctionDef))):
        again = isinstance(scope, ast.FunctionDef) and scope.name in called
        for loop in (n for n in inside(scope) if isinstance(n, ast.For) and n.lineno in stepping):
            outer = again or any(loop in inside(each) for each in inside(scope) if isinstance(each, Loop))
            inner = any(n.lineno in stepping for n in inside(loop) if isinstance(n, Loop))
            found |= {loop.lineno} if outer and not inner else set()
    return found


def counted(tree: ast.Module, stepping: set[int]) -> set[int]:
    """Return the lines of the loops, of those ``stepping``, whose iterations are single steps: no loop is in them.

    As the one that counts the steps, and not the one through epochs around it.
    """
    loops = {n.lineno: n for n in ast.walk(tree) if isinstance(n, Loop) and n.lineno in stepping}
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    looping, before = set[str](), -1

    def holds(node: ast.AST) -> bool:
        parts = [n for n in ast.walk(node) if n is not node]
        return any(
            (isinstance(n, Loop) and n.lineno in loops) or (isinstance(n, ast.Call) and callee(n) in looping)
            for n in parts
        )

    while len(looping) > before:
        before = len(looping)
        looping |= {function.name for function in functions if holds(function)}
    return {line for line, loop in loops.items() if not holds(loop)}


def ended(recorder: Recorder, turns: Iterable[Any]) -> Iterator[Any]:
    """Yield the iterations of a loop, until all steps that are asked for are made and some of them in this loop.

    The next iteration is begun all the same: a DataLoader ends its epoch then. Iterations that make a model each, as
    those of folds do, get as many steps each, while rounds of them are left.
    """
    began, renews = recorder.steps, False
    for number, turn in enumerate(turns):
        done = recorder.done and recorder.steps > began and recorder.orders.epoch_steps != UNCUT
        if done and not (renews and recorder.goes_on(anew=True)):
            recorder.note("ended", renews=renews, turns=number)
            return
        made = recorder.made
        yield turn
        renews = recorder.made > made


def goes_on(recorder: Recorder, seen: dict[str, tuple[int, int]], line: str, condition: Any) -> Any:
    """Return the condition of a loop with ``while``, false where it is to end, as ``ended`` ends one with ``for``.

    ``seen``, by line: the steps made and the iterations begun when it was asked last.
    """
    steps, turns = seen.get(line, (recorder.steps, 0))
    seen[line] = recorder.steps, turns + 1
    if recorder.done and recorder.steps > steps and recorder.orders.epoch_steps != UNCUT and condition:
        recorder.note("ended", renews=False, turns=turns)
        return False
    return condition
