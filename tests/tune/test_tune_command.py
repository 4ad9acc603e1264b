"""`dlrun tune` on real ranks: a planted best is found, an interruption loses nothing, a profile is written and used."""

from __future__ import annotations

import json
import os
import re
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
print(f"epoch 1: {100 + stage + lr + random.random() / 10:.2f} samples/s")
print(f"epoch 2: {100 + stage + lr + random.random() / 10:.2f} samples/s, accuracy {0.5 + lr / 1000}")
"""
RATE = ("--metric", "([0-9.]+) samples/s", "--take", "median")

# Its step takes 20 ms, and 2 ms with DL_COMM_STAGE_KB=64, besides the averaging of 3 gradients.
STEPS = """
import os, time
import torch
import dl_comm.torch as dl
dl.init()
model = torch.nn.Sequential(torch.nn.Linear(50, 20), torch.nn.Linear(20, 3, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(4, 50)).sum().backward()
    dl.gradients(optimizer)
    time.sleep(0.002 if os.environ.get("DL_COMM_STAGE_KB") == "64" else 0.02)
    optimizer.step()
open("finished", "w")
"""


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "dlrun", *args]


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"XDG_CONFIG_HOME": str(folder / "config")}
    return subprocess.run(command(*args), cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train_dist.py").write_text(SCRIPT)
    return tmp_path


def test_the_planted_best_variable_becomes_a_profile_that_launch_uses(folder: Path) -> None:
    options = ("--set", "DL_COMM_STAGE_KB=32,64", "--budget", "10m", *RATE)
    tuned = run(folder, "tune", "-n", "2", *options, "train_dist.py")
    assert tuned.returncode == 0, tuned.stderr
    assert "DL_COMM_STAGE_KB=64 is better than the default by" in tuned.stdout
    (profile,) = (folder / "config" / "dlrun" / "profiles").glob("*.json")
    assert json.loads(profile.read_text())["settings"] == {"DL_COMM_STAGE_KB": "64"}
    used = run(folder, "launch", "-n", "2", "train_dist.py")
    told = r"tuned profile train_dist \(\+30 %, (today|yesterday)\): DL_COMM_STAGE_KB=64"  # midnight may lie between
    assert re.search(told, used.stderr), used.stderr
    assert "130." in used.stdout
    refused = run(folder, "launch", "-n", "1", "train_dist.py")
    assert "its ranks is 2, this job's is 1" in refused.stderr
    assert "100." in refused.stdout


@pytest.mark.wide
def test_script_options_are_swept_with_a_metric_of_the_scripts_own(folder: Path) -> None:
    args = ("--param", "lr=0.1,0.2", "--metric", "accuracy ([0-9.]+)", "--budget", "10m", "train_dist.py")
    done = run(folder, "tune", "-n", "2", *args)
    assert done.returncode == 0, done.stderr
    assert "lr=0.2 is better than the default by 10.0 %" in done.stdout
    assert not (folder / "config" / "dlrun").exists()


def interrupted(folder: Path, lines: int, *args: str) -> subprocess.CompletedProcess[str]:
    """Run dlrun until its journal has so many lines, then press Ctrl-C."""
    env = os.environ | {"XDG_CONFIG_HOME": str(folder / "config")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command(*args), cwd=folder, env=env, text=True, **pipes) as process:  # type: ignore
        try:
            deadline = time.monotonic() + 200
            while time.monotonic() < deadline and process.poll() is None:
                if sum(path.read_text().count("\n") for path in folder.glob("*.jsonl")) >= lines:
                    break
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            said, errors = process.communicate(timeout=200)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "interrupted: this is the best so far" in said
    return subprocess.CompletedProcess(args, 0, said, errors)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_signal_ends_before_its_first_trial_says_which_and_has_its_exit_code(folder: Path, number: int) -> None:
    (folder / "train_dist.py").write_text("import time\nopen('begun', 'w').close()\ntime.sleep(100)\n")
    line = command("tune", "-n", "2", "--set", "DL_COMM_STAGE_KB=32,64", *RATE, "train_dist.py")
    with subprocess.Popen(line, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 200
            while not list(folder.glob("dlrun-runs/2*/files/**/begun")):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(number)
            said = process.communicate(timeout=200)[1]
        finally:
            process.kill()
    how = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM"}[number]
    assert said.splitlines()[-1] == f"dlrun: {how} before the first trial was done", said
    assert process.returncode == 128 + number


@pytest.mark.wide
def test_after_an_interruption_the_best_so_far_is_shown_and_the_search_goes_on(folder: Path) -> None:
    args = ("tune", "-n", "2", "--set", "DL_COMM_STAGE_KB=32,64", "--budget", "10m", *RATE, "train_dist.py")
    interrupted(folder, 5, *args)
    journal = folder / "dlrun-tune-train_dist-n2.jsonl"
    before = journal.read_text()
    done = run(folder, *args)
    assert "going on after the" in done.stderr
    assert journal.read_text().startswith(before)
    assert "DL_COMM_STAGE_KB=64 is better" in done.stdout


def test_a_script_that_prints_no_rate_is_an_error_that_says_what_to_do(folder: Path) -> None:
    (folder / "quiet.py").write_text("print('done')")
    done = run(folder, "tune", "-n", "2", "quiet.py")
    assert done.returncode == 1
    assert "quiet.py averaged no gradients with dl_comm" in done.stderr
    done = run(folder, "tune", "-n", "2", "--param", "lr=1", "quiet.py")
    assert done.returncode == 1
    assert "the script's output holds nothing like" in done.stderr


@pytest.mark.parametrize("words", [("steps.py",), ("-m", "work.steps")])
@pytest.mark.wide("words1")
def test_a_scripts_own_gradients_are_looked_at_and_its_own_steps_prove_the_gain(
    folder: Path, words: tuple[str, ...]
) -> None:
    pytest.importorskip("torch")
    (folder / "work").mkdir()
    for place in (folder, folder / "work"):
        (place / "steps.py").write_text(STEPS)
    options = ("--set", "DL_COMM_STAGE_KB=64", "--seconds", "0.02", "--no-profile", "--budget", "10m")
    done = interrupted(folder, 5, "tune", "-n", "2", *options, *words)
    assert "averages 3 gradients, 4.2 KB of float32; a step takes" in done.stderr
    head, *lines = [json.loads(line) for line in (folder / "dlrun-tune-steps-n2.jsonl").read_text().splitlines()]
    assert head["seen"]["counts"] == [1000, 20, 60]
    search = [o for o in lines if o["trial"]["stage"] == "grid"]
    final = {o["trial"]["settings"][0][1]: o for o in lines if o["trial"]["stage"] == "final"}
    assert len(search) == 2
    assert all(o["facts"][0][0] == "bus_bandwidth" for o in search), "averaging alone"
    assert final[None]["value"] > 0.02, "the whole step"
    assert not final["64"]["facts"]
    assert not (folder / "finished").exists()
    assert "averaging the gradients of steps" in done.stdout
    assert f"a step of {words[-1]}" in done.stdout


def test_a_real_search_on_gradient_sizes_measures_and_judges(folder: Path) -> None:
    args = ("--seconds", "0.05", "--budget", "5s", "--set", "DL_COMM_STAGE_KB=32", "--no-profile")
    (folder / "sizes.txt").write_text("1000, 2048000\n64")
    done = run(folder, "tune", "-n", "2", "--sizes-file", "sizes.txt", *args)
    assert done.returncode == 0, done.stderr
    lines = (folder / "dlrun-tune-sizes-n2.jsonl").read_text().splitlines()
    outcomes = [json.loads(line) for line in lines[1:]]
    assert all(o["value"] > 0 and not o["error"] for o in outcomes)
    assert "default" in done.stdout
