"""Data that form a stream, through which a state is handed on: each rank goes through a stretch of its own."""

from __future__ import annotations

from typing import Any

import dl_comm
from dl_comm import _core
from dl_comm.ranks import get_rank, parts
from dl_comm.reduction.layout import Layout, note


def stretch(data: Any, axis: int = 0, multiple: int = 1) -> Any:
    """Return this rank's stretch of a stream: the r-th of n contiguous parts along ``axis``; on 1 rank ``data`` itself.

    For data that a script goes through in order while it hands a hidden state on from batch to batch. Dealt out
    (``shard``), neighbours would no longer follow each other; in a stretch they do, and each rank carries a state of
    its own through it. With the local batch of B columns kept, n ranks are a serial run whose batch has n B columns.

    ``data`` is an array or tensor of any framework, a DataFrame, a list, a string or a range; a tuple of arrays is cut
    array by array. All stretches are equally long, ``multiple`` or a multiple of it; what is left over at the end of
    the data, fewer than n * ``multiple`` entries, nobody reads. Raises ``TypeError`` for what has no length or cannot
    be sliced, and ``dl_comm.CommError`` on every rank where there is too little for each, or where the ranks hold data
    of different lengths.
    """
    n = parts()
    if isinstance(data, tuple) and any(hasattr(part, "shape") or isinstance(part, list) for part in data):
        return tuple(stretch(part, axis, multiple) for part in data)
    shape = getattr(data, "shape", None)
    if not hasattr(data, "__getitem__") or (shape is None and not hasattr(data, "__len__")):
        raise TypeError(
            f"stretch() got {type(data).__name__}; it takes arrays, tensors, lists, strings and ranges: "
            "what has a length and can be sliced"
        )
    if n == 1:
        return data
    axis = axis % len(shape) if shape is not None else axis
    length = int(shape[axis]) if shape is not None else len(data)
    check_equal_lengths(type(data).__name__, str(length), "stretch")
    mine = slice(*bounds(length, get_rank(), n, multiple))
    if hasattr(data, "iloc"):
        return note(data.iloc[mine], Layout("stretches"))
    return note(data[(*(slice(None),) * axis, mine)] if axis else data[mine], Layout("stretches"))


def bounds(length: int, rank: int, n: int, multiple: int = 1) -> tuple[int, int]:
    """Return where the stretch of ``rank`` begins and ends; raises ``dl_comm.CommError`` where it would be empty."""
    each = length // n // multiple * multiple
    if not each:
        whole = f" of whole batches of {multiple}" if multiple > 1 else ""
        raise dl_comm.CommError(
            f"stretch: {length} entries cannot be divided into {n} stretches{whole}",
            f"Use at most {max(1, length // multiple)} ranks, or more data.",
        )
    return rank * each, (rank + 1) * each


def check_equal_lengths(kind: str, length: str, who: str) -> None:
    """Raise on every rank when the ranks hold data of different lengths: they would do different numbers of steps."""
    lengths = [b.decode() for b in _core.allgather_bytes(length.encode())]
    if len(set(lengths)) > 1:
        other = next(r for r, theirs in enumerate(lengths) if theirs != lengths[0])
        raise dl_comm.CommError(
            f"{who}: {kind} has {lengths[0]} entries on rank 0 and {lengths[other]} on rank {other}",
            f"Load the same data, in the same order, on every rank; {who}() divides it.",
        )
