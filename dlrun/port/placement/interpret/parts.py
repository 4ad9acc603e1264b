"""Where each rank takes a part of every serial batch: which numbers of a part add up, and which average.

So it is with the global batch kept, with a full batch, and with episodes. All ranks run every serial iteration, so
what counts iterations is the same on all of them. A number of one iteration is the mean of the ranks' numbers (a loss),
their sum (a count of samples: the mark "summed"), or neither (the square of a mean: the mark "bent").

Names of values tell more: "size" is a number of samples, "mean" a mean over them that is no single number, "centered"
what is of each sample, less a mean over this rank's. All that is not linear bends what is centered. "transposed" has
the samples along another axis than the first, "mask" tells of each sample whether a test lets it in, "flat" has one
number of each: the samples lie along its only axis. "foreign" is made by a library of which nothing is known: a number
of it is taken for a mean, and that is told.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

import libcst as cst

from dlrun.port.placement.rules import Row
from dlrun.port.placement.store import Obj
from dlrun.port.placement.values import BENT_COUNT, ENTRY, MIX, NOTHING, RATIO, SO_FAR, Kind, Place, Quotient, Value
from dlrun.port.program.script import argument, dotted

SUMMED, BENT = Place(Kind.ENTRY, adds=frozenset({"summed"})), Place(Kind.ENTRY, adds=frozenset({"bent"}))
SPREAD = Place(Kind.ENTRY, adds=frozenset({"bent", "spread"}))  # made of samples less a mean over this rank's
PER = Place(Kind.ENTRY, adds=frozenset({"bent", "per"}))  # a number over the samples of the part
RATE = Place(Kind.ENTRY, adds=frozenset({"bent", "rate"}))  # a sum over another one
PICKED = Place(Kind.ENTRY, adds=frozenset({"picked"}))  # of the samples that a test has let in: some of each rank's
LOCAL = Place(Kind.ENTRY, adds=frozenset({"bent", "local"}))  # of each sample, bent by a number of this rank's
GREATEST, LEAST = (
    Place(Kind.ENTRY, adds=frozenset({"bent", which})) for which in ("max", "min")
)  # of the part's samples
SUM_OR_MEAN = "whether this loss is a mean over the samples or their sum is not known"
FOREIGN = "foreign"
TRANSPOSED, MASK, FLAT = "transposed", "mask", "flat"
NAMES = ("size", "mean", "centered", TRANSPOSED, MASK, FLAT, FOREIGN)
_OF_EACH = re.compile(r"(softmax_cross_entropy_with_logits(_v2)?|(^|\.)keras\.losses\.[a-z_]+)$")
_KNOWN = (
    "torch",
    "tensorflow",
    "keras",
    "numpy",
    "jax",
    "math",
    "builtins",
    "operator",
    "functools",
    "sklearn",
    "scipy",
)
_SUMS = (cst.Add, cst.Subtract, cst.AddAssign, cst.SubtractAssign)
_ASKS = frozenset(("equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "eq", "ne", "gt", "ge")) | {
    *("lt", "le", "logical_and", "logical_or", "logical_not", "isin", "isnan", "isfinite", "is_nan", "is_finite"),
    *("nonzero", "flatnonzero", "argwhere"),
}
_PICKS = ("boolean_mask", "masked_select", "compress", "extract")
# What puts samples in an order, or weighs each by all of them, and where the axis is told if not by a keyword.
_COMPARES = {
    **dict.fromkeys(("sort", "argsort", "msort", "softmax", "log_softmax", "cumsum", "cumprod", "cummax", "prod"), 1),
    **dict.fromkeys(("topk", "top_k", "kthvalue", "partition", "argpartition", "cosine_similarity", "logcumsumexp"), 2),
}
_PRODUCTS = ("matmul", "mm", "matvec")  # of matrices
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
_REDUCTIONS = {
    "sum": "sum",
    "none": "none",
    **dict.fromkeys(("mean", "batchmean", "sum_over_batch_size", "auto"), "mean"),
}
_LINEAR = ("round", "format", "str", "repr")
_MEANS = frozenset(_LINEAR) | {  # that leave a mean so far a mean
    *("float", "float32", "float64", "around", "array", "asarray", "constant", "cast", "tensor", "mean", "reduce_mean"),
    *("get_value", "numpy", "item", "tolist", "detach", "cpu", "result", "compute", "get", "scalar"),
}
_COMPUTING = ("math", "numpy", "torch", "tensorflow", "jax", "keras", "builtins")
_BENDING = frozenset(  # of n times a number they make something else than n times what they make of the number
    {
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "square", "pow", "power"),
        *("sin", "cos", "tan", "sinh", "cosh", "tanh", "atan", "arctan", "sigmoid", "expit", "softplus", "erf"),
        *("clip", "clamp", "clip_by_value", "minimum", "maximum", "fmod", "remainder", "mod", "floormod", "divmod"),
        "reciprocal",
    }
)


def operated(op: Any, left: Value, right: Value, a: Place, b: Place) -> Place | None:
    """Return what an operator makes of two values of one iteration, the places of which are ``a`` and ``b``.

    None where neither is a number of a part, or what is computed are entries of single samples.
    """
    if Kind.ENTRY not in (a.kind, b.kind) or {a.kind, b.kind} & {Kind.RUN, Kind.EXTREME, Kind.MIX, Kind.UNKNOWN}:
        return None
    if "centered" in (left.name, right.name) and not _linear(op, a, b):
        return LOCAL
    if "picked" in a.adds | b.adds:
        beside = [p for v, p in ((left, a), (right, b)) if not p.uniform and (p != PICKED or v.scalar)]
        return LOCAL if beside else PICKED
    numbers = [bool(v.scalar) for v, p in ((left, a), (right, b)) if not p.uniform]
    if not {"summed", "bent"} & (a.adds | b.adds) and not any(numbers):
        return ENTRY  # of single samples, or means
    for over in (PER, RATE):
        if {a, b} == {SUMMED, over} and isinstance(op, _MULTIPLIES):
            return ENTRY if over is PER else SUMMED
        if over in (a, b) and (a.uniform or b.uniform) and isinstance(op, _MULTIPLIES):
            return over
    if a == RATE and b.uniform and isinstance(op, _DIVIDES):
        return RATE
    if not left.scalar and a == ENTRY and isinstance(op, _DIVIDES) and right.name == "size":
        return PER  # of each sample
    if "bent" in a.adds | b.adds:
        if "local" in a.adds | b.adds or len(set(numbers)) > 1:
            return LOCAL
        return SPREAD if "spread" in a.adds | b.adds else BENT
    if isinstance(op, _SUMS):
        return a if a == b or (b.uniform and a == ENTRY) else b if a.uniform and b == ENTRY else BENT
    if isinstance(op, _MULTIPLIES):
        if a.uniform or b.uniform:
            return b if a.uniform else a
        return SUMMED if {a, b} == {ENTRY, SUMMED} else BENT  # a mean times the samples that it is of
    if isinstance(op, _DIVIDES):
        if b.uniform:
            return a
        if a == b == SUMMED:
            return ENTRY if right.name == "size" else RATE
        return PER if a.uniform and b == SUMMED else BENT
    return BENT


def named(op: Any, left: Value, right: Value, place: Place) -> str:
    """Return the name of what an operator makes of two values of one iteration, which is placed so."""
    names = (left.name, right.name)
    if place == SUMMED and "size" in names:
        beside = right if left.name == "size" else left
        return "size" if not isinstance(op, _SUMS) or beside.name == "size" else ""
    if place != ENTRY or "centered" in names:
        return "centered" if place == ENTRY else ""
    if isinstance(op, _SUMS) and beside_means([left, right]):
        return "centered"
    return next((name for name in ("mean", TRANSPOSED, FLAT) if name in names), "")


def unguessed(value: Value) -> Value:
    """Return ``value`` with nothing said of its shape where that was a guess: ``1 - pred`` is of each sample, too."""
    return replace(value, scalar=None, name="") if value.name == "guessed" else value


def beside_means(sides: list[Value]) -> bool:
    """Tell whether values of samples meet a mean over this rank's, or are centered by one."""
    local = [v for v in sides if v.place == ENTRY]
    means = [v.name == "mean" or bool(v.scalar and v.name != "guessed") for v in local]
    return any(v.name == "centered" for v in local) or (any(means) and not all(means))


