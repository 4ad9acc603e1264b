"""Where each rank takes a part of every serial batch: which numbers of a part add up, and which average.

So it is with the global batch kept, with a full batch, and with episodes. All ranks run every serial iteration, so
what counts iterations is the same on all of them. A number of one iteration is the mean of the ranks' numbers (a loss),
their sum (a count of samples: the mark "summed"), or neither (the square of a mean: the mark "bent").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libcst as cst

from dlrun.port.placement.rules import Row
from dlrun.port.placement.store import Obj
from dlrun.port.placement.values import ENTRY, MIX, RATIO, Kind, Place, Value
from dlrun.port.program.script import argument, dotted

SUMMED, BENT = Place(Kind.ENTRY, adds=frozenset({"summed"})), Place(Kind.ENTRY, adds=frozenset({"bent"}))
PER = Place(Kind.ENTRY, adds=frozenset({"bent", "per"}))  # a number over the samples of the part
_SUMS = (cst.Add, cst.Subtract, cst.AddAssign, cst.SubtractAssign)
_MULTIPLIES = (cst.Multiply, cst.MultiplyAssign, cst.MatrixMultiply)
_DIVIDES = (cst.Divide, cst.DivideAssign)
_METHODS: dict[str, Any] = {
    "add": cst.Add(),
    "sub": cst.Subtract(),
    "mul": cst.Multiply(),
    "multiply": cst.Multiply(),
    "div": cst.Divide(),
    "divide": cst.Divide(),
    "true_divide": cst.Divide(),
}
_BENDS = ("sqrt", "log", "log2", "log10", "log1p", "exp", "expm1", "exp2", "square", "pow", "tanh", "sigmoid", "abs")


def operated(op: Any, left: Value, right: Value, a: Place, b: Place) -> Place | None:
    """Return what an operator makes of two values of one iteration, the places of which are ``a`` and ``b``.

    None where neither is a number of a part, or what is computed are entries of single samples.
    """
    if Kind.ENTRY not in (a.kind, b.kind) or {a.kind, b.kind} & {Kind.RUN, Kind.EXTREME, Kind.MIX, Kind.UNKNOWN}:
        return None
    if not {"summed", "bent"} & (a.adds | b.adds) and not (left.scalar or right.scalar):
        return ENTRY  # of single samples, or means
    if {a, b} == {SUMMED, PER} and isinstance(op, _MULTIPLIES):
        return ENTRY
    if PER in (a, b) and (a.uniform or b.uniform) and isinstance(op, _MULTIPLIES):
        return PER
    if "bent" in a.adds | b.adds:
        return BENT
    if isinstance(op, _SUMS):
        return a if a == b or (b.uniform and a == ENTRY) else b if a.uniform and b == ENTRY else BENT
    if isinstance(op, _MULTIPLIES):
        if a.uniform or b.uniform:
            return b if a.uniform else a
        return SUMMED if {a, b} == {ENTRY, SUMMED} else BENT  # a mean times the samples that it is of
    if isinstance(op, _DIVIDES):
        if b.uniform:
            return a
        return ENTRY if a == b == SUMMED else PER if a.uniform and b == SUMMED else BENT
    return BENT


def quotient(over: Place, under: Place) -> Place:
    """Return what a sum so far is over another, or over a count of iterations: a mean of the ranks', or a sum."""
    if "bent" in over.adds | under.adds:
        return MIX
    if "summed" in under.adds:
        return RATIO if over.adds <= {"summed", "scaled", "reset"} else MIX
    if "summed" in over.adds:
        return replace(RATIO, adds=frozenset({"summed"})) if "entry" not in over.adds else MIX
    return RATIO


def contracts(node: cst.CSTNode) -> bool:
    """Tell whether a product of matrices adds up over the samples: ``labels.T @ scores``."""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.MatrixMultiply):
        return False
    left = node.left.func if isinstance(node.left, cst.Call) else node.left
    return isinstance(left, cst.Attribute) and left.attr.value in ("T", "t")


def reduced(row: Row, entry: Value, whole: bool, along: bool = False) -> Place:
    """Return the sum, mean or extreme of one iteration's value; ``whole``: over all axes, ``along`` that of samples."""
    if row is Row.SUM and along and entry.place == ENTRY:
        return SUMMED  # over the samples
    number = entry.scalar and entry.name != "guessed"  # 1 - hits: one number, or one of each sample
    if not whole or number or any(r.kind == "list" for r in entry.refs if isinstance(r, Obj)):
        return entry.place if entry.place.kind is Kind.ENTRY else ENTRY
    return SUMMED if row is Row.SUM else ENTRY if row is Row.MEAN else BENT


def operator_of(name: str) -> Any:
    """Return the operator that a method of a tensor stands for, None where it is none: ``mul_``."""
    return _METHODS.get(name.removesuffix("_"))


def bends(name: str) -> bool:
    """Tell whether a function of a mean is no mean: by the last word of its name."""
    return name.rpartition(".")[2].rstrip("_") in _BENDS


def is_sum(call: cst.CSTNode) -> bool:
    """Tell whether a loss, or what makes one, adds up over the samples: ``reduction="sum"``."""
    if not isinstance(call, cst.Call):
        return False
    how, average = argument(call, "reduction"), argument(call, "size_average")
    summed = isinstance(how, cst.SimpleString) and str(how.evaluated_value).lower() == "sum"
    return summed or (average is not None and dotted(average) == "False")


def added(other: Place, apart: bool) -> str:
    """Return what a run becomes by adding ``other``: a number of each part, of single samples, or alike on all."""
    if other.kind is Kind.ENTRY and "bent" in other.adds:
        return "bent"
    if apart:
        return "summed"
    if other.kind is Kind.ENTRY:
        return "summed" if "summed" in other.adds else "entry"
    return "same"


def how(adds: frozenset[str], listed: bool) -> str:
    """Return the reduction of what iterations have added so: "total", "average", "" where none is needed, or "?"."""
    if "some" in adds:
        return how(adds - {"some"}, listed)
    if adds <= {"same", "scaled", "reset", "decayed"}:
        return ""
    if adds <= {"summed", "scaled", "reset"}:
        return "total"
    if adds <= {"entry", "same", "scaled", "reset", "decayed", "mean", "placed"}:
        return "average"
    if adds <= {"summed", "stored"} and not listed:
        return "total"
    if adds == {"samples"} and listed:
        return "gather"
    return "?"
