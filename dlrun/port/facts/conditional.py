"""Models and optimizers that a script makes under a condition: ``if args.decoder: decoder = Decoder()``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import libcst as cst

from dlrun.port.facts import Conditional
from dlrun.port.facts.loops import Loops
from dlrun.port.program.script import Binding, Scope, walk

_ONCE = (cst.Call, cst.NamedExpr, cst.Await, cst.Yield)  # what may come out otherwise when it runs again
Sorted = tuple[tuple[str, ...], tuple[str, ...]]


def conditional(
    loops: Loops, loop: cst.CSTNode, things: Collection[str], made_before: Callable[[list[Binding], cst.CSTNode], bool],
    sort: Callable[[list[tuple[str, cst.CSTNode]]], Sorted],
) -> tuple[Conditional, ...]:  # fmt: skip
    """Return what is trained in ``loop``, or before it, beside ``things``, each with the condition that it is made on.

    ``made_before`` tells whether bindings are sure to have run; ``sort`` picks the models and the optimizers.
    """
    function = loops.script.function_of(loop)
    scope = loops.script.scopes[function.body if isinstance(function, cst.FunctionDef) else function]
    found: dict[cst.If, list[tuple[str, cst.CSTNode]]] = {}
    for name, bindings in scope.names.items():
        if name not in things and not made_before(bindings, loop):
            for test, use in _made_under(loops, scope, loop, name):
                found.setdefault(test, []).append((name, use))
    kept = ((test, *sort(names)) for test, names in found.items())
    return tuple(Conditional(test, (*models, *optimizers), _can_be_asked(loops, test, loop))
                 for test, models, optimizers in kept if models or optimizers)  # fmt: skip


def _made_under(loops: Loops, scope: Scope, loop: cst.CSTNode, name: str) -> Iterator[tuple[cst.If, cst.CSTNode]]:
    """Yield the outermost condition under which ``name`` is made before ``loop``, if there is one, and a use of it."""
    script = loops.script
    before = [b for b in scope.names[name] if b.how == "assign" and script.order[b.node] < script.order[loop]]
    tests = {next((up for up in reversed(list(script.above(b.node))) if isinstance(up, cst.If)
                   and not script.inside(loop, up)), None) for b in before}  # fmt: skip
    use = next((n for n in loops.uses(name) if script.scopes[n].lookup(name)[1] is scope), None)
    test = tests.pop() if len(tests) == 1 else None
    if test is not None and use is not None and all(script.inside(b.node, test.body) for b in before):
        yield test, use


def _can_be_asked(loops: Loops, test: cst.If, loop: cst.CSTNode) -> bool:
    """Tell whether the condition of ``test`` comes out the same again right before ``loop``."""
    script = loops.script
    if any(isinstance(n, _ONCE) for n in walk(test.test)):
        return False
    names = [n for n in walk(test.test) if isinstance(n, cst.Name)]
    bound = (b for n in names for b in script.bindings_of(n))
    return not any(script.order[test] < script.order[b.node] < script.order[loop] for b in bound)
