"""A stretch of a stream in a trace: how long the whole and the part are, and hashes of what is in them."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any

import numpy as np


def stretch_note(whole: Any, mine: Any, axis: int = 0) -> dict[str, Any]:
    """Return what a call of ``stretch`` took and gave; nothing for loaders, which tell by their batches, and tuples."""
    sliced = hasattr(whole, "shape") or isinstance(whole, (list, str, range))
    if not sliced:
        return {}
    length, part = (int(x.shape[axis]) if hasattr(x, "shape") else len(x) for x in (whole, mine))
    return {"length": length, "part": part, "whole": _digest(whole), "mine": _digest(mine)}


def _digest(data: Any) -> str:
    plain = data.detach().cpu() if hasattr(data, "detach") else data
    bits = np.ascontiguousarray(plain).tobytes() if hasattr(data, "shape") else pickle.dumps(list(plain))
    return blake2b(bits, digest_size=8).hexdigest()
