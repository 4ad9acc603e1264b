"""NumPy arrays and torch tensors as the core sees them: an address, a number of elements and the name of a type."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from dl_comm.device import CORE_TYPES, is_on_gpu
from dl_comm.errors import CommError


def is_torch(array: Any) -> bool:
    """Whether this is a torch tensor; torch is looked for, not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_tensorflow(array: Any) -> bool:
    """Whether this is a tensor, a variable or slices of TensorFlow, which is looked for, not imported.

    A script may have put ``tensorflow.compat.v1`` in its place, whose ``Variable`` is another class than that of the
    variables it makes: they are told by what they can do.
    """
    tf = sys.modules.get("tensorflow")
    return tf is not None and (isinstance(array, (tf.Tensor, tf.IndexedSlices)) or hasattr(array, "read_value"))


def fresh(array: Any) -> Any:
    """Return a new contiguous array or tensor with the same values: what is averaged instead of the caller's.

    It lies in the host's memory, in the host's byte order, or on a GPU of CUDA's if the array does.
    """
    if is_torch(array):
        detached = array.detach()
        dense = detached.to_dense() if detached.is_sparse else detached
        return dense.clone().contiguous() if dense.is_cpu or is_on_gpu(dense.contiguous()) else dense.cpu().contiguous()
    if is_on_gpu(array):
        if not hasattr(array, "copy"):
            kind = type(array).__name__
            raise CommError(f"a {kind} on a GPU has no copy() to average", "average(array) changes it in place")
        return array.copy()
    return fresh_numpy(np.asarray(array))


def fresh_numpy(array: np.ndarray) -> np.ndarray:
    """Return the same for a NumPy array."""
    own = array.copy()
    return own if own.dtype.isnative else own.astype(own.dtype.newbyteorder("="))


def beside(array: Any, mean: Any) -> Any:
    """Return ``mean`` on the device of ``array``."""
    return mean.to(array.device) if is_torch(array) and array.device.type != "cpu" else mean


def bare(array: Any) -> tuple[int, int, str]:
    """Return the address of a contiguous array or tensor, its number of elements, and its type's name."""
    if is_torch(array):
        return array.data_ptr(), array.numel(), str(array.dtype).removeprefix("torch.")
    return bare_numpy(array)


def bare_numpy(array: np.ndarray) -> tuple[int, int, str]:
    """Return the same for a NumPy array."""
    return array.__array_interface__["data"][0], array.size, _name(array.dtype)


@lru_cache(maxsize=64)
def _name(dtype: np.dtype) -> str:
    return dtype.name  # NumPy makes it up anew each time


@lru_cache(maxsize=1024)
def shape_shown(shape: tuple[int, ...]) -> str:
    """Return "(64, 3)"."""
    return str(shape)


def moved(array: Any) -> tuple[tuple[int, int, str], str]:
    """Return the same, and the description, of an array that is only moved: as bytes if the core has no such type."""
    address, count, dtype = bare(array)
    if dtype in CORE_TYPES or dtype == "object":
        return (address, count, dtype), described(array)
    width = array.element_size() if is_torch(array) else array.itemsize
    return (address, count * width, "uint8"), f"{described(array)} {dtype} as"


def described(array: Any) -> str:
    """Return the shape, which the ranks compare: "(64, 3)"."""
    return shape_shown(tuple(array.shape))


@contextmanager
def writable(arrays: Sequence[Any]) -> Iterator[list[Any]]:
    """Give contiguous arrays or tensors to write to; what was written is in ``arrays`` at the end.

    Arrays that are not contiguous, or of the other byte order, are copied there and back, which is said once; so are
    tensors that do not lie in the host's memory, silently. Read-only arrays raise CommError.
    """
    dense: list[Any] = []
    for place, array in enumerate(arrays):
        if is_torch(array):
            dense.append(array.detach().cpu().contiguous())
            continue
        if not isinstance(array, np.ndarray):
            raise CommError(
                f"argument {place} is a {type(array).__name__}",
                "pass NumPy arrays or torch tensors, which change in place",
            )
        if not array.flags.writeable:
            raise CommError(f"array {place} of shape {array.shape} is read-only", "pass a copy: array.copy()")
        usable = array.flags.c_contiguous and array.dtype.isnative
        if not usable:
            why = "not contiguous" if array.dtype.isnative else "of another byte order"
            warnings.warn(f"dl_comm copies arrays that are {why}, there and back", stacklevel=4)
        dense.append(array if usable else array.astype(array.dtype.newbyteorder("="), order="C"))
    yield dense
    for array, copy in zip(arrays, dense, strict=True):
        if is_torch(array):
            if copy.data_ptr() != array.data_ptr():
                array.detach().copy_(copy)
        elif array is not copy:
            array[...] = copy
