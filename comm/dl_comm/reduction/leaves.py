"""What the values of a reduction consist of: numbers, arrays and tensors in lists and dicts."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

EXACT = (Fraction, Decimal, timedelta)  # numbers that no array holds
KINDS = ("bool", "int", "float", "complex", "exact", "scalar", "array", "tensor")  # each takes up those before it
ORDERED = (bool, int, float, str, np.generic)  # what a tuple holds that is compared as a whole
PLAIN = {bool: "bool", int: "int", float: "float", complex: "complex"}


class Tensors:
    """How a face's tensors become arrays, and arrays tensors; of this class itself: there are none."""

    def holds(self, value: Any) -> bool:
        """Tell whether ``value`` is a tensor of this framework."""
        return False

    def described(self, value: Any) -> tuple[str, str]:
        """Return the name of a tensor's dtype, and where it lies."""
        raise NotImplementedError

    def array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return what a tensor holds as an array in the host's memory; of a dtype that NumPy lacks, as float32."""
        raise NotImplementedError

    def tensor(self, array: np.ndarray[Any, Any], dtype: str, place: str, like: Any) -> Any:
        """Return a tensor of that dtype: where ``like`` lies, or, where that is none, in such a place as named."""
        raise NotImplementedError

    def mean_dtype(self, dtype: str) -> str:
        """Return the dtype of the means of integers of that dtype."""
        return "float64"


@dataclass(frozen=True)
class Leaf:
    """A number, an array or a tensor: of which kind, and what it holds; ``many`` of a list of plain numbers.

    ``data`` is an array, of the exact numbers a number of Python's.
    """

    kind: str
    dtype: str
    data: Any
    place: str = ""
    many: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return () if self.kind == "exact" else tuple(self.data.shape)

    def told(self) -> str:
        """Return what a reader of an error is told."""
        if self.many:
            return f"a list of {len(self.data)} numbers"
        return f"{self.kind} {self.shape} {self.dtype}" if self.kind in ("array", "tensor") else f"a {self.kind}"


@dataclass(frozen=True)
class Text:
    """A text among the values of a dict: each rank keeps its own."""

    own: Any

    def told(self) -> str:
        """Return what a reader of an error is told."""
        return "a text"


@dataclass(frozen=True)
class Branch:
    """A list, a tuple or a deque (``kind`` "list"), a dict ("dict"), or an object of a data class ("fields").

    ``of`` is the name of its class.
    """

    kind: str
    of: str
    parts: Any

    def told(self) -> str:
        """Return what a reader of an error is told."""
        return f"a {self.of} of {len(self.parts)} {'entries' if self.kind == 'list' else 'keys'}"


def check(value: Any, tensors: Tensors, who: str) -> None:
    """Raise TypeError where ``value`` is none that can be reduced; what it holds is not looked at."""
    taken = isinstance(value, _TAKEN) or (is_dataclass(value) and not isinstance(value, type))
    if value is not None and not tensors.holds(value) and not taken:
        raise _refused(value, who)


_TAKEN = (bool, int, float, complex, np.generic, np.ndarray, dict, list, tuple, deque, *EXACT)


def _refused(value: Any, who: str, inside: bool = False) -> TypeError:
    held = "a value that holds " if inside else ""
    return TypeError(
        f"{who}() got {held}{type(value).__name__}; it takes a number, a tensor, an array, or a list or dict of numbers"
    )


def packed(value: Any, tensors: Tensors, who: str, inside: bool = False) -> Any:
    """Return ``value`` as a tree of leaves that can be sent; raise TypeError where it holds what has no number."""
    if value is None:
        return None
    if tensors.holds(value):
        dtype, place = tensors.described(value)
        return Leaf("tensor", dtype, tensors.array(value), place)
    kind = PLAIN.get(type(value))
    if kind is not None:
        return _number(kind, value)
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return Leaf("scalar", value.dtype.name, np.asarray(value))
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return Leaf("array", value.dtype.name, np.ascontiguousarray(value).reshape(value.shape))
    if isinstance(value, EXACT):
        return Leaf("exact", type(value).__name__, value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: packed(getattr(value, f.name), tensors, who, inside=True) for f in fields(value) if f.init}
        return Branch("fields", type(value).__name__, parts)
    if isinstance(value, dict):
        parts = {key: packed(part, tensors, who, inside=True) for key, part in value.items()}
        return Branch("dict", type(value).__name__, parts)
    if type(value) is tuple and value and who in ("maximum", "minimum") and all(isinstance(p, ORDERED) for p in value):
        return Leaf("exact", "tuple", value)
    if isinstance(value, (list, tuple, deque)):
        return _vector(value) or Branch("list", type(value).__name__, [packed(p, tensors, who, True) for p in value])
    if inside and isinstance(value, (str, bytes)):
        return Text(value)
    for plain, name in PLAIN.items():  # an IntEnum, a float of another library
        if isinstance(value, plain):
            return _number(name, plain(value))
    raise _refused(value, who, inside)


