"""A latency-bandwidth model of a data-parallel step, fitted to the measured rates.

Each rank spends on one sample the time tau(n) = n / rate(n). Computing takes its share c of it, longer where the ranks
of a node share cores: c * max(1, ranks / cores). Averaging the gradients takes, per step, b (n-1)/n for the bytes that
each rank moves (the bandwidth-optimal allreduce: Patarasuk and Yuan 2009) and l * log2(n) for the messages on the way;
per sample that is the same in a weak run, and n times as much in a strong one, whose ranks have 1/n of the batch.

c is the measured time on the fewest ranks; b and l are fitted by least squares and are never negative. With two
measured points beyond the first, only b is fitted: two parameters would hit two points whatever they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlrun.scale.result import STRONG


@dataclass(frozen=True)
class Model:
    """Seconds per sample and rank: computing, moving bytes, latency; and what it takes to apply them."""

    mode: str
    cores: int
    compute: float
    bandwidth: float
    latency: float

    def rate(self, ranks: int, shared: bool = True) -> float:
        """Samples per second on so many ranks; `shared`: all on one node, as measured, else cores for every rank."""
        crowd = max(1.0, ranks / self.cores) if shared else 1.0
        moved, hops = terms(self.mode, ranks)
        return ranks / (self.compute * crowd + self.bandwidth * moved + self.latency * hops)


def terms(mode: str, ranks: int) -> tuple[float, float]:
    """What b and l are multiplied by."""
    factor = ranks if mode == STRONG else 1
    return factor * (ranks - 1) / ranks, factor * math.log2(ranks)


def fit(mode: str, rates: Mapping[int, float], cores: int) -> Model:
    """The model through the measured rates (ranks -> rate)."""
    fewest = min(rates)
    compute = fewest / rates[fewest] / max(1.0, fewest / cores)
    points = []
    for ranks in sorted(rates):
        if ranks > 1 and (ranks > fewest or fewest > 1):
            rest = ranks / rates[ranks] - compute * max(1.0, ranks / cores)
            points.append((*terms(mode, ranks), rest))
    bandwidth, latency = _least_squares(points, both=len(points) > 2)
    return Model(mode, cores, compute, bandwidth, latency)


def _least_squares(points: Sequence[tuple[float, float, float]], both: bool) -> tuple[float, float]:
    """(b, l), neither negative, with the least sum of (b x + l y - rest)^2; l is 0 unless both are fitted."""
    xx = sum(x * x for x, _, _ in points)
    yy = sum(y * y for _, y, _ in points)
    xy = sum(x * y for x, y, _ in points)
    xr = sum(x * r for x, _, r in points)
    yr = sum(y * r for _, y, r in points)
    only_b = (max(0.0, xr / xx) if xx else 0.0, 0.0)
    determinant = xx * yy - xy * xy
    if not both or determinant <= 1e-12 * xx * yy:
        return only_b
    bandwidth, latency = (xr * yy - yr * xy) / determinant, (yr * xx - xr * xy) / determinant
    if bandwidth >= 0 and latency >= 0:
        return bandwidth, latency
    only_l = (0.0, max(0.0, yr / yy))
    return min(only_b, only_l, key=lambda p: sum((p[0] * x + p[1] * y - r) ** 2 for x, y, r in points))


def errors(mode: str, rates: Mapping[int, float], cores: int) -> dict[int, float]:
    """Ranks -> by which share the model misses that measured rate when it was fitted without it.

    The fewest ranks, on which everything rests, have no such error; nor has anything with fewer than three points.
    """
    found = {}
    fewest = min(rates)
    if len(rates) < 3:
        return {}
    for ranks in rates:
        if ranks != fewest:
            model = fit(mode, {n: r for n, r in rates.items() if n != ranks}, cores)
            found[ranks] = model.rate(ranks) / rates[ranks] - 1
    return found
