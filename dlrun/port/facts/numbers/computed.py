"""What a value is computed from: backwards through names, arguments, attributes and the functions of the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Binding, Script, children

Tells = Callable[[cst.CSTNode], bool]
_MOST = 3000  # nodes that are looked at


@dataclass(frozen=True)
class Computed:
    """The nodes of what a value is computed from, tests around it too, and those that read what was asked for."""

    nodes: tuple[cst.CSTNode, ...]
    reads: tuple[cst.BaseExpression, ...]


def nothing(node: cst.CSTNode) -> bool:
    """Tell of no node that it is looked for."""
    return False


def computed(
    flow: Flow,
    values: Sequence[cst.BaseExpression],
    reads: Tells = nothing,
    skips: Tells = nothing,
    around: Collection[cst.CSTNode] = (),
    most: float = _MOST,
) -> Computed:
    """Return what ``values`` are computed from, and where that ``reads`` what is looked for, which ends the search.

    What ``skips`` tells is left out, and the search ends after ``most`` nodes. The tests that choose between values
    are followed too, but for those in the functions ``around``.
    """
    found: dict[cst.BaseExpression, None] = {}
    nodes: dict[cst.CSTNode, None] = {}
    followed: set[int] = set()
    todo = list(reversed(values))
    while todo and len(nodes) < most:
        part = todo.pop()
        for node in () if part in nodes else _down(flow, part, reads, skips):
            nodes[node] = None
            if reads(node):
                found[node] = None  # type: ignore[index]
            else:
                todo.extend(_onward(flow, node, around, followed))
    return Computed(tuple(nodes), tuple(found))


class Reaches:
    """Whether values are computed from what ``tells`` tells of, asked of many values of one program.

    What one question has looked at in vain is not looked at again: so many questions cost hardly more than one.
    """

    def __init__(self, flow: Flow, tells: Tells) -> None:
        self._flow, self._tells = flow, tells
        self._in_vain: set[cst.CSTNode] = set()

    def of(self, value: cst.BaseExpression) -> bool:
        """Tell whether ``value`` is computed from it."""
        if value in self._in_vain:
            return False
        made = computed(self._flow, [value], self._tells, self._in_vain.__contains__, most=math.inf)
        if not made.reads:
            self._in_vain.update(made.nodes)
        return bool(made.reads)


def _down(flow: Flow, node: cst.CSTNode, reads: Tells, skips: Tells) -> Iterator[cst.CSTNode]:
    """Yield ``node`` and what is below it, but nothing below what is looked for, and no names of keywords.

    The arguments of the program's own functions are left to the parameters that they become.
    """
    if skips(node):
        return
    yield node
    if reads(node):
        return
    handed = isinstance(node, cst.Call) and bool(flow.targets(node))
    for child in [node.func] if handed and isinstance(node, cst.Call) else children(node):
        if isinstance(node, cst.Attribute) and child is node.attr:
            continue
        if not (isinstance(node, cst.Arg) and child is node.keyword):
            yield from _down(flow, child, reads, skips)


def _onward(
    flow: Flow, node: cst.CSTNode, around: Collection[cst.CSTNode], followed: set[int]
) -> Iterator[cst.BaseExpression]:
    """Yield what the functions that ``node`` calls, or reads as a property, return, and what its bindings give it.

    Each once.
    """
    script = flow.script
    run = flow.targets(node) if isinstance(node, cst.Call) else flow.getters(node)
    for function in run:
        if id(function) not in followed:
            followed.add(id(function))
            yield from of_function(flow, function, around)
    bindings = script.kept_bindings(node) or flow.bindings(node)
    for binding in (b for b in bindings if id(b) not in followed):
        followed.add(id(binding))
        yield from given(flow, binding)
        if binding.how == "assign":
            yield from tests(flow, binding.node, around)


def given(flow: Flow, binding: Binding) -> list[cst.BaseExpression]:
    """Return what ``binding`` gives its name: the value, or what the calls of the function hand on."""
    value = binding.written or binding.value
    if binding.how != "param":
        return [value] if binding.how == "assign" and value is not None else []
    function = flow.script.scopes[binding.node].node
    calls = flow.callers(function) if isinstance(function, cst.FunctionDef) else []
    handed = [flow.argument(call, function, binding.name) or binding.value for call in calls]  # type: ignore[arg-type]
    return [h for h in handed if h is not None]


def reaching(script: Script, use: cst.Name, bindings: list[Binding]) -> list[Binding]:
    """Return those of ``bindings`` from which ``use`` may get its value: the last one above it that is sure to run."""
    order, home = script.order, script.function_of(use)
    own = {
        up for up in script.above(use) if isinstance(up, (cst.Assign, cst.AnnAssign, cst.AugAssign))
    }  # x = x.view(9)
    above = [b for b in bindings if order[b.node] < order[use] and script.function_of(b.node) is home]
    above = [b for b in above if b.node not in own]
    sure = [order[b.node] for b in above if script.inside(use, script.suite(script.statement_of(b.node)))]
    return [b for b in above if order[b.node] >= max(sure)] if sure else bindings


def in_turn(script: Script, use: cst.CSTNode, bindings: list[Binding]) -> list[Binding]:
    """Return of ``bindings`` that of the innermost loop around ``use`` which binds it anew, if nothing else in it does.

    ``value`` in ``for name, value in sums.items(): print(name, value)``, whatever other loops call so.
    """
    loops = {b.node: b for b in bindings if isinstance(b.node, (cst.For, cst.CompFor))}
    loop = next((up for up in script.above(use) if up in loops), None)
    inside = [b for b in bindings if loop is not None and b.node is not loop and script.inside(b.node, loop)]
    within = isinstance(loop, cst.For) and script.inside(use, loop.body) and not inside
    return [loops[loop]] if within else bindings  # type: ignore[index]


def of_function(
    flow: Flow, function: cst.FunctionDef | cst.Lambda, around: Collection[cst.CSTNode] = ()
) -> Iterator[cst.BaseExpression]:
    """Yield what ``function`` returns, and the tests that choose between its values."""
    if isinstance(function, cst.Lambda):
        yield function.body
        return
    for value in flow.returns(function):
        yield value
        yield from tests(flow, value, around)


def tests(flow: Flow, node: cst.CSTNode, around: Collection[cst.CSTNode]) -> Iterator[cst.BaseExpression]:
    """Yield the tests on which it depends whether ``node`` runs in its function, which is none of those ``around``."""
    for up in flow.script.above(node):
        if isinstance(up, (cst.FunctionDef, cst.Module)):
            return
        if isinstance(up, cst.If) and flow.script.function_of(up) not in around:
            yield up.test


def leaves(flow: Flow, value: cst.BaseExpression, depth: int = 6) -> list[cst.BaseExpression]:
    """Return the expressions that ``value`` stands for: through names and parameters to where each is written."""
    if depth and isinstance(value, (cst.Name, cst.Attribute)):
        bindings = flow.script.kept_bindings(value) or flow.script.bindings_of(value)
        plain = [given(flow, b) for b in bindings if b.how == "param" or b.written is not None]
        if plain and len(plain) == len(bindings) and all(plain):
            return list(dict.fromkeys(leaf for values in plain for v in values for leaf in leaves(flow, v, depth - 1)))
    return [value]
