"""Which batches of an evaluation are a rank's: of the serial script's, whole, r, r + n, ..."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dl_comm.keras.backend import KERAS_3
from dl_comm.keras.data import _SEQUENCES, _sequence, each_array
from dl_comm.keras.staying_whole import draws_batches
from dl_comm.ranks import get_rank, parts
from dl_comm.reduction.layout import layout_of
from dl_comm.shared_random import Alike

_SAMPLES = ("x", "y", "sample_weight")
_LOOKED_AT = 64  # rows


@dataclass
class Share:
    """This rank's batches: what ``evaluate`` or ``predict`` takes, how many batches it has, how large they are.

    A rank without a batch of its own gets one all the same, so that all have metrics and outputs of one kind: then
    ``count()`` is 0, and what it leaves is not counted. ``end()`` goes through what the serial script reads, too.
    """

    options: dict[str, Any]
    count: Callable[[], int]
    sizes: tuple[int, ...] | None = None
    end: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True)
class Kind:
    """What an evaluation goes through, as all ranks see it: of which kind, how many batches, if known, and of what.

    ``make`` returns this rank's share; ``why`` it cannot be shared.
    """

    name: str
    batches: int | None = None
    told: str = ""
    make: Callable[[], Share] | None = None
    why: str = ""


def kind_of(options: dict[str, Any]) -> Kind:
    """Return what the ``options`` of ``evaluate`` or ``predict`` are to go through."""
    x, steps = options.get("x"), options.get("steps")
    if layout_of(x) is not None:
        return Kind("share", why="its samples are this rank's share already")
    tf, torch = sys.modules.get("tensorflow"), sys.modules.get("torch")
    if isinstance(x, _SEQUENCES):
        return _of_sequence(x, steps, options)
    if tf is not None and isinstance(x, tf.data.Dataset):
        return _of_dataset(x, steps, options)
    if torch is not None and isinstance(x, torch.utils.data.DataLoader):
        return _of_loader(x, steps, options)
    if isinstance(x, Iterator):
        return _of_generator(x, steps, options)
    return _of_arrays(steps, options)


def _mine(batches: int) -> list[int]:
    return list(range(get_rank(), batches, parts()))


def _limited(batches: int | None, steps: Any) -> int | None:
    given = [int(number) for number in (batches, steps) if number is not None]
    return min(given) if given else None


def _of_arrays(steps: Any, options: dict[str, Any]) -> Kind:
    """Return what arrays are: batch i has the rows from i B on."""
    lengths: list[int] = []
    told: list[str] = []

    def look(array: Any) -> Any:
        shape = np.shape(array) if not hasattr(array, "shape") else array.shape
        lengths.append(int(shape[0]) if len(shape) else -1)
        told.append(f"{tuple(shape)}{getattr(array, 'dtype', '')}")
        return array

    given = {name: options.get(name) for name in _SAMPLES if options.get(name) is not None}
    try:
        for part in given.values():
            each_array(look, part)
    except (TypeError, ValueError):
        return Kind("other", why="its samples are no arrays")
    if not lengths or len(set(lengths)) > 1 or lengths[0] <= 0 or any(map(_is_sparse, given.values())):
        return Kind("other", why="its samples are no arrays of one length")
    length = lengths[0]
    size = int(options.get("batch_size") or (math.ceil(length / steps) if steps and not KERAS_3 else 32))
    batches = _limited(math.ceil(length / size), steps) or 0

    def make() -> Share:
        mine = _mine(batches)
        rows = np.concatenate([np.arange(b * size, min((b + 1) * size, length)) for b in mine or [0]])
        share = {name: each_array(lambda array: _taken(array, rows), part) for name, part in given.items()}
        sizes = tuple(min((b + 1) * size, length) - b * size for b in mine)
        return Share(options | share | {"batch_size": size, "steps": None}, lambda: len(mine), sizes)

    return Kind("arrays", batches, f"{size} {told} {_digest(given, length)}", make)


def _digest(given: dict[str, Any], length: int) -> str:
    """Return what some of the rows are, by which ranks see whether they have the same samples."""
    rows = np.unique(np.linspace(0, length - 1, _LOOKED_AT).astype(np.int64))
    digest = hashlib.blake2b(digest_size=8)

    def look(array: Any) -> Any:
        with contextlib.suppress(TypeError, ValueError):  # of what has no bytes
            digest.update(np.ascontiguousarray(_as_numpy(_taken(array, rows))).tobytes())
        return array

    for part in given.values():
        each_array(look, part)
    return digest.hexdigest()


def _is_sparse(part: Any) -> bool:
    return type(part).__name__ == "SparseTensor"


def _taken(array: Any, rows: np.ndarray[Any, Any]) -> Any:
    if hasattr(array, "iloc"):
        return array.iloc[rows]
    tf = sys.modules.get("tensorflow")
    if tf is not None and (tf.is_tensor(array) or isinstance(array, tf.RaggedTensor)):
        return tf.gather(array, rows)
    return array[rows] if hasattr(array, "shape") else np.asarray(array)[rows]


def _as_numpy(rows: Any) -> np.ndarray[Any, Any]:
    """Return rows as an array, wherever they are; of objects their texts."""
    rows = rows.detach().cpu() if hasattr(rows, "detach") else rows
    array = np.asarray(rows)
    return np.array(list(map(repr, array.ravel().tolist()))) if array.dtype == object else array


def _of_sequence(x: Any, steps: Any, options: dict[str, Any]) -> Kind:
    whole = x.num_batches if hasattr(x, "num_batches") else len(x)
    batches = _limited(whole, steps)
    if batches is None:
        return Kind("sequence", why="its Sequence has no end")
    if why := draws_batches(x):
        return Kind("sequence", why=why)

    def make() -> Share:
        if getattr(x, "index_array", x) is None and getattr(x, "shuffle", False):
            with Alike():
                x._set_index_array()
        mine = len(_mine(batches))
        share = _sequence(x, get_rank() if mine else 0, parts(), max(mine, 1))
        return Share(options | {"x": share, "steps": None}, lambda: mine)

    return Kind("sequence", batches, type(x).__name__, make)


def _of_dataset(x: Any, steps: Any, options: dict[str, Any]) -> Kind:
    tf = sys.modules["tensorflow"]
    length = int(tf.data.experimental.cardinality(x)) if tf.executing_eagerly() else -2
    if length == -1 and steps is None:
        return Kind("dataset", why="its data set has no end")
    batches = _limited(length if length >= 0 else None, steps if length != -2 else None)

    def make() -> Share:
        share = (x.take(steps) if steps is not None else x).shard(parts(), get_rank())
        mine = len(_mine(batches)) if batches is not None else int(next(iter(share.take(1)), None) is not None)
        own = share if mine else x.take(1)
        return Share(options | {"x": own, "steps": None}, lambda: mine)

    return Kind("dataset", batches, f"{x.element_spec}", make)


def _of_loader(x: Any, steps: Any, options: dict[str, Any]) -> Kind:
    import torch

    if isinstance(x.dataset, torch.utils.data.IterableDataset):
        return Kind("loader", why="its loader reads a stream, which may keep a state")
    if why := draws_batches(x.dataset):
        return Kind("loader", why=why)
    batches = _limited(len(x), steps) or 0

    def make() -> Share:
        from dl_comm.torch.whole_batches import loader_share, share_whole

        mine = len(_mine(batches))
        share = share_whole(x, get_rank(), parts()) if mine else loader_share(x, 0, parts())
        count = max(mine, 1)
        return Share(options | {"x": share, "steps": count if count < len(share) else None}, lambda: mine)

    return Kind("loader", batches, type(x.dataset).__name__, make)


def _of_generator(x: Any, steps: Any, options: dict[str, Any]) -> Kind:
    def make() -> Share:
        batches = _Taken(x, None if steps is None else int(steps))
        expected = None if steps is None else max(len(_mine(int(steps))), 1)
        return Share(options | {"x": batches.mine(), "steps": expected}, lambda: batches.count, end=batches.rest)

    return Kind("generator", None if steps is None else int(steps), make=make)


class _Taken:
    """The next ``steps`` batches of a generator, all that it has if None: read by all ranks, each with a share."""

    def __init__(self, batches: Iterator[Any], steps: int | None) -> None:
        self._batches = itertools.islice(batches, steps) if steps is not None else batches
        self._at, self.count, self._over = 0, 0, False
        self._lock, self._alike = threading.Lock(), Alike()  # Keras may read in a thread of its own

    def _next(self) -> Any:
        with self._lock:
            if self._over:  # what a thread still asks for does not touch the random numbers of what comes next
                return self
            with self._alike:
                batch = next(self._batches, self)
            self._over = batch is self
            return batch

    def mine(self) -> Iterator[Any]:
        """Yield this rank's batches; the first of all where it has none."""
        first = None
        while (batch := self._next()) is not self:
            first = batch if self._at == 0 else first
            self._at += 1
            if (self._at - 1) % parts() == get_rank():
                self.count += 1
                yield batch
        if self.count == 0 and first is not None:
            yield first

    def rest(self) -> None:
        """Go through what is left of them."""
        while self._next() is not self:
            self._at += 1
