"""Do the ranks mean the same sample by the same number, where those number what they read?"""

from __future__ import annotations

from collections import defaultdict

from dlrun.verify.trace import Run, Trace
from dlrun.verify.verdict import Check, failed

ENOUGH = 8  # samples that 1 rank and rank 0 were seen to read alike, so that noise of the training's is ruled out


def contents(identity: Run, run: Run, name: str) -> Check | None:
    """Return a check that failed because ranks made, or read, data of their own; None where they are alike.

    What reaches the model is compared by its samples' numbers. Samples that are changed as they are read, or noise that
    is added to them, differ between 1 rank and rank 0, too: of those nothing can be said.
    """
    expected, *ranks = (_by_number(trace) for trace in (identity.root, *run.traces))
    for given in expected:
        mine = expected[given].keys() & ranks[0][given].keys()
        if len(mine) < ENOUGH or any(expected[given][i] != ranks[0][given][i] for i in mine):
            continue
        for rank, theirs in enumerate(ranks[1:], 1):
            shared = expected[given].keys() & theirs[given].keys()
            apart = sorted(i for i in shared if expected[given][i] != theirs[given][i])
            if apart:
                finding = f"sample {apart[0]} is another one on rank {rank} than on rank 0 ({given}), and so are "
                finding += f"{len(apart) - 1} more of {len(shared)}: each rank shares out data of its own"
                todo = "make the data alike on all ranks, under one seed: dl.reseed() comes after it"
                where = next(epoch.at for epoch in run.root.epochs if epoch.trains)
                return failed(name, finding, todo, "data-differs", where=where, rank=rank)
    return None


def _by_number(trace: Trace) -> dict[str, dict[int, set[int]]]:
    """Return what the model was given of each sample, by its input's name, where a step reads one batch."""
    found: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for step in trace.steps:
        read = [event["indices"] for event in step.before if event.kind == "batch"]
        forward = next((event for event in step.before if event.kind == "forward"), None)
        for name, rows in forward.facts.get("rows", {}).items() if forward is not None else ():
            if len(read) == 1 and read[0] and len(rows) == len(read[0]):
                for number, row in zip(read[0], rows, strict=True):
                    found[name][number].add(row)
    return found