def _number(kind: str, value: Any) -> Leaf:
    if kind == "int" and not -(2**62) < value < 2**62:
        return Leaf("exact", "int", value)
    return Leaf(kind, kind, np.asarray(value, dtype=np.int64 if kind == "int" else None))


def _vector(value: Any) -> Leaf | None:
    """Return a list of plain numbers of one kind as one leaf, None of another."""
    first = type(value[0]) if type(value) is list and len(value) > 1 else None
    if first not in (int, float) or any(type(entry) is not first for entry in value):
        return None
    if first is int and not all(-(2**62) < entry < 2**62 for entry in value):
        return None
    return Leaf(PLAIN[first], PLAIN[first], np.array(value, dtype=np.int64 if first is int else np.float64), many=True)


def entries(leaf: Leaf) -> Branch:
    """Return a list of plain numbers as one of a leaf for each."""
    return Branch("list", "list", [replace(leaf, data=entry, many=False) for entry in leaf.data])


def leaves(tree: Any) -> Iterator[Leaf]:
    """Yield the leaves of a tree, of dicts in the order of their keys' texts."""
    if isinstance(tree, Leaf):
        yield tree
    elif isinstance(tree, Branch):
        for key in keys_of(tree):
            yield from leaves(tree.parts[key])


def keys_of(branch: Branch) -> list[Any]:
    """Return the keys of a dict, or the positions of a list, in one order on all ranks."""
    return sorted(branch.parts, key=repr) if branch.kind != "list" else list(range(len(branch.parts)))


def signature(tree: Any) -> str:
    """Return all but the numbers of a tree: what ranks must have alike to be reduced without a look at each other."""
    if isinstance(tree, Leaf):
        return f"{tree.kind}{'s' * tree.many} {tree.dtype} {tree.shape}"
    if isinstance(tree, Branch):
        inner = ", ".join(f"{key!r}: {signature(tree.parts[key])}" for key in keys_of(tree))
        return f"{tree.kind}({inner})" + (f" {list(tree.parts)!r}" if tree.kind == "dict" else "")
    return "text" if isinstance(tree, Text) else "None"


def unpacked(tree: Any, own: Any, tensors: Tensors) -> Any:
    """Return the value that a tree stands for: of the classes of ``own``, this rank's, where it has it."""
    if tree is None:
        return None
    if isinstance(tree, Text):
        return own if isinstance(own, (str, bytes)) else tree.own
    if isinstance(tree, Leaf):
        return _value(tree, own, tensors)
    if tree.kind == "fields":
        return replace(own, **{k: unpacked(part, getattr(own, k), tensors) for k, part in tree.parts.items()})
    if tree.kind == "dict":
        made = copy(own) if isinstance(own, dict) else empty(tree.of)
        factory = getattr(own, "default_factory", None) if isinstance(own, dict) else None
        found = {key: _own_of(own, key, part, factory) for key, part in tree.parts.items()}
        made.clear()
        for key, part in tree.parts.items():
            made[key] = unpacked(part, found[key], tensors)
        return made
    same = isinstance(own, (list, tuple, deque)) and len(own) == len(tree.parts)
    owns = list(own) if same else [None] * len(tree.parts)
    made = [unpacked(part, mine, tensors) for part, mine in zip(tree.parts, owns, strict=True)]
    return as_kind(made, own, tree.of)


def _own_of(own: Any, key: Any, part: Any, factory: Any) -> Any:
    """Return what this rank has under a key, or, of a dict in a defaultdict, an empty one."""
    if isinstance(own, dict) and key in own:
        return own[key]
    return factory() if factory is not None and isinstance(part, Branch) else None


def empty(of: str) -> Any:
    """Return an empty dict of the class of that name."""
    return {"Counter": Counter, "OrderedDict": OrderedDict}.get(of, dict)()


def as_kind(made: list[Any], own: Any, of: str) -> Any:
    """Return a list as one of the class of ``own``, or, where that is none, of a class of that name."""
    if isinstance(own, tuple) and hasattr(own, "_make"):
        return type(own)._make(made)
    if isinstance(own, deque):
        return deque(made, own.maxlen)
    if isinstance(own, (list, tuple)):
        return type(own)(made)
    return tuple(made) if of == "tuple" else deque(made) if of == "deque" else made


def _value(leaf: Leaf, own: Any, tensors: Tensors) -> Any:
    if leaf.many:
        return leaf.data.tolist()
    if leaf.kind == "tensor":
        return tensors.tensor(leaf.data, leaf.dtype, leaf.place, own if tensors.holds(own) else None)
    if leaf.kind == "array":
        return leaf.data
    if leaf.kind == "scalar":
        return leaf.data[()]
    return leaf.data.item() if isinstance(leaf.data, (np.ndarray, np.generic)) else leaf.data
