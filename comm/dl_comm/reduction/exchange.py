"""Reductions of several values in one exchange.

Ranks whose values have the same structure, as they mostly do, reduce all numbers in one allreduce. They find out by its
label whether they have; where not, all learn it at once, show each other what they bring, and each puts it together.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dl_comm import _core
from dl_comm.errors import CommError
from dl_comm.reduction.folding import NAMES, finished, folded
from dl_comm.reduction.leaves import Branch, Leaf, Tensors, leaves, packed, signature, unpacked

_LOW = 2**32 - 1
_AGREED = "the ranks do not agree"  # the core's words where they made different calls, of which all are told


def reduced(values: Sequence[Any], op: str, tensors: Tensors) -> list[Any]:
    """Return the values reduced over the ranks by "sum", "mean", "max" or "min". Collective.

    Raises ``TypeError`` for what holds no numbers, ``CommError`` on every rank where the ranks' values do not fit.
    """
    who = NAMES[op]
    trees = [packed(value, tensors, who) for value in values]
    try:
        return _values(_in_one_exchange(trees, op, tensors), values, tensors)
    except CommError as error:
        if not meant_alike(error, f"{who} of"):
            raise
    return _values(_shown(trees, op, tensors), values, tensors)


def shown(values: Sequence[Any], op: str, tensors: Tensors) -> list[Any]:
    """Return the values reduced where the ranks know that they do not bring the same. Collective."""
    found = _shown([packed(value, tensors, NAMES[op]) for value in values], op, tensors)
    return _values(found, values, tensors)


def _values(trees: list[Any], owns: Sequence[Any], tensors: Tensors) -> list[Any]:
    return [unpacked(tree, own, tensors) for tree, own in zip(trees, owns, strict=True)]


def meant_alike(error: CommError, marker: str) -> bool:
    """Tell whether ranks that do not agree all made this call, and only brought other values."""
    if _AGREED not in error.message:
        return False
    told = error.message.partition(_AGREED)[2]
    return told.count(marker) > 1 and not re.search(r"rank \d+ calls ", told)


def _label(trees: list[Any], who: str) -> str:
    told = "; ".join(map(signature, trees))
    if len(told) > 300:
        told = f"{told[:200]}... {hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}"
    return f"{who} of {len(trees)} values: {told}"


def _in_one_exchange(trees: list[Any], op: str, tensors: Tensors) -> list[Any]:
    flat = [leaf for tree in trees for leaf in leaves(tree)]
    exact = any(leaf.kind == "exact" for leaf in flat)
    pieces = [_pieces(leaf, op) if not exact else None for leaf in flat]
    floats = _pool([piece for piece in pieces if piece is not None and piece.dtype.kind == "f"], np.float64)
    ints = _pool([piece for piece in pieces if piece is not None and piece.dtype.kind == "i"], np.int64)
    label = _label(trees, NAMES[op]) + " exact" * exact
    buffers = [(pool.ctypes.data, pool.size, pool.dtype.name) for pool in (floats, ints)]
    _core.allreduce(buffers, op, 0, [label] * 2)
    if exact:
        return _shown(trees, op, tensors)
    results = iter(_taken(flat, pieces, {"f": floats, "i": ints}, op, tensors))
    return [_filled(tree, results) for tree in trees]


def _pieces(leaf: Leaf, op: str) -> Any:
    """Return a leaf's numbers as doubles or 64-bit integers, flat: sums of integers by halves, so that none wraps."""
    data: Any = leaf.data
    if data.dtype.kind == "c":
        return data.astype(np.complex128).ravel().view(np.float64)
    if data.dtype.kind == "f" or op == "mean":
        return data.astype(np.float64).ravel()
    bits = data.astype(np.uint64).view(np.int64) if data.dtype == np.uint64 else data.astype(np.int64)
    if op != "sum":
        return (bits ^ np.int64(-(2**63)) if data.dtype == np.uint64 else bits).ravel()
    high = bits >> 32 & _LOW if data.dtype == np.uint64 else bits >> 32
    return np.concatenate([high.ravel(), (bits & _LOW).ravel()])


def _pool(pieces: list[np.ndarray[Any, Any]], kind: Any) -> np.ndarray[Any, Any]:
    return np.concatenate(pieces) if pieces else np.empty(0, kind)


def _taken(flat: list[Leaf], pieces: list[Any], pools: dict[str, Any], op: str, tensors: Tensors) -> list[Leaf]:
    """Return the leaves with what the pools hold now."""
    at, made = dict.fromkeys(pools, 0), []
    for leaf, piece in zip(flat, pieces, strict=True):
        kind = piece.dtype.kind
        found = pools[kind][at[kind] : at[kind] + piece.size]
        at[kind] += piece.size
        own = leaf.data.dtype
        if own.kind == "c":
            found = found.view(np.complex128)
        elif kind == "i" and op == "sum":
            found = _whole(found[: found.size // 2], found[found.size // 2 :])
        elif kind == "i" and own == np.uint64:
            found = (found ^ np.int64(-(2**63))).view(np.uint64)
        made.append(finished(leaf, np.asarray(found).reshape(leaf.data.shape), op, tensors))
    return made


def _whole(high: np.ndarray[Any, Any], low: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the sums whose halves these are: 64-bit integers, or Python's where one of them is none."""
    high, low = high + (low >> 32), low & _LOW
    if ((high >= -(2**31)) & (high < 2**31)).all():
        return np.asarray((high << 32) + low)
    return np.asarray(high.astype(object) * 2**32 + low.astype(object), dtype=object)


def _filled(tree: Any, results: Any) -> Any:
    """Return a tree with the next of ``results`` in the places of its leaves."""
    if isinstance(tree, Leaf):
        return next(results)
    if not isinstance(tree, Branch):
        return tree
    if tree.kind != "list":
        found = {key: _filled(tree.parts[key], results) for key in sorted(tree.parts, key=repr)}
        return Branch(tree.kind, tree.of, {key: found[key] for key in tree.parts})
    return Branch(tree.kind, tree.of, [_filled(part, results) for part in tree.parts])


def _shown(trees: list[Any], op: str, tensors: Tensors) -> list[Any]:
    """Return the reduced trees where ranks have other keys or kinds: each shows its own to all others."""
    everyone = [pickle.loads(sent) for sent in _core.allgather_bytes(pickle.dumps(trees, protocol=5))]
    counts = [len(each) for each in everyone]
    if len(set(counts)) > 1:
        other = next(rank for rank, count in enumerate(counts) if count != counts[0])
        raise CommError(
            f"{NAMES[op]}() got {counts[0]} values on rank 0 and {counts[other]} on rank {other}",
            "Bring the same values, in the same order, on all ranks.",
        )
    one = len(trees) == 1
    return [
        folded([each[i] for each in everyone], op, "its value" if one else f"value {i + 1} of {len(trees)}", tensors)
        for i in range(len(trees))
    ]
