"""What was there before a loop over a shard, and what the loop has added to it.

All ranks hold the same before the loop, so that alone what the loop added is summed up, or gathered.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from dl_comm.reduction.leaves import as_kind
from dl_comm.reduction.metrics import is_metric, state_of

_ROWS = (list, tuple, deque)
_KEPT = (list, dict, set, deque, Counter, defaultdict, OrderedDict)


def snapshot(*values: Any) -> Any:
    """Return copies of ``values``, one or a tuple of several, for ``since=`` behind the loop that goes on with them.

    ``before = dl.snapshot(total, rows)``, then the loop, then ``total = dl.total(total, since=before[0])``. Numbers,
    tensors (detached), arrays, and lists, dicts, tuples and sets of them, which are copied as deep as they go; of
    another object such fields.
    """
    found = tuple(_copied(value) for value in values)
    return found[0] if len(found) == 1 else found


def _copied(value: Any) -> Any:
    if is_metric(value):
        return state_of(value)
    if hasattr(value, "detach"):
        return value.detach().clone()
    if isinstance(value, Mapping) and hasattr(value, "copy"):
        return _with(value, {key: _copied(entry) for key, entry in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_copied(entry) for entry in value)
    if type(value) is deque:
        entries = (entry if hasattr(entry, "dtype") else _copied(entry) for entry in value)
        return deque(entries, value.maxlen)  # tensors are known again by identity, see _stayed
    if _is_in_graph(value):
        return value.read_value() if hasattr(value, "read_value") else value
    if hasattr(value, "dtype") or isinstance(value, set):
        return copy.deepcopy(value)
    made = copy.copy(value)
    for name, field in list(vars(made).items()) if hasattr(made, "__dict__") and made is not value else ():
        if type(field) in _KEPT or hasattr(field, "dtype"):
            vars(made)[name] = _copied(field)  # what the loop changes in place
    return made


def _is_in_graph(value: Any) -> bool:
    """Tell whether ``value`` is a tensor or variable of TensorFlow, and this runs inside a ``tf.function``."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, (tf.Tensor, tf.Variable)) and not tf.executing_eagerly()


def _with(mapping: Mapping[Any, Any], entries: Mapping[Any, Any]) -> Any:
    """Return a copy with these entries set; ``update`` of a Counter would add them."""
    made: Any = copy.copy(mapping)
    for key, entry in entries.items():
        made[key] = entry
    return made


def added(value: Any, before: Any) -> Any:
    """Return what has been added to ``before`` to make ``value``: by number, by entry, by key."""
    if before is None or isinstance(value, (str, bytes, type(None))):
        return value
    if isinstance(value, Mapping):
        return _with(value, {key: added(entry, before.get(key)) for key, entry in value.items()})
    if dataclasses.is_dataclass(value):
        return _each_field(added, value, before)
    if isinstance(value, _ROWS):
        old = before if isinstance(before, _ROWS) else ()
        return as_kind([added(entry, old[i] if i < len(old) else None) for i, entry in enumerate(value)], value, "")
    if isinstance(value, bool):
        return value ^ before
    unset = _unset(before)
    return value - before if unset is None else _set_where(value - before, unset, value)


def put_back(total: Any, before: Any) -> Any:
    """Return ``before`` with the ``total`` of what the ranks have added to it."""
    if before is None or isinstance(total, (str, bytes, type(None))):
        return total
    if isinstance(total, Mapping):
        return _with(total, {key: put_back(entry, before.get(key)) for key, entry in total.items()})
    if dataclasses.is_dataclass(total):
        return _each_field(put_back, total, before)
    if isinstance(total, _ROWS):
        old = before if isinstance(before, _ROWS) else ()
        return as_kind([put_back(entry, old[i] if i < len(old) else None) for i, entry in enumerate(total)], total, "")
    unset = _unset(before)
    return before + total if unset is None else _set_where(before + total, unset, total, before)


def _unset(before: Any) -> Any:
    """Return where an array was filled with NaN or infinities, as a mark of what is not set yet; None where nowhere."""
    if getattr(before, "ndim", 0) == 0 or not hasattr(before, "dtype"):
        return None
    unset = before - before != 0
    if not hasattr(unset, "any"):
        return None  # TensorFlow's
    return unset if bool(unset.any()) else None


def _set_where(made: Any, unset: Any, value: Any, before: Any = None) -> Any:
    """Return ``made`` with ``value`` where nothing was set before: 0, or ``before``, where nothing is set now."""
    here = value[unset]
    empty = (here - here != 0) if before is None else here == 0
    here = here + 0
    here[empty] = 0 if before is None else before[unset][empty]
    made[unset] = here
    return made


def _each_field(do: Callable[[Any, Any], Any], value: Any, before: Any) -> Any:
    """Return an object of a data class with what ``do`` makes of each field and that of the object ``before``."""
    names = [f.name for f in dataclasses.fields(value) if f.init]
    return dataclasses.replace(value, **{n: do(getattr(value, n), getattr(before, n)) for n in names})


