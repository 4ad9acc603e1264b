"""The act: carry a trial out and return its outcome; and go on until the search has no more to propose."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dlrun.bench.cases import Case
from dlrun.bench.run import measure
from dlrun.errors import DlrunError, number_of
from dlrun.launch import LaunchPlan, launch
from dlrun.launch.result import Result, check_interrupted
from dlrun.scale.reading import RATE, number
from dlrun.tune.journal import Journal
from dlrun.tune.search import Outcome, Trial
from dlrun.tune.space import Space


@dataclass(frozen=True)
class Metric:
    """A number in a script's output: the first group of `pattern`; `take` says which of several: median, last, best.

    Of a rate the first match is left out where there are more: it holds the warming up.
    """

    pattern: str = RATE
    take: str = "median"
    maximize: bool = True

    def read(self, lines: Sequence[str]) -> list[float]:
        """Every value in the lines, in order; raises where there is none."""
        found = [number(match) for line in lines for match in re.finditer(self.pattern, line)]
        if not found:
            why = f"the script's output holds nothing like '{self.pattern}'"
            raise DlrunError(why, "say what to read: --metric 'accuracy ([0-9.]+)'")
        return found

    def value(self, found: Sequence[float]) -> float:
        """The one value of a run."""
        if self.take == "last":
            return found[-1]
        if self.take == "best":
            return max(found) if self.maximize else min(found)
        return statistics.median(found[1:] if len(found) > 1 else found)


@dataclass(frozen=True)
class ModelJob:
    """Averaging the gradients of a model, alone: the value is the median of the allreduce, in seconds."""

    space: Space
    plan: LaunchPlan
    case: Case
    dtype: str = "float32"
    seconds: float = 1.0
    way: str = "dl_comm"
    device: str = "cpu"

    def run(self, trial: Trial) -> Outcome:
        """Carry the trial out."""
        assert self.plan.ranks
        env = self.space.environment(trial.settings)
        ways, ranks = [self.way], self.plan.ranks
        bench = measure([self.case], ranks, self.dtype, self.seconds, ways, env, self.plan, device=self.device)
        if not bench.cells:
            raise DlrunError(f"{self.way} cannot run here: {bench.absent.get(self.way, '')}")
        cell = bench.cells[0]
        if cell.wrong:
            return Outcome(trial, None, 0.0, error=f"{cell.wrong} wrong numbers")
        return Outcome(trial, cell.median, 0.0, cell.seconds[:50], facts=(("bus_bandwidth", cell.bus_bandwidth),))


@dataclass(frozen=True)
class ScriptJob:
    """A training script: the value is its metric."""

    space: Space
    plan: LaunchPlan
    metric: Metric

    def run(self, trial: Trial) -> Outcome:
        """Carry the trial out."""
        lines: list[str] = []
        plan = self.plan._replace(
            program=(*self.plan.program, *self.space.options(trial.settings)),
            env=self.plan.env + tuple(self.space.environment(trial.settings).items()),
            tuned=False,
        )
        checked(launch(plan, lambda rank, stream, line: lines.append(line)))
        found = self.metric.read(lines)
        return Outcome(trial, self.metric.value(found), 0.0, tuple(found))


class Job(Protocol):
    """What is measured."""

    def run(self, trial: Trial) -> Outcome:
        """Carry the trial out."""


def checked(result: Result) -> Result:
    """The result of a launch that went well; raises KeyboardInterrupt after Ctrl-C, DlrunError where a rank failed."""
    check_interrupted(result)
    if result.returncode:
        raise DlrunError(str(result.failure or f"exit code {result.returncode}"), f"logs in {result.run_dir}")
    return result


def outcome_of(job: Job, trial: Trial) -> Outcome:
    """What the trial gave, with what it cost; a trial that fails is an outcome, and is not tried again."""
    start = time.monotonic()
    try:
        outcome = job.run(trial)
    except DlrunError as error:
        outcome = Outcome(trial, None, 0.0, error=error.message)
    return replace(outcome, cost=round(time.monotonic() - start, 3))


def carry_out(
    job: Job,
    journal: Journal,
    next_trial: Callable[[Sequence[Outcome]], Trial | None],
    on_trial: Callable[[Trial, Sequence[Outcome]], None] = lambda trial, outcomes: None,
) -> int:
    """Run what is proposed until nothing is, every outcome into the journal; the signal that cut it short, or 0.

    Raises where the very first trial, the default, fails: then nothing can be compared.
    """
    try:
        while (trial := next_trial(journal.outcomes)) is not None:
            on_trial(trial, journal.outcomes)
            outcome = outcome_of(job, trial)
            if outcome.error and not any(o.value is not None for o in journal.outcomes):
                raise DlrunError(f"the job fails with its default settings: {outcome.error}")
            journal.add(outcome)
    except KeyboardInterrupt as end:
        return number_of(end)
    return 0
