"""Do sharded evaluations print, decide and save by what one rank over all the data finds?"""

from __future__ import annotations

import math

from dlrun.verify.checks.evaluated import differing
from dlrun.verify.checks.output import NUMBER, Difference, close, factor, first_difference, shown
from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.verdict import Check, failed, passed, skipped

NAME = "metrics"
BATCHES = 100  # of so many in an evaluation a number of four digits tells by which one a sum was divided


def metrics(serial: Run, again: Run, identity: Run, run: Run | None) -> Check:
    """``run`` trained as the serial script on every rank, and sharded nothing but what it did not train on."""
    if run is None:
        seen = any(not epoch.trains for epoch in identity.root.epochs) or not any(identity.root.returns("shard"))
        so = "no evaluation is sharded: every rank sees all of it"
        return skipped(NAME, so if seen else "no evaluation comes in these steps")
    difference = first_difference(serial.root.printed, again.root.printed, run.root.printed, exact=False)
    difference = difference or differing(serial, again, identity, run)
    if difference is None:
        said = f"{len(run.traces)} ranks print what the serial script prints of the same parameters"
        return _n_fold(identity, run) or passed(NAME, f"{said}, and decide and save by it")
    expected, printed = (shown(line or "nothing").strip() for line in (difference.expected, difference.printed))
    said = f"{expected!r} became {printed!r}"
    ratio, n = factor(difference), len(run.traces)
    if ratio is not None and math.isclose(ratio, 1 / n, rel_tol=0.05):
        todo = "divide by the number of samples that were counted, or count on all ranks before dividing"
        return failed(
            NAME,
            f"{said}: one rank's count over the whole data set",
            todo,
            "metric-divided-by-whole",
            where=difference.at,
        )
    if ratio is not None and math.isclose(ratio, n, rel_tol=0.05):
        sums = sorted({event.at for event in run.root.returns("total") if event["evaluates"]})
        by = f" (dl.total() at {', '.join(sums)})" if sums else ""
        finding = f"{said}: the sum over {n} ranks{by}, each of which evaluates all"
        todo = "give what is evaluated to dl.shard(), or leave dl.total() out"
        return failed(NAME, finding, todo, "metric-counted-by-all", where=difference.at)
    return _mean_of_means(run, said, difference)


def evaluated_whole(identity: Run, run: Run) -> Check | None:
    """Return a check that failed because Keras evaluates less on all ranks together than on one; None of none."""
    one, others = _first_evaluation(identity.root), [_first_evaluation(trace) for trace in run.traces]
    together = {i for _, samples in others for i in samples}
    if not together or len(together) >= len(set(one[1])):
        return None
    finding = f"{len(others)} ranks evaluate {len(together)} samples together, 1 rank {len(set(one[1]))}"
    todo = "leave the number of steps to validate as it is: what is evaluated is not divided among the ranks"
    return failed("evaluation", finding, todo, "evaluates-less", where=one[0])


def _first_evaluation(trace: Trace) -> tuple[str, list[int]]:
    """Return the line of Keras's first evaluation and the samples that it sees; none where those are not known."""
    first = next((event for event in trace.all("epoch") if event.facts.get("evaluates")), None)
    batches = [e["indices"] for e in trace.all("batch") if first is not None and e["epoch"] == first["epoch"]]
    return first.at if first is not None else "", [i for batch in batches for i in batch or ()]


def _n_fold(identity: Run, run: Run) -> Check | None:
    """Return a check that failed because a sum is n times what 1 rank has; not where what divides it is so, too."""
    n, calls = len(run.traces), list(zip(_sums(identity.root), _sums(run.root), strict=False))
    folds = [(a, b) for a, b in calls if a["local"] and math.isclose(b["sum"] or 0.0, n * a["local"], rel_tol=1e-6)]
    counts = {len(epoch.samples or epoch.batches) for epoch in identity.root.epochs if not epoch.trains}
    if not folds or any(a["local"] in counts for a, _ in folds):
        return None
    _, event = folds[0]
    said = f"dl.total() at {event.at} sums {event['local']:.6g} to {event['sum']:.6g}: {n} ranks each evaluate all"
    todo = "give what is evaluated to dl.shard(), or leave dl.total() out"
    return failed(NAME, said, todo, "metric-counted-by-all", where=event.at)


