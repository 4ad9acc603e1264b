"""How the ranks' leaves become one: by sum, mean, max or min, in rank order."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from dl_comm.errors import CommError
from dl_comm.reduction.leaves import KINDS, Branch, Leaf, Tensors, Text, entries
from dl_comm.shares import check_fits

NAMES = {"sum": "total", "mean": "average", "max": "maximum", "min": "minimum"}
_BY = {"max": np.maximum, "min": np.minimum}


def folded(trees: list[Any], op: str, path: str, tensors: Tensors) -> Any:
    """Return the tree that the ranks' trees are together; a rank's None counts for nothing.

    Raises CommError that names the value by its ``path`` where the trees do not fit each other.
    """
    present = [(rank, tree) for rank, tree in enumerate(trees) if tree is not None and not _is_nothing(tree, trees)]
    if not present:
        return next((tree for tree in trees if tree is not None), None)
    found = [tree for _, tree in present]
    if any(isinstance(tree, Branch) for tree in found):
        found = [entries(tree) if isinstance(tree, Leaf) and tree.many else tree for tree in found]
    kinds = [getattr(tree, "kind", "text") if isinstance(tree, Branch) else type(tree).__name__ for tree in found]
    if len(set(kinds)) > 1:
        raise _differ(path, op, present, kinds)
    if isinstance(found[0], Text):
        return found[0]
    if isinstance(found[0], Leaf):
        return _leaf([(rank, tree) for (rank, _), tree in zip(present, found, strict=True)], op, path, tensors)
    if found[0].kind != "list":
        return _dict(found, [rank for rank, _ in present], op, path, tensors)
    lengths = [len(tree.parts) for tree in found]
    if len(set(lengths)) > 1:
        told = f"{', '.join(map(str, lengths[:8]))}{', ..' if len(lengths) > 8 else ''}"
        raise CommError(
            f"{NAMES[op]}() got lists of {told} entries on ranks 0 to {len(lengths) - 1} as {path}: bring "
            "lists of one length, a dict, in which each name is a sum of its own, or gather()"
        )
    parts = [folded([tree.parts[i] for tree in found], op, f"{path}[{i}]", tensors) for i in range(lengths[0])]
    return Branch("list", found[0].of, parts)


def _is_nothing(tree: Any, trees: list[Any]) -> bool:
    """Tell whether a rank brings but a 0 where others bring lists or dicts, or a dict without keys."""
    zero = isinstance(tree, Leaf) and not tree.many and tree.kind in ("int", "float") and tree.data == 0
    branches = [other for other in trees if isinstance(other, Branch) or (isinstance(other, Leaf) and other.many)]
    return bool(branches) and (zero or (isinstance(tree, Branch) and not tree.parts))


def _dict(found: list[Branch], ranks: list[int], op: str, path: str, tensors: Tensors) -> Branch:
    keys = list(dict.fromkeys(key for tree in found for key in tree.parts))
    if op == "mean":
        for key in keys:
            lacking = [rank for rank, tree in zip(ranks, found, strict=True) if key not in tree.parts]
            if lacking:
                having = next(rank for rank, tree in zip(ranks, found, strict=True) if key in tree.parts)
                other = list(found[ranks.index(lacking[0])].parts)
                raise CommError(
                    f"average() got {path} with the key {key!r} on rank {having}, which rank {lacking[0]} "
                    f"lacks: it has {', '.join(map(repr, other[:8]))}",
                    "Bring the same keys on all ranks, or total() sums and counts.",
                )
    of = found[0].of if all(tree.of == found[0].of for tree in found) else "dict"
    return Branch(
        found[0].kind, of, {k: folded([t.parts.get(k) for t in found], op, f"{path}[{k!r}]", tensors) for k in keys}
    )


def _differ(path: str, op: str, present: list[tuple[int, Any]], kinds: list[str]) -> CommError:
    other = next(i for i, kind in enumerate(kinds) if kind != kinds[0])
    return CommError(
        f"{NAMES[op]}() got {present[0][1].told()} as {path} on rank {present[0][0]} and {present[other][1].told()} on "
        f"rank {present[other][0]}",
        "Bring the same values, in the same order, on all ranks.",
    )


def _leaf(found: list[tuple[int, Leaf]], op: str, path: str, tensors: Tensors) -> Leaf:
    """Return the leaf that the ranks' are together, of the kind that takes up all of theirs."""
    parts = [leaf for _, leaf in found]
    kind = max((leaf.kind for leaf in parts), key=KINDS.index)
    shapes = {leaf.shape for leaf in parts if leaf.kind == kind or leaf.many}
    if len(shapes) > 1 or len({leaf.many for leaf in parts}) > 1:
        raise _differ(path, op, found, [f"{leaf.many} {leaf.shape}" for leaf in parts])
    if kind == "exact":
        return _exact([leaf.data if leaf.kind == "exact" else leaf.data.item() for leaf in parts], op)
    arrays = [leaf.data for leaf in parts]
    leading = [leaf for leaf in parts if leaf.kind == kind]
    whole = _joined([leaf.data.dtype for leaf in leading], arrays)
    first = next((leaf for leaf in leading if leaf.data.dtype == whole), leading[0])
    dtype = first.dtype if first.data.dtype == whole else whole.name
    wide = [np.asarray(array, dtype=_wide(whole, op)) for array in arrays]
    data = sum_of(wide) if op == "sum" else reduce(_BY[op], wide) if op in _BY else reduce(np.add, wide) / len(wide)
    model = Leaf(kind, dtype, np.asarray(leading[0].data, whole), first.place, parts[0].many)
    return finished(model, np.asarray(data), op, tensors)


