"""Loops over positions inside of other training loops: whether they go through the samples, or through one batch."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.feeds.positions.positions import mentions, positions
from dlrun.port.program.script import names_in, walk


def around(kinds: Kinds, loop: cst.For) -> cst.For | None:
    """Return the loop that deals with whole batches, where ``loop`` only goes through the parts of one of them.

    ``for volume in loader: for i in range(depth): net(volume[:, i])``, and ``for i in range(n): block = x[i * m :
    (i + 1) * m]`` around ``for j in range(5): net(block[j * k : (j + 1) * k])``: there the samples are sharded by the
    outer loop, and every rank goes through its own batch. Likewise ``for images, masks in loader: for image, mask in
    zip(images, masks): net(image)``.
    """
    script, iterated = kinds.script, Iterated(kinds.flow)
    picked = _picked(kinds, loop) if iterated.numbers(iterated.of(loop)) else _gone_through(iterated, loop)
    for up in script.above(loop):
        if isinstance(up, (cst.FunctionDef, cst.Module)) or not picked:
            return None
        if not isinstance(up, cst.For):
            continue
        source = iterated.of(up)
        begun = names_in(up.target)
        numbers = iterated.numbers(source)
        if not numbers and kinds.of(iterated.source(up.iter)) != "loader":
            continue
        if picked <= _parts(up, begun, numbers):
            return up
    return None


def uneven(kinds: Kinds, loop: cst.CSTNode) -> bool:
    """Tell whether ``loop`` makes as many iterations as its batch has parts, which may differ between ranks."""
    outer = around(kinds, loop) if isinstance(loop, cst.For) else None
    if outer is None or not isinstance(loop, cst.For):
        return False
    iterated = Iterated(kinds.flow)
    parts = _parts(outer, names_in(outer.target), False)
    return not iterated.numbers(iterated.of(outer)) and mentions(loop.iter, parts)


def _picked(kinds: Kinds, loop: cst.For) -> set[str]:
    """Return the names of the arrays out of which the positions of ``loop`` pick."""
    names = positions(kinds.flow, loop)
    boxes = [n for n in walk(loop.body) if isinstance(n, cst.Subscript) and any(mentions(e, names) for e in n.slice)]
    return {root for box in boxes if (root := _root(box))}


def _gone_through(iterated: Iterated, loop: cst.For) -> set[str]:
    """Return the names of the arrays whose entries ``loop`` takes one by one; nothing where it takes others, too."""
    source = iterated.source(loop.iter)
    pairs = isinstance(source, cst.Call) and iterated.script.name_of(source.func) == "builtins.zip"
    taken = [a.value for a in source.args] if pairs and isinstance(source, cst.Call) else [source]
    names = {_root(node) for node in taken}
    return names if all(names) else set()


def _root(node: cst.CSTNode) -> str:
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _parts(loop: cst.For, begun: set[str], numbers: bool) -> set[str]:
    """Return the names in ``loop`` that hold what its target gives; where that is a number, a slice at it."""
    found = set() if numbers else set(begun)
    at = set(begun)
    for n in walk(loop.body):
        if not isinstance(n, cst.Assign):
            continue
        targets = {m.value for t in n.targets for m in walk(t.target) if isinstance(m, cst.Name)}
        if numbers and isinstance(n.value, cst.Subscript):
            slices = [e.slice for e in n.value.slice if isinstance(e.slice, cst.Slice)]
            if any(mentions(s, at) for s in slices):
                found |= targets
        elif numbers and isinstance(n.value, cst.BinaryOperation) and mentions(n.value, at):
            at |= targets  # start = i * size
        if mentions(n.value, found):
            found |= targets
    return found
