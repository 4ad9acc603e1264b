"""Entries of all ranks in the serial order: of lists, arrays, tensors, sets and dicts."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl_comm import _core
from dl_comm.errors import CommError
from dl_comm.ranks import is_rank0
from dl_comm.reduction.layout import Layout, in_order, runs_in_order
from dl_comm.reduction.leaves import Tensors, as_kind, empty

_PLAIN = {float: np.float64, int: np.int64, bool: np.bool_}


@dataclass(frozen=True)
class Box:
    """A tensor as it travels."""

    dtype: str
    place: str
    array: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Entries:
    """A list, a tuple or a deque as it travels: ``of`` is its class's name, plain numbers of one kind are an array."""

    of: str
    held: Any
    full: bool = False  # whether it is a deque that has let go of what came before

    def unwrapped(self) -> list[Any]:
        """Return the entries."""
        return list(self.held.tolist()) if isinstance(self.held, np.ndarray) else list(self.held)


@dataclass(frozen=True)
class Keyed:
    """A dict as it travels."""

    of: str
    held: dict[Any, Any]


class Gathering:
    """One call of ``gather``: over what, and how this face's tensors travel."""

    def __init__(self, tensors: Tensors, layout: Layout | None, by_key: bool = False) -> None:
        self._tensors, self._layout, self._by_key = tensors, layout, by_key
        self._layouts: list[Layout | None] = []

    def all_of(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return each value with the entries of all ranks. Collective."""
        sent = pickle.dumps(("gather", self._layout, [self._sent(value) for value in values]), protocol=5)
        everyone = [pickle.loads(theirs) for theirs in _core.allgather_bytes(sent)]
        if len({len(theirs[2]) for theirs in everyone}) > 1:
            told = ", ".join(str(len(theirs[2])) for theirs in everyone[:8])
            raise CommError(
                f"gather() got {told} values on ranks 0 to {len(everyone) - 1}",
                "Bring the same values, in the same order, on all ranks.",
            )
        self._layouts = [layout for _, layout, _ in everyone]
        one = len(values) == 1
        return tuple(
            self._merged([theirs[2][i] for theirs in everyone], own, "its value" if one else f"value {i + 1}")
            for i, own in enumerate(values)
        )

    def _sent(self, value: Any) -> Any:
        if self._tensors.holds(value) or isinstance(value, np.ndarray):
            boxed: Any = self._boxed(value)
            if not np.ndim(boxed.array if isinstance(boxed, Box) else boxed):
                raise TypeError(
                    "gather() got a single number; it takes lists, arrays and tensors of several, sets and "
                    "dicts. Of numbers there are total(), average(), maximum() and minimum()"
                )
            return boxed
        if isinstance(value, (list, tuple, deque, range)):
            full = isinstance(value, deque) and len(value) == value.maxlen
            of = "list" if isinstance(value, range) else type(value).__name__
            return Entries(of, self._entries(value), full)
        if isinstance(value, dict):
            return Keyed(type(value).__name__, {key: self._held(part) for key, part in value.items()})
        if value is None or isinstance(value, (set, frozenset)) or hasattr(value, "iloc"):
            return value
        raise TypeError(
            f"gather() got {type(value).__name__}; it takes lists, tuples, arrays, tensors, sets, deques, "
            "data frames and dicts of these"
        )

    def _held(self, part: Any) -> Any:
        """Return what a dict holds, as it travels: what has entries of its own, and what is an entry."""
        whole = isinstance(part, (list, deque, set, frozenset, dict))
        return self._sent(part) if whole else self._boxed(part)

    def _entries(self, value: Any) -> Any:
        first = type(value[0]) if value else None
        alike = all(type(entry) is first for entry in value)
        if first in _PLAIN and alike and not (first is int and any(abs(e) >= 2**63 for e in value)):
            return np.array(list(value), dtype=_PLAIN[first])
        return [self._boxed(entry) for entry in value]

    def _boxed(self, entry: Any) -> Any:
        """Return ``entry`` with its tensors in boxes."""
        if self._tensors.holds(entry):
            return Box(*self._tensors.described(entry), self._tensors.array(entry))
        if isinstance(entry, (list, tuple)):
            return as_kind([self._boxed(part) for part in entry], entry, "")
        if type(entry) is dict:
            return {key: self._boxed(part) for key, part in entry.items()}
        return entry

    def _opened(self, entry: Any, like: Any = None) -> Any:
        """Return ``entry`` with tensors where boxes were."""
        if isinstance(entry, Box):
            return self._tensors.tensor(entry.array, entry.dtype, entry.place, like)
        if isinstance(entry, (list, tuple)):
            return as_kind([self._opened(part) for part in entry], entry, "")
        if type(entry) is dict:
            return {key: self._opened(part) for key, part in entry.items()}
        return entry

    def _merged(self, parts: list[Any], own: Any, path: str) -> Any:
        """Return what the ranks' ``parts``, one for each rank, are together; None counts for nothing."""
        present = [part for part in parts if part is not None]
        if not present:
            return None
        kinds = {("a set" if isinstance(part, (set, frozenset)) else f"a {type(part).__name__}") for part in present}
        if len(kinds) > 1:
            ranks = [f"{type(part).__name__} on rank {rank}" for rank, part in enumerate(parts) if part is not None]
            raise CommError(f"gather() got, as {path}, {', '.join(ranks[:8])}", "Bring the same kind on all ranks.")
        first = present[0]
        if isinstance(first, (set, frozenset)):
            return type(own if isinstance(own, (set, frozenset)) else first)().union(*present)
        if isinstance(first, Keyed):
            return self._keyed(parts, own, path)
        if isinstance(first, Entries):
            return self._list(parts, own, first.of)
        if isinstance(first, Box):
            boxes = [part for part in present if len(part.array)] or [first]
            arrays = [None if part is None else part.array for part in parts]
            like = own if self._tensors.holds(own) else None
            return self._opened(Box(boxes[0].dtype, boxes[0].place, self._rows(arrays, path)), like)
        if hasattr(first, "iloc"):
            return self._frame(parts)
        return self._rows(parts, path)

    def _order(self, lengths: Sequence[int]) -> Any:
        runs, limit = runs_in_order(lengths, self._layouts)
        return in_order(runs)[:limit]

    def _rows(self, arrays: list[Any], path: str) -> np.ndarray[Any, Any]:
        filled = [array for array in arrays if array is not None and len(array)]
        if not filled:
            return next(array for array in arrays if array is not None)
        if len({array.shape[1:] for array in filled}) > 1:
            told = [f"{array.shape} on rank {r}" for r, array in enumerate(arrays) if array is not None and len(array)]
            raise CommError(
                f"gather() got, as {path}, entries of different shapes: {', '.join(told[:8])}",
                "All but axis 0 must be one; or gather a list of arrays.",
            )
        order = self._order([0 if array is None else len(array) for array in arrays])
        whole: np.ndarray[Any, Any] = np.concatenate(filled)[order]
        return whole

    def _list(self, parts: list[Any], own: Any, of: str) -> Any:
        held = [[] if part is None else part.held for part in parts]
        if any(part is not None and part.full for part in parts):
            return as_kind([self._opened(entry) for entry in self._latest(parts)], own, of)
        if all(isinstance(each, np.ndarray) or not len(each) for each in held):
            kinds = {each.dtype for each in held if len(each)}
            if len(kinds) == 1:
                made = np.concatenate([each for each in held if len(each)])[self._order([*map(len, held)])].tolist()
                return as_kind(made, own, of)
        lists = [[] if part is None else part.unwrapped() for part in parts]
        together = self._batches(lists)
        if together is None:
            entries = [entry for each in lists for entry in each]
            together = [entries[at] for at in self._order([*map(len, lists)])]
        return as_kind([self._opened(entry) for entry in together], own, of)

    def _latest(self, parts: list[Any]) -> list[Any]:
        """Return the entries of deques that keep the last ones, one of a batch: aligned where the shares end."""
        lists = [[] if part is None else part.unwrapped() for part in parts]
        lengths = [*map(len, lists)]
        mine = [theirs.mine if theirs is not None and theirs.unit == "batches" else None for theirs in self._layouts]
        gone = [0 if unit is None else max(unit - length, 0) for unit, length in zip(mine, lengths, strict=True)]
        rounds = [before + at for before, length in zip(gone, lengths, strict=True) for at in range(length)]
        entries = [entry for each in lists for entry in each]
        return [entries[at] for at in sorted(range(len(entries)), key=rounds.__getitem__)]

    def _batches(self, lists: list[list[Any]]) -> list[Any] | None:
        """Return the serial batches where each entry holds those samples of a batch that were one rank's; None else.

        A rank's batch of B samples, sharded sample by sample, is made of samples of n serial ones.
        """
        layout = self._layouts[0]
        sizes = [[_size(entry) for entry in each] for each in lists]
        if layout is None or layout.unit != "entries" or layout.serial is None:
            return None
        if any(size is None for each in sizes for size in each):
            return None
        mine = [None if theirs is None else theirs.mine for theirs in self._layouts]
        lengths = [sum(size for size in each if size is not None) for each in sizes]
        entries = [entry for each in lists for entry in each]
        if lengths != mine or not _joinable(entries):
            return None
        order = self._order(lengths)
        whole = _joined(entries, order)
        batch = layout.batch or max(size for each in sizes for size in each if size is not None) or 1
        return [_cut(whole, at, at + batch) for at in range(0, len(order), batch)]

    def _keyed(self, parts: list[Any], own: Any, path: str) -> Any:
        """Return a dict of all ranks' keys: lists of one name are gathered; an entry of one key is that of the last.

        Where a rank has as many keys as samples, what it holds under each is of that sample.
        """
        held = [{} if part is None else part.held for part in parts]
        named = len({frozenset(each) for each, part in zip(held, parts, strict=True) if part is not None and each}) == 1
        keys = [list(each) for each in held]
        by_sample = [*map(len, keys)] == [None if layout is None else layout.mine for layout in self._layouts]
        order = self._order([*map(len, keys)]) if not named else None
        flat = [key for each in keys for key in each]
        names = dict.fromkeys(flat if order is None else [flat[at] for at in order])
        owns = own if isinstance(own, dict) else {}
        if self._by_key:
            _tell_of_others(held)
        found = {}
        for name in names:
            theirs = [each.get(name) for each in held]
            last = next((part for part in reversed(theirs) if part is not None), None)
            deep = isinstance(last, (Entries, Keyed, set, frozenset)) or (named and isinstance(last, (Box, np.ndarray)))
            deep = isinstance(last, Keyed) if self._by_key else deep and not by_sample
            found[name] = self._merged(theirs, owns.get(name), f"{path}[{name!r}]") if deep else self._entry(last)
        of = next(part.of for part in parts if part is not None)
        return _as_dict(found, own, of)

    def _entry(self, part: Any) -> Any:
        """Return what a dict holds under a key, as one rank sent it."""
        if isinstance(part, Entries):
            return as_kind([self._opened(entry) for entry in part.unwrapped()], None, part.of)
        if isinstance(part, Keyed):
            return _as_dict({key: self._entry(held) for key, held in part.held.items()}, None, part.of)
        return self._opened(part)

    def _frame(self, parts: list[Any]) -> Any:
        pandas: Any = sys.modules["pandas"]
        frames = [part for part in parts if part is not None]
        order = self._order([0 if part is None else len(part) for part in parts])
        whole = pandas.concat(frames).iloc[order]
        counted = all(isinstance(frame.index, pandas.RangeIndex) for frame in frames)
        return whole.reset_index(drop=True) if counted else whole


def _tell_of_others(held: list[dict[Any, Any]]) -> None:
    """Let rank 0 warn of keys under which ranks keep different things."""
    if not is_rank0():
        return
    keys = Counter(key for each in held for key, entry in each.items() if not isinstance(entry, Keyed))
    several = [key for key, number in keys.items() if number > 1]
    found = {key: {rank: pickle.dumps(each[key]) for rank, each in enumerate(held) if key in each} for key in several}
    apart = [key for key, entries in found.items() if len(set(entries.values())) > 1]
    if apart:
        ranks = " and ".join(map(str, [*found[apart[0]]][:2]))
        warnings.warn(
            f"{len(apart)} of {len(set().union(*held))} keys of a dict are kept by several ranks, and differently: "
            f"{apart[0]!r} by ranks {ranks}. The last rank's entry stays; the serial script keeps its last sample's",
            stacklevel=7,
        )


def _size(entry: Any) -> int | None:
    if isinstance(entry, Box):
        return len(entry.array) if entry.array.ndim else None
    if isinstance(entry, np.ndarray):
        return len(entry) if entry.ndim else None
    return len(entry) if type(entry) is list else None


def _joinable(entries: list[Any]) -> bool:
    kinds = {type(entry) for entry in entries}
    if kinds == {Box}:
        return len({(entry.dtype, entry.array.shape[1:]) for entry in entries}) == 1
    return kinds == {list} or (kinds == {np.ndarray} and len({entry.shape[1:] for entry in entries}) == 1)


def _joined(entries: list[Any], order: Any) -> Any:
    if isinstance(entries[0], list):
        flat = [part for entry in entries for part in entry]
        return [flat[at] for at in order]
    if isinstance(entries[0], Box):
        return Box(entries[0].dtype, entries[0].place, np.concatenate([entry.array for entry in entries])[order])
    return np.concatenate(entries)[order]


def _cut(whole: Any, first: int, end: int) -> Any:
    return Box(whole.dtype, whole.place, whole.array[first:end]) if isinstance(whole, Box) else whole[first:end]


def _as_dict(found: dict[Any, Any], own: Any, of: str) -> Any:
    made = copy(own) if isinstance(own, dict) else empty(of)
    made.clear()
    dict.update(made, found)
    return made