def _joined(kinds: list[Any], arrays: list[Any]) -> Any:
    whole = np.result_type(*kinds)
    weak = any(a.dtype.kind == "f" and a.ndim == 0 and a != 0 for a in arrays)  # a plain number beside integers
    return np.dtype(np.float64) if weak and whole.kind in "biu" else whole


def _wide(kind: Any, op: str) -> Any:
    if op in _BY:
        return kind
    if kind.kind in "fc":
        return np.result_type(kind, np.float64)
    return np.dtype(np.float64) if op == "mean" else np.dtype(object)


def sum_of(arrays: list[Any]) -> Any:
    """Return the sum of arrays, in rank order."""
    return reduce(np.add, arrays)


_EXACTLY: dict[str, Callable[[list[Any]], Any]] = {
    "sum": lambda numbers: sum(numbers[1:], start=numbers[0]),
    "mean": lambda numbers: sum(numbers[1:], start=numbers[0]) / len(numbers),
    "max": max,
    "min": min,
}


def _exact(numbers: list[Any], op: str) -> Leaf:
    """Return what Python's own numbers are together."""
    found = _EXACTLY[op](numbers)
    if type(found) is int and -(2**62) < found < 2**62:
        return Leaf("int", "int", np.asarray(found))
    if type(found) is float:
        return Leaf("float", "float", np.asarray(found))
    return Leaf("exact", type(found).__name__, found)


def finished(leaf: Leaf, found: np.ndarray[Any, Any], op: str, tensors: Tensors) -> Leaf:
    """Return ``found``, what the ranks' arrays are together, as a leaf of the kind and dtype that ``leaf`` has.

    Sums of booleans are integers, and means of integers floating-point numbers. Raises CommError where a sum of
    integers is none of the dtype.
    """
    own, dtype = leaf.data.dtype, leaf.dtype
    if own.kind in "fc" or op in _BY:
        return Leaf(leaf.kind, dtype, found.astype(own), leaf.place, leaf.many)
    if op == "mean":
        if leaf.kind == "int":  # one that is the mean stays one
            pairs = zip(found.ravel().tolist(), leaf.data.ravel().tolist(), strict=True)
            means = [own if mean == own else mean for mean, own in pairs]
            kept = np.array(means, dtype=object).reshape(found.shape)
            return Leaf("float", "float", kept if leaf.many else np.asarray(means[0]), many=leaf.many)
        plain = "float" if leaf.kind == "bool" else leaf.kind
        dtype = tensors.mean_dtype(dtype) if leaf.kind == "tensor" else "float64"
        return Leaf(plain, dtype, found.astype(np.float64), leaf.place, leaf.many)
    if leaf.kind in ("bool", "int"):
        if leaf.many:
            check_fits(found, "int64")
            return Leaf("int", "int", found.astype(np.int64), many=True)
        number = int(found)
        return Leaf("exact", "int", number)
    sums: Any = np.dtype(np.int64) if own.kind == "b" else own
    check_fits(found, sums.name)
    return Leaf(leaf.kind, sums.name if own.kind == "b" else dtype, found.astype(sums), leaf.place)
