"""NCCL with one rank: what a single GPU can show of it, since NCCL takes no two ranks on one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dl_comm import _core
from gpus import HERE


def test_a_communicator_of_one_rank_is_joined_and_sums(tmp_path, driver):
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler (c++) is here")
    program, library = tmp_path / "nccl_alone", Path(_core.__file__).parent / "lib"
    sources = [f"-I{HERE.parents[2] / 'comm' / 'src'}", str(HERE / "nccl_alone.cc")]
    linked = [f"-L{library}", "-ldl_comm", f"-Wl,-rpath,{library}", "-o", str(program)]
    subprocess.run(["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *sources, *linked], check=True, timeout=100)
    nccl = "" if driver == "libcuda.so.1" else driver
    done = subprocess.run([program, driver, nccl, sys.prefix], capture_output=True, text=True, timeout=100, check=False)
    if "NCCL is not here" in done.stdout:
        pytest.skip(f"no NCCL is here: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("right by NCCL "), done.stdout
