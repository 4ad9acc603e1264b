"""What a dict holds under the keys of all ranks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from dl_comm import _core
from dl_comm.errors import CommError
from dl_comm.ranks import is_worker, parts


def entries(mapping: Mapping[Any, Any]) -> list[Any]:
    """Return what ``mapping`` holds under each key that any rank has, in one order on all ranks.

    ``for meter in dl.entries(meters): meter.sum = dl.total(meter.sum)`` behind a loop over a shard: the ranks reduce
    the same entries in the same order. A ``defaultdict`` makes those that it lacks. Collective; where all ranks repeat
    the serial run (``DL_COMM_REPLICATE``) each has its own. Raises ``dl_comm.CommError`` on every rank where a rank's
    dict lacks a key and cannot make it.
    """
    if parts() == 1 or is_worker():
        return list(mapping.values())
    makes = getattr(mapping, "default_factory", None) is not None
    everyone = [pickle.loads(sent) for sent in _core.allgather_bytes(pickle.dumps((makes, list(mapping)), protocol=5))]
    keys = list(dict.fromkeys(key for _, theirs in everyone for key in theirs))
    for rank, (fills, theirs) in enumerate(everyone):
        lacking = [key for key in keys if key not in set(theirs)]
        if lacking and not fills:
            raise CommError(
                f"entries() got a dict that has no {lacking[0]!r} on rank {rank}, where another rank has it",
                "Bring the same keys on all ranks, or a defaultdict.",
            )
    return [mapping[key] for key in keys]
