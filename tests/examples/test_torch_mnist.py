"""The digits example: its port trains on real ranks as the serial script does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn, which carries the digits, is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_mnist"


def run(folder: Path, command: list[str], *args: str) -> str:
    line = [*command, *args, "--save", str(folder / "digits.pt")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # two that wait for each other on busy cores take thrice the time
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def serial(folder: Path, *args: str) -> str:
    return run(folder, [sys.executable, str(EXAMPLE / "serial.py")], *args)


def distributed(folder: Path, ranks: int, *args: str) -> str:
    launch = [sys.executable, "-m", "dlrun", "launch", "-n", str(ranks)]
    return run(folder, [*launch, str(EXAMPLE / "dist.py")], *args)


def losses(output: str) -> list[float]:
    """Every loss in the output, training and test, in order."""
    return [float(x) for x in re.findall(r"loss ([\d.]+)", output)]


def best_accuracy(output: str) -> float:
    found = re.search(r"best accuracy ([\d.]+)", output)
    assert found, output
    return float(found.group(1))


def test_two_ranks_reach_the_accuracy_of_one_process(tmp_path: Path) -> None:
    one = best_accuracy(serial(tmp_path, "--epochs", "8"))
    two = best_accuracy(distributed(tmp_path, 2, "--epochs", "8"))
    assert one > 0.95
    # 261 test digits: four of them are 1.5 %, twice the standard error of an accuracy of 0.985.
    assert two > one - 0.016


def test_with_the_same_global_batch_every_loss_is_the_serial_one(tmp_path: Path) -> None:
    ranks = 4
    common = ["--epochs", "2", "--dropout", "0"]
    one = losses(serial(tmp_path, *common, "--batch-size", "64", "--lr", "0.04", "--log-interval", "6"))
    # The port multiplies the rate by the number of ranks, and divides intervals; a power of two keeps both exact.
    local = ["--batch-size", str(64 // ranks), "--lr", str(0.04 / ranks), "--log-interval", str(6 * ranks)]
    many = losses(distributed(tmp_path, ranks, *common, *local))
    assert len(one) == 2 * (4 + 1)
    assert many == pytest.approx(one, abs=1e-5)


def test_the_idx_files_of_mnist_are_read(tmp_path: Path) -> None:
    import gzip
    import struct

    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images * 15).astype("uint8")
    for part, rows in (("train", slice(0, 1536)), ("t10k", slice(1536, None))):
        pixels, labels = images[rows], digits.target[rows].astype("uint8")
        header = struct.pack(">4B3i", 0, 0, 8, 3, *pixels.shape)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        with gzip.open(tmp_path / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">4Bi", 0, 0, 8, 1, len(labels)) + labels.tobytes())
    assert best_accuracy(serial(tmp_path, "--epochs", "4", "--data", str(tmp_path))) > 0.8
