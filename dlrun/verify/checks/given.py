"""What the model is given in each step, on 1 rank and on several: known by its contents, sample for sample."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dlrun.verify.trace import Run, Step, Trace

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
        often = self.tells and 2 * len({tuple(rows) for rows in self.serial}) > len(self.serial)
        mixed = 2 * len({tuple(sorted(rows)) for rows in self.serial}) > len(self.serial)
        drawn = mixed and len({len(rows) for rows in self.serial}) == 1
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
    def whole(self) -> bool:
        """Whether each rank has as many in each step as the serial script."""
        return all(len(rows) == len(mine) for rank in self.ranks for rows, mine in zip(self.serial, rank, strict=False))

    @property
    def divided(self) -> bool:
        """Whether each step of all ranks together is the serial one, sharded in equal shares."""
        return not self.alike and all(
            self._together(s, s + 1) == Counter(rows) and len({len(rank[s]) for rank in self.ranks}) == 1
            for s, rows in enumerate(self.serial[: self.steps])
        )

    @property
    def steps(self) -> int:
        """The number of steps that all made."""
        return min(len(self.serial), *map(len, self.ranks))

    def covered(self) -> int:
        """Return how many serial batches the ranks' first steps hold together, each sample once; 0 where others.

        Either a step of all ranks is a serial one, sharded, padded to equal shares; or the first steps are those that
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


def inputs_of(identity: Trace, run: Run) -> list[Given]:
    """Return the inputs that every step of all ranks and of 1 rank was given, those of more than one row first.

    Samples are rows, or columns, as in (time, batch): where the ranks' steps hold those of the serial script, or fewer.
    """
    along, across = (_inputs_of(identity, run, axis) for axis in ("rows", "columns"))
    found = [
        across[name] if name in across and _laid_across(given, across[name]) else given for name, given in along.items()
    ]
    return sorted((g for g in found if len(g.serial[0]) > 1), key=lambda g: not g.changes)


def _inputs_of(identity: Trace, run: Run, axis: str) -> dict[str, Given]:
    """Return the inputs of every step of an optimizer by name, where several step by turns those of each."""
    found: dict[str, Given] = {}
    for number in sorted({step.optimizer for step in identity.steps}):
        serial, *ranks = (_by_step(trace.steps, number, axis) for trace in (identity, *run.traces))
        if serial and all(ranks):
            names = [name for name in serial[0] if all(name in step for steps in (serial, *ranks) for step in steps)]
            whose = f" of optimizer {number + 1}" if found else ""
            for n in names:
                found[n + whose] = Given(n + whose, [s[n] for s in serial], [[s[n] for s in steps] for steps in ranks])
    return found


def _laid_across(along: Given, across: Given) -> bool:
    """Whether the ranks share columns, and not rows: fewer of the serial step's each, or those of its next steps."""
    return across.tells and not along.covered() and ((along.whole and not across.whole) or across.covered() > 0)


def _by_step(steps: tuple[Step, ...], optimizer: int, axis: str) -> list[dict[str, list[int]]]:
    """Return the rows of each input of each step of an optimizer, by name and by iteration within the step."""
    found: list[dict[str, list[int]]] = []
    for step in (step for step in steps if step.optimizer == optimizer):
        rows: dict[str, list[int]] = {}
        for event in step.before:
            for name, numbers in event.facts.get(axis, {}).items() if event.kind in ("forward", "loss") else ():
                turn = sum(key.partition(" (")[0] == name for key in rows)
                rows[f"{name} ({turn + 1})" if turn else name] = numbers
        if rows:
            found.append(rows)
    return found
