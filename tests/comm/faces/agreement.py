"""Whether all ranks hold the same: bits of arrays of NumPy, PyTorch and TensorFlow, and states of generators."""

import hashlib
import random

import numpy as np
from dl_comm import _core


def same_bits(arrays):
    """Assert, on every rank together, that these arrays are the same bit for bit everywhere."""
    plain = (a.detach() if hasattr(a, "detach") else a for a in arrays)
    data = b"".join(np.ascontiguousarray(a).tobytes() for a in plain)
    assert len(set(_core.allgather_bytes(hashlib.sha256(data).digest()))) == 1


def go_on_alike(broadcast):
    """Assert, on every rank together, that generators of random numbers go on as rank 0's, and are local."""
    for made in (np.random.default_rng(), np.random.RandomState(), random.Random()):
        assert broadcast(made) is made
        first = made.random()
        assert len(set(_core.allgather_bytes(np.float64(first).tobytes()))) == 1 and made.random() != first
