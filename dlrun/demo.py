"""``dlrun demo``: the handwritten-digits example trained serially, ported, and trained on several ranks."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import click

from dlrun.errors import DlrunError
from dlrun.launch import LaunchPlan, launch
from dlrun.launch.result import check_interrupted
from dlrun.port.files import port_file
from dlrun.progress import span

# What the example prints: after some batches, and after each epoch.
BATCH = re.compile(r"epoch \d+ batch ")
EPOCH = re.compile(r"epoch (\d+) of (\d+): test loss [\d.]+, accuracy ([\d.]+), (\d+) samples/s")
LINES = 20  # of progress, where it is no terminal
DECAY = 0.1  # of the learning rate, over all epochs


@dataclass
class Training:
    """What one training run of the example printed: per epoch the test accuracy (0..1) and samples per second."""

    title: str
    accuracies: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    seconds: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def read_rank(self, rank: int, stream: str, line: str) -> None:
        """Take in a line that a rank wrote to ``stream``, "out" or "err"."""
        self.read(line)

    def read(self, line: str) -> None:
        """Take in a line of the script's output; show it as progress, and what is no measurement as it is."""
        if BATCH.match(line):
            return
        if not (match := EPOCH.search(line)):
            click.echo(f"  {line.rstrip()}")
        else:
            epoch, epochs, accuracy, rate = match.groups()
            self.accuracies.append(float(accuracy))
            self.rates.append(float(rate))
            done = round(24 * int(epoch) / int(epochs))
            bar = "━" * done + click.style("─" * (24 - done), dim=True)
            text = f"  {bar} epoch {epoch:>2} of {epochs}  accuracy {float(accuracy):.1%}  {int(rate):6,} samples/s"
            if sys.stdout.isatty():
                left = (time.perf_counter() - self.began) * (int(epochs) / int(epoch) - 1)
                click.echo(f"\r\033[K{text}" + (f"  {span(left)} left" if left else ""), nl=int(epoch) == int(epochs))
            elif int(epoch) * LINES // int(epochs) > (int(epoch) - 1) * LINES // int(epochs):
                click.echo(text)

    @property
    def rate(self) -> float:
        """Samples per second: the median over the epochs, the first (which warms up) left out."""
        return statistics.median(self.rates[1:] or self.rates)


def run_demo(folder: Path, ranks: int, epochs: int, data: str | None) -> None:
    """Show in ``folder`` what dlrun does with ``examples/torch_mnist/serial.py``, and measure it.

    Raises DlrunError where PyTorch or the digits are missing, or a training run fails.
    """
    _need("torch", "sklearn")
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    shutil.copyfile(_example(), script)
    gamma = f"{DECAY ** (1 / epochs):.4f}"
    args = ["--epochs", str(epochs), "--gamma", gamma, *(["--data", str(Path(data).resolve())] if data else [])]

    _heading(1, f"the serial script: python {script} {' '.join(args)}")
    serial = Training("serial")
    # Both compute with as many threads in each process, or the serial run would be another program.
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, len(os.sched_getaffinity(0)) // ranks))
    _train(serial, lambda: _run_serial(script, args, threads, serial.read))

    _heading(2, f"dlrun port {script}")
    ported = port_file(script)
    assert ported.path is not None
    click.echo(ported.diff(color=True))
    click.echo(ported.report(color=True), nl=False)

    _heading(3, f"dlrun launch -n {ranks} {ported.path} {' '.join(args)}")
    parallel = Training(f"{ranks} ranks" if ranks > 1 else "1 rank")
    env = (("OMP_NUM_THREADS", threads),)
    plan = LaunchPlan((ported.path.name, *args), ranks=ranks, cwd=str(folder), env=env)
    _train(parallel, lambda: _run_ranks(plan, parallel))

    _closing(serial, parallel, ranks, threads)


def _need(*modules: str) -> None:
    if missing := [m for m in modules if find_spec(m) is None]:
        raise DlrunError(f"the demo needs {' and '.join(missing)}", 'pip install "dlrun[demo]" brings what it needs')


def _example() -> Path:
    """The serial example: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).parent
    for folder in (here / "examples", here.parent / "examples"):
        if (folder / "torch_mnist" / "serial.py").exists():
            return folder / "torch_mnist" / "serial.py"
    raise DlrunError(f"the example is not where the package keeps it: {here / 'examples'}", "install dlrun again")


def _run_serial(script: Path, args: list[str], threads: str, on_line: Callable[[str], None]) -> int:
    command = [sys.executable, "-u", script.name, *args]
    env = {**os.environ, "OMP_NUM_THREADS": threads}
    with subprocess.Popen(command, cwd=script.parent, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                on_line(line)
        except BaseException:
            process.kill()
            raise
    return process.returncode


def _run_ranks(plan: LaunchPlan, training: Training) -> int:
    result = launch(plan, on_line=training.read_rank)
    check_interrupted(result)
    return result.returncode


def _train(training: Training, run: Callable[[], int]) -> None:
    start = time.perf_counter()
    code = run()
    training.seconds = time.perf_counter() - start
    if code or not training.rates:
        raise DlrunError(f"the training on {training.title} ended with code {code}", "its output above says why")


def _heading(number: int, text: str) -> None:
    click.echo("\n" + click.style(f"{number}  {text}", bold=True))


def _closing(serial: Training, parallel: Training, ranks: int, threads: str) -> None:
    head = f"{'':12}{'samples/s':>12}{'speed':>8}{'best accuracy':>16}{'wall time':>12}"
    click.echo("\n" + click.style(head, bold=True))
    for run in (serial, parallel):
        speed = f"{run.rate / serial.rate:.2f}x"
        click.echo(f"{run.title:12}{run.rate:12,.0f}{speed:>8}{max(run.accuracies):16.1%}{run.seconds:10.1f} s")
    click.echo(f"every process computed with OMP_NUM_THREADS={threads}")
    click.echo(
        "\nNow your own script:\n"
        "  dlrun port train.py                          writes train_dist.py beside it\n"
        "  dlrun verify train.py train_dist.py          proves that it does what train.py does\n"
        f"  dlrun launch -n {ranks} train_dist.py              trains it on {ranks} ranks\n"
        "  dlrun launch -n 64 --dry-run train_dist.py   prints what a cluster would run"
    )
