"""Whether arrays hold the same bits on all ranks."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import dl_comm._core as _core

DIGEST = 16  # bytes of one array's hash


def mismatches(arrays: Sequence[np.ndarray[Any, Any]], flag: int) -> int:
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


def _digest(array: np.ndarray[Any, Any]) -> bytes:
    dense = np.ascontiguousarray(array)
    hashed = hashlib.blake2b(f"{array.shape} {array.dtype.name} ".encode(), digest_size=DIGEST)
    hashed.update(dense.reshape(-1).view(np.uint8).data)
    return hashed.digest()
