"""The drivers that the tests of arrays on GPUs run with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpus import HERE, aware_mpi, compiled, real_driver


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return fake("WITHOUT_MEMORY_OPERATIONS"): the path of a fake driver that lacks something."""
    folder, made = tmp_path_factory.mktemp("fake"), {}

    def make(*defines: str) -> str:
        if defines not in made:
            made[defines] = str(compiled(folder, *defines))
        return made[defines]

    return make


@pytest.fixture(params=["fake", "real"])
def driver(request: pytest.FixtureRequest, fake: Callable[..., str]) -> str:
    """The fake driver, and the machine's own where it has a GPU."""
    return fake() if request.param == "fake" else real_driver()


@pytest.fixture
def programs() -> dict[str, str]:
    """The environment in which programs on the ranks find ``gpus``."""
    return {"PYTHONPATH": str(Path(HERE))}


@pytest.fixture
def ranks(job, any_mpi, driver, programs):
    """ranks(n, program, ...): run it on the ranks with the driver of this test."""

    def run(n, program, **variables):
        return job(any_mpi, n, program, **{**programs, "DL_COMM_CUDA_LIBRARY": driver, **variables})

    return run


@pytest.fixture
def aware(any_mpi, tmp_path) -> dict[str, str]:
    """The environment in which the ranks' MPI takes memory of the fake's GPUs, and is asked to."""
    (library,) = any_mpi.for_mpi4py().values()
    return {"DL_COMM_MPI_LIBRARY": str(aware_mpi(tmp_path, library)), "DL_COMM_GPU_PATH": "mpi"}


@pytest.fixture
def fake_ranks(job, any_mpi, fake, programs):
    def run(n, program, lacks=(), **variables):
        library = fake(*lacks)
        more = {"DL_COMM_CUDA_LIBRARY": library, "DL_COMM_NCCL_LIBRARY": library, **variables}
        return job(any_mpi, n, program, **{**programs, **more})

    return run
