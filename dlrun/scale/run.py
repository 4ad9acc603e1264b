"""The act: run the script on each number of ranks, in both modes, and read what it prints."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dlrun.errors import DlrunError, StoppedError, number_of
from dlrun.launch import LaunchPlan, launch
from dlrun.launch.result import check_interrupted
from dlrun.sandbox.run import FILES
from dlrun.scale.reading import RATE, Patterns, read
from dlrun.scale.result import STRONG, WEAK, Run


@dataclass(frozen=True)
class Experiment:
    """A script to be run on each of `counts` ranks, `repeats` times.

    `divided` are options of the script and their values on one rank: a strong run divides them by the ranks, so that
    the global batch, and with it the learning rate, stay what they are on one rank. Without them there are only weak
    runs, in which every rank has the script's own batch.
    """

    plan: LaunchPlan
    counts: tuple[int, ...]
    repeats: int = 1
    divided: tuple[tuple[str, str], ...] = ()
    patterns: Patterns = field(default_factory=Patterns)

    def todo(self) -> list[tuple[str, int, int]]:
        """(mode, ranks, repeat) in order: all numbers of ranks once, then again, so that drift meets all alike.

        On one rank a weak and a strong run are the same, and run once.
        """
        every = [(mode, n, r) for r in range(self.repeats) for n in self.counts for mode in self.modes]
        return [one for one in every if one[:2] != (STRONG, 1)]

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that are run."""
        return (WEAK, STRONG) if self.divided else (WEAK,)

    def plan_for(self, mode: str, ranks: int) -> LaunchPlan:
        """The launch of one run."""
        words = []
        for name, value in self.divided if mode == STRONG else ():
            words += [f"--{name}", share(value, ranks)]
        return self.plan._replace(program=(*self.plan.program, *words), ranks=ranks)


def share(value: str, ranks: int) -> str:
    """The value divided by the ranks; a whole number stays whole and at least 1. ('64', 4) -> '16'."""
    try:
        whole = int(value) if re.fullmatch(r"[+-]?\d+", value) else 0
        number = float(value)
    except ValueError:
        raise DlrunError(f"--divide: '{value}' is no number", "write --divide batch-size=64") from None
    if not 0 < number < float("inf"):
        raise DlrunError(f"--divide: {value} cannot be divided among ranks", "give what one rank takes, above 0")
    return str(max(1, round(whole / ranks))) if whole else f"{number / ranks:.10g}"


def run_one(experiment: Experiment, mode: str, ranks: int, repeat: int, first: Run | None = None) -> Run:
    """Run the script once; raises where it fails, prints no rate, or goes on where the ``first`` run has ended."""
    lines: list[tuple[float, str]] = []
    plan = experiment.plan_for(mode, ranks)
    result = launch(plan, lambda rank, stream, line: lines.append((time.monotonic(), line)))
    check_interrupted(result)
    if result.returncode:
        why = str(result.failure or f"exit code {result.returncode}")
        last = [text for _, text in lines[-5:]]
        hint = "\n  ".join([*last, f"logs in {result.run_dir}"])
        raise DlrunError(f"the {mode} run with -n {ranks} failed: {why}", hint)
    if result.serial and ranks > 1:
        raise DlrunError(
            f"{plan.program[0]} ran {ranks} times side by side, and no rank talked to another",
            "make it data-parallel first: dlrun port",
        )
    reading = read(lines, experiment.patterns)
    if first is not None and first.reading.begins is not None and reading.begins != first.reading.begins:
        now = "speaks of no epoch" if reading.begins is None else f"begins with epoch {reading.begins}"
        raise DlrunError(
            f"with -n {ranks} the script {now}, and began with epoch {first.reading.begins} with -n {first.ranks}: it "
            "goes on from a checkpoint that an earlier run left",
            "runs are compared from the start: switch that off for them (an option of the script, say)",
        )
    if not reading.rates:
        like = "like '812 samples/s' or '9.5 images per second'"
        asked = like if experiment.patterns.rate == RATE else f"that '{experiment.patterns.rate}' finds"
        raise DlrunError(
            f"the script printed no rate {asked}, and no 2 epochs to time",
            "let it train 2 epochs or more, and print a line with 'epoch 1' in each; or say what to read: "
            "--rate 'speed ([0-9.]+)', with the samples per second of all ranks as its first group",
        )
    files = result.run_dir / FILES
    return Run(mode, ranks, repeat, result.seconds, reading, str(files) if files.is_dir() else "")


def run_all(experiment: Experiment, on_run: Callable[[int, str], None]) -> tuple[list[Run], DlrunError | None]:
    """Every run, in order; after Ctrl-C those that were done, and after one that failed those before it and why."""
    runs: list[Run] = []
    try:
        for index, (mode, ranks, repeat) in enumerate(experiment.todo()):
            on_run(index, f"{mode}, {ranks} rank{'s' * (ranks > 1)}, repeat {repeat + 1} of {experiment.repeats}")
            run = run_one(experiment, mode, ranks, repeat, runs[0] if runs else None)
            runs += [replace(run, mode=one) for one in experiment.modes] if ranks == 1 else [run]
    except KeyboardInterrupt as end:
        if not runs:
            raise StoppedError("the first run", number_of(end)) from None
    except DlrunError as error:
        if not runs:
            raise
        return runs, error
    return runs, None
