"""Which data are a rank's share of something, and how the entries of all shares lie in the serial order."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl_comm.parts import share_of


@dataclass(frozen=True)
class Layout:
    """How a rank's share lies in the serial order.

    ``unit`` is "entries" where entry j of rank r is entry j n + r of the serial order, "batches" where so is batch j
    of rank r, and "stretches" where each rank has a part of the order. ``serial`` is how many entries (or batches) the
    serial script has, ``mine`` how many this rank has, with those that pad its share; None: not known. ``run`` of a
    rank's entries follow each other in the serial order, too. ``batch`` is the size of the serial batches, if known;
    ``sizes`` are those of this rank's whole batches, where it has seen them; ``unpadded``: none of them is there twice.
    ``block``: after so many serial entries rank 0 begins anew, as n does not divide them.
    """

    unit: str
    serial: int | None = None
    mine: int | None = None
    run: int = 1
    batch: int | None = None
    sizes: tuple[int, ...] | None = None
    unpadded: bool = False
    block: int | None = None


class ShareOfList(list[Any]):
    """A rank's part of a list."""

    layout: Layout | None = None


_noted: dict[int, tuple[Callable[[], Any], Layout | Callable[[], Layout]]] = {}
finders: list[Callable[[Any], Layout | None]] = []  # of the frameworks: what their loaders and data sets are shares of


def note(share: Any, layout: Layout | Callable[[], Layout]) -> Any:
    """Return ``share``, of which ``layout_of`` then knows that it is one, as long as it lives."""
    if type(share) is list and isinstance(layout, Layout):
        share = ShareOfList(share)
    if isinstance(share, ShareOfList) and isinstance(layout, Layout):
        share.layout = layout
        return share
    key = id(share)
    with suppress(TypeError):  # of a type that knows no weak references
        forget = _noted.pop  # also when the module is gone
        _noted[key] = (weakref.ref(share, lambda _: forget(key, None)), layout)
    return share


def noted(data: Any) -> Layout | None:
    """Return the layout that was noted of ``data`` itself, or that it tells of itself."""
    if tells := getattr(type(data), "layout_of_share", None):
        told: Layout = tells(data)
        return told
    known = _noted.get(id(data))
    if known is None or known[0]() is not data:
        return None
    return known[1] if isinstance(known[1], Layout) else known[1]()


def layout_of(data: Any) -> Layout | None:
    """Return how ``data`` lies in the serial order, None where each rank has all of it."""
    if isinstance(data, ShareOfList):
        return data.layout
    while data is not None:
        if (known := noted(data)) is not None:
            return known
        for finder in finders:
            if (layout := finder(data)) is not None:
                return layout
        if isinstance(data, Mapping):
            data = tuple(data.values())
        if isinstance(data, tuple):
            return next((layout for part in data if (layout := layout_of(part)) is not None), None)
        base = getattr(data, "base", None) if isinstance(data, np.ndarray) else getattr(data, "_base", None)
        data = base  # a view is of the share that it is cut out of
    return None


def is_shard(data: Any) -> bool:
    """Tell whether ``data`` is this rank's share, as ``shard`` or ``stretch`` returned it, or a loader over one.

    False for what each rank has whole, and so for all data on one rank, and where all repeat the serial run
    (``DL_COMM_REPLICATE``). It is known of loaders, data sets and streams of the framework, of arrays, tensors and
    slices of them, of lists themselves, of tuples and dicts that hold such, and of tf.data pipelines that go on from
    a share; not of what ``enumerate``, ``zip`` and the like make of it.
    """
    return layout_of(data) is not None


