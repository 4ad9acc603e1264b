"""What an overlap reduces with: a team of threads and memory shared with the other ranks.

Neither is ever given back: views of the memory may live on. So what the overlap of a model that is gone has left serves
the next one, and a script may train models one after the other.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from dl_comm import _core
from dl_comm.ranks import own_team
from dl_comm.torch.buckets import Bucket


@dataclass(frozen=True)
class OverlapBuffer:
    """A team, and bytes of the arena; ``number`` is the same on all ranks."""

    number: int
    team: int
    memory: Tensor


_left: dict[int, OverlapBuffer] = {}  # by number: those that this rank has no use for any more
_numbers = count()


def take(size: int, owner: Any, buckets: Sequence[Bucket]) -> OverlapBuffer:
    """Return a buffer with ``size`` bytes for ``owner``, until that is gone; ``buckets`` are what it reduces.

    Collective. One is used again only where all ranks have left it, and left it with nothing under way.
    """
    theirs = [set(json.loads(text)) for text in _core.allgather_bytes(json.dumps(list(_left)).encode())]
    fitting = [number for number in set.intersection(*theirs) if _left[number].memory.numel() >= size]
    smallest = min(fitting, key=lambda number: (_left[number].memory.numel(), number), default=None)
    if smallest is not None:
        buffer = _left.pop(smallest)
    else:
        memory = torch.frombuffer(_core.arena(max(1, size)), dtype=torch.uint8)
        buffer = OverlapBuffer(next(_numbers), own_team(), memory)
    weakref.finalize(owner, _leave, buffer, buckets).atexit = False
    return buffer


def _leave(buffer: OverlapBuffer, buckets: Sequence[Bucket]) -> None:
    if all(bucket.ticket is None for bucket in buckets):
        _left[buffer.number] = buffer
