"""Models and optimizers that a script makes under a condition: ``if args.decoder: decoder = Decoder()``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import libcst as cst

from dlrun.port.facts import Conditional
from dlrun.port.facts.loops import Loops
from dlrun.port.program.script import Binding, Scope, walk

_ONCE = (cst.Call, cst.NamedExpr, cst.Await, cst.Yield)  # what may come out otherwise when it runs again
_PARTS = ("children", "modules", "named_children", "named_modules", "values", "items")
Sorted = tuple[tuple[str, ...], tuple[str, ...]]


def conditional(
    loops: Loops,
    loop: cst.CSTNode,
    things: Collection[str],
    made_before: Callable[[list[Binding], cst.CSTNode], bool],
    sort: Callable[[list[tuple[str, cst.CSTNode]]], Sorted],
) -> tuple[Conditional, ...]:
    """Return what is trained in ``loop``, or before it, beside ``things``, each with the condition that it is made on.

    ``made_before`` tells whether bindings are sure to have run; ``sort`` picks the models and the optimizers.
    """
    function = loops.script.function_of(loop)
    scope = loops.script.scopes[function.body if isinstance(function, cst.FunctionDef) else function]
    found: dict[tuple[cst.If, bool], list[tuple[str, cst.CSTNode]]] = {}
    for name, bindings in scope.names.items():
        parts = bindings and all(_is_part(b.value, things) for b in bindings)
        if name not in things and not parts and not made_before(bindings, loop):
            use = next(iter(loops.script.names_of(name, scope)), None)
            for condition in _made_under(loops, scope, loop, name) if use is not None else ():
                found.setdefault(condition, []).append((name, use))  # type: ignore[arg-type]
    kept = ((*condition, *sort(names)) for condition, names in found.items())
    return tuple(
        Conditional(test, (*models, *optimizers), alone and _can_be_asked(loops, test, loop))
        for test, alone, models, optimizers in kept
        if models or optimizers
    )


def _is_part(value: cst.CSTNode | None, things: Collection[str]) -> bool:
    """Tell whether ``value`` lies in one of ``things``: ``model.head``, the layers of ``model.layers``."""
    while not isinstance(value, cst.Name):
        match value:
            case cst.Attribute() | cst.Subscript():
                value = value.value
            case cst.Call(func=cst.Attribute(attr=cst.Name(method))) if method in _PARTS:
                value = value.func
            case _:
                return False
    return value.value in things


def _made_under(loops: Loops, scope: Scope, loop: cst.CSTNode, name: str) -> Iterator[tuple[cst.If, bool]]:
    """Yield the condition under which ``name`` is made before ``loop``, if there is one.

    And whether it decides alone: each of several branches below it makes the same; else it is the last of several.
    """
    script = loops.script
    before = [b for b in scope.names[name] if b.how == "assign" and script.order[b.node] < script.order[loop]]
    above = [
        [up for up in script.above(b.node) if isinstance(up, cst.If) and not script.inside(loop, up)] for b in before
    ]
    outer = {tests[-1] if tests else None for tests in above}
    test = outer.pop() if len(outer) == 1 else None
    if test is not None and all(script.inside(b.node, test.body) for b in before):
        alone = len(before) > 1 or len(above[0]) == 1
        yield (test if alone else above[0][0]), alone


def _can_be_asked(loops: Loops, test: cst.If, loop: cst.CSTNode) -> bool:
    """Tell whether the condition of ``test`` comes out the same again right before ``loop``."""
    script = loops.script
    if any(isinstance(n, _ONCE) for n in walk(test.test)):
        return False
    names = [n for n in walk(test.test) if isinstance(n, cst.Name)]
    bound = (b for n in names for b in script.bindings_of(n))
    return not any(script.order[test] < script.order[b.node] < script.order[loop] for b in bound)
