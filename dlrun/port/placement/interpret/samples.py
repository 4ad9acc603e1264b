"""Lists that Python makes of the samples of a part: what their entries count, and add up to.

Where each rank takes a part of every serial batch, a list with an entry for each sample is a part of the serial list.
Its length and its sum add up over the ranks, as those of what a test leaves of it do. Of an extreme, or of a set,
they do not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import libcst as cst

from dlrun.port.facts.numbers.computed import reaching
from dlrun.port.placement.interpret import parts
from dlrun.port.placement.rules import Row
from dlrun.port.placement.values import ENTRY, Kind, Place, Value
from dlrun.port.program.script import dotted, walk

if TYPE_CHECKING:
    from dlrun.port.placement.interpret.expressions import Expressions

EACH = "each"  # an entry for each sample
LIKELY = "likely"  # an entry for each sample, or for each of several results
SOME = "some"  # entries of samples, which a test has let in, or several for each
MIXED = "mixed"  # another number of entries on each rank, which do not add up
NTH = "nth"  # the name of a sample's number in a part: in the batch it has another
DISTINCT = "distinct"  # the name of what is left of samples where each value is kept once
_LISTS = ("tolist", "argmax")
_ARRAYS = ("numpy", "cpu", "detach", "squeeze", "flatten", "view", "reshape", "long", "int", "float")
_VIEWS = ("values", "items", "keys")
_THROUGH = ("zip", "enumerate", "reversed", "list", "tuple", "sorted", "filter", "map")
# Of these an entry goes by those before it: of a part of a batch they are others.
_IN_ORDER = ("takewhile", "dropwhile", "islice", "groupby", "accumulate", "pairwise", "batched", "zip_longest")
_DEPTH = 5


def kind_of(machine: Expressions, value: Value) -> str:
    """Return of which kind a list is: see the constants; "" of one that is not known to hold samples."""
    kinds = {machine.samples_in.get(ref, "") for ref in value.refs}
    if len(kinds) < 2:
        return next(iter(kinds), "")
    return MIXED if MIXED in kinds else ""


def made(machine: Expressions, node: Any, kind: str, diverging: int) -> str:
    """Return of which kind the list is that a comprehension makes."""
    loop = node.for_in
    over = machine.seen_last(loop.iter)
    if goes_in_order(machine, loop.iter):
        return MIXED
    numbered = isinstance(loop.iter, cst.Call) and _numbers_samples(machine, loop.iter)
    held = EACH if numbered or are_samples(machine, loop.iter) else kind_of(machine, over)
    if held == "" and not over.refs and machine.content(over).kind is Kind.ENTRY and not _is_view(loop.iter):
        held = LIKELY
    if held in (EACH, SOME, LIKELY) and kind != "list":
        return MIXED if kind == "set" else ""
    if diverging or loop.ifs:
        return SOME if held in (EACH, SOME) else MIXED if diverging else held
    return SOME if held == EACH and loop.inner_for_in is not None else held


def numbered(machine: Expressions, node: cst.CSTNode, entry: Value) -> Value:
    """Return what one iteration of a loop over ``node`` gets, with the number of a sample marked as such."""
    called = machine.script.name_of(node.func) if isinstance(node, cst.Call) else ""
    if called == "builtins.range" and _numbers_samples(machine, node):  # type: ignore[arg-type]
        return replace(entry, name=NTH)
    of = node.args[0].value if isinstance(node, cst.Call) and node.args else None
    if called != "builtins.enumerate" or of is None or not entry.items:
        return entry
    held = EACH if are_samples(machine, of) else kind_of(machine, machine.seen_last(of))
    if held not in (EACH, SOME, MIXED):
        return entry
    return replace(entry, items=(replace(entry.items[0], name=NTH), *entry.items[1:]))


def goes_in_order(machine: Expressions, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` goes through samples so that each iteration is made of several: ``groupby(labels)``."""
    calls = [n for n in walk(node) if isinstance(n, cst.Call)]
    found = [c for c in calls if machine.script.name_of(c.func).rpartition(".")[2] in _IN_ORDER]
    given = [arg.value for call in found for arg in call.args]
    return any(are_samples(machine, n) or kind_of(machine, machine.seen_last(n)) in (EACH, SOME) for n in given)


def are_samples(machine: Expressions, node: cst.CSTNode, depth: int = _DEPTH) -> bool:
    """Tell whether ``node`` is an array, or a list, of the samples of a batch, as far as a line tells it."""
    match node:
        case cst.Call(func=cst.Attribute(value=owner, attr=cst.Name(how))) if how in _ARRAYS:
            return depth > 0 and are_samples(machine, owner, depth - 1)
        case cst.Call(func=cst.Attribute(attr=cst.Name(how))):
            return how in _LISTS
        case cst.Call(func=cst.Name(how), args=args) if how in _THROUGH:
            return depth > 0 and any(are_samples(machine, arg.value, depth - 1) for arg in args)
        case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(comparator=right)]):
            return depth > 0 and (are_samples(machine, left, depth - 1) or are_samples(machine, right, depth - 1))
        case cst.Name() if depth:
            if machine.seen_last(node).name == "list":
                return True
            bound = machine.script.bindings_of(node)
            loops = [
                b.node for b in bound if isinstance(b.node, cst.For) and _is_taken_apart(machine, b.node, node.value)
            ]
            if loops:
                return not any(_is_tuple(machine, node, loop) for loop in loops)
            whole = [b for b in bound if b.how == "assign" and b.path[:1] != ("each",)]  # no sample itself
            made = [b.value for b in whole if b.value is not None]
            return any(are_samples(machine, value, depth - 1) for value in made)
    return False


