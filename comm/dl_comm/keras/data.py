"""This rank's share of what ``fit`` takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from dl_comm.ranks import check_enough, get_rank, parts, share
from dl_comm.reduction.layout import Layout, note
from dl_comm.shard_iterators import every_nth
from dl_comm.shared_random import Alike
from dl_comm.streams import stretch
from dl_comm.whole_batches import WholeBatches, check_whole, entries_of

_SEQUENCES = tuple(getattr(keras.utils, name) for name in ("PyDataset", "Sequence") if hasattr(keras.utils, name))


def shard(data: Any, whole: str = "") -> Any:
    """Return this rank's 1/n of arrays, a tf.data.Dataset, a Sequence (PyDataset), a torch DataLoader, or a generator.

    Arrays (also in tuples, lists and dicts of arrays) give the samples r, r + n, ..., padded from the beginning to
    equal lengths; the others every n-th batch. On one rank, and for ``None``, ``data`` itself comes back.

    With ``whole="batches"``, for evaluations, rank r takes the serial script's batches r, r + n, ... as they are, of a
    Dataset, a Sequence, a DataLoader, a generator, or an array, list or range whose entries are batches: none is padded
    or repeated, so ranks may have one more than others, or none.
    """
    n = parts()
    check_whole(whole)
    if n == 1 or data is None:
        return data
    if isinstance(data, _SEQUENCES) and whole:
        length = data.num_batches if hasattr(data, "num_batches") else len(data)
        return _sequence(data, get_rank(), n, len(range(get_rank(), length, n)))
    if isinstance(data, _SEQUENCES):
        return _sequence(data, get_rank(), n)
    if "torch" in sys.modules and isinstance(data, sys.modules["torch"].utils.data.DataLoader):
        from dl_comm.torch.sharding import shard as shard_loader

        return shard_loader(data, whole=whole)
    if "tensorflow" in sys.modules and isinstance(data, sys.modules["tensorflow"].data.Dataset):
        from dl_comm.tensorflow.data import shard as shard_dataset

        return shard_dataset(data, whole=whole)
    if whole and hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return entries_of(data, get_rank(), n)
    if whole:
        batches = WholeBatches(data, get_rank(), n, Alike)
        return note(iter(batches), batches.layout_of_share) if isinstance(data, Iterator) else batches
    if isinstance(data, Iterator) or not (hasattr(data, "shape") or hasattr(data, "__getitem__")):
        return note(every_nth(data, get_rank(), n), Layout("batches"))  # also trange()
    return each_array(lambda array: _share_of(array, share(len(array), get_rank(), n)), data)


def _share_of(array: Any, rows: list[int]) -> Any:
    return note(_rows(array, rows), Layout("entries", len(array), len(rows)))


def stretches(data: Any, batch: int) -> Any:
    """Return this rank's stretch of arrays, in whole batches, for a model that hands states on from batch to batch.

    Raises ``TypeError`` for what is no array: where a stream of batches ends is not known.
    """
    if data is None or parts() == 1:
        return data
    whole = isinstance(data, (Mapping, tuple, list)) or hasattr(data, "shape")
    if isinstance(data, _SEQUENCES) or not whole:
        raise TypeError(
            f"fit() got {type(data).__name__} for a stateful model: its batches form a stream, of which each rank "
            "needs a stretch; give fit() arrays, or shard the data yourself: distribute(model, shard_data=False)"
        )
    return each_array(lambda array: stretch(array, multiple=batch), data)


def each_array(function: Any, data: Any) -> Any:
    """Apply ``function`` to every array in a structure of tuples, dicts and lists of arrays."""
    if data is None:
        return None
    if isinstance(data, Mapping):
        return {name: each_array(function, part) for name, part in data.items()}
    if isinstance(data, tuple) or (isinstance(data, list) and any(hasattr(part, "shape") for part in data)):
        return type(data)(each_array(function, part) for part in data)
    return function(data)


def _rows(array: Any, rows: list[int]) -> Any:
    if hasattr(array, "iloc"):
        return array.iloc[rows]
    if isinstance(array, np.ndarray) or not hasattr(array, "shape"):
        return np.asarray(array)[rows]
    return (
        keras.ops.take(array, rows, axis=0) if hasattr(keras, "ops") else sys.modules["tensorflow"].gather(array, rows)
    )


def split(data: Any, fraction: float) -> tuple[Any, Any]:
    """Return all but the last ``fraction`` of the samples, and these, as ``fit`` splits them for validation."""

    def parts_of(last: bool) -> Any:
        def cut(array: Any) -> Any:
            at = int(len(array) * (1.0 - fraction))
            return array[at:] if last else array[:at]

        return each_array(cut, data)

    return parts_of(False), parts_of(True)


def _sequence(sequence: Any, rank: int, n: int, mine: int | None = None) -> Any:
    """Return every n-th batch of a Sequence: ``mine`` of them, or, padded, as many on all ranks."""
    whole = sequence.num_batches if hasattr(sequence, "num_batches") else len(sequence)  # None: endless
    if mine is None:
        check_enough(whole or 0, n, "batches")
    # How Keras 3 is to read it: in how many threads or processes.
    options = ("workers", "use_multiprocessing", "max_queue_size")
    base: Any = _SEQUENCES[0]
    reading = {name: getattr(sequence, name) for name in options if hasattr(base, name)}

    alike = Alike()  # local batches may have drawn more random numbers than another's, or less

    class Share(base):  # type: ignore[misc]
        """Every n-th batch of a Sequence, which all ranks shuffle alike."""

        def __len__(self) -> int:
            return -(-whole // n) if mine is None else mine

        @property
        def num_batches(self) -> int | None:
            return None if whole is None else len(self)

        def __getitem__(self, index: int) -> Any:
            place = index * n + rank
            return sequence[place if whole is None else place % whole]

        def on_epoch_end(self) -> None:
            with alike:
                sequence.on_epoch_end()

        def on_epoch_begin(self) -> None:
            if hasattr(sequence, "on_epoch_begin"):
                with alike:
                    sequence.on_epoch_begin()

    made = Share(**reading)
    return note(made, Layout("batches", whole, None if whole is None else len(made)))
