"""The runs of a verification, in order, and which of them a script allows."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from dlrun.sandbox import outside
from dlrun.verify.checks import data, loaders, metrics, ranks, repeat, sums, whole
from dlrun.verify.checks.choices import NAME as CHOICES
from dlrun.verify.checks.choices import choices
from dlrun.verify.checks.lines import line_by_line
from dlrun.verify.checks.numbers import Key
from dlrun.verify.checks.reached import reached, unshown
from dlrun.verify.checks.same import ALONE, same
from dlrun.verify.checks.shown import NAME as SHOWN
from dlrun.verify.checks.shown import numbers_shown
from dlrun.verify.checks.sizes import is_sharded, repeats
from dlrun.verify.compare import SHARDED, compare, ran
from dlrun.verify.evaluations import FIRST, Evaluations, shared
from dlrun.verify.frozen import frozen
from dlrun.verify.longer import to_the_end
from dlrun.verify.refusals import framework_of, refuse, refuse_serial
from dlrun.verify.resumed import resumed
from dlrun.verify.runs import Task, execute, orders
from dlrun.verify.trace import Run
from dlrun.verify.tracer.recorder import UNCUT
from dlrun.verify.verdict import Check, Verdict, skipped
from dlrun.verify.warming import Warm

# What shows where ranks share data, or scale rates, by their numbers, although they are to repeat the serial run.
BY_NUMBERS = {
    "other-data",
    "other-gradient",
    "other-output",
    "other-randomness",
    "other-rate",
    "other-steps",
    "rank-dependent-change",
    "rank-dependent-exit",
    "rank-dependent-rate",
    "uneven-steps",
}
COUNTS = ("StopIteration", "RuntimeError")  # what next() raises where an epoch was cut short
ITSELF = ("SystemExit", "ImportError", "ModuleNotFoundError")  # no cut brings those about
SHARES = "the port shares data, or scales, by the ranks' numbers: dl.shard() and dl.lr_scale() let this be judged"


@dataclass(frozen=True)
class Job:
    """What is to be proved: that ``port`` on ``ranks`` ranks does what ``serial`` does, over ``steps`` optimizer steps.

    ``seed`` seeds what the script does not seed itself. ``stall``: seconds without progress that count as a hang.
    ``budget``: seconds within which runs that go on after these steps, up to the script's end, are to be done.
    ``shows``: whether what the scripts show of their training is compared, too, in runs of more steps.
    """

    serial: Path
    port: Path
    args: tuple[str, ...] = ()
    ranks: int = 2
    steps: int = 6
    seed: int | None = None
    stall: float = 120.0
    budget: float = 60.0
    shows: bool = True


def verify(
    job: Job,
    folder: Path,
    say: Callable[[Check], None] = lambda check: None,
    act: Callable[[Task], Run] = execute,
) -> Verdict:
    """Make the runs, each in a folder of its own below ``folder``, and judge them; ``say`` hears each check at once.

    ``act`` makes one run.

    Raises ``DlrunError`` where nothing can be proved: a missing file, another framework, a serial script that fails or
    makes no optimizer step.
    """
    refuse(job.serial, job.port, job.ranks, job.steps)
    with Warm(framework_of(job.port)) as warm:
        return _verified(Runs(job, folder, act, warm=warm), say)


def _verified(runs: Runs, say: Callable[[Check], None]) -> Verdict:
    job = runs.job
    checks: list[Check] = []

    def add(*more: Check) -> None:
        for check in more:
            if check.fault and any(
                (c.name, c.fault, c.where) == (check.name, check.fault, check.where) for c in checks
            ):
                continue  # found once more in another run
            checks.append(check)
            say(check)

    serial, again = runs.serial()
    add(runs.repeats(serial, again))
    if checks[0].status == "failed":
        return Verdict(tuple(checks))
    identity, replicate = runs.both(lambda: runs.identity(serial), runs.replicate)
    if not identity.root.steps:
        add(ran(identity, "identity") or same("identity", serial, again, identity))
        return Verdict(tuple(checks))
    other = ran(replicate, "replicate") or same("replicate", serial, again, replicate)
    if other.fault in BY_NUMBERS and any(trace.first("asked") for trace in replicate.traces):
        replicate = runs.alone(serial, again) or replicate
    by_itself = replicate.name == ALONE
    sharded = runs.sharded(keeps=by_itself)
    found = to_the_end(runs, serial, sharded, compare(serial, again, identity, replicate, sharded))
    later = [check for check in found if _is_judged_later(check) and job.shows]
    add(*(check for check in found if check not in later))
    broken = any(_any(checks, name) for name in ("identity", ranks.STEPS, SHARDED))
    apart = broken or _any(checks, ranks.EQUAL)
    known: frozenset[Key] = frozenset()
    seen: list[Run] = []  # the serial runs whose numbers were compared
    if job.shows and not apart:
        folded, further, known, steady = frozen(runs, serial, again, sharded)
        seen = [serial, *further]
        own = {SHOWN: numbers_shown(sharded, steady), CHOICES: choices(serial, again, sharded, steady)}
        judged = (own[c.name] if c.name in own else sums.doubted(c, folded, sharded) for c in later)
        later = [check for check in judged if check]
        add(*folded)
    add(*later)
    again_from, more, begun = resumed(runs, serial, again, sharded) if not apart else (None, [], [])
    left = unshown(job.serial.read_text(errors="replace"), job.serial.name, [*seen, *begun]) if seen else None
    add(*(check for check in (left, again_from, reached(sharded, more)) if check))
    if by_itself:
        wrong = _any([check for check in checks if check.name != SHOWN])  # what is shown of an evaluation is told why
        add(skipped(metrics.NAME, FIRST) if wrong else Evaluations(runs, serial, identity, sharded).check())
    else:
        add(shared(runs, serial, again, identity, broken))
    if by_itself and not whole.same_batches(serial, sharded):
        add(skipped(whole.NAME, SHARES))
    else:
        check, alike = runs.whole(serial, sharded, _any(checks))
        lines = line_by_line(*alike, (serial, again), known) if alike and job.shows else None
        add(check, *([lines] if lines else []))
    return Verdict(tuple(checks))


@dataclass(frozen=True)
class Runs:
    """Makes the runs of one job."""

    job: Job
    folder: Path
    act: Callable[[Task], Run] = execute
    unwanted: Event = field(default_factory=Event)  # set: all runs are to be ended
    began: float = field(default_factory=time.monotonic)
    watch: outside.Watch = field(default_factory=outside.Watch)
    cuts: list[int] = field(default_factory=list)  # that were tried, the one in force last
    warm: Warm | None = None  # a process that has imported the framework
    files: Mapping[str, Path] = field(default_factory=dict)  # that a run finds beside the user's, by their way

    def serial(self) -> tuple[Run, Run]:
        """Run the serial script twice. An epoch is cut short after half of the steps, unless the script minds.

        It may name what a step set that is not made in so few, or count on all batches that it takes with next().
        """
        serial, again = self._twice("serial", "again", self.cut)
        if serial.error and serial.error[1]["type"] not in (*COUNTS, *ITSELF) and _was_cut(serial):
            serial, again = self._twice("later", "later-again", self.job.steps)
        if serial.error and serial.error[1]["type"] not in ITSELF and _was_cut(serial):
            serial, again = self._twice("uncut", "uncut-again", UNCUT)
        refuse_serial(self.job.serial, serial)
        return serial, again

    def seconds(self, most: float) -> float:
        """Return how long a pair of runs of more steps may take: half of what is left of the budget, or ``most``."""
        return max(0.0, min(most, (self.job.budget - (time.monotonic() - self.began)) / 2))

    def repeats(self, serial: Run, again: Run) -> Check:
        """Check that the serial script repeats itself; a third run tells the order of sets from other causes."""
        check = repeat.repeats(serial, again)
        if check.fault == "not-repeatable":
            check = repeat.repeats(serial, again, self._serial("hashed", self.cut))
        return check

    def identity(self, serial: Run | None = None) -> Run:
        """Run the port on 1 rank; with ``serial`` where what a port decides by ranks is left to that script."""
        return self.port("identity", 1, lineage=framework_of(self.job.port) == "torch", **_of(serial))

    def replicate(self) -> Run:
        """Run the port on n ranks that repeat the serial run; n a power of two, so that means of equals are exact."""
        return self.port("replicate", 1 << (self.job.ranks.bit_length() - 1), env={"DL_COMM_REPLICATE": "1"})

    def alone(self, serial: Run, again: Run) -> Run | None:
        """Run the port on n ranks that are told to be alone, as one that shares its data itself; None if it differs."""
        n, env = 1 << (self.job.ranks.bit_length() - 1), {"DL_COMM_REPLICATE": "1"}
        run = self.port(ALONE, n, env, alone=True, lineage=True, **_of(serial))
        return run if (ran(run, "replicate") or same("replicate", serial, again, run)).status == "passed" else None

    def longer(self, name: str = "longer") -> Run:
        """Run the serial script once more, for other steps, or beside other files."""
        return self._serial(name, self.cut)

    def frozen(
        self, steps: int, few: int, made: tuple[int, ...], turn: int | None = None, alone: bool = False, **orders: Any
    ) -> Run:
        """Run the port, or for a ``turn`` the serial script, with each update taken back, and without dropout.

        ``few``: batches of each rank to which loaders are cut. ``made``: the loaders that train. ``turn``: so many of n
        batches are put behind the others. ``alone``: on 1 rank, with the loaders of n. Loops are left after so many
        ``steps``. ``orders``: more of the tracer's.
        """
        more: dict[str, Any] = {"frozen": True, "few": few, "quiet": True, "training_loaders": made, "steps": steps}
        more |= {"shares": self.job.ranks, "turn": turn or 0, **orders}
        name, cut = "frozen" if few == UNCUT else "tails" if orders.get("tails") else "few", max(steps, self.cut)
        name += "-own" if orders.get("own_gradients") else ""
        if turn is None:
            n = 1 if alone else self.job.ranks
            return self._run(f"{name}-alone" if alone else name, self.job.port, n, cut, {}, **more)
        return self._run(f"{name}-serial{f'-{turn}' * (turn > 0)}", self.job.serial, 1, cut, {}, **more)

    def sharded(self, keeps: bool = False, name: str = "sharded") -> Run:
        """Run the port as it is."""
        return self.port(name, self.job.ranks, seed_by_rank=True, lineage=True, keeps=keeps)

    def whole(self, serial: Run, sharded: Run, broken: bool) -> tuple[Check, tuple[Run, Run] | None]:
        """Run the port with the serial global batch, where the script allows it.

        Return the check, and two runs that are alike then: a serial one, and that of the ranks.
        """
        if broken:  # maybe before its first step
            return skipped(whole.NAME, FIRST), None
        keeps = data.batch_factor(serial, sharded) == 1
        own = not data.training(serial.root)
        alike = keeps and own and is_sharded(serial.root, sharded)
        given = {"divided": alike or (own and repeats(serial.root, sharded) > 0), "alike": alike}
        loud, reason = None, whole.reason_against(serial, self.job.ranks, **given)
        if reason in (whole.NORM, whole.NOISE) and whole.is_eager(serial):
            still = self._serial("quiet", self.cut, quiet=True)
            if not (still.error or still.hung):
                loud, serial, reason = serial, still, whole.reason_against(still, self.job.ranks, **given)
        if any(sharded.root.returns("stretch")):
            reason = "the ranks go through stretches of a stream: no step of theirs is a serial one"
        if reason:
            return skipped(whole.NAME, reason), None
        if keeps and loud is None:
            return whole.reproduces(serial, sharded), (serial, sharded)
        made = loaders.training(serial.root)
        # What is fed, or what fit() takes, is the serial batch on every rank, and the tracer shards it.
        fits = any(event.facts.get("fit") for event in serial.root.all("epoch"))
        env = {} if keeps or (data.training(serial.root) and not fits) else {"DL_COMM_REPLICATE": "1"}
        more: dict[str, Any] = {"quiet": loud is not None, "global_batch": not keeps, "training_loaders": made}
        run = self.port("whole", self.job.ranks, env, **more)
        check = whole.reproduces(serial, run, loud, not keeps, carried=whole.carried_in(sharded))
        if not keeps and whole.of_sums(serial, run, check):
            run = self.port("sums", self.job.ranks, env, sums=True, **more)
            check = whole.reproduces(serial, run, loud, grown=True, sums=True)
        return check, (serial, run) if check.status == "passed" and not env else None

    def both(self, one: Callable[[], Run], two: Callable[[], Run]) -> tuple[Run, Run]:
        """Make two runs at the same time."""
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(one), pool.submit(two)
            try:
                return first.result(), second.result()
            except BaseException:  # Ctrl-C, which the runs do not see
                self.unwanted.set()
                raise

    @property
    def cut(self) -> int:
        """The steps after which an epoch is cut short."""
        return self.cuts[-1] if self.cuts else max(1, self.job.steps // 2)

    def _twice(self, one: str, two: str, cut: int) -> tuple[Run, Run]:
        self.cuts.append(cut)
        return self.both(lambda: self._serial(one, cut), lambda: self._serial(two, cut))

    def _serial(self, name: str, cut: int, **more: Any) -> Run:
        env = {"PYTHONHASHSEED": "1"} if name.endswith("again") and "PYTHONHASHSEED" not in os.environ else {}
        return self._run(name, self.job.serial, 1, cut, env, **more)

    def port(self, name: str, n: int, env: dict[str, str] | None = None, cut: int = 0, **more: Any) -> Run:
        """Run the port on n ranks; ``cut``: the steps after which an epoch is cut short, where not as elsewhere."""
        return self._run(name, self.job.port, n, cut or self.cut, env or {}, **more)

    def _run(self, name: str, script: Path, n: int, cut: int, env: dict[str, str], steps: int = 0, **more: Any) -> Run:
        """Run ``script`` for so many ``steps``, or those of the job."""
        made = {"seed": self.job.seed, "framework": framework_of(self.job.port), **more}
        given = orders(steps or self.job.steps, cut, **made)
        env = {"DL_COMM_TIMEOUT_S": str(self.job.stall * 2), **env}
        words, where = self.job.args, self.folder / name
        with self.watch.over(self.folder):
            more = {"unwanted": self.unwanted, "warm": self.warm, "files": self.files}
            more |= {"named": self.job.serial} if script.resolve().parent == self.job.serial.resolve().parent else {}
            return self.act(Task(name, script, words, n, where, given, env, self.job.stall, **more))


def _of(serial: Run | None) -> dict[str, Any]:
    """Return the orders of a run that repeats the serial one where the port does not by itself: orders and seeds."""
    if serial is None:
        return {}
    seeds = Counter(event["generator"] for event in serial.root.all("seed") if event["fixed"])
    return {"uses": loaders.uses(serial.root), "seedings": dict(seeds)}


def _was_cut(run: Run) -> bool:
    return bool(run.root.first("cut") or run.root.first("ended"))


def _is_judged_later(check: Check) -> bool:
    """Whether runs of more steps tell more of a check: of sums, and of what differs between ranks."""
    return check.name == sums.NAME or (check.status == "failed" and check.name in (SHOWN, CHOICES))


def _any(checks: list[Check], name: str = "") -> bool:
    return any(check.status == "failed" and name in ("", check.name) for check in checks)
