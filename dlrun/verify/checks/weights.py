"""Do the parts of a loss, and the classes in it, weigh as much as in the serial training, and alike on all ranks?"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from dlrun.verify.checks.data import batch_factor
from dlrun.verify.checks.lengths import fewer_steps
from dlrun.verify.trace import Run, Trace
from dlrun.verify.verdict import Check, failed

NAME = "weights in the loss"
TELLING = 3  # weights in a row, each other than the one before: a weight that follows the steps


def weights(identity: Run, run: Run) -> Check | None:
    """Return a check that failed because a weight that follows the steps does so as if n ranks made as many.

    Such as one of a warm-up of a Kullback-Leibler divergence. On all ranks it is what 1 rank has after as many steps.
    """
    if batch_factor(identity, run) == 1 or not fewer_steps(identity, run):
        return None
    n, (one, *ranks) = len(run.traces), (_by_place(trace) for trace in (identity.root, *run.traces))
    for (line, number), serial in one.items():
        common = list(zip(serial, *(rank.get((line, number), []) for rank in ranks), strict=False))
        full = [together for together in common if len({size for _, size, _ in together}) == 1]
        alike = all(math.isclose(one[0], weight, rel_tol=1e-6) for one, *others in full for weight, *_ in others)
        if alike and _follows([one for one, *_ in full]):
            first = full[0][0][0] or 1.0
            shown = " : ".join(f"{one[0] / first:.4g}" for one, *_ in full[:TELLING])
            finding = f"a part of the loss weighs {shown} in its first steps, as in the serial script, of whose steps "
            finding += f"{n} ranks make 1/{n}: the weight follows them too slowly"
            todo = "compute the weight from dl.serial_steps(step), which counts the serial script's"
            return failed(NAME, finding, todo, "schedule-too-long", where=line)
    return None


def classes(run: Run) -> Check | None:
    """Return a check that failed because a loss weighs classes otherwise on each rank, by numbers that stay; else None.

    Weights made anew of each batch are local, as its batches are.
    """
    mine, *others = (_of_classes(trace) for trace in run.traces)
    for line, weight in mine.items():
        rank = next((rank for rank, theirs in enumerate(others, 1) if theirs.get(line, weight) != weight), None)
        if rank is not None:
            finding = f"the loss weighs the classes otherwise on rank {rank} than on rank 0, by numbers that stay: as "
            finding += "where each rank counts those of its own share"
            todo = "count on all samples, before they are shared out"
            return failed(NAME, finding, todo, "weights-differ", where=line, rank=rank)
    return None


def _of_classes(trace: Trace) -> dict[str, str]:
    """Return, by line, the hash of a loss's class weights that are the same in its first two steps."""
    found: dict[str, list[str]] = {}
    for step in trace.steps:
        for line, made in {e.at: e.facts.get("classes", "") for e in step.before if e.kind == "weighs"}.items():
            found.setdefault(line, []).append(made)
    return {line: every[0] for line, every in found.items() if every[0] and every[:2] == [every[0]] * 2}


def _by_place(trace: Trace) -> dict[tuple[str, int], list[tuple[float, int, bool]]]:
    """Return each step's weights, the samples read for it, and whether an epoch has begun before.

    By the line that makes a part of the loss, and the part's number there, from 0.
    """
    found: dict[tuple[str, int], list[tuple[float, int, bool]]] = {}
    for step in trace.steps:
        size, begun = sum(len(e["indices"] or ()) for e in step.before if e.kind == "batch"), step.count("epoch") > 0
        many: Counter[str] = Counter()
        for e in (e for e in step.before if e.kind == "weight"):
            found.setdefault((e["made"], many[e["made"]]), []).append((e["weight"], size, begun))
            many[e["made"]] += 1
    return found


def _follows(weights: list[tuple[float, int, bool]]) -> bool:
    """Whether weights rise, or fall, from step to step, also where no epoch begins."""
    pairs = [(a, b, begun) for (a, *_), (b, _, begun) in pairwise(weights) if not math.isclose(a, b, rel_tol=1e-6)]
    one_way = len({b > a for a, b, _ in pairs}) == 1
    return one_way and len(pairs) >= TELLING - 1 and any(not begun for *_, begun in pairs)
