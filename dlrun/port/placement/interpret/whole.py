"""Loops that evaluate whole batches of the serial script: what they leave that is not exactly the serial script's.

Ranks have unequal numbers of batches, so nothing is exchanged inside such a loop, and a number of its iterations is
none of the serial script's. What is left that no reduction makes serial is marked; where it is read, the evaluation is
not to be shared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from dlrun.port.placement.interpret.machine import flat
from dlrun.port.placement.store import GROWN, REST, Frame, Location
from dlrun.port.placement.values import NOTHING, Kind, Place, Quotient, Value
from dlrun.port.program.reaching import reaching
from dlrun.port.program.script import dotted, walk

if TYPE_CHECKING:
    from dlrun.port.placement.interpret.expressions import Expressions as Machine

MEAN = "it is a mean over this rank's batches, of which others may have one more"
_FINE = (Kind.SAME, Kind.SHARD)


@dataclass(frozen=True)
class Left:
    """A mark on what the batches of a loader leave: where it is read, they are not to be sharded."""

    source: cst.CSTNode
    why: str


def sharded(machine: Machine, node: cst.CSTNode, value: Value) -> Value:
    """Return what a loader is once its batches are sharded."""
    if node not in machine.shards.whole or _trains(machine, node):
        return Value(Place(Kind.SHARD), refs=value.refs)
    if value.place.kind is Kind.SHARD:
        machine.refused.setdefault(node, "its loader may be a share already")
    return Value(Place(Kind.SHARD, node), refs=value.refs)


def _trains(machine: Machine, node: cst.CSTNode) -> bool:
    """Tell whether the batches of a loader are trained on in this iteration."""
    test = machine.shards.turns.get(node)
    if test is None:
        return False
    with machine.unrecorded():
        known = machine.eval(test).const
    if known is NOTHING:
        machine.refused.setdefault(node, "nothing tells when it evaluates")
    return known is not False


def source(machine: Machine, loop: cst.For) -> cst.CSTNode | None:
    """Return the loader whose batches ``loop`` goes through as they are; None where it is another share."""
    for node in walk(loop.iter):
        if node in machine.shards.whole:
            return None if _trains(machine, node) else node
        if isinstance(node, (cst.Name, cst.Attribute)) and node in machine.script.scopes:
            with machine.unrecorded():
                place = machine.eval(node).place
            if place.kind is Kind.SHARD and place.at is not None:
                return place.at  # type: ignore[no-any-return]
    return None


def named(machine: Machine, iterated: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what names the share itself that a loop goes through: ``loader``, also of ``bar = tqdm(loader)``."""
    script = machine.script
    for node in walk(iterated):
        places = [v.place for v in machine.seen.get(node, ()) if v.place.kind is Kind.SHARD]
        if isinstance(node, cst.Subscript) and places and _stays(machine, node, iterated):
            return node  # loaders[phase]
        if isinstance(node, (cst.IfExp, cst.BooleanOperation)) and places:  # train_loader if train else test_loader
            return node if _stays(machine, node, iterated) and machine.shards.made.isdisjoint(walk(node)) else None
        if not isinstance(node, (cst.Name, cst.Attribute)) or not places:
            continue
        if node in machine.shards.made or not any("wrapped" in place.adds for place in places):
            return node
        bound = (reaching(script, node) if isinstance(node, cst.Name) else None) or script.bindings_of(node)
        made = bound[0].value if len(bound) == 1 and not bound[0].path else None
        inner = named(machine, made) if made is not None and not script.inside(node, made) else None
        homes = (script.function_of(iterated), script.module)
        if inner is not None and script.function_of(inner) in homes and dotted(inner) != dotted(node):
            return inner
    return None


def _stays(machine: Machine, entry: cst.BaseExpression, iterated: cst.BaseExpression) -> bool:
    """Tell whether ``entry``, one of several shares, is the same one behind the loop that goes through it."""
    script, loop = machine.script, machine.script.parents.get(iterated)
    plain = not any(isinstance(n, (cst.Call, cst.Slice)) for n in walk(entry))
    bound = [b.node for n in walk(entry) if isinstance(n, cst.Name) for b in script.bindings_of(n)]
    return plain and loop is not None and not any(script.inside(node, loop) for node in bound)


def begins(machine: Machine, loop: cst.CSTNode, source: cst.CSTNode) -> None:
    """Note a loop through batches that are sharded as they are, and what speaks against it where it stands."""
    machine.gone_through.setdefault(source, set()).add(loop)
    if machine.loop is not None:
        machine.refused.setdefault(source, "it runs within an iteration of another loop over a share")
    elif machine.diverged:
        machine.refused.setdefault(source, "not all ranks come here together")


def length(value: Value) -> Value:
    """Return the number of batches that a rank has of a share, with a mark where others may have one more."""
    found = Value(Place(Kind.COUNT), scalar=True, name="length")
    return found if value.place.at is None else left(found, value.place.at, "it counts the batches of its share")


def numbered(machine: Machine, drawn: Value) -> Value:
    """Return what an iteration gets, with a mark on the number of the batch."""
    if machine.loop is None or machine.loop.whole is None:
        return drawn
    if drawn.items is not None:
        return replace(drawn, items=tuple(numbered(machine, item) for item in drawn.items))
    uniform = drawn.place.kind in (Kind.INDEX, Kind.COUNT)
    return left(drawn, machine.loop.whole, "it reads the number of the batch") if uniform else drawn


def handed_on(machine: Machine, at: Location, start: Value) -> Value:
    """Return what an iteration finds at a location that each sets anew, with a mark where that is another's entry."""
    if machine.loop is None or machine.loop.whole is None or start.place.kind in _FINE:
        return start
    return left(start, machine.loop.whole, f"{_name(at)} goes on from batch to batch")


def unmarked(value: Value) -> Value:
    """Return ``value`` without marks."""
    marks = [mark for mark in value.pending if isinstance(mark, Left)]
    return replace(value, pending=value.pending.difference(marks)) if marks else value


def inexact(place: Place) -> bool:
    """Tell whether a reduction of what is placed so is no more than near the serial value, where shares are uneven."""
    windows = place.kind is Kind.RUN and bool(place.adds & {"reset", "fires"} or place.adds == {"scaled"})
    if place.kind is Kind.RATIO:
        return not isinstance(place.at, Quotient)
    return windows or place.kind in (Kind.ENTRY, Kind.MIX)


def behind(source: cst.CSTNode, at: Location, value: Value) -> Value:
    """Return what a location holds behind a loop that evaluates, with a mark where it is not the serial value."""
    place = flat(value)
    if place.kind in _FINE:
        return value
    if place.kind is Kind.ENTRY:
        return left(value, source, f"{_name(at)}, of its last batch, is read after it")
    why = place.why.text if place.why is not None else "how the ranks' values make the serial one is not known"
    return left(value, source, f"{_name(at)}: {why}")


def left(value: Value, source: cst.CSTNode, why: str) -> Value:
    """Return ``value`` with a mark: where it is read, the batches of ``source`` are not to be sharded."""
    return replace(value, pending=frozenset([Left(source, why)]))


def _name(at: Location) -> str:
    owner, name = at
    if isinstance(owner, Frame) or (name not in (REST, GROWN) and name.isidentifier()):
        return name
    return "something that it keeps"
