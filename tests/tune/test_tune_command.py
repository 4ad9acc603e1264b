"""`dlrun tune` on real ranks: a planted best is found, an interruption loses nothing, a profile is written and used."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HAS_MPI = shutil.which("mpiexec") or (Path(sys.executable).parent / "mpiexec").exists()
pytestmark = pytest.mark.skipif(not HAS_MPI, reason="no mpiexec: nothing can start ranks")

# Its rate follows from what is set, with a little noise; DL_COMM_STAGE_KB=64 and --lr 0.2 are the best.
SCRIPT = """
import os, random, sys
stage = {"64": 30, "32": -30}.get(os.environ.get("DL_COMM_STAGE_KB"), 0)
lr = 50 if "0.2" in sys.argv else 0
print(f"epoch 1: {100 + stage + lr + random.random():.2f} samples/s")
print(f"epoch 2: {100 + stage + lr + random.random():.2f} samples/s, accuracy {0.5 + lr / 1000}")
"""


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "dlrun", *args]


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"XDG_CONFIG_HOME": str(folder / "config")}
    return subprocess.run(command(*args), cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train_dist.py").write_text(SCRIPT)
    return tmp_path


def test_the_planted_best_variable_becomes_a_profile_that_launch_uses(folder: Path) -> None:
    tuned = run(folder, "tune", "-n", "2", "--set", "DL_COMM_STAGE_KB=32,64", "--budget", "100s", "train_dist.py")
    assert tuned.returncode == 0, tuned.stderr
    assert "DL_COMM_STAGE_KB=64 is better than the default by" in tuned.stdout
    (profile,) = (folder / "config" / "dlrun" / "profiles").glob("*.json")
    assert json.loads(profile.read_text())["settings"] == {"DL_COMM_STAGE_KB": "64"}
    used = run(folder, "launch", "-n", "2", "train_dist.py")
    assert "tuned profile train_dist (+30 %, today): DL_COMM_STAGE_KB=64" in used.stderr
    assert "130." in used.stdout
    refused = run(folder, "launch", "-n", "1", "train_dist.py")
    assert "its ranks is 2, this job's is 1" in refused.stderr
    assert "100." in refused.stdout


def test_script_options_are_swept_with_a_metric_of_the_scripts_own(folder: Path) -> None:
    args = ("--param", "lr=0.1,0.2", "--metric", "accuracy ([0-9.]+)", "--budget", "100s", "train_dist.py")
    done = run(folder, "tune", "-n", "2", *args)
    assert done.returncode == 0, done.stderr
    assert "lr=0.2 is better than the default by 10.0 %" in done.stdout
    assert not (folder / "config" / "dlrun").exists()


def test_after_an_interruption_the_best_so_far_is_shown_and_the_search_goes_on(folder: Path) -> None:
    args = command("tune", "-n", "2", "--set", "DL_COMM_STAGE_KB=32,64", "--budget", "100s", "train_dist.py")
    env = os.environ | {"XDG_CONFIG_HOME": str(folder / "config")}
    process = subprocess.Popen(args, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = folder / "dlrun-tune-train_dist-n2.jsonl"
    deadline = time.monotonic() + 60
    while (not journal.exists() or journal.read_text().count("\n") < 5) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "interrupted: this is the best so far" in said
    before = journal.read_text()
    done = run(folder, *args[3:])
    assert "going on after the" in done.stderr
    assert journal.read_text().startswith(before)
    assert "DL_COMM_STAGE_KB=64 is better" in done.stdout


def test_a_script_that_prints_no_rate_is_an_error_that_says_what_to_do(folder: Path) -> None:
    (folder / "quiet.py").write_text("print('done')")
    done = run(folder, "tune", "-n", "2", "quiet.py")
    assert done.returncode == 1
    assert "the script's output holds nothing like" in done.stderr


def test_a_real_search_on_gradient_sizes_measures_and_judges(folder: Path) -> None:
    args = ("--seconds", "0.05", "--budget", "5s", "--set", "DL_COMM_STAGE_KB=32", "--no-profile")
    (folder / "sizes.txt").write_text("1000, 2048000\n64")
    done = run(folder, "tune", "-n", "2", "--sizes-file", "sizes.txt", *args)
    assert done.returncode == 0, done.stderr
    lines = (folder / "dlrun-tune-sizes-n2.jsonl").read_text().splitlines()
    outcomes = [json.loads(line) for line in lines[1:]]
    assert all(o["value"] > 0 and not o["error"] for o in outcomes)
    assert "default" in done.stdout