def _linear(op: Any, a: Place, b: Place) -> bool:
    """Tell whether an operator is linear in what is of samples: a sum, or a product with a number of all ranks."""
    scales = b.uniform or (a.uniform and not isinstance(op, _DIVIDES))
    return isinstance(op, _SUMS) or (scales and isinstance(op, (*_MULTIPLIES, *_DIVIDES)))


def quotient(over: Place, under: Place) -> Place:
    """Return what a sum so far is over another, or over a count of iterations: a mean of the ranks', or a sum."""
    if "bent" in over.adds | under.adds:
        return MIX
    if "summed" in under.adds:
        return replace(RATIO, at=Quotient(over, under)) if over.adds <= {"summed", "scaled", "reset"} else MIX
    if "summed" in over.adds:
        return replace(RATIO, adds=frozenset({"summed"})) if "entry" not in over.adds else MIX
    return RATIO


def transposed(entry: Value, axes: list[Value]) -> Value:
    """Return what has its axes exchanged: the samples leave the first axis, or come back to it.

    ``axes`` are what the function was told: two axes, or where each comes from; none, of a matrix.
    """
    told = [axis.const for axis in axes] if axes else [1, 0]
    stays = told[0] == 0 and len(told) > 2
    moves = NOTHING not in told and not stays and 0 in told
    if not moves or entry.place.kind is not Kind.ENTRY or entry.name == "centered":
        return entry
    return replace(entry, name="" if entry.name == TRANSPOSED else TRANSPOSED)


