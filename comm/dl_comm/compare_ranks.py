"""Whether arrays hold the same bits on all ranks."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dl_comm import _core
from dl_comm.arrays import bare, is_torch
from dl_comm.device import is_on_gpu
from dl_comm.errors import CommError

DIGEST = 16  # bytes of one array's hash


def mismatches(arrays: Sequence[Any], flag: int) -> int:
    """Return how many arrays differ between ranks; arrays that some ranks lack count too. Collective.

    ``flag`` 1: rank 0 prints which; 2: every rank does.
    """
    digests = b"".join(_digest(array) for array in arrays)
    ranks = _core.allgather_bytes(digests)
    longest = max(len(digest) for digest in ranks)
    differing = [
        place // DIGEST
        for place in range(0, longest, DIGEST)
        if len({digest[place : place + DIGEST] for digest in ranks}) > 1
    ]
    if flag > 1 or (flag == 1 and _core.rank() == 0):
        verdict = f"arrays {differing} differ between ranks" if differing else "all arrays match"
        print(f"Rank {_core.rank()}: {verdict}", file=sys.stdout, flush=True)
    return len(differing)


def _on_host(array: Any) -> Any:
    """Return a copy on the host by CuPy's name for it or Numba's; others are copied when NumPy asks."""
    for name in ("get", "copy_to_host"):
        if hasattr(array, name):
            return getattr(array, name)()
    return array


def _digest(array: Any) -> bytes:
    if is_torch(array):
        dense = array.detach().cpu().contiguous()
    else:
        dense = np.ascontiguousarray(_on_host(array) if is_on_gpu(array) else array)
        if dense.dtype == object:
            raise CommError(f"a {type(array).__name__} has no bits that can be compared", "pass arrays of numbers")
    address, count, dtype = bare(dense)
    hashed = hashlib.blake2b(f"{tuple(np.shape(array))} {dtype} ".encode(), digest_size=DIGEST)
    if count > 0:
        hashed.update((ctypes.c_char * (count * dense.itemsize)).from_address(address))
    return hashed.digest()
