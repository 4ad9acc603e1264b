"""DL_COMM_CHECK: right reductions pass, whatever they hold; a wrong one is an error on every rank that says where."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DTYPES = ["f8", "f4", "f2", "i1", "i2", "i4", "i8", "u1"]
OPS = ["sum", "mean", "min", "max", "prod"]


def results(threads, arrays, op, check=1e-3, dtype=None):
    def body(session, rank):
        mine = arrays[rank].copy()
        session.allreduce([(mine.ctypes.data, mine.size, dtype or mine.dtype.name)], op)
        return mine

    return threads(len(arrays), body, check=check)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_right_results_pass_with_every_type_and_operation(threads, dtype, op):
    numbers = [np.random.default_rng(rank).normal(size=70_000) * 90 for rank in range(3)]
    arrays = [array.astype("i8").astype(dtype) if dtype[0] in "iu" else array.astype(dtype) for array in numbers]
    with np.errstate(over="ignore"):
        expected = results(threads, arrays, op, check=0.0)
        got = results(threads, arrays, op, check=1e-12)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(got, expected, strict=True))


def test_values_that_overflow_cancel_or_are_no_numbers_pass(threads):
    inf, nan, most = np.inf, np.nan, np.finfo("f4").max
    arrays = [
        np.array([inf, nan, most, 1e8, 1e-45, -inf, 0], "f4"),
        np.array([1, 1, most, 1, 1e-45, inf, -0.0], "f4"),
        np.array([1, 1, 1, -1e8, 0, 1, 0], "f4"),
    ]
    for op in ("mean", "sum"):
        got = results(threads, arrays, op)
        assert all(isinstance(one, np.ndarray) for one in got), got
    tiny = [np.array([6e-8, 65504], "f2") for _ in range(3)]
    assert all(isinstance(one, np.ndarray) for one in results(threads, tiny, "sum"))
    brain = [np.random.default_rng(rank).integers(0x3C00, 0x4200, 5000).astype("u2") for rank in range(4)]
    assert all(isinstance(one, np.ndarray) for one in results(threads, brain, "mean", 1e-9, "bfloat16"))


REDUCES = """
    import numpy as np
    import dl_comm
    from dl_comm import _core
    dl_comm.init()
    rank = dl_comm.get_rank()
    for step in range(2):
        bias, weight = np.full(3, rank, "f4"), np.full((100, 50), rank + 1, "f4")
        buffers = [(a.ctypes.data, a.size, "float32") for a in (bias, weight)]
        try:
            _core.wait(_core.start(buffers, "mean", 0, ["bias (3,)", "weight (100, 50)"]))
            assert np.all(weight == (dl_comm.get_nranks() + 1) / 2)
            print(f"rank {rank} is right")
        except dl_comm.CommError as error:
            print(f"rank {rank} got: {error.message}")
"""


@pytest.mark.wide("openmpi 4", "mpich 4")
def test_right_results_pass_under_each_mpi(job, each_mpi):
    for variables in ({}, {"DL_COMM_SHARED_MEMORY": "none"}):
        ended = job(each_mpi, 3, REDUCES, DL_COMM_CHECK="1e-3", **variables)
        assert ended.lines("rank") == [f"rank {rank} is right" for rank in (0, 0, 1, 1, 2, 2)], ended.output


# An MPI whose messages of 4 KB or more from rank 1 arrive with one number changed. Handles are ints or pointers.
FAULTY = """
    #include <stdlib.h>
    #include <string.h>
    int PMPI_Isend(const void*, int, void*, int, int, void*, void*);
    int MPI_Isend(const void* data, int bytes, void* type, int to, int tag, void* comm, void* request) {
      const char* rank = getenv("PMI_RANK") ? getenv("PMI_RANK") : getenv("OMPI_COMM_WORLD_RANK");
      if (bytes < 4096 || strcmp(rank, "1") != 0) return PMPI_Isend(data, bytes, type, to, tag, comm, request);
      float* wrong = malloc(bytes);
      memcpy(wrong, data, bytes);
      wrong[500] += 0.25f;
      return PMPI_Isend(wrong, bytes, type, to, tag, comm, request);
    }
"""


@pytest.fixture
def faulty(tmp_path, each_mpi):
    """The path of a libmpi that damages messages, over the one of ``each_mpi``."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) on PATH")
    real = each_mpi.for_mpi4py().get("MPI4PY_LIBMPI")
    if real is None:
        pytest.skip(f"the library of {each_mpi.name} is not where its mpiexec is")
    source, library = tmp_path / "faulty.c", tmp_path / "libfaulty.so"
    source.write_text(FAULTY)
    folder = Path(real).parent
    subprocess.run(
        ["cc", "-shared", "-fPIC", str(source), f"-Wl,-rpath,{folder}", "-Wl,--no-as-needed", real, "-o", str(library)],
        check=True,
    )
    return library


@pytest.mark.wide("openmpi 4", "mpich 4")
def test_a_damaged_message_is_found_and_named_on_every_rank(job, each_mpi, faulty):
    more = {"DL_COMM_SHARED_MEMORY": "none", "DL_COMM_MPI_LIBRARY": str(faulty)}
    silent = job(each_mpi, 2, REDUCES, **more)
    assert "got:" not in silent.output
    assert silent.code != 0  # the result is wrong, which only the program itself noticed
    ended = job(each_mpi, 2, REDUCES, DL_COMM_CHECK="1e-3", **more)
    said = ended.lines("rank")
    assert len(said) == 4, ended.output
    for line in said:
        assert "has a wrong result in weight (100, 50): element " in line
        assert "where MPI's own allreduce gives 1.5; that is off by 0.0833 of the largest value, and 0.001 is" in line
        assert "DL_COMM_CHECK: rank " in line


@pytest.mark.parametrize("value", ["much", "2", "-1"])
def test_a_tolerance_that_cannot_be_is_refused(value):
    done = subprocess.run(
        [sys.executable, "-c", "import dl_comm; dl_comm.init()"],
        env={**os.environ, "DL_COMM_CHECK": value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"DL_COMM_CHECK is '{value}'\n  it takes a number from 0 to 1" in done.stderr
