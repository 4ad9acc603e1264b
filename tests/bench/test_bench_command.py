"""`dlrun bench allreduce` on real ranks."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlrun.bench.result import from_json

HAS_MPI = shutil.which("mpiexec") or (Path(sys.executable).parent / "mpiexec").exists()
pytestmark = pytest.mark.skipif(not HAS_MPI, reason="no mpiexec: nothing can start ranks")


def bench(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlrun", "bench", "allreduce", "--seconds", "0.05", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_every_cell_of_a_real_run_is_exact_and_the_files_are_written(tmp_path: Path) -> None:
    done = bench(tmp_path, "-n", "2", "--sizes", "4,64KB", "--models", "cnn", "--out", "now.json")
    assert done.returncode == 0, done.stderr
    result = from_json(json.loads((tmp_path / "now.json").read_text()), "now.json")
    assert not result.wrong()
    assert {c.case for c in result.cells} == {"4 B", "64 KB", "cnn"}
    assert {"dl_comm", "dl_comm arena", "MPI", "memcpy"} <= {c.way for c in result.cells if c.case == "cnn"}
    assert all(len(c.seconds) >= 5 and c.best > 0 for c in result.cells)
    assert "exact" in done.stdout
    assert "WRONG" not in done.stdout
    again = bench(tmp_path, "-n", "2", "--sizes", "4", "--models", "none", "--ways", "MPI,foo", "--compare", "now.json")
    assert again.returncode == 0, again.stderr
    assert "before/now" in again.stdout
    assert "not measured: foo (there is no such way; known are dl_comm, " in again.stdout


def test_where_no_way_can_run_that_is_an_error(tmp_path: Path) -> None:
    done = bench(tmp_path, "-n", "1", "--sizes", "4", "--models", "none", "--ways", "foo")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-2:]  # after how far it has come, which is told of what takes long
    assert last[0] == "dlrun: nothing was measured"
    assert last[1].startswith("  foo: there is no such way; known are dl_comm, ")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8"])
def test_other_types_on_a_number_of_ranks_that_is_no_power_of_two(dtype: str, tmp_path: Path) -> None:
    done = bench(
        tmp_path,
        "-n",
        "3",
        "--sizes",
        "80KB",
        "--models",
        "none",
        "--dtype",
        dtype,
        "--json",
        "--ways",
        "dl_comm,dl_comm arena,memcpy",
    )
    assert done.returncode == 0, done.stderr
    result = from_json(json.loads(done.stdout), "stdout")
    assert {"dl_comm", "dl_comm arena"} <= {c.way for c in result.cells}
    assert not result.wrong()


def test_a_type_that_was_not_measured_before_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(
        json.dumps({"format": "dlrun bench 1", "dtype": "float32", "machine": {}, "absent": {}, "cells": []})
    )
    done = bench(tmp_path, "-n", "2", "--dtype", "float16", "--compare", "old.json")
    assert done.returncode == 1
    assert "measured float32, this one float16" in done.stderr
    assert not (tmp_path / "dlrun-runs").exists()


def test_a_start_is_timed_beside_the_bare_launchers(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "dlrun", "bench", "start", "--runs", "2"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    told = done.stdout
    rows = {row.rsplit(None, 2)[0]: row.split()[-2:] for row in told.splitlines()[3:]}
    bare, ours, more = (list(map(int, numbers)) for numbers in rows.values())
    assert list(rows)[1:] == ["dlrun launch", "more"] and min(bare + ours) > 0
    assert all(abs(b - a - m) <= 1 for a, b, m in zip(bare, ours, more, strict=True)), told
    said = json.loads(subprocess.run([*line, "--json"], cwd=tmp_path, capture_output=True, check=True).stdout)
    assert (said["ranks"], said["runs"]) == (2, 2) and said["dlrun"]["seconds"] > said["bare"]["seconds"] > 0
    assert not list(tmp_path.iterdir()), "its runs are gone with their folder"


def test_a_benchmark_that_sigterm_ends_before_its_first_row_says_so_and_has_its_exit_code(tmp_path: Path) -> None:
    words = ["-n", "2", "--sizes", "4", "--models", "none", "--seconds", "60", "--ways", "dl_comm"]
    line = [sys.executable, "-m", "dlrun", "bench", "allreduce", *words]
    process = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        assert process.stdout.readline(), "the title, which comes when the ranks are there"
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert errors.splitlines()[-1] == "dlrun: ended by SIGTERM before the first case was done", errors
    assert process.returncode == 143


def test_rows_appear_as_they_are_done_and_an_interrupt_keeps_those_that_were(tmp_path: Path) -> None:
    words = ["-n", "2", "--sizes", "4,8,16,32", "--models", "none", "--seconds", "3", "--ways", "dl_comm,MPI,memcpy"]
    line = [sys.executable, "-m", "dlrun", "bench", "allreduce", *words, "--out", "now.json"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout
    try:
        seen = [process.stdout.readline() for _ in range(6)]  # title, head, rule, three ways of 4 B
        assert seen[3].startswith("4 B") and process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "interrupted: these are the cases that were done" in errors
    assert "2      4 B" in rest and "16 B" not in rest
    kept = from_json(json.loads((tmp_path / "now.json").read_text()), "now.json")
    assert {cell.way for cell in kept.cells if cell.case == "4 B"} == {"dl_comm", "MPI", "memcpy"}
    assert len(kept.cells) % 3 == 0
