"""Which samples reach the model on each rank, where no loader tells: by the contents of what it is given."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import permutations

from dlrun.verify.trace import Run, Step, Trace
from dlrun.verify.verdict import Check, failed, passed, skipped

NAME = "shards"
SHARE = "give each rank its share: dl.shard() of the data, or of the numbers of the batches"
ALIKE = "share inputs and targets alike: dl.shard((x, y))"
ENOUGH = 8  # samples whose pairs are known
Rows = list[list[int]]  # of one input: for each step a number for each of its rows, made from what is in them


@dataclass(frozen=True)
class Given:
    """One input of the model: its rows by step, of the serial script and of each rank."""

    name: str
    serial: Rows
    ranks: list[Rows]

    @property
    def changes(self) -> bool:
        """Whether the serial script gives another value in each step."""
        return len({tuple(rows) for rows in self.serial}) > 1

    @property
    def renewed(self) -> bool:
        """Whether other rows come in most steps, not the same ones again, fewer of them, or a state that begins.

        Or as many in each, such as labels, in another mixture.
        """
        often = 2 * len({tuple(rows) for rows in self.serial}) > len(self.serial)
        mixed = 2 * len({tuple(sorted(rows)) for rows in self.serial}) > len(self.serial)
        drawn = mixed and self.tells and len({len(rows) for rows in self.serial}) == 1
        return often and (drawn or self.distinct > max(len(set(rows)) for rows in self.serial))

    @property
    def tells(self) -> bool:
        """Whether rows differ: not labels that are all the same, such as those of what is real and what is not."""
        return any(len(set(rows)) > 1 for rows in self.serial)

    @property
    def distinct(self) -> int:
        """How many different values there are in the serial script's steps."""
        return len({row for rows in self.serial for row in rows})

    @property
    def alike(self) -> bool:
        """Whether all ranks are given the same in each step."""
        return all(rows == self.ranks[0] for rows in self.ranks)

    @property
    def steps(self) -> int:
        """The number of steps that all made."""
        return min(len(self.serial), *map(len, self.ranks))

    def covered(self) -> int:
        """Return how many serial batches the ranks' first steps hold together, each sample once; 0 where others.

        Either a step of all ranks is a serial one, dealt out, padded to equal shares; or the first steps are those that
        n times as many serial ones are.
        """
        n = len(self.ranks)
        if self.steps and all(self._deals(self.serial[s], self._together(s, s + 1)) for s in range(self.steps)):
            return self.steps
        first = min(len(self.serial) // n, *map(len, self.ranks))
        expected = Counter(row for rows in self.serial[: n * first] for row in rows)
        return n * first if first and self._together(0, first) == expected else 0

    @property
    def repeated(self) -> int:
        """How often the ranks together hold each sample of one and the same serial batch; 0 where others, or uneven."""
        batch, together = Counter(self.serial[0]), self._together(0, 1)
        k = together.total() // batch.total()
        return 0 if self.changes or together != Counter({row: k * count for row, count in batch.items()}) else k

    def _deals(self, batch: list[int], together: Counter[int]) -> bool:
        extra = together - Counter(batch)
        if self.repeated:  # each as often as the others
            return True
        return not Counter(batch) - together and extra.total() < len(self.ranks) and set(extra) <= set(batch)

    def _together(self, begin: int, end: int) -> Counter[int]:
        return Counter(row for rank in self.ranks for rows in rank[begin:end] for row in rows)

    def others(self) -> tuple[int, int]:
        """Return how many of the serial samples no rank is given, and how many others the ranks are."""
        mine, theirs = {row for rows in self.serial for row in rows}, set(self._together(0, self.steps))
        return len(mine - theirs), len(theirs - mine)

    def twice(self) -> tuple[int, int]:
        """Return how many samples more than one rank is given in these steps, and how many there are."""
        sets = [{row for rows in rank[: self.steps] for row in rows} for rank in self.ranks]
        every = Counter(row for rows in sets for row in rows)
        return sum(count > 1 for count in every.values()), len(every)

    @property
    def first(self) -> int:
        """How many serial batches the ranks' first steps stand for."""
        return min(len(self.serial) // len(self.ranks), *map(len, self.ranks)) * len(self.ranks)

    def too_often(self) -> int:
        """Return how many samples several ranks are given in steps whose serial batches have none twice.

        Of k samples drawn at random, with t of them by two ranks, none would be twice with a chance of exp(-2t).
        """
        steps = self.first // len(self.ranks)
        serial = [row for rows in self.serial[: self.first] for row in rows]
        often = sum(count > 1 for count in self._together(0, steps).values())
        return often if often > 2 and len(set(serial)) == len(serial) else 0

    @property
    def repeats(self) -> bool:
        """Whether some rank is given a sample more than once in its share of the serial steps, its first ones."""
        every = [[row for rows in rank[: self.first // len(self.ranks)] for row in rows] for rank in self.ranks]
        return any(len(set(rows)) < len(rows) for rows in every)


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
        if not (given.changes or given.alike or covered[given.name]) and all(given.others()):
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
        return failed(NAME, f"{finding}another one in each step: what else they are given is each one's own", SHARE,
                      "unsharded-loader", **where)  # fmt: skip
    still = [step for step in run.root.steps if not step.drew and not step.count("draw")]
    torn = _torn(inputs, where) if 2 * len(still) > len(run.root.steps) else None  # not of targets drawn at random
    return torn or _unknown(changing or inputs, len(run.traces), where)


def _with(inputs: list[Given], covered: dict[str, int]) -> list[tuple[Given, int]]:
    return [(given, covered[given.name]) for given in inputs]


def _of_others(given: Given, where: dict[str, str]) -> Check:
    lost, others = given.others()
    finding = f"each step of the serial script takes the same {len(given.serial[0])} samples, and {lost} of them reach "
    finding += f"no rank, {others} others do"
    return failed(NAME, finding, "cut out what the serial script trains on, then share that", "other-samples", **where)


def _told(given: Given, batches: int) -> str:
    n, samples = len(given.ranks), sum(map(len, given.serial[:batches]))
    if not given.changes:
        often = f", {given.repeated} times in all: so the shares are equal" if given.repeated > 1 else ""
        return f"the {len(given.serial[0])} samples of each step, each read by one of {n} ranks{often}"
    return f"the {samples} samples of {batches} serial batches, each read by one of {n} ranks"


def _apart(inputs: list[Given], shared: list[Given], where: dict[str, str]) -> Check | None:
    """Return a check that failed because inputs that belong together were dealt out differently."""
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
        pairs = [pair for mine, theirs in zip(one.ranks, other.ranks, strict=True)
                 for steps in zip(mine, theirs, strict=False) for pair in zip(*steps, strict=False)]  # fmt: skip
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


def inputs_of(identity: Trace, run: Run) -> list[Given]:
    """Return the inputs that every step of all ranks and of 1 rank was given, those of more than one row first."""
    serial, ranks = _by_step(identity.steps), [_by_step(trace.steps) for trace in run.traces]
    if not serial or not all(ranks):
        return []
    names = [name for name in serial[0] if all(name in step for steps in (serial, *ranks) for step in steps)]
    found = [Given(n, [s[n] for s in serial], [[s[n] for s in steps] for steps in ranks]) for n in names]
    return sorted((g for g in found if len(g.serial[0]) > 1), key=lambda g: not g.changes)


def _by_step(steps: tuple[Step, ...]) -> list[dict[str, list[int]]]:
    """Return the rows of each input of each step of the first optimizer, by name and by turn within the step."""
    found: list[dict[str, list[int]]] = []
    for step in steps:
        rows: dict[str, list[int]] = {}
        for event in step.before:
            for name, numbers in event.facts.get("rows", {}).items() if event.kind in ("forward", "loss") else ():
                turn = sum(key.partition(" (")[0] == name for key in rows)
                rows[f"{name} ({turn + 1})" if turn else name] = numbers
        if rows:
            found.append(rows)
    return found