def contracts(op: Any, left: Value, right: Value) -> bool:
    """Tell whether a product of matrices adds up over the samples: ``labels.T @ scores``."""
    both = left.place.kind is right.place.kind is Kind.ENTRY
    return isinstance(op, (cst.MatrixMultiply, cst.MatrixMultiplyAssign)) and both and left.name == TRANSPOSED


def contracted(name: str, given: list[Value], keywords: dict[str, Value]) -> bool:
    """Tell whether a function adds up over the samples: ``np.dot(losses, weights)``, ``einsum("bi,bj->ij", ...)``."""
    last = name.rpartition(".")[2]
    if last in _PRODUCTS:
        turned = any(keywords[k].const is True for k in ("transpose_a", "adjoint_a") if k in keywords)
        left = transposed(given[0], []) if turned and given else given[0] if given else None
        return left is not None and len(given) > 1 and contracts(cst.MatrixMultiply(), left, given[1])
    if last == "einsum":
        text = given[0].const if given else None
        letters, arrow, out = text.replace(" ", "").partition("->") if isinstance(text, str) else ("", "", "")
        axes = zip(letters.split(","), given[1:], strict=False)
        first = [axis[0] for axis, value in axes if axis[:1].isalpha() and value.place.kind is Kind.ENTRY]
        return any(letter not in out if arrow else letters.count(letter) > 1 for letter in first)
    arrays = given[:1] if last == "l2_loss" else given[:2]
    return all(value.place.kind is Kind.ENTRY and not value.scalar for value in arrays)


def reduced(row: Row, entry: Value, whole: bool, along: bool = False) -> Place:
    """Return the sum, mean or extreme of one iteration's value; ``whole``: over all axes, ``along`` that of samples."""
    if "local" in entry.place.adds:
        return SPREAD if whole else LOCAL
    if "picked" in entry.place.adds and (whole or along):
        return SUMMED if row is Row.SUM else BENT if whole else LOCAL  # each rank has let in another number of them
    if row is Row.STATISTIC:
        return BENT if whole else LOCAL if along else entry.place
    if row is Row.SUM and entry.place == PER and not entry.scalar and (whole or along):
        return ENTRY
    if row is Row.SUM and along and entry.place == ENTRY:
        return SUMMED  # over the samples
    number = entry.scalar and entry.name != "guessed"  # 1 - hits: one number, or one of each sample
    if not whole or number or any(r.kind == "list" for r in entry.refs if isinstance(r, Obj)):
        return entry.place if entry.place.kind is Kind.ENTRY else ENTRY
    if row in (Row.MAX, Row.MIN) and entry.place == ENTRY and entry.name != "centered":
        return GREATEST if row is Row.MAX else LEAST
    return SUMMED if row is Row.SUM else ENTRY if row is Row.MEAN else BENT


def extreme(place: Place) -> Literal["maximum", "minimum", ""]:
    """Return how the ranks' extremes of a part's samples become that of the batch: "maximum", "minimum", or ""."""
    return "maximum" if place == GREATEST else "minimum" if place == LEAST else ""


def is_of_samples(value: Value, place: Place) -> bool:
    """Tell whether a value of an iteration, which is placed so, has an entry for each sample, as far as is known."""
    return place.kind is Kind.ENTRY and not unguessed(value).scalar and not place.adds & {"local", "summed", "picked"}


def asks(name: str) -> bool:
    """Tell whether a function answers for each sample, or finds those for which something holds, by its last word."""
    return name.rpartition(".")[2] in _ASKS


def picks(name: str, given: list[Value]) -> bool:
    """Tell whether a function leaves those of the samples that a test lets in: ``tf.boolean_mask(losses, known)``."""
    last = name.rpartition(".")[2]
    masked = any(value.name == MASK for value in given[1:])
    return last in _PICKS or (masked and last in ("gather", "gather_nd", "take", "index_select"))


