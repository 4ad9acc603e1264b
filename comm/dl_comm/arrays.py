"""NumPy arrays as the core sees them: an address, a number of elements and the name of a type."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dl_comm.errors import CommError

Array = np.ndarray[Any, Any]


def bare(array: Array) -> tuple[int, int, str]:
    """Return the address of a contiguous array, its number of elements, and its type's name."""
    return array.__array_interface__["data"][0], array.size, array.dtype.name


def described(array: Array) -> str:
    """Return the shape, which the ranks compare: "(64, 3)"."""
    return str(array.shape)


@contextmanager
def writable(arrays: Sequence[Array]) -> Iterator[list[Array]]:
    """Give contiguous arrays to write to; what was written is in ``arrays`` at the end.

    Arrays that are not contiguous are copied there and back, which is said once. Read-only arrays raise CommError.
    """
    dense: list[Array] = []
    for place, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            raise CommError(f"argument {place} is a {type(array).__name__}", "pass NumPy arrays, which change in place")
        if not array.flags.writeable:
            raise CommError(f"array {place} of shape {array.shape} is read-only", "pass a copy: array.copy()")
        if not array.flags.c_contiguous:
            warnings.warn("dl_comm copies arrays that are not contiguous, there and back", stacklevel=4)
        dense.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
    yield dense
    for array, copy in zip(arrays, dense, strict=True):
        if array is not copy:
            array[...] = copy