def _is_taken_apart(machine: Expressions, loop: cst.For, name: str) -> bool:
    """Tell whether ``name`` is an array of a batch that a loop takes apart: ``for i, (x, y) in enumerate(loader)``."""
    called = machine.script.name_of(loop.iter.func) if isinstance(loop.iter, cst.Call) else ""
    target = loop.target
    if called == "builtins.enumerate" and isinstance(target, cst.Tuple) and len(target.elements) == 2:
        target = target.elements[1].value  # type: ignore[assignment]
    apart = isinstance(target, (cst.Tuple, cst.List)) and called != "builtins.zip"
    return apart and loop in machine.shards.loops and name in [dotted(e.value) for e in target.elements]  # type: ignore[attr-defined]


def _is_tuple(machine: Expressions, node: cst.Name, loop: cst.For) -> bool:
    """Tell whether what ``loop`` calls ``node`` is a tuple of arrays: all reads are ``views[0]``, ``views[1]``."""
    script, bound = machine.script, machine.script.bindings_of(node)
    named = [n for n in script.named(node.value) if script.inside(n, loop.body) and n in machine.seen]
    uses = [n for n in named if any(b.node is loop for b in reaching(script, n, bound))]
    return bool(uses) and all(_is_item(script.parents[n], n) for n in uses)


def _is_item(up: cst.CSTNode, node: cst.Name) -> bool:
    match up:
        case cst.Subscript(value=owner, slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer()))]):
            return owner is node
    return False


def _numbers_samples(machine: Expressions, call: cst.Call) -> bool:
    """Tell whether ``call`` counts the samples of a batch: ``range(len(labels))``."""
    counts = machine.script.name_of(call.func) == "builtins.range" and len(call.args) == 1
    return counts and machine.seen_last(call.args[0].value).name == "size"


def _is_view(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _VIEWS


def length(machine: Expressions, value: Value) -> Value | None:
    """Return the length of a list of samples; None of any other."""
    if value.name == DISTINCT or (value.name == "cut" and "local" in value.place.adds):
        return Value(parts.BENT, scalar=True)
    match kind_of(machine, value) if value.refs else "":
        case "each" | "likely":
            return machine.size()
        case "some":
            return Value(machine.of_episode(parts.SUMMED), scalar=True)
        case "mixed":
            return Value(parts.BENT, scalar=True)
    return None


def reduced(machine: Expressions, row: Row, value: Value) -> Place | None:
    """Return the sum, mean or extreme of the entries of a list of samples; None of any other list."""
    held = kind_of(machine, value) if value.refs else ""
    if held in ("", LIKELY) or machine.content(value).adds:
        return None
    if held == MIXED or (held == SOME and row is not Row.SUM):
        return parts.BENT
    return machine.of_episode(parts.SUMMED) if row is Row.SUM else ENTRY if row is Row.MEAN else parts.BENT


def is_one_of_few(machine: Expressions, node: cst.Subscript, owner: Value, index: Value) -> bool:
    """Tell whether ``node`` is one sample of a list, or the first few: other ranks have others there."""
    if not machine.shards.parts or machine.shards.episodes or machine.loop is None or len(node.slice) > 1:
        return False
    asked = node.slice[0].slice
    bounded = isinstance(asked, cst.Slice) and (
        asked.lower is not None or asked.upper is not None or isinstance(asked.step, cst.Integer)
    )
    if not bounded and type(index.const) is not int:
        return False
    listed = (owner.name == "list" and owner.place == ENTRY) or kind_of(machine, owner) in (EACH, SOME, MIXED)
    flat = owner.name == parts.FLAT and owner.place == ENTRY
    return listed or flat or (owner.place == ENTRY and not owner.scalar and are_samples(machine, node.value))


def copied(machine: Expressions, value: Value, node: cst.Call, row: Row) -> str:
    """Return of which kind a list, or a set, is that is made of ``value``."""
    held = EACH if are_samples(machine, node.args[0].value) else kind_of(machine, value)
    return MIXED if held and row is Row.SET else held


def is_truth(machine: Expressions, name: str, node: cst.Call) -> bool:
    """Tell whether ``node`` asks all samples of this rank's part, and so not those of the others.

    Where it decides, ``any()`` of one rank is that of all: their mean is above zero.
    """
    how = name.rpartition(".")[2].removeprefix("reduce_")
    alone = len(node.args) == (0 if name.startswith(".") else 1)  # else it is asked along an axis
    if how not in ("all", "any") or not alone:
        return False
    if how == "all":
        return True
    script = machine.script
    tests = [up.test for up in script.above(node) if isinstance(up, (cst.If, cst.While, cst.IfExp))]
    return not any(script.inside(node, test) or node is test for test in tests)
