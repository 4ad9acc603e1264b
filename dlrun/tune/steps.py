"""A training script as `dlrun tune` sees it: the gradients that its first steps average, and how long a step takes.

dl_comm looks on from inside the script (DL_COMM_PROBE), which ends after as many steps as are wanted.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlrun.bench.cases import WIDTHS, Case, bytes_as_text
from dlrun.bench.table import seconds_as_text
from dlrun.errors import DlrunError
from dlrun.launch import LaunchPlan, launch
from dlrun.tune.search import FINAL, Outcome, Trial
from dlrun.tune.space import Space
from dlrun.tune.trial import ModelJob, checked

FIRST = 12  # steps of the first look
LEAST, MOST = 24, 2000  # steps of a trial


@dataclass(frozen=True)
class Look:
    """What a script's first steps showed: elements of each array averaged in a step, and the seconds of a step.

    `overlap`: they are averaged in the background, in buckets, while backward runs.
    """

    counts: tuple[int, ...]
    dtype: str
    overlap: bool
    step: float

    def __str__(self) -> str:
        size = bytes_as_text(sum(self.counts) * WIDTHS[self.dtype])
        what = f"{len(self.counts)} {'buckets' if self.overlap else 'gradients'}, {size} of {self.dtype}"
        how = " while backward runs" if self.overlap else ""
        return f"averages {what}{how}; a step takes {seconds_as_text(self.step)}"

    def steps_in(self, seconds: float) -> int:
        """How many steps a trial of so many seconds has."""
        return max(LEAST, min(MOST, round(seconds / self.step)))


def settled(seconds: Sequence[float]) -> tuple[float, ...]:
    """The steps without the first quarter, in which caches, threads and allocators warm up."""
    return tuple(seconds[len(seconds) // 4 :])


def probe(plan: LaunchPlan, steps: int) -> dict[str, Any]:
    """Run the script for so many steps; what dl_comm saw on rank 0. Raises where it fails or averages nothing."""
    plan = plan._replace(env=(*plan.env, ("DL_COMM_PROBE", str(steps))), tuned=False)
    result = checked(launch(plan, lambda rank, stream, line: None))
    file = Path(result.run_dir, "probe-0.json")
    seen: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if not seen.get("counts") or len(seen["seconds"]) < 4:
        why = f"{plan.program[0]} averaged no gradients with dl_comm in 4 steps or more"
        if plan.ranks == 1:
            raise DlrunError(f"{why}: on 1 rank there is nothing to average", "give -n 2 or more")
        raise DlrunError(why, "port it first (dlrun port), or compare what it prints: --metric 'accuracy ([0-9.]+)'")
    return seen


def look(plan: LaunchPlan) -> Look:
    """Run the first steps of the script and say what they showed."""
    seen = probe(plan, FIRST)
    step = statistics.median(settled(seen["seconds"]))
    return Look(tuple(seen["counts"]), seen["dtype"], seen["overlap"], step)


@dataclass(frozen=True)
class StepJob:
    """A training script's own step: the value is the median of `steps` steps, in seconds, computing included."""

    space: Space
    plan: LaunchPlan
    steps: int

    def run(self, trial: Trial) -> Outcome:
        """Carry the trial out."""
        env = tuple(self.space.environment(trial.settings).items())
        times = settled(probe(self.plan._replace(env=self.plan.env + env), self.steps)["seconds"])
        return Outcome(trial, statistics.median(times), 0.0, times[:50])


@dataclass(frozen=True)
class ScreenedJob:
    """The script's gradients are averaged alone to find a challenger; its step proves or refutes the gain.

    Averaging alone takes a second, a start of the script many; and what makes the averaging faster need not make the
    step faster.
    """

    screen: ModelJob
    proof: StepJob

    def run(self, trial: Trial) -> Outcome:
        """Carry the trial out."""
        return (self.proof if trial.stage == FINAL else self.screen).run(trial)


def job_of(space: Space, plan: LaunchPlan, seen: Look, seconds: float, name: str) -> StepJob | ScreenedJob:
    """The job for a script: by its steps alone where it averages while backward runs, for there both compete."""
    proof = StepJob(space, plan, seen.steps_in(3 * seconds))
    if seen.overlap:
        return proof
    return ScreenedJob(ModelJob(space, plan, Case(name, seen.counts), seen.dtype, seconds), proof)
