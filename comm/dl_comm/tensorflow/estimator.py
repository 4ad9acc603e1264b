"""What an Estimator needs on many ranks: a folder for each."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from dl_comm import _core
from dl_comm.ranks import get_nranks, get_rank


def model_dir(path: Any) -> Any:
    """Return where this rank's Estimator keeps its model: rank 0's is ``path``, the others get folders of their own.

    These begin with a copy of rank 0's latest checkpoint, if there is one: all ranks then resume at the same step, and
    agree on how many of ``max_steps`` are left. Collective. On one rank ``path`` itself comes back.
    """
    if get_nranks() == 1:
        return path
    files: dict[str, bytes] = {}
    if get_rank() == 0:
        latest = tf.train.latest_checkpoint(str(path)) if path else None
        if latest:
            found = [Path(str(path)) / "checkpoint", *Path(latest).parent.glob(f"{Path(latest).name}.*")]
            files = {file.name: file.read_bytes() for file in found}
    files = pickle.loads(_core.broadcast_bytes(pickle.dumps(files), 0))
    if get_rank() == 0:
        return path
    folder = Path(tempfile.mkdtemp(prefix="dl_comm-model-"))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder)
