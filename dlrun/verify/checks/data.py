"""Is each sample read by one rank, and is the global batch what was promised?"""

from __future__ import annotations

import math
from collections import Counter

from dlrun.verify.checks.contents import contents, made_otherwise, own_samples
from dlrun.verify.checks.coverage import NAME, coverage
from dlrun.verify.checks.gradients import uses
from dlrun.verify.checks.orders import one_order, other_order
from dlrun.verify.checks.sizes import batch_sizes, cut_again, cut_twice, part_given, repeats, uneven
from dlrun.verify.checks.stretches import stretches
from dlrun.verify.trace import Epoch, Event, Run, Trace
from dlrun.verify.verdict import Check, failed, passed, skipped

BATCH = "global batch"
SHARD = "give the training loader to dl.shard(): loader = dl.shard(loader)"


def training(trace: Trace) -> list[Epoch]:
    """Return the passes over loaders whose batches went into backward."""
    return [epoch for epoch in trace.epochs if epoch.trains]


def shards(identity: Run, run: Run) -> Check:
    """Judge the first training epoch, and that of each further loader that trains."""
    expected, *epochs = (_by_loader(trace) for trace in (identity.root, *run.traces))
    if not expected or not all(epochs) or cut_later(run):
        return _without_loader(identity, run)
    judged = [_judged(identity, run, one, list(first)) for one, *first in zip(expected, *epochs, strict=False)]
    return next((check for check in judged if check.status == "failed"), judged[0])


def _by_loader(trace: Trace) -> list[Epoch]:
    """Return the first training epoch of each loader."""
    found: dict[int, Epoch] = {}
    for epoch in training(trace):
        found.setdefault(epoch.loader, epoch)
    return list(found.values())


def _made_at(run: Run, epoch: Epoch) -> str:
    """Return the line that made a loader, where several train; nothing where that is not known, or there is one."""
    several = len({each.loader for each in training(run.root)}) > 1
    return next((e.at for e in run.root.all("loader") if several and e["loader"] == epoch.loader), "")


def _judged(identity: Run, run: Run, expected: Epoch, first: list[Epoch]) -> Check:
    """Judge an epoch: disjoint shards that cover what 1 rank reads, ``expected``, with as many batches each."""
    n, place = len(run.traces), {"where": _made_at(run, first[0]) or first[0].at}
    if own := made_otherwise(identity, run, NAME):
        return own
    whole, parts = expected.samples, [epoch.samples for epoch in first]
    if any(epoch.size != expected.size for epoch in first):
        drops = any(event["drop_last"] for event in identity.root.all("loader"))
        lost = _of_their_own(expected, first, _to_have_all(run, first)) or cut_again(expected, first, drops, NAME)
        return lost or _without_loader(identity, run)
    if whole is None or any(part is None for part in parts):
        return _by_content(first, place)
    counts = [len(epoch.batches) + len(epoch.rest) for epoch in first]
    shares = [part or [] for part in parts]
    complete = all(epoch.complete for epoch in first)
    if own := own_samples(run, first, NAME):
        return own
    if all(Counter(share) == Counter(whole) for share in shares):
        order = "in the same order" if all(share == shares[0] for share in shares) else "each in its own order"
        finding = f"every rank reads all {len(whole)} samples, {order}: {n} ranks do the same work"
        return failed(NAME, finding, SHARD, "unsharded-loader", **place)
    if complete and len(set(counts)) > 1:
        other = next(r for r, count in enumerate(counts) if count != counts[0])
        finding = f"an epoch has {counts[0]} batches on rank 0 and {counts[other]} on rank {other}: one waits for ever"
        todo = "shard with dl.shard(), which pads every rank to the same number of batches"
        return failed(NAME, finding, todo, "uneven-steps", **place, rank=other)
    sizes = ", ".join(str(len(set(share))) for share in shares)
    read, every = len({i for share in shares for i in share}), len(set(whole))
    twice = sum(len(set(share)) for share in shares) - read
    cover = f"{read} of the {every} samples: the last batches are left out" if read < every else f"the {every} samples"
    finding = f"{n} {'' if twice else 'disjoint '}shards of {sizes} cover {cover}"
    drawn = len(whole) > every
    reason = "as in the serial run, which draws them with replacement" if drawn else "for shares of equal length"
    finding += f"; {twice} of them are read twice, {reason}" if twice else ""
    wrong = _covered(identity, expected, shares, first, _to_have_all(run, first)) or _leak(identity, run, shares)
    wrong = wrong or contents(identity, run, NAME) or cut_twice(identity, run, NAME, first[0].at)
    again = one_order(training(identity.root), training(run.root), NAME)
    return wrong or again or passed(NAME, finding)


