"""Sums over the ranks of what lists and dicts of numbers hold, entry by entry."""

from __future__ import annotations

import pickle
from copy import copy
from typing import Any

import numpy as np

from dl_comm import _core
from dl_comm.errors import CommError


def has_entries(value: Any) -> bool:
    """Tell whether ``value`` is a list, a tuple or a dict."""
    return type(value) in (list, tuple) or isinstance(value, dict)


def total_of_entries(value: Any) -> Any:
    """Return the sums of the numbers in ``value``, a list, a tuple or a dict: of its kind, of Python's numbers.

    They are added up in rank order, and are the same on all ranks; integers are exact. Lists are as long on all ranks;
    in dicts each name is a sum of its own, and a rank that lacks it counts as 0.

    Raises ``TypeError`` where an entry is no number, ``CommError`` where the lists differ in length.
    """
    for entry in value.values() if isinstance(value, dict) else value:
        if not isinstance(entry, (bool, int, float, np.number, np.bool_)):
            held = f"a {type(value).__name__} that holds a {type(entry).__name__}"
            raise TypeError(f"total() got {held}; it takes lists, tuples and dicts of numbers")
    plain = {key: _number(entry) for key, entry in value.items()} if isinstance(value, dict) else [*map(_number, value)]
    everyone = [pickle.loads(sent) for sent in _core.allgather_bytes(pickle.dumps(plain, protocol=5))]
    if isinstance(value, dict):
        made = copy(value)  # a defaultdict stays one, and a Counter
        names = sorted({name for each in everyone for name in each}, key=repr)
        for name in (*value, *(name for name in names if name not in value)):
            made[name] = sum(each[name] for each in everyone if name in each)
        return made
    lengths = [len(each) for each in everyone]
    if len(set(lengths)) > 1:
        told = f"{', '.join(map(str, lengths[:8]))}{', ..' if len(lengths) > 8 else ''}"
        raise CommError(f"total() got lists of {told} entries on ranks 0 to {len(lengths) - 1}: bring lists of one "
                        "length, or a dict, in which each name is a sum of its own")  # fmt: skip
    return type(value)(map(sum, zip(*everyone, strict=True)))


def _number(entry: Any) -> int | float:
    number: int | float = entry.item() if isinstance(entry, np.generic) else entry
    return number
