"""Checks in files of their own, and launching them on ranks with GPUs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from gpus import HERE
from mpis import first_mpi

FACES = HERE.parent / "faces"


def checks_in(folder: Path, files: tuple[str, ...]) -> list[str]:
    """The public functions of these files."""
    trees = (ast.parse((folder / file).read_text()) for file in files)
    return [f.name for t in trees for f in t.body if isinstance(f, ast.FunctionDef) and not f.name.startswith("_")]


def launched(n: int, *arguments: str | Path, **variables: str) -> str:
    """What a Python program says on n ranks, and the end of what it complains of. No file of theirs stays."""
    path = os.pathsep.join([str(HERE), str(FACES)])
    command = [*first_mpi().command(n), sys.executable, *map(str, arguments)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TMPDIR": folder, **variables}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=800, check=False)
    return done.stdout + done.stderr[-6000:]


@cache
def said_on_a_real_gpu(n: int, path: str, *files: str) -> str:
    """What the checks in these files of this folder say on n ranks that share a real GPU, on the way ``path``."""
    return launched(n, FACES / "run_checks.py", *(HERE / file for file in files), DL_COMM_GPU_PATH=path)
