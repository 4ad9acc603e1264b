"""--check: a real allreduce before the script, and what it says of wrong ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlrun.errors import DlrunError
from dlrun.launch.check import verdict


def answer(rank: int, **other: object) -> dict[str, object]:
    return {"rank": rank, "size": 2, "seconds": 0.01 * rank, "wrong": [], "bytes": 4_000_000, **other}


def test_the_slowest_rank_counts():
    said = verdict([answer(0), answer(1)], 0.6)
    assert said == "check: 2 ranks averaged 4.0 MB in 10 ms, all of it right (0.6 s with start and end)"


@pytest.mark.parametrize(
    ("answers", "what"),
    [
        ([answer(0), {}], "rank 1 gave no answer"),
        ([answer(0, size=1), answer(1, size=1)], "asked 2 ranks, and rank 0's MPI library sees 1"),
        ([answer(0), answer(1, wrong=["1 of 9 elements"])], "rank 1 got wrong averages: 1 of 9 elements"),
    ],
)
def test_the_rank_is_named(answers, what):
    with pytest.raises(DlrunError, match=what):
        verdict(answers, 1.0)


def test_the_ranks_that_will_train_average_rightly_first(dlrun, mpiexec, tmp_path: Path):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "talks.py").write_text("import dl_comm\ndl_comm.init_mpi()\nprint(dl_comm.get_nranks())\n")
    done = dlrun("-n", "2", "--mpiexec", mpiexec, "--log-dir", "runs", "--check", "talks.py")
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert "dlrun: check: 2 ranks averaged 4.2 MB in " in done.stderr
    assert (tmp_path / "runs/latest/check/rank-1.log").exists() and (tmp_path / "runs/latest/rank-1.log").exists()


def test_a_check_that_is_interrupted_has_not_failed(any_mpiexec, tmp_path: Path):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "talks.py").touch()
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/numpy.py").write_text("import time\ntime.sleep(60)\n")
    line = [
        sys.executable,
        "-m",
        "dlrun",
        "launch",
        "-n",
        "2",
        "--check",
        "--mpiexec",
        any_mpiexec,
        "--log-dir",
        "runs",
        "--env",
        f"PYTHONPATH={tmp_path / 'slow'}",
        "talks.py",
    ]
    process = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    by = time.monotonic() + 60
    while not list(tmp_path.glob("runs/latest/check/rank-*.stack")):
        assert process.poll() is None and time.monotonic() < by
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.splitlines()[-1]) == (130, "dlrun: interrupted")
    assert "failed" not in said


BROKEN = """
import os
import numpy as np
def init(*_): pass
def finalize(): pass
def get_rank(): return int(os.environ["DLRUN_RANK"])
def get_nranks(): return 2
def gradients(arrays, _):
    right = [a / (get_rank() + 1) * 1.5 for a in arrays]
    if get_rank() == 1: right[1][17] = 99
    return right
"""


INSTEAD = """
import importlib.util, os, sys
file = os.path.join(os.path.dirname(__file__), "broken.py")
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, file) if name == "dl_comm" else None
sys.meta_path.insert(0, Finder)
"""


def test_a_library_that_adds_up_wrongly_is_found_before_the_script_starts(dlrun, any_mpiexec, tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/broken.py").write_text(BROKEN)
    (tmp_path / "other/sitecustomize.py").write_text(INSTEAD)
    (tmp_path / "train.py").write_text("open('trained', 'w').close()\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "other")}
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "--check", "train.py", env=env)
    assert done.returncode == 1
    what = "the check failed: rank 1 got wrong averages: 1 of 1000 elements, first element 17: 99 instead of 25.5"
    assert what in done.stderr, done.stderr
    assert not (tmp_path / "trained").exists()
