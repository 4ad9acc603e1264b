"""dl_comm.torch with tensors on a GPU: the very checks of the CPU over the fake driver; more of them on a real GPU."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from gpus import HERE, real_driver

FACES = HERE.parent / "faces"
AS_ON_THE_CPU = (
    "torch_gradients.py",
    "torch_overlap.py",
    "torch_situations.py",
    "torch_optimizer.py",
    "torch_state.py",
)
ON_A_REAL_GPU = ("torch_on_real_gpu.py",)


def checks_in(folder: Path, files: tuple[str, ...]) -> list[str]:
    """The public functions of these files."""
    trees = (ast.parse((folder / file).read_text()) for file in files)
    return [f.name for t in trees for f in t.body if isinstance(f, ast.FunctionDef) and not f.name.startswith("_")]


def launched(n: int, *arguments: str | Path, **variables: str) -> str:
    """What a Python program says on n ranks, and the end of what it complains of."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no mpiexec beside this Python or on the PATH: pip install mpich")
    path = os.pathsep.join([str(HERE), str(FACES)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
    command = [mpiexec, "-n", str(n), sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)
    return done.stdout + done.stderr[-6000:]


@pytest.fixture(scope="session")
def said_over_the_fake(fake: Callable[..., str]) -> Callable[[], str]:
    @cache
    def run() -> str:
        more = {"FAKE_CUDA_OWNS_ALL": "1", "DL_COMM_CUDA_LIBRARY": fake(), "DL_COMM_GPU_PATH": "staged"}
        return launched(2, HERE / "torch_as_if_on_gpu.py", *AS_ON_THE_CPU, **more)

    return run


@pytest.mark.parametrize("check", checks_in(FACES, AS_ON_THE_CPU))
def test_as_on_the_cpu(said_over_the_fake, check):
    said = said_over_the_fake()
    assert f"passed {check}" in said.splitlines(), said[-8000:]
    assert "went over the GPU" in said


@cache
def said_on_a_real_gpu(n: int, path: str) -> str:
    return launched(n, FACES / "run_checks.py", *(HERE / file for file in ON_A_REAL_GPU), DL_COMM_GPU_PATH=path)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("check", checks_in(HERE, ON_A_REAL_GPU))
def test_on_a_real_gpu(check, n):
    real_driver()
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch was built without CUDA")
    said = said_on_a_real_gpu(n, "auto")
    assert f"passed {check}" in said.splitlines(), said[-8000:]
