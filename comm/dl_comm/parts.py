"""How much this rank's part of a global batch weighs: ranks whose parts are not of one size count by their samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_weight: Any = None  # of the step that is run, or traced: a number, a tensor, or a function that returns the graph's


@contextmanager
def weighing(weight: Any) -> Iterator[None]:
    """Let the gradients that are averaged under it count ``weight`` times: n times the part's share of the samples."""
    global _weight
    before, _weight = _weight, weight
    try:
        yield
    finally:
        _weight = before


def set_weight(weight: Any) -> None:
    """Let the gradients that are averaged from here on count ``weight`` times; None: once."""
    global _weight
    _weight = weight


def weight_of_gradients() -> float:
    """Return how often this rank's gradients count now: 1 but for batches that the ranks do not divide."""
    return _weight if isinstance(_weight, float) else 1.0


def weighed(grads: list[Any], times: Callable[[Any, Any], Any] = lambda grad, weight: grad * weight) -> list[Any]:
    """Return the gradients times the weight of the samples that they are of; ``None`` stays ``None``."""
    weight = _weight() if callable(_weight) else _weight
    if weight is None or (isinstance(weight, float) and weight == 1.0):
        return grads
    return [None if grad is None else times(grad, weight) for grad in grads]


def bounds(length: Any, rank: int, n: int) -> tuple[Any, Any]:
    """Return where rank ``rank``'s part of ``length`` entries begins and ends: sizes differ by one at most."""
    return rank * length // n, (rank + 1) * length // n


def share_of(length: int, rank: int, n: int) -> int:
    """Return how many of ``length`` entries rank ``rank`` takes where the first ranks have one more.

    Of fewer entries no rank has more than of many, which ``bounds`` does not hold to.
    """
    return length // n + (rank < length % n)


def undivided(size: int, n: int) -> str:
    """Return what rank 0 says of global batches of a size that n does not divide."""
    return (
        f"{n} ranks do not divide a global batch of {size}: gradients count by a rank's samples, and are exact; "
        "means that are shown are means of the ranks' means"
    )
