"""Which entries of an array are a rank's: of samples that come one after the other, or of one batch of all ranks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

import dl_comm
from dl_comm.ranks import check_enough, is_rank0, parts, share

_MANY = 1000  # fewer samples are not worth a word about time
_told: set[tuple[str, int]] = set()  # of what, and how many, rank 0 has said that ranks do not divide them
_repeated: set[int] = set()  # the lengths of global batches that n does not divide, shared in equal lengths


def positions(length: int, rank: int, n: int, batch: str = "local", equal: bool = True) -> list[int]:
    """Return the positions of rank ``rank`` of n in an array with ``length`` entries.

    They are r, r + n, ...: padded from the beginning to equal lengths; without ``equal`` as they are; of a ``"global"``
    batch repeated until n divides them, so that every entry occurs n / gcd(length, n) times on the ranks together.

    Raises ``dl_comm.CommError`` where there is less than one for each rank; of a global batch, where all n are exact
    with fewer, too, rank 0 warns that ranks repeat each other's work.
    """
    if batch == "global" and equal and length:
        common = math.gcd(length, n)
        if common < n:
            _repeated.add(length)
        if length < n or (common < n and length >= _MANY):
            _warn_of_repeated(length, n, length // common)
        return [position % length for position in range(rank, length * n // common, n)]
    check_enough(length, n)
    return share(length, rank, n) if equal else list(range(rank, length, n))


def _warn_of_repeated(length: int, n: int, mine: int) -> None:
    """Let rank 0 say that ``mine`` entries on each rank are more than their share."""
    if is_rank0():
        best = f"with {length - length % n} it would take {length // n}" if length >= n else "some repeat others' work"
        warnings.warn(
            f"{length} samples do not divide among {n} ranks: for the exact mean each takes {mine}; {best}",
            stacklevel=5,
        )


def tell_padded(length: int, n: int, of: str = "positions", first: bool | None = None) -> None:
    """Let rank 0 say, once for each length, that some ``of`` a loop are taken twice so that all ranks have as many.

    A loader's batches are made equal otherwise; of positions that a script slices itself, and of a stream, nothing more
    is known. ``first``: whether this is rank 0, where a worker's process cannot ask.
    """
    if not length % n or (of, length) in _told:
        return
    _told.add((of, length))
    more = n - length % n
    if is_rank0() if first is None else first:
        taken = "1 of them is" if more == 1 else f"{more} of them are"
        warnings.warn(
            f"{n} ranks do not divide {length} {of}: {taken} taken twice, and what the script adds up over "
            f"its iterations counts them twice. Launch a number of ranks that divides {length}",
            stacklevel=4,
        )


def check_side_by_side(lengths: Sequence[int]) -> None:
    """Raise ``dl_comm.CommError`` when arrays that are to hold the same samples differ in length."""
    if len(set(lengths)) > 1:
        raise dl_comm.CommError(
            f"shard: arrays of one batch have {' and '.join(map(str, lengths))} entries",
            "Leave out what holds no samples: shard(batch='global') takes arrays with one entry per sample.",
        )


def partial_sum(value: Any) -> Any:
    """Return ``value``, a sum over this rank's share of the samples, times n: the mean over ranks is the whole sum.

    For losses that are sums: the gradients' mean is then that of the sum over all samples. ``value`` is a tensor, an
    array or a number. On one rank, and where all repeat the serial run (``DL_COMM_REPLICATE``), it comes back itself.

    Rank 0 warns, once, where a global batch was shared in equal lengths with entries repeated: means over such shares
    are exact, but sums count these entries as often as they occur.
    """
    tell_repeated("partial_sum", "; or, where every loss is a sum, shard(..., equal=False)")
    return value if parts() == 1 else value * parts()


def tell_repeated(what: str, otherwise: str = "") -> None:
    """Let rank 0 say, once for each length, that ``what`` counts samples of global batches that ranks repeat."""
    lengths = [length for length in _repeated if (what, length) not in _told]
    if not lengths or parts() == 1:
        return
    _told.update((what, length) for length in lengths)
    if is_rank0():
        warnings.warn(
            f"{what}: {min(lengths)} samples do not divide among {parts()} ranks, and were shared in equal"
            " lengths with some repeated: a sum over them counts these several times. Launch a number of "
            f"ranks that divides them{otherwise}",
            stacklevel=3,
        )


def check_fits(totals: np.ndarray[Any, Any], dtype: str) -> None:
    """Raise ``dl_comm.CommError`` where a sum of integers over the ranks is none of ``dtype``, as 400 is no uint8."""
    bounds = np.iinfo(dtype)
    wrong = totals[(totals < bounds.min) | (totals > bounds.max)]
    if wrong.size:
        raise dl_comm.CommError(
            f"total: the sum over the ranks is {wrong.flat[0]:.0f}, and {dtype} goes from {bounds.min} to {bounds.max}",
            f"convert to {'int64' if bounds.bits < 64 else 'float64, which rounds,'} before total()",
        )
