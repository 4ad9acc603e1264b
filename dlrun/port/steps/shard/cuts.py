"""Part of step "shard": where an array becomes a rank's share of it, for loops that take slices as they go along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts, Feed
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import dotted, walk


def named(facts: Facts, feed: Feed, why: str) -> Iterator[Edit]:
    """Yield the lines that cut the arrays of ``feed``: where they are made, or behind what needs all of the samples.

    ``mean = x.mean(0)`` and ``y = x.sum(1)`` before the loop are of all samples, so the cut comes after them. Numbers
    of samples that stand before it then are divided: ``len(x)``.
    """
    dl, batch = facts.alias, facts.options.batch
    for name in feed.names:
        line, lengths = _behind(facts, _made(facts, feed.node, name), name)
        yield Edit(line, f"{name}: {why}", after=statements("torch/shard_name", dl=dl, name=name, batch=batch))
        for length in lengths:
            yield Edit(
                length,
                "this rank's samples, of which the loop takes slices",
                lambda n: expression("torch/steps", {"count": n}, dl=dl),
            )


def _made(facts: Facts, node: cst.CSTNode, name: str) -> cst.CSTNode:
    """Return the statement behind which ``name`` is made, whichever branch does: ``if shuffle: order = ...``."""
    script = facts.script
    line = script.line_of(node)
    bound = script.scopes[node].names.get(name, ())
    others = [b.node for b in bound if b.how == "assign" and script.order[b.node] < script.order[node]]
    for up in script.above(line):
        trains = any(script.inside(loop, up) for loop in facts.loops)
        if trains or isinstance(up, (cst.FunctionDef, cst.For, cst.While)):
            break
        if isinstance(up, cst.If) and others:
            line = up
    return line


def _behind(facts: Facts, made: cst.CSTNode, name: str) -> tuple[cst.CSTNode, list[cst.BaseExpression]]:
    """Return the last line before the training that needs all of ``name``, and the lengths of it up to there."""
    script = facts.script
    last: cst.CSTNode = made
    lengths: list[cst.BaseExpression] = []
    between: list[cst.BaseExpression] = []
    for line in _following(script.parents, made):
        if any(node in facts.loops for node in walk(line)) or _leaves(line):
            break
        uses = [n for n in walk(line) if isinstance(n, cst.Name) and n.value == name and not script.is_part(n)]
        if isinstance(line, (cst.FunctionDef, cst.ClassDef)) or not uses:
            continue
        measures = [_length(script.parents, use) for use in uses]
        between += [n for n in measures if n is not None]
        if None in measures:
            last, lengths = line, list(between)
    return last, lengths


def _leaves(line: cst.CSTNode) -> bool:
    """Tell whether nothing behind ``line`` is run: it hands on what is to be cut, ``return train, test``."""
    parts = line.body if isinstance(line, cst.SimpleStatementLine) else (line,)
    return any(isinstance(part, (cst.Return, cst.Raise)) for part in parts)


def _following(parents: Mapping[cst.CSTNode, cst.CSTNode], made: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the statements after ``made`` in its block, those behind a semicolon first."""
    up = parents[made]
    if isinstance(up, cst.SimpleStatementLine):
        yield from up.body[up.body.index(made) + 1 :]
        made, up = up, parents[up]
    lines: list[cst.CSTNode] = list(getattr(up, "body", ()))
    for line in lines[lines.index(made) + 1 :] if made in lines else ():
        yield from line.body if isinstance(line, cst.SimpleStatementLine) and len(line.body) > 1 else (line,)


def _length(parents: Mapping[cst.CSTNode, cst.CSTNode], use: cst.Name) -> cst.BaseExpression | None:
    """Return ``len(x)``, ``x.shape[0]`` or ``x.size(0)`` around ``use``, the name ``x``."""
    up = parents[use]
    if isinstance(up, cst.Arg):
        call = parents[up]
        return call if isinstance(call, cst.Call) and dotted(call.func) == "len" else None
    if not isinstance(up, cst.Attribute) or up.attr.value not in ("shape", "size"):
        return None
    over = parents[up]
    match over:
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer(value="0")))]):
            return over
        case cst.Call(args=[cst.Arg(value=cst.Integer(value="0"))]):
            return over
    return None