def of_each_sample(name: str) -> bool:
    """Tell whether a function gives one loss of each sample: those of Keras, the cross-entropies of TensorFlow."""
    return _OF_EACH.search(name) is not None


def compares(name: str, given: list[Value], keywords: dict[str, Value]) -> bool:
    """Tell whether a function compares the samples: of their losses the three greatest, ``softmax`` over the batch."""
    last = name.rpartition(".")[2]
    entry = given[0] if given else None
    if last not in _COMPARES or entry is None or entry.place != ENTRY or unguessed(entry).scalar:
        return False
    at = _COMPARES[last]
    told = next((v for k, v in keywords.items() if k in ("dim", "axis")), given[at] if len(given) > at else None)
    axis = told.const if told is not None else None
    if last in ("topk", "top_k", "kthvalue") and any(v.place.kind is Kind.ENTRY and v.scalar for v in given[1:2]):
        return axis in (None, NOTHING, 0)  # so many of the samples that there are
    return axis == 0 or (entry.name == FLAT and axis in (None, NOTHING, -1))


def operator_of(name: str) -> Any:
    """Return the operator that a method of a tensor stands for, None where it is none: ``mul_``."""
    return _METHODS.get(name.removesuffix("_"))


def is_foreign(name: str) -> bool:
    """Tell whether a function, or a class, is of a library of which only its name is known."""
    return "." in name and not name.startswith((".", "<")) and name.partition(".")[0] not in _KNOWN


def bends(name: str) -> bool:
    """Tell whether a function of a mean is no mean, for all that is known: by the last word of its name."""
    return name.rpartition(".")[2].rstrip("_") not in _LINEAR


def of_mean(place: Place, name: str) -> Place:
    """Return the placement of what a function makes of a mean so far: of some it stays one, and no other is known."""
    return MIX if is_mean(place) and name.rpartition(".")[2].rstrip("_") not in _MEANS else place


def is_mean(place: Place) -> bool:
    """Tell whether a value is a mean over the iterations so far, be it of a sum or of what a list keeps."""
    return place.kind is Kind.RATIO or place == SO_FAR


def of_count(place: Place, name: str) -> Place:
    """Return the placement of what a function makes of a count: the root of it is no multiple of it."""
    library, _, word = name.rpartition(".")
    bends_it = library.startswith(_COMPUTING) and word.rstrip("_") in _BENDING
    return BENT_COUNT if place.kind in (Kind.COUNT, Kind.INDEX) and place.at != "mixed" and bends_it else place


def of_spread(given: list[Value]) -> bool:
    """Tell whether a loss is given samples less a mean over this rank's, or nothing but such means."""
    local = [value for value in given if value.place == ENTRY]
    return any(v.name == "centered" for v in local) or (bool(local) and all(v.name == "mean" for v in local))


def loss(given: Place, how: str) -> Place:
    """Return what a loss of values placed so is: a mean over the samples, or their sum."""
    return SPREAD if "local" in given.adds else SUMMED if how == "sum" else BENT if "picked" in given.adds else ENTRY


def reduction(call: cst.CSTNode, value: Value | None) -> str:
    """Return how a loss, or what makes one, reduces the samples: "mean", "sum", "none", or "" where it is not known.

    ``value`` is what is given as ``reduction``.
    """
    how = argument(call, "reduction") if isinstance(call, cst.Call) else None
    average = argument(call, "size_average") if isinstance(call, cst.Call) else None
    if average is not None and dotted(average) == "False":
        return "sum"
    if how is None:
        return "mean"
    const = value.const if value is not None else None
    text = const if isinstance(const, str) else dotted(how).rpartition(".")[2]  # Reduction.SUM
    return _REDUCTIONS.get(text.lower(), "")


def added(other: Place, diverged: bool) -> str:
    """Return what a run becomes by adding ``other``: a number of each part, of single samples, or alike on all."""
    if other.kind is Kind.ENTRY and "bent" in other.adds:
        return "bent"
    if diverged:
        return "summed"
    if other.kind is Kind.ENTRY:
        return "summed" if "summed" in other.adds else "entry"
    return "same"


def of_each(adds: frozenset[str]) -> Place:
    """Return what the mean over a list is to which iterations have added so: one of means, or of sums."""
    if not adds & {"summed", "bent"}:
        return ENTRY
    return SUMMED if adds <= {"summed", "reset"} else BENT


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
    if adds <= {"summed", "placed"} and "summed" in adds and not listed:
        return "total"
    if adds <= {"summed", "stored"} and not listed:
        return "total"
    if adds == {"joined", "entry"}:
        return "average"
    if adds == {"samples", "joined"} or (adds == {"samples"} and listed):
        return "gather"
    return "?"
