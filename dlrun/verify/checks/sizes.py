"""How many samples a step takes where no loader tells: the rows that the model is given."""

from __future__ import annotations

import math

from dlrun.verify.checks.given import Rows, inputs_of
from dlrun.verify.trace import Epoch, Run, Trace
from dlrun.verify.verdict import Check, failed


def repeats(serial: Trace, run: Run) -> int:
    """Return how often each sample counts where every step takes all, and not all ranks the same; 0 else."""
    inputs = [given for given in inputs_of(serial, run) if not given.alike]
    return inputs[0].repeated if inputs else 0


def is_sharded(serial: Trace, run: Run) -> bool:
    """Whether the ranks draw what the serial script draws, and share each of its batches, which no loader makes."""
    inputs = [given for given in inputs_of(serial, run) if given.tells and not given.alike]
    pairs = [pair for trace in run.traces for pair in zip(serial.steps, trace.steps, strict=False)]
    alike = all(a.states.get(name) == b.states.get(name) for a, b in pairs for name in {*a.drew, *b.drew})
    return alike and bool(inputs) and all(given.divided for given in inputs)


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


def part_given(trace: Trace) -> float:
    """Return how much of the first batch of a loader the model is given, in rows of its first input; 0 if unknown."""
    size = 0
    for event in trace.steps[0].before if trace.steps else ():
        if event.kind == "batch":
            size = len(event["indices"] or ())
        elif event.kind == "forward" and size and (rows := [*event.facts.get("rows", {}).values()]):
            return len(rows[0]) / size
    return 0.0


def uneven(run: Run) -> str:
    """Say which batch of the first epoch is of another length on some rank, by more than one sample; empty of none."""
    first = [next((epoch for epoch in trace.epochs if epoch.trains), None) for trace in run.traces]
    every = [(*epoch.batches, *epoch.rest) for epoch in first if epoch is not None]
    for number, together in enumerate(zip(*every, strict=False), 1):
        sizes = [len(batch or ()) for batch in together]
        if all(sizes) and max(sizes) > min(sizes) + 1:
            return (
                f"; batch {number} is of {' and '.join(map(str, sizes))}: in the mean over ranks a sample of the "
                f"smaller one counts {max(sizes) / min(sizes):.2g} times as much"
            )
    return ""


def cut_twice(identity: Run, run: Run, name: str, at: str) -> Check | None:
    """Return a check that failed because each rank gives its model 1/n of its share of the samples; None else."""
    n, whole = len(run.traces), part_given(identity.root)
    given = [part_given(trace) for trace in run.traces]
    if not whole or not all(math.isclose(part * n, whole, rel_tol=0.1) for part in given):
        return None
    finding = f"each rank gives the model 1/{n} of the samples that it reads, and they are its share already: the rest "
    todo = "share the data once: by dl.shard(), or by the rank's number"
    return failed(name, f"{finding}are trained on by none", todo, "lost-samples", where=at)


def cut_again(expected: Epoch, first: list[Epoch], drops: bool, name: str) -> Check | None:
    """Return a check that failed because ranks read parts of data sets that are shares already; None of others."""
    every = (expected, *first)
    if not all(epoch.complete and epoch.samples for epoch in every):
        return None
    whole, *parts = (len(set(epoch.samples or ())) for epoch in every)
    spare = len(first) * len(first[0].batches[0] or ()) if drops else max(len(first), whole // 10)
    if sum(parts) >= whole - spare:
        return None
    finding = (
        f"the ranks' data sets hold {' and '.join(str(epoch.size) for epoch in first)} samples, of which an epoch "
    )
    finding += f"reads {' and '.join(map(str, parts))}, and 1 rank reads {whole}"
    todo = "share the data once: by dl.shard(), or by the rank's number"
    return failed(name, finding, todo, "lost-samples", where=first[0].at)


def _mean_length(steps: Rows) -> float:
    return sum(map(len, steps)) / len(steps)
