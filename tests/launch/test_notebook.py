"""A function of a cell runs on several ranks: from the prompt's own ``__main__``, which no rank could import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cloudpickle")

CELLS = """
import sys, threading
import numpy as np
from dlrun.notebook import launch
scale = 10

def helper(x):
    return x * scale

def train(start):
    import os, dl_comm as dl
    dl.init()
    mean, = dl.gradients([np.full(3, start + dl.get_rank(), np.float32)])
    print("rank", dl.get_rank(), "of", dl.get_nranks(), flush=True)
    return helper(float(mean[0])), os.environ.get("A")

def fails():
    import dl_comm as dl
    dl.init()
    if dl.get_rank() == 1:
        raise ValueError("bad shape")
    dl.barrier()

def answers_nothing_that_can_be_sent():
    return threading.Lock()

def alone():
    print("trained")

def interrupts():
    import os, signal, time
    import dl_comm as dl
    dl.init()
    if dl.get_rank() == 0:
        os.kill(launcher, signal.SIGINT)
    time.sleep(100)
"""


def cell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run one more line after the cells, as a prompt does: its ``__main__`` has no file."""
    text = f"{CELLS}\n{line}\n"
    words = [sys.executable, "-"]
    return subprocess.run(words, input=text, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_a_cells_function_runs_on_two_ranks_and_rank_0s_answer_comes_back(any_mpiexec, tmp_path):
    done = cell(tmp_path, "print(launch(train, args=(1,), n=2, env={'A': 'b c'}))")
    assert done.stdout.splitlines() == ["rank 0 of 2", "(15.0, 'b c')"], done.stderr
    run = tmp_path / "dlrun-runs/latest"
    assert (run / "rank-1.log").read_text() == "rank 1 of 2\n"
    assert not list(run.glob("*.pickle"))


def test_of_all_ranks_that_are_shown_each_line_has_its_rank(any_mpiexec, tmp_path):
    done = cell(tmp_path, "launch(train, args=(1,), n=2, show=None)")
    assert sorted(done.stdout.splitlines()) == ["[0] rank 0 of 2", "[1] rank 1 of 2"], done.stderr


def test_a_rank_that_fails_is_an_exception_that_names_it_and_the_line_of_the_cell(any_mpiexec, tmp_path):
    line = "\ntry:\n    launch(fails, n=2)\nexcept Exception as error:\n    print(type(error).__name__, error)"
    done = cell(tmp_path, line)
    at = CELLS.splitlines().index('        raise ValueError("bad shape")') + 1
    assert done.stdout.startswith("DlrunError rank 1 "), done.stderr
    assert f"ValueError: bad shape at the cell of fails:{at}; logs: " in done.stdout


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("launch(train, args=(1,))", "how many ranks is not said, and no GPU is here; say so: launch(train, n=2)"),
        ("launch(train, args=(threading.Lock(),), n=2)", "train cannot be sent to the ranks: TypeError"),
        ("launch(answers_nothing_that_can_be_sent, n=2)", "cannot pickle"),
        ("launch(train, n=2)", "missing 1 required positional argument"),
        ("launch(train, (1,), n=0)", "DlrunError"),
    ],
)
def test_what_cannot_be_done_is_said(any_mpiexec, tmp_path, call: str, why: str):
    done = cell(tmp_path, call)
    if "no GPU" in why and "no GPU" not in done.stderr:
        pytest.skip("a GPU is here, or a batch job")
    assert done.returncode == 1 and why in done.stderr, done.stderr


def test_ranks_that_never_talk_are_told_to_be_copies(any_mpiexec, tmp_path):
    done = cell(tmp_path, "launch(alone, n=2)")
    assert "each has run the whole function for itself" in done.stderr


def test_an_interrupt_ends_the_ranks_and_is_an_interrupt_of_the_cell(any_mpiexec, tmp_path):
    line = "import os\nlauncher = os.getpid()\ntry:\n    launch(interrupts, n=2)\n"
    done = cell(tmp_path, line + "except KeyboardInterrupt:\n    print('interrupted')")
    assert done.stdout.splitlines() == ["interrupted"], done.stderr
