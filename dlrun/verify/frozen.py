"""Runs whose updates are taken back, of more steps: what the ranks show must be what the serial script shows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dlrun.verify.checks import loaders, ranks
from dlrun.verify.checks.bounds import bounds
from dlrun.verify.checks.cadence import cadence
from dlrun.verify.checks.choices import choices
from dlrun.verify.checks.data import batch_factor, training, window
from dlrun.verify.checks.ends import ends_elsewhere, exits, finished
from dlrun.verify.checks.folds import folds
from dlrun.verify.checks.iterations import epochs_of, turns
from dlrun.verify.checks.later import later
from dlrun.verify.checks.normed import moved
from dlrun.verify.checks.numbers import (
    NAME,
    Compared,
    Key,
    compared,
    judged,
    numbers_of,
    same_batches,
    times_of,
    unread,
)
from dlrun.verify.checks.plateaus import plateaus
from dlrun.verify.checks.reached import folds_left, unshown
from dlrun.verify.checks.seldom import seldom
from dlrun.verify.checks.shown import numbers_shown
from dlrun.verify.checks.tails import NAME as TAIL
from dlrun.verify.checks.tails import tail_of, tails
from dlrun.verify.checks.throughout import throughout
from dlrun.verify.checks.turned import averaged, explained, of_gradients
from dlrun.verify.checks.whole import is_eager
from dlrun.verify.longer import seconds_of_epoch, seconds_of_step
from dlrun.verify.trace import Run, Trace
from dlrun.verify.tracer.conditions import TURNS
from dlrun.verify.tracer.recorder import UNCUT
from dlrun.verify.verdict import Check, unjudged

if TYPE_CHECKING:
    from dlrun.verify.job import Runs

STEPS = 256  # serial ones: as many as most scripts show something in
SECONDS = 10.0  # that these may take
MORE = 8  # batches of each rank beside a tail, so that it decides on no mean
BATCHES, EPOCHS = 3, 12  # of each rank in a loader that is cut, and how often they are gone through: patience ends
ROUNDS = 10  # models that are trained one after the other, as in folds
SLOW = "take longer here than is left; a larger --budget may come to it"
OTHERS = "the ranks take other batches than the serial script: only numbers that are n times its own are told"
GRAPH = "not compared: noise, or batch norm, is not switched off in sessions"


def frozen(
    runs: Runs, serial: Run, again: Run, sharded: Run
) -> tuple[list[Check], list[Run], frozenset[Key], list[Run]]:
    """Return checks of what is shown, saved and decided by with the same parameters, and the serial runs made.

    And the places whose numbers were seen to be the serial script's, and the runs of the ranks.

    With the same parameters at all steps, a number of an epoch, or of so many batches, follows from its samples alone,
    and n ranks go through the same ones. Where nothing could be compared, that is said.
    """
    n = len(sharded.traces)
    if not is_eager(serial) and any(event["noise"] or event["norm"] for event in serial.root.all("forward")):
        return _uncompared(serial, GRAPH), [], frozenset(), []
    made = Frozen(runs, serial, again, sharded, n if batch_factor(serial, sharded) > 1 else 1)
    few = None if made.fits else made.few()
    if few and few.status == "failed":
        return [few], made.serial_runs, made.known, made.port_runs
    further = None if few and made.is_whole() else made.further()
    if further and further.status == "failed":
        return [further], made.serial_runs, made.known, made.port_runs
    # Behind an epoch of fit() that was too long, or whose batches the ranks do not share evenly.
    if made.fits and (made.uneven or made.has_left()):
        few = made.few()
        if few and few.status == "failed":
            return [few], made.serial_runs, made.known, made.port_runs
    if few or further:
        every = few or further, made.tails() if few else None, made.left, made.once, made.seldom
        return [check for check in every if check], made.serial_runs, made.known, made.port_runs
    return _uncompared([serial, *made.serial_runs][-1], OTHERS), made.serial_runs, made.known, made.port_runs


def _uncompared(serial: Run, reason: str) -> list[Check]:
    """Return what is said where the numbers that a script shows were not compared; nothing of one that shows none."""
    numbers = [number for found in numbers_of(serial).values() for number in found]
    if not numbers:
        return []
    return [unjudged(NAME, f"{numbers[0].text[:70]!r} ({numbers[0].at}) and what else is shown: {reason}")]


class Frozen:
    """Makes these runs. ``fewer`` serial steps are one of the ranks; ``serial_runs``, ``port_runs``: made so far."""

    def __init__(self, runs: Runs, serial: Run, again: Run, sharded: Run, fewer: int) -> None:
        self.runs, self.serial, self.again, self.sharded, self.fewer = runs, serial, again, sharded, fewer
        self.serial_runs: list[Run] = []
        self.port_runs: list[Run] = []
        self.known: frozenset[Key] = frozenset()
        self.left: Check | None = None  # of the last run
        self.once: Check | None = None  # where no second epoch could be compared
        self.seldom: Check | None = None  # of a line that comes after n times the samples
        self.uneven = False  # the last run has numbers that come after other batches than the serial ones
        self._rounds = 1
        self._loaders = loaders.training(serial.root)
        self._turn = _steps_of_turn(serial) if not self._loaders else 0
        reseeded = (number for call in sharded.root.returns("reseed") for number in call.facts.get("generators", ()))
        self._generators = tuple(sorted(set(reseeded))) if self._turn else ()
        self.fits = any(event.facts.get("fit") for event in serial.root.all("epoch"))
        self._slowest = max(seconds_of_step(serial), seconds_of_step(sharded), 1e-9)
        # To the end of a script of few epochs the budget may go: its last lines are said to be compared then. So it may
        # behind fit(), of which no more than STEPS are made: what a script shows of it mostly comes there.
        self._most = runs.job.budget if self.fits or epochs_of(serial.root) <= EPOCHS else SECONDS

    def few(self) -> Check | None:
        """Compare every number between the epochs of loaders that are cut to a few whole batches of each rank."""
        if not self.fits and not _shares_a_loader(self.serial, self.sharded):
            return None
        affordable = int(self.runs.seconds(self._most) / self._slowest / self.fewer)
        batches, steps = (1, 1) if self.fits else window(self.serial.root)  # that go into one step of each optimizer
        few, epoch = BATCHES * batches, BATCHES * steps
        twice = 2 * epoch
        at_all = int(self.runs.seconds(self.runs.job.budget) / self._slowest / self.fewer)
        most = max(2, EPOCHS // steps)
        epochs = min(most, affordable // epoch, self._affordable_epochs())
        each = max(self.runs.job.steps, epoch, epochs * epoch)
        each = max(each, twice) if twice <= at_all else each
        one, other = self._pair(each, few)
        if each < twice and other.root.first("ended"):
            self.once = unjudged(NAME, f"what comes after the first epoch: {twice * self.fewer} steps {SLOW}")
        else:
            self.once = epochs_left(epochs_of(self.serial.root), other.root, max(2, epochs), most)
        return self._left(one, other) or self._together(one, other) or self._judged((one, other), each, few)

    def tails(self) -> Check | None:
        """Compare the numbers between epochs of loaders that are cut, but keep their tails; None of none."""
        n = len(self.sharded.traces)
        quick = MORE * n * self._slowest < self.runs.seconds(SECONDS) / 2
        tail = tail_of(self.serial, n, MORE if quick else BATCHES) if self.fewer > 1 else None
        if tail is None:
            return None
        one, other = self.runs.both(
            lambda: self.runs.frozen(tail.serial, tail.few, self._loaders, 0, tails=True),
            lambda: self.runs.frozen(tail.ranks, tail.few, self._loaders, tails=True),
        )
        alone = self.runs.frozen(tail.serial, tail.few, self._loaders, alone=True, tails=True)
        if any(run.error or run.hung for run in (one, other, alone)):
            return unjudged(
                TAIL, f"the last {tail.spare} samples of an epoch: with them a run does not come to its end"
            )
        return tails(one, other, alone, tail, (self.serial, self.again))

    def is_whole(self) -> bool:
        """Whether the runs so far came to all that is shown, and nothing of it within an epoch."""
        if not self.serial_runs:
            return False
        run = self.serial_runs[-1]
        within = any(number.within for key, found in numbers_of(run).items() if key[0] == "shown" for number in found)
        return not within and not self.has_left()

    def has_left(self) -> bool:
        """Whether something that is shown, saved or decides was not come to in the last run."""
        script, runs = self.runs.job.serial, [self.serial, *self.serial_runs[-1:]]
        return unshown(script.read_text(errors="replace"), script.name, runs) is not None

    def further(self) -> Check | None:
        """Compare the numbers of whole epochs, in more steps; None where nothing is to be said of them."""
        affordable = int(self.runs.seconds(self._most if self.fits else SECONDS) / self._slowest)
        each = max(self.runs.job.steps, min(STEPS, affordable) // self.fewer)
        one, other = self._pair(each, UNCUT)
        if left := self._left(one, other):
            return left
        every = self._judged((one, other), each, UNCUT)
        wrong = every if every and every.status == "failed" else None
        return self._together(one, other) or folds(one, other) or wrong or self._own(other) or every

    def _pair(self, each: int, few: int) -> tuple[Run, Run]:
        self._rounds = self._affordable_rounds(each)
        more: dict[str, Any] = {"turn_steps": self._turn, "rounds": self._rounds, "generators": self._generators}
        one, other = self.runs.both(
            lambda: self.runs.frozen(self.fewer * each, few, self._loaders, 0, **more),
            lambda: self.runs.frozen(each, few, self._loaders, stride=self.fewer, **more),
        )
        if not (one.error or one.hung):
            self.serial_runs.append(one)
        if other.whole:
            self.port_runs.append(other)
            self.left = folds_left(one)
            self.seldom = self.seldom or self._seldom(one, other)
        return one, other

    def _seldom(self, one: Run, other: Run) -> Check | None:
        script = self.runs.job.serial
        found = seldom(script.read_text(errors="replace"), script.name, one, other) if self.fewer > 1 else None
        return found if one in self.serial_runs else None

    def _affordable_epochs(self) -> int:
        """Return how many epochs, of a few batches and with all that comes between them, may be gone through."""
        slowest = max(seconds_of_epoch(self.serial), seconds_of_epoch(self.sharded), 1e-9)
        return int(self.runs.seconds(self._most) / slowest)

    def _affordable_rounds(self, each: int) -> int:
        """Return how often so many steps of each rank can be made, for one fold after another."""
        affordable = int(self.runs.seconds(self.runs.job.budget) / self._slowest / self.fewer)
        return max(1, min(ROUNDS, affordable // each))

    def _left(self, one: Run, other: Run) -> Check | None:
        """Return what is said where one of the runs does not come to its end."""
        if one.error or one.hung or not one.root.steps:
            return unjudged(NAME, "with every update taken back the serial script does not come to its end")
        if (writers := ranks.one_writer(other)).status == "failed":
            return writers
        if other.hung or (other.error and ranks.of_dl_comm(other.error[1])):
            return replace(ranks.steps(other), name=NAME)
        if other.error:
            rank, event = other.error
            said = (
                f"in more steps, with every update taken back, rank {rank} fails: {event['type']}: {event['message']}"
            )
            return unjudged(NAME, said.splitlines()[0][:300])
        return None

    def _together(self, one: Run, other: Run) -> Check | None:
        """Return a check that failed because ranks decide by numbers of their own, or do not go on as they began."""
        found = [ranks.steps(other), choices(self.serial, self.again, other), later(one, other)]
        source = self.runs.job.serial.read_text(errors="replace")
        found += [moved(self.sharded, other), throughout(one, other, self.sharded, source), bounds(one, other)]
        if not ((length := turns(self.serial, self.sharded)) and length.fault):
            found += [cadence(one, other, self.fewer), plateaus(one, other, self.fewer)]
        return next((check for check in found if check and check.status == "failed"), None)

    def _own(self, other: Run) -> Check | None:
        own = numbers_shown(other)
        return own if own and own.status == "failed" else None

    def _judged(self, pair: tuple[Run, Run], each: int, few: int) -> Check | None:
        """Judge two runs whose batches are the same; of others none of the numbers needs to be."""
        # Beside dropout, which is off, and the first weights of a model: noise is given to whole batches.
        noise = any(step.drew for step in pair[0].root.steps if not step.count("optimizer"))
        alike = not noise if self.fewer == 1 or self.fits else same_batches(*pair)  # Keras weighs by samples
        if not alike:
            return next(iter(_uncompared(pair[0], ends_elsewhere(*pair) or OTHERS)), None)
        far = how_far(pair[1].root)
        found = self._compared(pair, each, few)
        self.known |= found.known
        self.uneven = bool(found.unpaired)
        check = judged(found, len(pair[1].traces), far)
        if check and check.status == "failed":
            return check
        elsewhere = ends_elsewhere(*pair)
        left = _uncompared(pair[0], elsewhere) if elsewhere else []
        files = unread(*pair) if all(finished(each.root) for each in pair) else None
        return exits(*pair) or next(iter(left), None) or files or check

    def _compared(self, pair: tuple[Run, Run], each: int, few: int) -> Compared:
        """Compare two runs; further runs tell what follows from the last batch, or from gradients."""
        found = averaged(compared(*pair, self.fewer, (self.serial, self.again)), pair[1])
        if not found.other or self.fewer == 1:
            return found
        turns = range(1, len(self.sharded.traces))
        more: dict[str, Any] = {"turn_steps": self._turn, "rounds": self._rounds, "generators": self._generators}
        turned = [self.runs.frozen(self.fewer * each, few, self._loaders, turn, **more) for turn in turns]
        if any(run.error or run.hung for run in turned):
            return replace(found, other=(), loose=(*found.loose, *found.other))
        singles = [numbers_of(run) | times_of(run) for run in (pair[0], *turned)]
        found = explained(found, singles)
        if not found.other and not found.loose:
            return found
        own = self.runs.frozen(each, few, self._loaders, stride=self.fewer, own_gradients=True, **more)
        if own.error or own.hung:
            return found
        return of_gradients(
            found, numbers_of(own) | times_of(own), singles, accumulated=window(self.serial.root)[0] > 1
        )


def how_far(trace: Trace) -> str:
    """Return how far a run came: its steps, its epochs where their loop was ended from outside, and the end."""
    left, epochs = trace.first("ended"), sum(epoch.complete for epoch in training(trace))
    every = next(
        (e["values"][TURNS] for e in trace.all("decision") if left and e.at == left.at and TURNS in e["values"]), 0
    )
    of = f", {epochs} of {every:g} epochs" if left and left["turns"] == epochs < every else ""
    return f"in {len(trace.steps)} steps{of}" + ", to the end of the script" * finished(trace)


def epochs_left(every: float, run: Trace, made: int, most: int) -> Check | None:
    """Tell of the last epochs of a script that has few, no more than ``most``, where time was left for fewer."""
    if not made < every <= most or run.first("ended") is None:
        return None
    return unjudged(NAME, f"what comes after {made} of {every:g} epochs: more {SLOW}")


def _steps_of_turn(run: Run) -> int:
    """Return how many optimizer steps an iteration of the loop of steps makes; 0 where iterations differ."""
    first = [step.number for step in run.root.steps if step.optimizer == run.root.steps[0].optimizer]
    gaps = {b - a for a, b in pairwise(first)} or {len(run.root.steps)}
    return gaps.pop() if len(gaps) == 1 else 0


def _shares_a_loader(serial: Run, sharded: Run) -> bool:
    """Whether dl.shard() shards the loader that trains."""
    trained = {epoch.loader for epoch in training(sharded.root)}
    shared = {loader for call in sharded.root.returns("shard") for loader in call["loaders"]}
    return bool(trained & shared) and bool(training(serial.root)) and sharded.root.first("loader") is not None
