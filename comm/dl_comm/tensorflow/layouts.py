"""How tf.data's pipelines that go on from a share lie in the serial order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from dl_comm.reduction.layout import Layout, noted


def find(data: Any) -> Layout | None:
    """Return the layout of a data set that is made of a share, or of an iterator over one."""
    if isinstance(data, tf.data.Iterator):
        data = getattr(data, "_dataset", None)
    batch, queue = None, [data] if isinstance(data, tf.data.Dataset) else []
    while queue:
        one = queue.pop(0)
        if (found := noted(one)) is not None:
            whole = found.unit == "batches" and batch is not None  # samples were sharded, and are in batches now
            return replace(found, unit="entries", batch=batch) if whole else found
        size = getattr(one, "_batch_size", None)
        batch = int(size) if size is not None and tf.executing_eagerly() else batch
        queue += one._inputs()
    return None
