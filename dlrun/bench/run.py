"""The act: start the program on the ranks, listen to what rank 0 says, and gather the cells."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlrun.bench.cases import WIDTHS, Case
from dlrun.bench.lab import Slow, network, run
from dlrun.bench.result import Bench, Cell, cell_of
from dlrun.errors import DlrunError, SignalledError, number_of
from dlrun.launch import LaunchPlan, launch
from dlrun.launch.profile import processor
from dlrun.launch.result import check_interrupted

PROGRAMS = Path(__file__).parent / "programs"

OnEvent = Callable[[dict[str, Any]], None]


class CutShortError(SignalledError):
    """Somebody interrupted a measurement: ``bench`` holds the cases that were done."""

    def __init__(self, bench: Bench, number: int) -> None:
        super().__init__(number)
        self.bench = bench


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_program(plan: LaunchPlan, on_event: OnEvent) -> None:
    """Launch one of our programs and hand over each JSON object that rank 0 prints; raises where the job fails."""
    said: list[str] = []

    def on_line(rank: int, stream: str, line: str) -> None:
        if stream == "out" and line.startswith('{"event"'):
            on_event(json.loads(line))
        else:
            said.append(line)

    result = launch(plan, on_line)
    check_interrupted(result)
    if result.returncode:
        why = str(result.failure) if result.failure else f"exit code {result.returncode}"
        raise DlrunError(f"the measurement stopped: {why}", "\n  ".join([*said[-5:], f"logs in {result.run_dir}"]))


def _run_in_lab(
    lab: tuple[int, Slow | None], ranks: int, program: tuple[str, ...], env: Mapping[str, str], on_event: OnEvent
) -> None:
    """The same as `run_program` on hosts that are made up."""
    hosts, slow = lab
    said: list[str] = []

    def on_line(line: str) -> None:
        if line.startswith('{"event"'):
            on_event(json.loads(line))
        else:
            said.append(line)

    with tempfile.TemporaryDirectory(prefix="dlrun-lab-") as folder, network(Path(folder), hosts, slow) as made:
        code, errors = run(made, hosts, ranks // hosts, program, env, on_line)
    if code:
        raise DlrunError(
            f"the measurement stopped: exit code {code}", "\n  ".join([*said[-5:], *errors.splitlines()[-5:]])
        )


def measure(
    cases: Sequence[Case],
    ranks: int,
    dtype: str,
    seconds: float,
    ways: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    plan: LaunchPlan | None = None,
    on_event: OnEvent = lambda event: None,
    device: str = "cpu",
    lab: tuple[int, Slow | None] | None = None,
) -> Bench:
    """Time every way of reducing every case on `ranks` ranks, about `seconds` per case.

    `ways` empty means all that can run here; with `device` "cuda" the arrays lie on the ranks' GPUs. `plan` carries
    launch options (backend, hosts); `env` is added to the ranks' environment. With `lab`, a number of hosts and what
    their links are like, hosts are made up on this machine (lab.py). An interrupt raises `CutShortError`.
    """
    spec = {"cases": [[c.name, c.counts] for c in cases], "dtype": dtype, "seconds": seconds, "ways": list(ways)}
    base = (plan or LaunchPlan(()))._replace(tuned=False, module=False, sandboxed=False)
    program = (str(PROGRAMS / ("allreduce_cuda.py" if device == "cuda" else "allreduce.py")), json.dumps(spec))
    settled = base._replace(program=program, ranks=ranks, show=(0,), env=base.env + tuple((env or {}).items()))
    known = {c.name: c for c in cases}
    cells: list[Cell] = []
    start: dict[str, Any] = {}

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "missing":
            raise DlrunError(
                f"nothing can be measured on GPUs: {event['why']}",
                "ask for a machine that has some, or leave out --device cuda",
            )
        if event["event"] in ("start", "path", "wire", "case"):
            start.update(event)
        elif event["event"] == "cell":
            cells.append(cell_of(event, ranks, known, WIDTHS[dtype]))
        on_event(event)

    cut = 0
    try:
        if lab:
            _run_in_lab(lab, ranks, program, env or {}, listen)
        else:
            run_program(settled, listen)
    except KeyboardInterrupt as end:
        cut = number_of(end)
        cells = [cell for cell in cells if cell.case != start["name"]]  # that case was not finished
    kept = ("mpi", "hosts", "cores", "python", "numpy", "settings", "path", "wire")  # path: that arrays on GPUs went
    machine = {k: start[k] for k in kept if k in start} | {"cpu": processor()}
    bench = Bench(dtype, machine, start.get("absent", {}), tuple(cells))
    if cut:
        raise CutShortError(bench, cut)
    return bench


def joined(parts: Sequence[Bench]) -> Bench:
    """The runs on several numbers of ranks as one value; what is absent anywhere is named."""
    absent = {way: why for part in parts for way, why in part.absent.items()}
    return Bench(parts[0].dtype, parts[0].machine, absent, tuple(cell for part in parts for cell in part.cells))
