"""The checks in a file, and launching a program on real ranks."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def checks_in(*files: str) -> list[str]:
    """The names of the public functions of these files, which are the checks, in the order in which they run."""
    trees = (ast.parse((HERE / file).read_text()) for file in files)
    return [
        f.name for tree in trees for f in tree.body if isinstance(f, ast.FunctionDef) and not f.name.startswith("_")
    ]


def launch(n: int, *arguments: str | Path, timeout: float = 1500, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``python arguments`` on n ranks, one thread each, and return its output as text. No file of theirs stays."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no mpiexec beside this Python or on the PATH: pip install mpich")
    command = [mpiexec, "-n", str(n), sys.executable, *map(str, arguments)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kept = {"TMPDIR": folder, "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax"}
        env = {**os.environ, "OMP_NUM_THREADS": "1", **kept, **variables}
        return subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