def runs_in_order(lengths: Sequence[int], layouts: Sequence[Layout | None]) -> tuple[list[Any], int | None]:
    """Return how long the runs are in which the ranks' entries alternate, and how many entries are the serial ones.

    ``lengths`` are those of the ranks' values. Where they count samples, a number of entries for each, or batches, the
    layouts tell; where they count a few numbers for each batch of samples, so do the batches' sizes. Otherwise entries
    alternate one by one, and the second result is None.
    """
    ones = [np.ones(length, dtype=np.int64) for length in lengths]
    first = layouts[0]
    if first is None or any(layout is None or layout.unit != first.unit for layout in layouts):
        return ones, None
    if first.unit == "stretches":
        return [np.array([length], dtype=np.int64) for length in lengths], None
    units = [layout.mine for layout in layouts if layout is not None]
    if first.unit == "batches" and list(lengths) != units and (runs := _of_sizes(lengths, layouts)):
        return runs, None
    if first.unit == "batches" and first.serial is not None and (found := _of_batches(lengths, units, first.serial)):
        return found
    each = _each(lengths, units)
    if each == 0 and first.unit == "entries" and first.batch and (each := _each(lengths, _batches_of(units, first))):
        return [_chunks(length, each) for length in lengths], None
    if each == 0:
        return ones, None
    limit = None if first.serial is None else first.serial * each
    if first.block:
        n = len(lengths)
        return [_of_blocks(length // each, each, first.block, rank, n) for rank, length in enumerate(lengths)], limit
    return [_chunks(length, each * first.run) for length in lengths], limit


def _batches_of(units: Sequence[int | None], layout: Layout) -> list[int | None]:
    """Return how many batches each rank's samples make."""
    return [None if unit is None else -(-unit // (layout.batch or 1)) for unit in units]


def _each(lengths: Sequence[int], units: Sequence[int | None]) -> int:
    """Return how many entries each rank's value has for one of its units, on all ranks alike; 0 where that is none."""
    if any(unit is None or (unit == 0 and length) for length, unit in zip(lengths, units, strict=True)):
        return 0
    found = {length / unit for length, unit in zip(lengths, units, strict=True) if unit}
    each = found.pop() if len(found) == 1 else 0
    return int(each) if each == int(each) else 0


def _of_sizes(lengths: Sequence[int], layouts: Sequence[Layout | None]) -> list[Any] | None:
    """Return the runs where each rank knows how many samples its batches had."""
    sizes = [layout.sizes for layout in layouts if layout is not None and layout.sizes is not None]
    each = _each(lengths, [sum(theirs) for theirs in sizes]) if len(sizes) == len(lengths) else 0
    return [np.array(theirs, dtype=np.int64) * each for theirs in sizes] if each else None


def _of_batches(lengths: Sequence[int], units: Sequence[int | None], serial: int) -> tuple[list[Any], int] | None:
    """Return the runs, and the number of serial entries, where each batch has as many, but the last one of all."""
    n = len(lengths)
    last = (serial - 1) % n
    if serial == 0 or any(unit is None for unit in units):
        return None
    mine = [unit or 0 for unit in units]
    size = _each(
        [length for rank, length in enumerate(lengths) if rank != last and mine[rank]],
        [unit for rank, unit in enumerate(mine) if rank != last and unit],
    )
    if size == 0 and not any(unit for rank, unit in enumerate(mine) if rank != last):
        size = lengths[last] // mine[last]
    rest = lengths[last] - size * (mine[last] - 1)
    if size == 0 or not 0 < rest <= size:
        return None
    runs = [np.full(unit, size, dtype=np.int64) for unit in mine]
    runs[last][-1] = rest
    return runs, size * (serial - 1) + rest


def _of_blocks(entries: int, each: int, block: int, rank: int, n: int) -> Any:
    """Return the runs of a rank's entries, which alternate with the others' within each block; 0: it has none."""
    places = np.arange(entries)
    mine = share_of(block, rank, n)
    rounds = places // mine * -(-block // n) + places % mine
    runs = np.zeros(rounds[-1] + 1 if entries else 0, dtype=np.int64)
    runs[rounds] = each
    return runs


def _chunks(length: int, run: int) -> Any:
    whole, rest = divmod(length, run)
    return np.array([run] * whole + [rest] * (rest > 0), dtype=np.int64)


def in_order(runs: Sequence[Any]) -> Any:
    """Return where the entries of the serial order lie in the ranks' entries, one rank's after the other's."""
    rounds = np.concatenate([np.repeat(np.arange(len(run)), run) for run in runs])
    return np.argsort(rounds, kind="stable")