def grown(value: Any, before: Any) -> Any:
    """Return the entries that a list, array, tensor, set or dict of lists has more than ``before``."""
    if before is None:
        return value
    if isinstance(value, (set, frozenset)):
        return value - before
    if isinstance(value, Mapping):
        made = copy.copy(value)
        made.clear()  # type: ignore[attr-defined]
        made.update({k: _grown_entry(v, before, k) for k, v in value.items() if _differs(v, before, k)})  # type: ignore[attr-defined]
        return made
    if isinstance(value, deque):
        return deque(list(value)[_stayed(value, before) :], value.maxlen)
    return value[len(before) :]


def _differs(entry: Any, before: Mapping[Any, Any], key: Any) -> bool:
    """Tell whether what a dict holds under ``key`` is to be sent: a list always, a number where it is another now."""
    return key not in before or _holds(entry) or entry is not before[key]


def _grown_entry(entry: Any, before: Mapping[Any, Any], key: Any) -> Any:
    return grown(entry, before[key]) if key in before and _holds(entry) else entry


def _holds(entry: Any) -> bool:
    return isinstance(entry, (list, tuple, set, frozenset, deque, Mapping)) or getattr(entry, "ndim", 0) > 0


def changed(value: Mapping[Any, Any], before: Mapping[Any, Any]) -> Any:
    """Return what a dict holds under keys that it did not have ``before``, or that was something else then."""
    made = copy.copy(value)
    made.clear()  # type: ignore[attr-defined]
    new = {key: entry for key, entry in value.items() if key not in before or not same(entry, before[key])}
    return _with(made, {key: _changed_entry(entry, before.get(key)) for key, entry in new.items()})


def _changed_entry(entry: Any, before: Any) -> Any:
    return changed(entry, before) if isinstance(entry, Mapping) and isinstance(before, Mapping) else entry


def merged(before: Mapping[Any, Any], more: Mapping[Any, Any]) -> Any:
    """Return a dict with ``more`` in it: instead of what it has under the same keys, and in its dicts likewise."""
    deep = {key for key, entry in more.items() if isinstance(entry, Mapping) and isinstance(before.get(key), Mapping)}
    return _with(before, {key: merged(before[key], e) if key in deep else e for key, e in more.items()})


def same(one: Any, other: Any) -> bool:
    """Tell whether two entries are of one kind and hold the same numbers, as deep as they go."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(entry, other[key]) for key, entry in one.items())
    if isinstance(one, _ROWS):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "detach"):
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
    if hasattr(one, "dtype"):
        return _equal(one, other)
    kind: Any = type(one)
    if kind.__eq__ is object.__eq__ and hasattr(one, "__dict__"):
        return same(vars(one), vars(other))
    return bool(one == other)


def _equal(one: Any, other: Any) -> bool:
    """Tell whether two arrays, or tensors of TensorFlow, hold the same: NaN is itself."""
    import numpy as np

    a, b = np.asarray(one), np.asarray(other)
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc" and b.dtype.kind in "fc")


def _stayed(value: deque[Any], before: deque[Any]) -> int:
    """Return how many of its first entries a deque held ``before``, the same objects: others have dropped out."""
    now, then = list(value), list(before)
    for dropped in range(max(0, len(then) - len(now)), len(then)):
        if all(a is b for a, b in zip(now, then[dropped:], strict=False)):
            return len(then) - dropped
    return 0


def of_kind(like: Any, entries: Any) -> Any:
    """Return a list of the class of ``like``, a list of the script's class, with all else that it holds.

    One that keeps its entries elsewhere, as Keras' ``ListWrapper`` does, becomes a plain list.
    """
    kind = type(like)
    if not isinstance(like, list) or kind is list or kind.__len__ is not list.__len__:
        return entries
    made: Any = list.__new__(kind)
    made.__dict__.update(vars(like)) if hasattr(like, "__dict__") else None
    list.extend(made, entries)
    return made


def joined(before: Any, more: Any) -> Any:
    """Return ``before`` with ``more`` entries behind it."""
    if before is None:
        return more
    if isinstance(before, (set, frozenset)):
        return before | more
    if isinstance(before, Mapping):
        return _with(before, {k: joined(before[k], v) if k in before and _holds(v) else v for k, v in more.items()})
    if isinstance(before, deque):
        return deque([*before, *more], before.maxlen)
    if isinstance(before, (list, tuple)):
        return (tuple if isinstance(before, tuple) else list)([*before, *more])
    if hasattr(before, "iloc"):
        import pandas  # type: ignore[import-untyped]

        return pandas.concat([before, more]) if len(before) else more
    if hasattr(before, "detach"):
        import torch

        return torch.cat([before, more])
    import numpy as np

    return np.concatenate([before, more])