def _to_have_all(run: Run, first: list[Epoch]) -> str:
    """Return what to do where samples reach no rank."""
    divided = any(first[0].loader in call["loaders"] for call in run.root.returns("shard"))
    whole = "dl.shard() shards what the loader reads: let that be all samples, not one rank's part of them"
    return whole if divided else SHARD


def _of_their_own(expected: Epoch, first: list[Epoch], todo: str) -> Check | None:
    """Return a check that failed because data sets that ranks made of their shares lack samples; None of others."""
    sizes, spare = [epoch.size or 0 for epoch in first], len(first) * len(first[0].batches[0] or ())
    if not all(sizes) or not expected.size or sum(sizes) >= expected.size - max(spare, expected.size // 10):
        return None  # windows of a text, say, are fewer in shares of it
    finding = f"the ranks' data sets hold {sum(sizes)} samples together, that of 1 rank {expected.size}"
    return failed(NAME, finding, todo, "lost-samples", where=first[0].at)


def cut_later(run: Run) -> bool:
    """Whether every rank reads the same first batch, of which each then takes its part: by dl.shard(), or its step."""
    read = [[epoch.hashes[0] for epoch in training(trace)[:1] if epoch.hashes] for trace in run.traces]
    kinds = [e.kind for e in run.root.events if e.kind == "batch" or (e.kind == "return" and _cuts(e))]
    cut = "return" in kinds[kinds.index("batch") :] if read[0] else False
    parted = next(run.root.all("parts"), None) is not None
    cut = cut or parted or 0 < part_given(run.root) * len(run.traces) < 1.5
    return cut and all(first == read[0] for first in read)


def _cuts(returned: Event) -> bool:
    return returned["fn"] == "shard" and not returned.facts.get("loaders")


def _covered(identity: Run, one: Epoch, shares: list[list[int]], first: list[Epoch], todo: str) -> Check | None:
    """Return what is wrong with the union of the shards, None where it is the serial run's epoch, ``one``."""
    whole = one.samples or []
    if not all(epoch.complete for epoch in (*first, one)):
        return skipped(NAME, f"the run ended within its first epoch, after {len(shares[0])} samples on rank 0")
    n, batch = len(shares), len(first[0].batches[0] or ())
    expected, got = Counter(whole), sum((Counter(share) for share in shares), Counter())
    missing, extra = (expected - got).total(), (got - expected).total()
    if one.made and abs(got.total() - expected.total()) <= n * batch and _once(got, expected, n):
        return None  # chosen by the model, and the ranks' is another one by now
    if any(expected.keys().isdisjoint(share) for share in shares):
        finding = f"a rank reads none of the {len(expected)} samples that 1 rank does, but others"
        todo = "let 1 rank read all, and n ranks shares of them: range(rank, len(data), n)"
        return failed(NAME, finding, todo, "other-samples", where=first[0].at)
    drops = any(event["drop_last"] for event in identity.root.all("loader"))
    spare = n * batch
    if len(set(expected.values())) > 1 and (missing or extra):
        return skipped(NAME, "samples are drawn with replacement: what the ranks' shares cover is chance")
    if extra > spare and all(len(share) == len(whole) for share in shares):  # the last batch left out, another on each
        finding = f"every rank reads {len(whole)} samples, as many as 1 rank, in an order of its own: {n} ranks do {n} "
        return failed(NAME, f"{finding}times the work", SHARD, "unsharded-loader", where=first[0].at)
    if extra > spare or (extra >= n and missing > 0 and not drops):
        finding = f"{extra} samples are read by more than one rank, and {missing} of {len(expected)} by none"
        alike = "split the data alike on all ranks (one seed), then shard it with dl.shard()"
        return failed(NAME, finding, alike, "overlapping-shards", where=first[0].at)
    stretched = all(_follows(whole, share) for share in shares)  # in whole batches: what is left over is not read
    if missing > (spare if drops or stretched else 0):
        finding = f"{missing} of {len(expected)} samples are read by no rank"
        return failed(NAME, finding, todo, "lost-samples", where=first[0].at)
    return None


def _once(got: Counter[int], expected: Counter[int], n: int) -> bool:
    """Whether the ranks read no sample more often than some are on 1 rank, but for those that make shares equal."""
    most = max(expected.values(), default=1)
    return sum(max(0, count - most) for count in got.values()) < n


def _follows(whole: list[int], share: list[int]) -> bool:
    """Tell whether ``share`` is a stretch of ``whole``, in order."""
    begin = whole.index(share[0]) if share and share[0] in whole else 0
    return len(share) > 1 and whole[begin : begin + len(share)] == share


def _leak(identity: Run, run: Run, shares: list[list[int]]) -> Check | None:
    """Return a check that failed because one rank trains on what another one tests on, None where none does."""
    trained = {i for share in shares for i in share}
    serial, tested = set(training(identity.root)[0].samples or ()), [_tested(trace) for trace in run.traces]
    if _tested(identity.root, whole=True) & serial or (tested[0] <= serial and tested.count(tested[0]) == len(tested)):
        return None  # as a fold is by the next, or by a look at how well the training samples are known
    for trace in run.traces:
        leaked = len(_tested(trace) & trained)
        if leaked:
            finding = f"{leaked} samples that rank {trace.rank} tests on are trained on by another rank"
            todo = "split the data under the same seed on all ranks, before sharding"
            return failed(NAME, finding, todo, "leaking-split", where=training(trace)[0].at, rank=trace.rank)
    return None


def _tested(trace: Trace, whole: bool = False) -> set[int]:
    """Return the samples that a rank tests on, of the data set that it trains on first; each run has its numbers.

    ``whole``: also those of passes over the training loader itself, if they come to its end.
    """
    train = training(trace)[0]
    tests = [e for e in trace.epochs if not e.trains and e.data == train.data]
    others = [e for e in tests if e.loader != train.loader or (whole and e.complete)]
    return {i for epoch in others for i in epoch.samples or ()}


def _by_content(first: list[Epoch], place: dict[str, str]) -> Check:
    """Judge by the batches' contents, where samples have no numbers."""
    hashes = [set(epoch.hashes) for epoch in first]
    if all(h == hashes[0] for h in hashes):
        finding = f"every rank reads the same batches: {len(first)} ranks do the same work"
        return failed(NAME, finding, SHARD, "unsharded-loader", **place)
    return passed(NAME, "the ranks read different batches (a stream: what they cover cannot be told)")


def _without_loader(identity: Run, run: Run) -> Check:
    """Judge by the gradients, and by what the model is given, where no DataLoader shows what is read."""
    own = [{(u.step, u.name): u.own for u in uses(trace) if u.own} for trace in run.traces]
    shared = [key for key in own[0] if all(key in each for each in own)]
    alike = [k for k in shared if len({each[k]["hash"] for each in own}) == 1 and own[0][k]["norm"] > 0]
    if shared and len(alike) == len(shared):
        seeds = _same_draws(run)
        finding = f"all {len(own)} ranks compute the same gradients in every step: they work on the same samples"
        todo = "draw batches after dl.reseed(), or share the data with dl.shard(x); a generator of the script's own "
        todo += "needs dl.reseed(generator), or a seed for each rank: seed + dl.get_rank()"
        where = run.root.steps[0].at
        return failed(NAME, finding, todo, "equal-seeds" if seeds else "unsharded-loader", where=where)
    unknown = "no DataLoader shards what is trained on: the ranks' samples differ, what they cover is not known"
    told = other_order(run, NAME) or coverage(identity, run)
    return (told if told is not None and told.status == "failed" else stretches(run) or told) or skipped(NAME, unknown)


def _same_draws(run: Run) -> bool:
    """Whether random numbers were drawn between steps, the same ones on all ranks."""
    for together in zip(*(trace.steps for trace in run.traces), strict=False):
        for name in together[0].drew:
            if len({step.states.get(name) for step in together}) == 1:
                return True
    return False


def global_batch(serial: Run, run: Run) -> Check:
    """Report the global batch: n times the serial one, or the serial one itself."""
    old, sizes, where = _batch_sizes(serial, run)
    if not old:
        return skipped(BATCH, "how many samples a step uses is not seen")
    total, n = sum(sizes), len(sizes)
    if (k := _repeats(serial, run)) > 1:
        return passed(BATCH, f"{old} samples (as in the serial script, each counted {k} times)")
    if total in (old, n * old):
        what = "as in the serial script" if total == old else f"{n} times the serial {old}"
        return passed(BATCH, f"{total} samples ({what}){uneven(run)}")
    if set(sizes) == {-(-old // n)}:
        return passed(BATCH, f"{total} samples (the serial {old}, padded to {n} equal shares)")
    finding = f"{total} samples ({' + '.join(map(str, sizes))}), the serial script has {old}"
    return failed(BATCH, finding, f"keep {old} per rank, or {old}/{n}", "other-batch", where=where)


def batch_factor(serial: Run, run: Run) -> int:
    """Return by how much the global batch grew: the number of ranks unless the port keeps it."""
    old, sizes, _ = _batch_sizes(serial, run)
    return max(1, sum(sizes) // old // max(1, _repeats(serial, run))) if old else len(run.traces)


def _repeats(serial: Run, run: Run) -> int:
    """Return how often the ranks together count each sample of a step: more than once where no loader cut the data."""
    return 0 if training(serial.root) else repeats(serial.root, run)


def _batch_sizes(serial: Run, run: Run) -> tuple[int, list[int], str]:
    """Return the serial batch size, those of the ranks, and the line; 0 where neither DataLoader nor model tells.

    A rank whose whole share is smaller than a batch counts as having the serial size: it was only not filled.
    """
    before, now = training(serial.root), [training(trace) for trace in run.traces]
    if not before or not all(now):
        return *batch_sizes(serial.root, run), run.root.steps[0].at
    if before[0].batches[0] is None:
        return 0, [], ""
    old, sizes = len(before[0].batches[0]), []
    often = batches_a_step(serial.root)
    if cut_later(run):
        return old * often, [-(-old // len(now)) * often] * len(now), now[0][0].at
    for trace, epochs in zip(run.traces, now, strict=True):
        size = len(epochs[0].batches[0] or ())
        alone = epochs[0].complete and len(epochs[0].batches) + len(epochs[0].rest) == 1
        size = max(size, old) if alone and len(before[0].batches) + len(before[0].rest) > 1 else size
        sizes.append(size * batches_a_step(trace))
    return old * often, sizes, now[0][0].at


def _passes(trace: Trace) -> set[object]:
    """Return the numbers of the passes over the first training loader; none where no loader trains."""
    first = next(iter(training(trace)), None)
    return {e["epoch"] for e in trace.all("epoch") if first is not None and e["loader"] == first.loader}


def batches_a_step(trace: Trace, optimizer: int | None = None) -> int:
    """Return how many batches of the first training loader go into most steps of an optimizer, at least 1.

    Of the first one, where none is given.
    """
    passes = _passes(trace)
    if optimizer is None and trace.steps:
        optimizer = trace.steps[0].optimizer
    counts, read = [], 0
    for event in trace.all("batch", "step"):
        if event.kind == "batch":
            read += event["epoch"] in passes
        elif event["optimizer"] == optimizer:
            counts.append(read)
            read = 0
    return max(1, max(counts, key=counts.count, default=1))


def window(trace: Trace) -> tuple[int, int]:
    """Return after how many batches of the first training loader all optimizers have stepped, and how often by then."""
    batches = math.lcm(*(batches_a_step(trace, optimizer) for optimizer in {step.optimizer for step in trace.steps}))
    passes = _passes(trace)
    read = sum(event["epoch"] in passes for step in trace.steps for event in step.before if event.kind == "batch")
    return batches, max(1, round(batches * len(trace.steps) / max(1, read)))
