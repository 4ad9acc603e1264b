"""The examples train: alone, and ported, on two ranks. Each needs its framework, and is skipped where that is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# What each example is given to train briefly, and the accuracy that the serial and the ported script then reach.
DIGITS = {
    "keras_mnist": (["--epochs", "6"], ["--save", "digits.keras"]),
    "tf2_mnist": (["--epochs", "6"], ["--save", "digits.weights.h5"]),
    "tf_mnist": (["--steps", "144"], ["--model-dir", "digits"]),
}


def run(folder: Path, command: list[str], *args: str, **variables: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    done = subprocess.run([*command, *args], cwd=folder, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return done.stdout


def serial(folder: Path, name: str, *args: str, **variables: str) -> str:
    return run(folder, [sys.executable, str(EXAMPLES / name)], *args, **variables)


def on_ranks(folder: Path, n: int, name: str, *args: str, **variables: str) -> str:
    launch = [sys.executable, "-m", "dlrun", "launch", "-n", str(n)]
    return run(folder, [*launch, str(EXAMPLES / name)], *args, **variables)


def need(*modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def numbers(word: str, output: str) -> list[float]:
    return [float(x) for x in re.findall(rf"{word} ([\d.]+)", output)]


def test_the_demo_trains_alone_and_on_two_ranks_and_compares_them(tmp_path: Path) -> None:
    need("torch", "sklearn")
    shown = run(tmp_path, [sys.executable, "-m", "dlrun", "demo"], "--epochs", "1")
    assert re.findall(r"^(serial|2 ranks) .* [\d.]+x +[\d.]+% +[\d.]+ s$", shown, re.M) == ["serial", "2 ranks"]
    assert "every process computed with OMP_NUM_THREADS=1\n" in shown
    assert {"train.py", "train_dist.py"} <= {path.name for path in (tmp_path / "dlrun-demo").iterdir()}


@pytest.mark.parametrize("name", DIGITS)
@pytest.mark.wide("keras_mnist")
def test_digits_are_learned_alone_and_on_two_ranks(tmp_path: Path, name: str) -> None:
    need("sklearn", "keras" if name == "keras_mnist" else "tensorflow")
    if name == "tf_mnist" and find_spec("tensorflow_estimator") is None:
        pytest.skip("TensorFlow has no Estimator from 2.16 on")
    backend = {} if find_spec("tensorflow") else {"KERAS_BACKEND": "torch"}
    args, save = DIGITS[name]
    one = numbers("accuracy", serial(tmp_path, f"{name}/serial.py", *args, *save, **backend))[-1]
    (tmp_path / "two").mkdir()
    two = numbers("accuracy", on_ranks(tmp_path / "two", 2, f"{name}/dist.py", *args, *save, **backend))[-1]
    assert one > 0.93
    # 261 test digits: six of them are 2.3 %. Two ranks take half as many steps.
    assert two > one - 0.04
    assert any((tmp_path / "two").glob("digits*"))


@pytest.mark.wide
def test_the_gan_trains_both_networks_on_two_ranks(tmp_path: Path) -> None:
    need("torch", "sklearn")
    one = serial(tmp_path, "gan/serial.py", "--epochs", "3")
    two = on_ranks(tmp_path, 2, "gan/dist.py", "--epochs", "3")
    for output in (one, two):
        assert len(numbers("loss D", output)) == 3
        assert 0.2 < numbers("loss D", output)[-1] < 2
        assert 0.2 < numbers("loss G", output)[-1] < 3
    assert (tmp_path / "generator.pt").exists()


@pytest.mark.wide
def test_the_benchmarks_network_trains_on_two_ranks_as_alone(tmp_path: Path) -> None:
    need("torch")
    common = ["--epochs", "2", "--images", "128", "--size", "16"]
    one = numbers("loss", serial(tmp_path, "cnn_benchmark/serial.py", *common, "--lr", "0.04"))
    halves = ["--batch-size", "16", "--lr", "0.02"]
    two = numbers("loss", on_ranks(tmp_path, 2, "cnn_benchmark/dist.py", *common, *halves))
    assert len(one) == 2
    assert two == pytest.approx(one, abs=1e-4)


def test_ways_to_average_are_compared_and_agree(tmp_path: Path) -> None:
    need("torch")
    short = ["--turns", "2", "--steps", "1", "--size", "16", "--batch-size", "4", "--classes", "10"]
    table = on_ranks(tmp_path, 2, "cnn_benchmark/compare.py", *short)
    for way in ("none", "dl_comm", "dl_comm, overlapped", "DDP, gloo"):
        assert f"| {way} | " in table


def test_tensorflows_own_strategy_is_compared_and_agrees(tmp_path: Path) -> None:
    need("tensorflow")
    short = ["--turns", "2", "--steps", "1", "--size", "16", "--batch-size", "4", "--classes", "10"]
    table = on_ranks(tmp_path, 2, "cnn_benchmark/compare_tensorflow.py", *short)
    for way in ("none", "dl_comm", "MultiWorkerMirroredStrategy"):
        assert f"| {way} | " in table


def test_a_table_compares_with_a_step_and_averaging_together() -> None:
    sys.path.insert(0, str(EXAMPLES / "cnn_benchmark"))
    try:
        from table import table
    finally:
        sys.path.pop(0)
    lines = table("a title", 8, {"none": [0.4, 0.5, 0.8], "dl_comm": [0.8, 0.6, 0.6]}, [0.1, 0.1, 0.2]).splitlines()
    assert "communication: 500.0 ms, averaging alone (dl_comm): 100.00 ms, together 600.0 ms" in lines[2]
    assert lines[-2:] == ["| none | 15.3 | 4.1 | 500.0 | 83.3% |", "| dl_comm | 12.2 | 1.6 | 600.0 | 100.0% |"]


def test_pi_is_the_same_by_mpi_and_by_dl_comm(tmp_path: Path) -> None:
    output = on_ranks(tmp_path, 3, "pi/pi.py", "--points", "100000")
    ours, theirs = re.findall(r"([\d.]+) by", output)
    assert output.startswith("3 ranks: pi is 3.1")
    assert ours == theirs
