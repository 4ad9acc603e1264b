"""Numbers and NumPy arrays that a training loop carries on from step to step, and that its losses are made of.

What is not the framework's is not followed from value to value, so the script's text tells:
``mean = 0.9 * mean + 0.1 * x`` in a loop carries ``mean`` on, unless the loop also sets it anew, and a loss is made of
what its assignments read. A function that makes a loss go backward is called in a loop: what outlives it is carried on
there, too.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dlrun.verify.tracer.conditions import names_in
from dlrun.verify.tracer.recorder import Recorder, user_frame
from dlrun.verify.tracer.syntax import Loop, inside

Carried = dict[str, int]  # the line that carries each name on
Made = dict[str, list[tuple[int, set[str], bool]]]  # lines that assign a name, what they read, whether it adds to it


def carried_in(source: str) -> dict[int, Carried]:
    """Return, by the line of each ``backward()`` or ``gradient()``, what its loop carries on and its loss is of."""
    found: dict[int, Carried] = {}
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    attributes = _made([n for f in functions for n in inside(f) if f.name != "__init__"], lambda name: "." in name)
    for place in (node for node in ast.walk(tree) if isinstance(node, (*Loop, ast.FunctionDef))):
        nodes = inside(place)
        made = _made(nodes)
        if isinstance(place, ast.FunctionDef):
            outer = {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
            kept = {**attributes, **{name: made[name] for name in outer & made.keys()}}
            made = {**made, **attributes}
        else:
            anew = names_in(place.target) if isinstance(place, ast.For) else set()  # in every iteration
            kept = {name: lines for name, lines in made.items() if name not in anew}
        for call in nodes:
            if isinstance(call, ast.Call) and (loss := _loss(call)) is not None:
                parts = _parts(names_in(loss), made)
                carried = {name: kept[name][0][0] for name in parts if name in kept and all(a for *_, a in kept[name])}
                found.setdefault(call.lineno, {}).update(carried)
    return found


def _loss(call: ast.Call) -> ast.expr | None:
    """Return what a call goes backward from: ``loss.backward()``, ``tape.gradient(loss, variables)``."""
    if not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr == "gradient":
        return call.args[0] if call.args else None
    return call.func.value if call.func.attr == "backward" else None


def _made(nodes: list[ast.AST], wanted: Callable[[str], bool] = bool) -> Made:
    """Return, by name, the lines that assign it, what they read, and whether that adds to it."""
    made: Made = {}
    for node in nodes:
        for name, reads, line, again in _assignments(node):
            if wanted(name):
                made.setdefault(name, []).append((line, reads, again or name in reads))
    return made


def _assignments(node: ast.AST) -> list[tuple[str, set[str], int, bool]]:
    """Return what a statement assigns: the name, the names it is made of, the line, and whether it adds to it."""
    targets: list[ast.expr]
    if isinstance(node, ast.AugAssign):
        targets, value, again = [node.target], node.value, True
    elif isinstance(node, ast.Assign):
        targets, value, again = list(node.targets), node.value, False
    elif isinstance(node, ast.For):  # a loop's variable is set anew
        targets, value, again = [node.target], node.iter, False
    else:
        return []
    names = [name for target in targets for name in names_in(target)]
    return [(name, names_in(value), node.lineno, again) for name in names]


def _parts(names: set[str], made: Made) -> set[str]:
    """Return the names that a value is made of, through the loop's assignments."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [read for _, reads, _ in made.get(name, []) for read in reads]
    return found


class Counted:
    """Notes, when a loss of a later step goes backward, what it is made of that the loop carried on.

    ``note`` makes the note of an array.
    """

    def __init__(self, recorder: Recorder, note: Callable[[Any], Any]) -> None:
        self.recorder, self._note = recorder, note
        with tokenize.open(recorder.orders.script) as file:
            self._carried = carried_in(file.read()) if recorder.orders.lineage else {}

    def backward(self) -> None:
        """A loss goes backward."""
        frame = user_frame()
        if frame is None or not self.recorder.steps or frame.f_code.co_filename != self.recorder.orders.script:
            return
        carried, tensors = self._carried.get(frame.f_lineno, {}), {}
        for name, line in carried.items():
            value = _value(name, {**frame.f_globals, **frame.f_locals})
            if value is not None:
                at = f"{Path(self.recorder.orders.script).name}:{line}"
                tensors[name] = {"kind": "accumulated", "note": self._note(value), "at": at}
        if tensors:
            self.recorder.note("carried", tensors=tensors, noise=[])


def _value(name: str, space: dict[str, Any]) -> Any:
    """Return what a dotted name stands for as an array, if it is a number or an array of numbers; None else."""
    first, *parts = name.split(".")
    value: Any = space.get(first)
    for part in parts:
        value = getattr(value, part, None)
    if not isinstance(value, (int, float, np.number, np.ndarray)) or np.asarray(value).dtype.kind not in "fiu":
        return None
    return np.atleast_1d(np.asarray(value, dtype=np.float64))
