"""Do the ranks mean the same sample by the same number, where those number what they read?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

from dlrun.verify.trace import Epoch, Run, Trace
from dlrun.verify.verdict import Check, failed, passed

ALIKE = "make the data alike on all ranks, under one seed: dl.reseed() comes after it"
ENOUGH = 8  # samples that 1 rank and rank 0 were seen to read alike, so that noise of the training's is ruled out


def contents(identity: Run, run: Run, name: str) -> Check | None:
    """Return a check that failed because ranks made, or read, data of their own; None where they are alike.

    What reaches the model is compared by its samples' numbers. Samples that are changed as they are read, or noise that
    is added to them, differ between 1 rank and rank 0, too: of those nothing can be said. Rank 0 goes on drawing what 1
    rank draws: what both read in the same row of the same step is no evidence.
    """
    expected, *ranks = (rows_by_number(trace) for trace in (identity.root, *run.traces))
    one, other = _places(identity.root), _places(run.root)
    for given in expected:
        mine = expected[given].keys() & ranks[0][given].keys()
        mine = {i for i in mine if one[i].isdisjoint(other[i])}
        if len(mine) < ENOUGH or any(set(expected[given][i]) != set(ranks[0][given][i]) for i in mine):
            continue
        for rank, theirs in enumerate(ranks[1:], 1):
            shared = expected[given].keys() & theirs[given].keys()
            apart = sorted(i for i in shared if set(expected[given][i]) != set(theirs[given][i]))
            if apart:
                finding = f"sample {apart[0]} is another one on rank {rank} than on rank 0 ({given}), and so are "
                finding += f"{len(apart) - 1} more of {len(shared)}: each rank shares out data of its own"
                where = next(epoch.at for epoch in run.root.epochs if epoch.trains)
                return failed(name, finding, ALIKE, "data-differs", where=where, rank=rank)
    return None


def made_otherwise(identity: Run, run: Run, name: str) -> Check | None:
    """Return a check that failed because ranks hold rows that 1 rank does not, beside parts that are its own.

    As where each has scaled its samples by the mean of its share; the targets tell that they are the same samples.
    Without targets their number does, where all ranks draw the same random numbers until then.
    """
    for one, *others in zip(*(trace.all("held rows") for trace in (identity.root, *run.traces)), strict=False):
        parts = {key: [each["rows"].get(key, []) for each in others] for key in one["rows"]}
        alike = [key for key, ranks in parts.items() if _tells(one["rows"][key]) and _shares(one["rows"][key], ranks)]
        for key, ranks in parts.items():
            new = {row for rows in ranks for row in rows} - set(one["rows"][key])
            alone = not alike and _all_new(one["rows"][key], ranks) and _draw_alike(run.traces)
            if (alike and new and all(ranks)) or alone:
                finding = f"{len(new)} rows of {key} in the ranks' data sets are none that 1 rank has, though "
                finding += f"those of {alike[0]} are" if alike else "they are as many, and nothing is drawn otherwise"
                finding += ": each rank has computed them from its own share, as with its mean"
                todo = "compute what samples are scaled by, or encoded with, from all of them, before sharing"
                where = next(epoch.at for epoch in run.root.epochs if epoch.trains)
                return failed(name, finding, todo, "data-differs", where=where)
    return None


def _all_new(one: list[int], ranks: list[list[int]]) -> bool:
    """Whether ranks hold as many rows as 1 rank, in shares of them, and hardly any that it has."""
    known, many = set(one), sum(map(len, ranks))
    shares = all(len(rows) >= ENOUGH for rows in ranks) and len(one) <= many < len(one) + len(ranks)
    return shares and 2 * len(known) > len(one) and 10 * sum(row in known for rows in ranks for row in rows) < many


def _draw_alike(traces: Sequence[Trace]) -> bool:
    """Whether the script has seeded what it draws from, alike on all ranks, when their data were made."""
    found = []
    for trace in traces:
        kinds = [event.kind for event in trace.events]
        before = trace.events[: kinds.index("held rows")]
        if any(event.kind == "return" and event["fn"] == "reseed" for event in before):
            return False
        drawn = [event for event in before if event.kind in ("seed", "draw", "order")]
        found.append([event.facts.get("seed", event.facts.get("hash")) for event in drawn])
    return "seed" in {event.kind for event in drawn} and all(each == found[0] for each in found)


def own_samples(run: Run, first: Sequence[Epoch], name: str) -> Check | None:
    """Judge data sets that are local, such as episodes that it plays; None of others."""
    if not _of_their_own(run.traces, first):
        return None
    where = first[0].at
    if any(first[0].loader in call["loaders"] for call in run.root.returns("shard")):
        finding = "the ranks' data sets hold other samples each, and dl.shard() shards one of them on all ranks"
        return failed(name, finding, ALIKE, "data-differs", where=where)
    kinds = [(event.kind, event.facts.get("fn"), event.facts.get("loader")) for event in run.root.events]
    made, reseeded = ("loader", None, first[0].loader), ("return", "reseed", None)
    if made not in kinds or reseeded not in kinds[: kinds.index(made)]:
        return None
    many = len(first[0].samples or ())
    return passed(name, f"each rank reads {many} samples of its own, made after dl.reseed(), as of episodes")


def _of_their_own(traces: Sequence[Trace], epochs: Sequence[Epoch]) -> bool:
    """Whether the data sets that these epochs go through are known to hold other samples in each trace.

    A part that some have not filled yet, as a cache, or that each draws, such as noise, is beside others.
    """
    first, *others = (
        {key: set(rows) for key, rows in _held(*pair).items()} for pair in zip(traces, epochs, strict=True)
    )
    many = [key for key, rows in first.items() if len(rows) >= ENOUGH]
    return bool(many) and all(
        10 * len(first[key] & rows.get(key, first[key])) < len(first[key]) for key in many for rows in others
    )


def _held(trace: Trace, epoch: Epoch) -> dict[str, list[int]]:
    return next((e["rows"] for e in trace.all("held rows") if e["data"] == epoch.data), {})


def _tells(rows: list[int]) -> bool:
    """Whether rows are those of known samples if they are as many: not ends of episodes, which come regularly."""
    counts = Counter(rows)
    rarest = min(counts, key=lambda row: counts[row], default=0)
    places = [place for place, row in enumerate(rows) if row == rarest]
    return 2 * len(counts) > len(rows) > 1 or len({b - a for a, b in pairwise(places)}) > 1


def _shares(whole: list[int], ranks: list[list[int]]) -> bool:
    """Whether the ranks' rows together are all, each once, or each rank has all."""
    together = Counter(row for rows in ranks for row in rows)
    return together == Counter(whole) or all(Counter(rows) == Counter(whole) for rows in ranks)


