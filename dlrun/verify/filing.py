"""What a reviewer files beside the checks: when, with what, where and of which commit; and the loss of the runs."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dlrun.verify.job import Job
from dlrun.verify.trace import Run, Trace

PACKAGES = ("dlrun", "torch", "tensorflow", "keras", "numpy", "mpi4py")
WIDE, HIGH, EDGE = 640, 220, 44  # of a figure, and where its axes are, in pixels


@dataclass(frozen=True)
class Curve:
    """A line of a figure: its name, and its points as ``x,y`` of an SVG polyline."""

    name: str
    kind: str
    points: str


@dataclass(frozen=True)
class Figure:
    """Curves with the numbers at the ends of the axes."""

    curves: tuple[Curve, ...]
    low: str
    high: str
    last: int
    wide: int = WIDE
    high_px: int = HIGH
    edge: int = EDGE


def facts(job: Job) -> list[tuple[str, str]]:
    """Return date, command, versions, commit and machine, each with its name."""
    found = []
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    versions = ", ".join([f"Python {platform.python_version()}", *found])
    machine = f"{platform.node()}: {os.cpu_count()} cores, {platform.machine()}, {platform.platform(terse=True)}"
    return [
        ("date", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("command", command(job)),
        ("versions", versions),
        ("commit", commit(job.port.parent) or "not in a Git repository"),
        ("machine", machine),
    ]


def command(job: Job) -> str:
    """Return the command that verifies so."""
    words = ["dlrun", "verify", str(job.serial), str(job.port), "-n", str(job.ranks), "--steps", str(job.steps)]
    words += ["--seed", str(job.seed)] if job.seed is not None else []
    return shlex.join([*words, *(["--", *job.args] if job.args else [])])


def commit(folder: Path) -> str:
    """Return the commit that a folder is at, and whether files differ from it; empty where there is none."""
    said = []
    for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            made = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        said.append(made.stdout.strip() if made.returncode == 0 else "")
    return said[0] + (", with changes" if said[0] and said[1] else "")


def losses(runs: Mapping[str, Run]) -> Figure | None:
    """Return the loss over the optimizer's steps: of the serial script, and the mean of the local ones."""
    made = [
        ("the serial script", "serial", runs.get("quiet", runs.get("serial"))),
        ("ranks that share each serial batch", "whole", runs.get("sums", runs.get("whole"))),
        ("ranks with a serial batch each", "sharded", runs.get("sharded")),
    ]
    curves = [(name, kind, _mean([by_step(trace) for trace in run.traces])) for name, kind, run in made if run]
    values = [value for _, _, curve in curves for value in curve]
    if not curves or curves[0][1] != "serial" or not curves[0][2] or len(values) < 2:
        return None
    low, high, last = min(values), max(values), max(len(curve) for _, _, curve in curves)
    drawn = [Curve(name, kind, _points(curve, low, high, last)) for name, kind, curve in curves if curve]
    return Figure(tuple(drawn), f"{low:.4g}", f"{high:.4g}", last)


def by_step(trace: Trace) -> list[float]:
    """Return the loss of each step: the mean of what went backward for it; those without a number left out."""
    found = []
    for step in trace.steps:
        given = [
            event.facts.get("loss", event.facts.get("target")) for event in step.before if event.kind == "backward"
        ]
        known = [loss for loss in given if loss is not None and abs(loss) < float("inf")]
        if known:
            found.append(sum(known) / len(known))
    return found


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*curves, strict=False)]


def _points(curve: Sequence[float], low: float, high: float, last: int) -> str:
    wide, tall = (WIDE - 2 * EDGE) / max(1, last - 1), (HIGH - 2 * EDGE) / ((high - low) or 1.0)
    return " ".join(f"{EDGE + i * wide:.1f},{HIGH - EDGE - (y - low) * tall:.1f}" for i, y in enumerate(curve))
