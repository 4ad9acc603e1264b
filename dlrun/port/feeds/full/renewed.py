"""Draws at times, ``if step % 100 == 0: ...``, in a loop whose other iterations take the same samples."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.feeds.draws import Draws
from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.program.script import Binding, Script, calls_method, walk

_AT_TIMES = (cst.Modulo, cst.Equal, cst.In)
_JOINS = ("cat", "concat", "concatenate", "vstack", "row_stack", "append")


def draws_at_times(draws: Draws, loop: cst.For | cst.While, updates: Collection[cst.CSTNode]) -> list[cst.If]:
    """Return the tests below which ``loop`` draws, to evaluate or anew: none where it draws in every iteration, too.

    Nor where it makes an update there: what is drawn is a batch then.
    """
    found: dict[cst.If, None] = {}
    for call in (n for n in walk(loop.body) if isinstance(n, cst.Call) and draws(n)):
        above = (up for up in draws.script.above(call) if isinstance(up, cst.If) and draws.script.inside(up, loop))
        test = next((up for up in above if any(isinstance(n, _AT_TIMES) for n in walk(up.test))), None)
        if test is None or any(n in updates for n in draws.reached(test)):
            return []
        found[test] = None
    return list(found)


def added(binding: Binding) -> Iterator[cst.BaseExpression]:
    """Yield the samples that are joined to those which a variable holds: ``x = torch.cat([x, more])``."""
    for call in (n for n in walk(binding.value) if isinstance(n, cst.Call)) if binding.value is not None else ():
        if calls_method(call, *_JOINS) and call.args:
            first = call.args[0].value
            parts = (
                [e.value for e in first.elements]
                if isinstance(first, (cst.List, cst.Tuple))
                else [a.value for a in call.args if a.keyword is None]
            )
            held = [part for part in parts if mentions(part, {binding.name})]
            yield from (part for part in parts if held and part not in held)


def names_behind(script: Script, value: cst.BaseExpression, tests: Collection[cst.CSTNode]) -> set[str]:
    """Return the names that ``value`` is computed from below the same of ``tests``, as it is written there."""
    found, todo = set[str](), [value]
    while todo:
        for n in (n for n in walk(todo.pop()) if isinstance(n, cst.Name) and n.value not in found):
            found.add(n.value)
            todo += [
                b.value
                for b in script.bindings_of(n)
                if b.value is not None
                and any(script.inside(b.node, test) and script.inside(value, test) for test in tests)
            ]
    return found