def read_otherwise(serial: Run, run: Run) -> bool:
    """Whether samples are changed at random as they are read: other than the serial ones, and from time to time."""
    expected, *theirs = (rows_by_number(trace) for trace in (serial.root, *run.traces))
    other = any(
        set(rows).isdisjoint(expected[given].get(number, rows))
        for samples in theirs
        for given in samples
        for number, rows in samples[given].items()
    )
    every = [rows for samples in (expected, *theirs) for numbers in samples.values() for rows in numbers.values()]
    return other and any(len(set(rows)) > 1 for rows in every)


def _places(trace: Trace) -> dict[int, set[tuple[int, int]]]:
    """Return, by a sample's number, the steps that read it and its row there."""
    found: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for step in trace.steps:
        for event in step.before:
            for row, number in enumerate(event["indices"] or () if event.kind == "batch" else ()):
                found[number].add((step.number, row))
    return found


def rows_by_number(trace: Trace) -> dict[str, dict[int, list[int]]]:
    """Return what the model was given of each sample, in turn, by its input's name, where a step reads one batch.

    Rows of other lengths are another input: a sequence is as long as the longest of its batch.
    """
    found: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for step in trace.steps:
        read = [event["indices"] for event in step.before if event.kind == "batch"]
        forward = next((event for event in step.before if event.kind == "forward"), None)
        for name, rows in forward.facts.get("rows", {}).items() if forward is not None else ():
            if len(read) == 1 and read[0] and len(rows) == len(read[0]):
                length = forward.facts.get("lengths", {}).get(name, "") if forward is not None else ""
                for number, row in zip(read[0], rows, strict=True):
                    found[f"{name} of {length}" if length else name][number].append(row)
    return found
