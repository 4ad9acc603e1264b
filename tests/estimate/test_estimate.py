"""What is expected on many ranks: by hand for the model, and by a run of a script for what is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dlrun.errors import DlrunError
from dlrun.estimate.measure import Measured
from dlrun.estimate.network import Network, network, rate_from_text
from dlrun.estimate.predict import averaging, rows
from dlrun.estimate.report import text

# 100 MB of gradients; a step of 0.1 s, of which a tenth is averaging on the 4 ranks of a node
SEEN = Measured(4, 0.110, 0.010, (25_000_000,), "float32", False, 2 << 30, 0)
WIRES = Network(10e9, 0.0, "--network")


@pytest.mark.parametrize(
    ("said", "rate"), [("25GB/s", 25e9), ("200Gbit/s", 25e9), ("200 Gb/s", 25e9), ("800Mbps", 1e8), ("1e9", None)]
)
def test_a_rate_is_bytes_with_a_large_b_and_bits_with_a_small_one(said: str, rate: float | None):
    if rate is None:
        with pytest.raises(DlrunError, match="is no rate"):
            rate_from_text(said)
    else:
        assert rate_from_text(said) == rate


def test_the_networks_rate_is_said_or_that_of_the_cards_or_assumed(tmp_path: Path):
    assert network(devices=tmp_path).source.startswith("assumed")
    for name, speed, real in (("eth0", "25000", True), ("lo", "", False), ("veth", "10000000", False)):
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "speed").write_text(speed)
        if real:
            (tmp_path / "net" / name / "device").touch()
    assert (network(devices=tmp_path).rate, network(devices=tmp_path).source) == (25e9 / 8, "eth0 here")
    for port in ("mlx5_0", "mlx5_1"):
        (tmp_path / "infiniband" / port / "ports/1").mkdir(parents=True)
        (tmp_path / "infiniband" / port / "ports/1/rate").write_text("200 Gb/sec (4X HDR)\n")
    assert network(devices=tmp_path).rate == 50e9
    assert network("1GB/s", devices=tmp_path).rate == 1e9


def test_a_node_averages_as_it_was_measured_and_nodes_by_their_network():
    assert averaging(SEEN, WIRES, 4, 4) == pytest.approx(0.010)
    assert averaging(SEEN, WIRES, 2, 4) == pytest.approx(0.010 * (1 / 2) / (3 / 4))
    assert averaging(SEEN, WIRES, 8, 4) == pytest.approx(0.010 + 2 * 1e8 * (1 / 2) / 10e9)
    slow = replace(WIRES, latency=1e-3)
    assert averaging(SEEN, slow, 16, 4) == pytest.approx(0.010 + 2 * 1e8 * (3 / 4) / 10e9 + 2e-3 * 2)


def test_efficiency_is_the_share_of_computing_and_backward_may_hide_the_rest():
    table = rows(SEEN, WIRES, 16, 4)
    assert [(row.ranks, row.nodes) for row in table] == [(4, 1), (8, 2), (16, 4)]
    last = table[-1]
    assert last.averaging == pytest.approx(0.025)
    assert (last.efficiency, last.step) == (pytest.approx(0.1 / 0.125), pytest.approx(0.125))
    hides = rows(replace(SEEN, step=0.100, overlap=True), WIRES, 16, 4)[-1]
    assert (hides.efficiency, hides.hidden, hides.step) == (pytest.approx(0.8), 1.0, pytest.approx(0.1))
    slow = rows(replace(SEEN, step=0.100, overlap=True), replace(WIRES, rate=1e9), 16, 4)[-1]
    assert slow.hidden == pytest.approx(0.1 / (0.1 + 0.160 - 0.2 / 3))


def test_a_number_of_ranks_that_fills_no_node_has_a_row_of_its_own():
    assert [(row.ranks, row.nodes) for row in rows(SEEN, WIRES, 3, 4)] == [(3, 1)]
    assert [(row.ranks, row.nodes) for row in rows(SEEN, WIRES, 10, 4)] == [(4, 1), (8, 2), (10, 3)]


def test_what_a_rank_and_a_node_need_is_said():
    said = text(SEEN, WIRES, 4, rows(SEEN, WIRES, 16, 4))
    assert "2 GB a rank, 8 GB a node of 4" in said
    assert "95.4 MB of float32 in 1 arrays: each step a rank gives and takes 179 MB" in said
    assert "143 MB a step in and out of each node, at 10 GB/s (--network)" in said
    assert "   16      4  125 ms    25.0 ms        80 %" in said


SCRIPT = """
import sys, time
import numpy as np
import dl_comm as dl
dl.init()
held = np.ones(int(sys.argv[1]) << 17)  # MB
for step in range(1000):
    time.sleep(0.01)
    dl.gradients([np.ones(1000, np.float32), np.ones((3, 5), np.float32)])
open("written", "w").close()
"""


def estimate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "dlrun", "estimate", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=250, check=False)


def test_a_scripts_first_steps_are_measured_and_its_files_left_alone(tmp_path: Path):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["-n", "16", "--ppn", "4", "--network", "10GB/s", "--seconds", "0.1", "--on", "2", "--json", "train.py"]
    done = estimate(tmp_path, *words, "100")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    seen = found["measured"]
    assert (seen["ranks"], seen["counts"], seen["gradient_bytes"]) == (2, [1000, 15], 4060)
    assert seen["memory"] > 100 << 20 and seen["step"] > 0.01
    assert [row["ranks"] for row in found["rows"]] == [4, 8, 16]
    assert all(0 < row["efficiency"] <= 1 for row in found["rows"])
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("-n 64 nowhere.py", "there is no script nowhere.py"),
        ("-n 64 --network fast train.py", "--network fast is no rate"),
        ("-n 1 train.py", "1 is not in the range x>=2"),
        ("-n 4 serial.py", "averaged no gradients with dl_comm"),
        ("train.py", "How many ranks? -n N"),
    ],
)
def test_what_cannot_be_estimated_is_said(tmp_path: Path, words: str, why: str):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "serial.py").write_text("print('trained')\n")
    done = estimate(tmp_path, *words.split())
    assert done.returncode in (1, 2) and why in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
