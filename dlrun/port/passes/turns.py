"""Loops of which each rank makes 1/n of the turns, and the numbers that count all of these."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.computed import computed
from dlrun.port.passes.bounds import LAST, bounds, lasts, shrunk
from dlrun.port.passes.takes import takes
from dlrun.port.program.script import walk


class Turns:
    """Knows which loops go through what is dealt out, and which numbers stay those of all batches or samples."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.script = facts.script

    def dealt(self, loop: cst.For, count: cst.BaseExpression, alone: bool) -> bool:
        """Tell whether this rank makes 1/n of the turns of ``loop``, and ``count`` (not ``alone``) stays the same."""
        if any(self.runs_over(loop, feed.node, feed.names) for feed in self.facts.feeds if feed.how != "arrays"):
            return True
        calls = [call for other, call in self.facts.counted if other is loop and isinstance(call, cst.Call)]
        if alone:
            return bool(calls) and not self.facts.keeps_steps
        taken = [bound for other, bound in self._taken if other is loop]
        known = {self.text(n) for n in (*taken, *(n for call in calls for n in _ends(call)))}
        return any(not self._shrinks(n) and self.text(n) in known for n in _factors(count))

    @cached_property
    def _taken(self) -> list[tuple[cst.For, cst.BaseExpression]]:
        """The loops that take some of the batches that are dealt out, each with how many."""
        return [] if self.facts.keeps_steps else list(takes(self.facts))

    @cached_property
    def _divided(self) -> set[cst.CSTNode]:
        """The numbers of serial steps that shrink where they are written."""
        return set() if self.facts.keeps_steps else shrunk(self.facts)

    def _shrinks(self, count: cst.BaseExpression) -> bool:
        """Tell whether ``count`` is made of a number of serial steps that shrinks where it is written."""
        return bool(self._divided) and not self._divided.isdisjoint(computed(self.facts.flow, [count]).nodes)

    def runs_over(self, loop: cst.For, feed: cst.CSTNode, names: tuple[str, ...]) -> bool:
        """Tell whether ``loop`` runs over ``feed``, or over what has one of its ``names``."""
        if self.script.inside(feed, loop.iter):
            return True
        parts: list[cst.BaseExpression] = []
        parts += [n for n in walk(loop.iter) if isinstance(n, (cst.Name, cst.Attribute, cst.Call))]
        made = [n for part in parts for n in self.facts.flow.through(part) if isinstance(n, cst.Call)]
        parts += [a.value for n in made if self.script.name_of(n.func) == "builtins.zip" for a in n.args]
        return any(
            (isinstance(part, cst.Name) and part.value in names) or feed in self.facts.flow.through(part)
            for part in parts
        )

    def at_last(self, count: cst.CSTNode) -> bool:
        """Tell whether ``count`` stands where that many batches are through: below ``if i == n - 1:``."""
        tests = [up.test for up in self.script.above(count) if isinstance(up, cst.If)]
        return any(self.script.code(n) == self.script.code(count) and self.script.inside(n, test)
                   for n in self._asked for test in tests)  # fmt: skip

    @cached_property
    def _asked(self) -> list[cst.BaseExpression]:
        """Where the script asks for the last of some batches, by their number."""
        return [*lasts(self.facts), *(n for n, why in bounds(self.facts) if why == LAST)]

    def is_drawn_from(self, count: cst.BaseExpression) -> bool:
        """Tell whether ``count`` is of all samples, and a loop draws as many batches: ``int(count / size)`` turns."""
        calls = [call for _, call in self.facts.counted if isinstance(call, cst.Call)]
        made = [n for call in calls for n in computed(self.facts.flow, [a.value for a in call.args]).nodes]
        return not self.facts.keeps_steps and any(
            isinstance(n, cst.BinaryOperation) and isinstance(n.operator, (cst.Divide, cst.FloorDivide))
            and self.text(n.left) == self.text(count) for n in made)  # fmt: skip

    def bounds(self, node: cst.CSTNode) -> set[str]:
        """Return the texts of what the dealt ranges around ``node`` count up to: all batches, and not this rank's."""
        dealt = [feed.node for feed in self.facts.feeds if feed.how in ("positions", "indices")]
        loops = [up for up in self.script.above(node) if isinstance(up, cst.For)]
        calls = [c for c in dealt if any(self.script.inside(c, loop.iter) for loop in loops)]
        return {self.text(c.args[0].value) for c in calls if isinstance(c, cst.Call) and len(c.args) == 1}

    def text(self, node: cst.BaseExpression) -> str:
        """Return the source of ``node``, without parentheses around it."""
        return self.script.code(node.with_changes(lpar=(), rpar=()))

    def is_size(self, node: cst.CSTNode, batch: str) -> bool:
        """Tell whether ``node`` is the number of samples in what ``batch`` names."""
        match node:
            case cst.Call(func=cst.Name(value="len"), args=[cst.Arg(value=cst.Name(value=of))]):
                return of == batch
            case cst.Call(func=cst.Attribute(cst.Name(of), cst.Name("size")), args=[cst.Arg(value=at)]):
                return of == batch and self.script.code(at) == "0"
            case cst.Subscript(value=cst.Attribute(cst.Name(of), cst.Name("shape")), slice=[at]):
                return of == batch and self.script.code(at) == "0"
        return False


def _ends(call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield what ``call`` is given, and up to which number ``range(1, n + 1)`` counts."""
    yield from (a.value for a in call.args)
    first, *others = (a.value for a in call.args) if call.args else (call,)
    one = isinstance(first, cst.Integer) and first.value == "1"
    match others:
        case [cst.BinaryOperation(operator=cst.Add(), left=end, right=cst.Integer("1"))] if one:
            yield end
        case [cst.BinaryOperation(operator=cst.Add(), left=cst.Integer("1"), right=end)] if one:
            yield end


def _factors(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield ``iterations`` and ``critics`` of ``iterations * critics``."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        yield from _factors(node.left)
        yield from _factors(node.right)
    else:
        yield node