def _sums(trace: Trace) -> list[Event]:
    return [event for event in trace.returns("total") if event["evaluates"]]


def _mean_of_means(run: Run, said: str, difference: Difference) -> Check:
    counts, twice = counts_of(run)
    calls = [event for event in run.root.returns("average") if None not in (event["local"], event["mean"])]
    averaged = [event for event in calls if not math.isclose(event["local"], event["mean"], rel_tol=1e-9)]
    if averaged:
        finding = f"{said}: a mean of the ranks' means ({counts}{f', {twice} of them twice' if twice else ''})"
        todo = "evaluate on every rank without dl.shard(), or average sums and counts and divide then"
        return failed(NAME, finding, todo, "metric-mean-of-means", where=averaged[-1].at)
    if twice and any(event["evaluates"] for event in run.root.returns("total")):
        return counted_twice(run, said, difference.at)
    if (total := _mean_of_batches(run, difference)) is not None:
        finding = f"{said}: a mean over all ranks' batches (dl.total() at {total.at}), of which the last ones are "
        finding += f"others than the serial script's ({counts}) and weigh otherwise"
        todo = 'let ranks share whole batches, dl.shard(loader, whole="batches"), or weigh each by its samples'
        return failed(NAME, finding, todo, "metric-weighted-otherwise", where=difference.at)
    todo = "evaluate on every rank without dl.shard(), or average sums and counts over the ranks"
    return failed(NAME, f"{said}: rank 0's share ({counts})", todo, "metric-of-one-rank", where=difference.at)


def _mean_of_batches(run: Run, difference: Difference) -> Event | None:
    """Return the sum over all ranks of which a number that is shown is so many times a part; None of none."""
    pairs = zip(
        *(NUMBER.findall(shown(line or "")) for line in (difference.expected, difference.printed)), strict=False
    )
    printed = next((b for a, b in pairs if a != b and float(b)), None)
    sums = [event for event in _sums(run.root) if None not in (event["local"], event["sum"])]
    if printed is None:
        return None
    return next((e for e in sums if _is_part(printed, e["sum"]) and not _is_part(printed, e["local"])), None)


def _is_part(number: str, total: float) -> bool:
    """Whether a number is a total, divided by a whole number of batches, up to the digits that it shows."""
    count = round(total / float(number))
    return 1 < count <= BATCHES and close(number, f"{total / count:.12g}")


def counts_of(run: Run) -> tuple[str, int]:
    """Return how many samples each rank counts in its last evaluation, and how many of them are counted twice."""
    seen = [_evaluated(trace) for trace in run.traces]
    total, distinct = sum(map(len, seen)), len({i for part in seen for i in part})
    counts = ", ".join(f"rank {t.rank} counts {len(part)}" for t, part in zip(run.traces, seen, strict=True))
    return counts, total - distinct


def counted_twice(run: Run, said: str, where: str) -> Check:
    """Return a check that failed because a sum over ranks counts the samples twice that make their shares equal."""
    counts, twice = counts_of(run)
    finding = f"{said}: a sum over the ranks ({counts}, {twice} of them twice)"
    todo = "give the loader a share of the data set, DataLoader(dl.shard(data, equal=False), ...), which repeats "
    todo += "none; or choose a number of ranks that divides the samples"
    return failed(NAME, finding, todo, "metric-counts-twice", where=where)


def _evaluated(trace: Trace) -> list[int]:
    """Return the samples of a rank's last evaluation that came to its end."""
    epochs = [epoch for epoch in trace.epochs if not epoch.trains and epoch.samples and epoch.complete]
    return (epochs[-1].samples or []) if epochs else []
