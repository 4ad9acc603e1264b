"""Arrays whose exact sum and mean every rank knows, in any element type; runs on the ranks, beside `allreduce.py`.

Elements are small whole numbers out of one table per rank, repeated; its length is prime, so that a piece that lands
in the wrong place is seen. All sums are exact in every type; a mean over a number of ranks that is no power of two is
rounded once, and one unit in the last place is allowed there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

PERIOD = 65521
DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def storage(dtype: str) -> Any:
    """The numpy dtype whose elements hold the bits; bfloat16, which numpy lacks, lies in uint16."""
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def encode(values: Any, dtype: str) -> Any:
    """Float64 values -> elements of dtype, rounded to nearest even."""
    if dtype != "bfloat16":
        return values.astype(storage(dtype))
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode(elements: Any, dtype: str) -> Any:
    """Elements of dtype -> float64 values."""
    if dtype != "bfloat16":
        return elements.astype(np.float64)
    return (elements.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def table(rank: int) -> Any:
    """What rank `rank` starts with: PERIOD whole numbers 0 to 3, as float64."""
    return np.random.default_rng(rank).integers(0, 4, PERIOD).astype(np.float64)


def _spread(values: Any, index: int, count: int) -> Any:
    return np.resize(np.roll(values, 97 * index), count)


def fill(arrays: Sequence[Any], rank: int, dtype: str) -> None:
    """Give every array the rank's numbers, shifted by its place in the list."""
    values = encode(table(rank), dtype)
    for index, array in enumerate(arrays):
        array[:] = _spread(values, index, array.size)


def wrong(arrays: Sequence[Any], ranks: int, dtype: str, mean: bool) -> int:
    """How many elements of the reduced arrays differ from the exact answer."""
    exact = sum(table(rank) for rank in range(ranks)) / (ranks if mean else 1)
    expected = encode(exact, dtype)
    slack = 2.0 ** (1 - DIGITS[dtype]) if mean and ranks & (ranks - 1) else 0.0
    count = 0
    for index, array in enumerate(arrays):
        there = _spread(expected, index, array.size)
        differ = array != there
        if slack and differ.any():
            got, want = decode(array[differ], dtype), decode(there[differ], dtype)
            count += int((~(np.abs(got - want) <= slack * np.abs(want))).sum())
        else:
            count += int(differ.sum())
    return count
