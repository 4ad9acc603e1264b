"""How many samples a step takes where no loader tells: the rows that the model is given."""

from __future__ import annotations

import math

from dlrun.verify.checks.coverage import Rows, inputs_of
from dlrun.verify.trace import Run, Trace


def repeats(serial: Trace, run: Run) -> int:
    """Return how often each sample counts where every step takes all, and not all ranks the same; 0 else."""
    inputs = [given for given in inputs_of(serial, run) if not given.alike]
    return inputs[0].repeated if inputs else 0


def batch_sizes(serial: Trace, run: Run) -> tuple[int, list[int]]:
    """Return the rows of the model's first input that changes, of the serial script and of each rank; 0 for none.

    Serial batches may differ in length, as where each is one sequence, or holds what some episodes were long: a rank
    that is given one of them, or on the average nearer as many rows than 1/n of them, has its size.
    """
    inputs = inputs_of(serial, run)
    if not inputs:
        return 0, []
    given = next((each for each in inputs if not each.alike), inputs[0])
    size, mean = len(given.serial[0]), _mean_length(given.serial)
    varies = len({len(rows) for rows in given.serial}) > 1
    few = mean / math.sqrt(len(given.ranks))
    whole = [rank[0] in given.serial or (varies and few < _mean_length(rank) < 2 * mean) for rank in given.ranks]
    return size, [size if full else len(rank[0]) for full, rank in zip(whole, given.ranks, strict=True)]


def _mean_length(steps: Rows) -> float:
    return sum(map(len, steps)) / len(steps)
