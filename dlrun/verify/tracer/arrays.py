"""An array of TensorFlow's in a trace, noted as PyTorch's tensors are; and what tells the samples of a batch apart."""

from __future__ import annotations

from base64 import b64encode
from hashlib import blake2b
from typing import Any

import numpy as np
import tensorflow as tf

SAMPLE = 1024  # elements kept of each array, at an even stride


def native(variable: Any) -> Any:
    """Return TensorFlow's variable behind Keras's."""
    value = getattr(variable, "value", None)
    return variable if isinstance(variable, tf.Variable) or value is None or callable(value) else value


def array_note(value: Any) -> dict[str, Any] | None:
    """Return hash, L2 norm and sample (base64 of float32 or float64) of a tensor or variable; None of None."""
    if value is None:
        return None
    plain = _plain(value)
    flat = plain.reshape(-1)
    kind = np.float64 if flat.dtype in (np.float64, np.int64) else np.float32
    sample = flat[:: max(1, flat.size // SAMPLE)][: 2 * SAMPLE].astype(kind)
    return {
        "hash": _digest(plain),
        "norm": float(np.linalg.norm(flat.astype(np.float64))),
        "type": str(plain.dtype),
        "sample": b64encode(sample.tobytes()).decode(),
    }


def batch_digest(batch: Any) -> str:
    """Return a hash of all arrays in a batch."""
    made = blake2b(digest_size=8)
    for part in _arrays(batch):
        made.update(_digest(part).encode())
    return made.hexdigest()


def samples(batch: Any) -> list[int] | None:
    """Return a number for each sample of a batch, made from its content; None where the parts have other lengths."""
    parts = _arrays(batch)
    if not parts or any(part.ndim == 0 or len(part) != len(parts[0]) for part in parts):
        return None
    found = []
    for i in range(len(parts[0])):
        made = blake2b(digest_size=6)
        for part in parts:
            made.update(np.ascontiguousarray(part[i]).tobytes())
        found.append(int.from_bytes(made.digest(), "big"))
    return found


def _arrays(batch: Any) -> list[Any]:
    flat = [part for part in tf.nest.flatten(batch) if hasattr(part, "shape")]
    return [part.numpy() if hasattr(part, "numpy") else np.asarray(part) for part in flat]


def _digest(plain: Any) -> str:
    made = blake2b(f"{plain.shape}{plain.dtype}".encode(), digest_size=8)
    made.update(np.ascontiguousarray(plain).tobytes())
    return made.hexdigest()


def _eager(value: Any) -> Any:
    return tf.convert_to_tensor(native(value)).numpy()


def _plain(value: Any) -> Any:
    array = np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else _eager(value)
    if array.dtype.kind == "V" or "bfloat16" in str(array.dtype):
        array = array.astype(np.float32)
    return array + array.dtype.type(0) if array.dtype.kind == "f" else array  # -0.0 counts as 0.0
