"""`dlrun bench allreduce --lab`: ranks on made-up hosts, beside what their links carry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dlrun.bench.lab import layout_from_text
from dlrun.bench.result import from_json
from dlrun.errors import DlrunError


def bench(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlrun", "bench", "allreduce", "--seconds", "0.05", "--models", "none", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.parametrize("text", ["2", "1x4", "2x0", "2x2x2", "twox1", "300x1"])
def test_what_is_no_lab_is_refused(text: str) -> None:
    with pytest.raises(DlrunError, match="is no lab"):
        layout_from_text(text)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root, and ip")
@pytest.mark.parametrize(("lab", "slow"), [("2x1", []), ("3x2", []), ("2x1", ["--delay", "1", "--rate", "50"])])
def test_ranks_of_a_lab_are_on_several_hosts_and_beside_their_links(lab: str, slow: list[str], tmp_path: Path) -> None:
    hosts, per_host = layout_from_text(lab)
    ways = "dl_comm,MPI,link,memcpy"
    done = bench(tmp_path, "--lab", lab, "--sizes", "64KB,256KB", "--ways", ways, "--json", *slow)
    if "no network namespaces" in done.stderr or "tun devices" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    result = from_json(json.loads(done.stdout), "stdout")
    assert not result.wrong() and result.machine["hosts"] == hosts
    assert {(cell.way, cell.ranks) for cell in result.cells} == {(way, hosts * per_host) for way in ways.split(",")}
    for cell in result.cells:
        limit = result.limit(cell)
        assert limit is not None and limit.way == "link" and cell.is_peer == (cell.way == "MPI")
        if slow and cell.way == "link":  # it carries 64 KB or more each way, at 50 MB/s, after 1 ms
            assert cell.best > 1e-3 + 65536 / 50e6


def test_the_link_is_no_way_on_one_host(tmp_path: Path) -> None:
    if not (shutil.which("mpiexec") or (Path(sys.executable).parent / "mpiexec").exists()):
        pytest.skip("no mpiexec: nothing can start ranks")
    done = bench(tmp_path, "-n", "2", "--sizes", "4", "--ways", "dl_comm,link")
    assert done.returncode == 0, done.stderr
    assert "not measured: link (ValueError: it is between hosts of equally many ranks)" in done.stdout
