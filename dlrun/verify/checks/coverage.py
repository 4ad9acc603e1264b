"""Which samples reach the model on each rank, where no loader tells: by the contents of what it is given."""

from __future__ import annotations

from itertools import permutations

from dlrun.verify.checks.given import Given, Rows, inputs_of
from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check, failed, passed, skipped

NAME = "shards"
SHARE = "give each rank its share: dl.shard() of the data, or of the numbers of the batches"
ALIKE = "share inputs and targets alike: dl.shard((x, y))"
ENOUGH = 8  # samples whose pairs are known


def coverage(identity: Run, run: Run) -> Check | None:
    """Judge what the model is given; None where nothing was seen of it."""
    inputs = inputs_of(identity.root, run)
    if not any(given.tells for given in inputs):
        return None
    where = {"where": run.root.steps[0].at}
    covered = {given.name: given.covered() for given in inputs}
    if all(given.alike for given in inputs) and all(n == 0 or not g.changes for g, n in _with(inputs, covered)):
        return failed(
            NAME,
            f"all {len(run.traces)} ranks give the model the same {len(inputs[0].serial[0])} rows in each step: "
            "they do the same work",
            SHARE,
            "unsharded-loader",
            **where,
        )
    for given in inputs:  # an input of another length, such as the places in a sequence, has no others
        if not (given.changes or given.alike or covered[given.name]) and given.others()[1]:
            return _of_others(given, where)
    shared = [given for given, n in _with(inputs, covered) if n and not given.alike]
    changing = [given for given in inputs if given.changes]
    telling = max(changing, key=lambda given: given.distinct, default=None)  # a few labels are covered by chance
    if shared and (telling is None or telling in shared or telling.alike):
        return _apart(inputs, shared, where) or passed(NAME, _told(shared[0], covered[shared[0].name]))
    for given in inputs:
        if not given.changes and any(given.others()):
            return _of_others(given, where)
    if same := next((given for given in inputs if given.alike and given.renewed), None):
        finding = f"all {len(run.traces)} ranks give the model the same {same.name}, {len(same.serial[0])} rows, "
        return failed(
            NAME,
            f"{finding}another one in each step: what else they are given is each one's own",
            SHARE,
            "unsharded-loader",
            **where,
        )
    still = [step for step in run.root.steps if not step.drew and not step.count("draw")]
    torn = _torn(inputs, where) if 2 * len(still) > len(run.root.steps) else None  # not of targets drawn at random
    return torn or _unknown(changing or inputs, len(run.traces), where)


def _with(inputs: list[Given], covered: dict[str, int]) -> list[tuple[Given, int]]:
    return [(given, covered[given.name]) for given in inputs]


def _of_others(given: Given, where: dict[str, str]) -> Check:
    lost, others = given.others()
    finding = f"each step of the serial script takes the same {len(given.serial[0])} samples, and "
    if not lost:
        todo = "make the data alike on all ranks, under one seed, then share them"
        finding += f"{others} others reach ranks, too: each has made data of its own"
        return failed(NAME, finding, todo, "other-samples", **where)
    finding += f"{lost} of them reach no rank, {others} others do"
    return failed(NAME, finding, "cut out what the serial script trains on, then share that", "other-samples", **where)


def _told(given: Given, batches: int) -> str:
    n, samples = len(given.ranks), sum(map(len, given.serial[:batches]))
    if not given.changes:
        often = f", {given.repeated} times in all: so the shares are equal" if given.repeated > 1 else ""
        return f"the {len(given.serial[0])} samples of each step, each read by one of {n} ranks{often}"
    return f"the {samples} samples of {batches} serial batches, each read by one of {n} ranks"


def _apart(inputs: list[Given], shared: list[Given], where: dict[str, str]) -> Check | None:
    """Return a check that failed because inputs that belong together were sharded differently."""
    first = shared[0]
    for other in inputs:
        rows = [len(step) for step in other.serial] == [len(step) for step in first.serial]
        if other is first or not rows or not other.changes:
            continue
        if _paired(first, other).covered():
            continue
        if other.alike:
            finding = f"each rank has its share of {first.name}, and all have the same {other.name}"
        elif other in shared:
            finding = f"the ranks' shares of {first.name} and of {other.name} are not of the same samples"
        else:
            continue
        return failed(NAME, finding, ALIKE, "unsharded-loader", **where)
    return None


def _torn(inputs: list[Given], where: dict[str, str]) -> Check | None:
    """Return a check that failed because ranks pair inputs otherwise than the serial script, each in its own order."""
    for one, other in permutations(inputs, 2):
        known = {x: y for xs, ys in zip(one.serial, other.serial, strict=True) for x, y in zip(xs, ys, strict=False)}
        pairs = [
            pair
            for mine, theirs in zip(one.ranks, other.ranks, strict=True)
            for steps in zip(mine, theirs, strict=False)
            for pair in zip(*steps, strict=False)
        ]
        seen = [known[x] != y for x, y in pairs if x in known]
        distinct = one.changes and len(known) > 0.95 * sum(map(len, one.serial))
        if distinct and len(seen) >= ENOUGH and sum(seen) > len(seen) / 4:
            finding = f"{sum(seen)} of {len(seen)} samples have another {other.name} beside {one.name} than on 1 rank"
            return failed(NAME, finding, ALIKE, "unsharded-loader", **where)
    return None


def _paired(one: Given, two: Given) -> Given:
    def paired(a: Rows, b: Rows) -> Rows:
        return [[hash(pair) for pair in zip(x, y, strict=False)] for x, y in zip(a, b, strict=False)]

    ranks = [paired(a, b) for a, b in zip(one.ranks, two.ranks, strict=True)]
    return Given(one.name, paired(one.serial, two.serial), ranks)


def _unknown(inputs: list[Given], n: int, where: dict[str, str]) -> Check:
    """Judge by what is read twice, where the ranks' samples are not those of the serial script's first steps."""
    given = min(inputs, key=lambda each: each.twice()[0] / max(1, each.twice()[1]))
    twice, every = given.twice()
    serial = len({row for rows in given.serial[: given.steps] for row in rows})
    if every < 0.75 * serial:
        finding = f"{n} ranks read {every} samples in {given.steps} steps, and the serial script {serial}"
        return failed(NAME, finding, "let the ranks' shares cover all that it reads", "lost-samples", **where)
    if twice == 0:
        return passed(NAME, f"{n} ranks read {every} samples in {given.steps} steps, none of them twice")
    if (both := given.too_often()) and not given.repeats:
        finding = f"{both} samples are read by more than one rank in as many steps as the serial script makes with "
        finding += f"{given.first} batches, which have no sample twice"
        todo = "let all ranks use the order that rank 0 draws: order = dl.broadcast(order)"
        return failed(NAME, finding, todo, "overlapping-shards", **where)
    how = "as draws at random do" if given.repeats else "each rank shuffles, or draws, by itself"
    return skipped(NAME, f"{twice} of {every} samples are read by more than one rank in {given.steps} steps: {how}")
