"""Ranks as processes, under every MPI that is installed: the same program, the same installed binary."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpis import find_mpi

AVERAGES = """
    import numpy as np
    {before}
    import dl_comm
    dl_comm.init()
    {after}
    n, rank = dl_comm.get_nranks(), dl_comm.get_rank()
    assert (dl_comm.get_localrank(), dl_comm.get_localsize()) == (rank, n)
    for step in range(3):
        small, large = dl_comm.gradients([np.full((3, 4), rank, "f4"), np.full(200_001, rank + step, "f8")])
        assert small.shape == (3, 4) and np.all(small == np.float32((n - 1) / 2)), small
        assert np.all(large == (n - 1) / 2 + step)
    values = np.full(5, float(rank))
    dl_comm.broadcast([values], n - 1)
    assert np.all(values == n - 1)
    dl_comm.average(values)
    assert dl_comm.check_buffers_match([values]) == 0
    dl_comm.barrier()
    print(f"rank {{rank}} of {{n}} is right", flush=True)
    {end}
"""


def averages(before="", after="", end="dl_comm.finalize()"):
    return AVERAGES.format(before=before, after=after, end=end)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_ranks_average_and_broadcast_under_each_mpi(job, each_mpi, n):
    ended = job(each_mpi, n, averages())
    assert ended.lines("rank") == [f"rank {rank} of {n} is right" for rank in range(n)], ended.output
    assert ended.code == 0


@pytest.mark.parametrize("order", ["before", "after"])
def test_mpi4py_uses_the_same_library_whoever_is_first(job, each_mpi, order):
    if each_mpi.name == "mpich 4" and order == "before":
        pytest.skip("mpi4py alone does not find Debian's libmpich.so.12")
    same = "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2, MPI.Get_library_version()"
    check = "assert MPI.COMM_WORLD.allreduce(1) == 2"
    if order == "before":
        ended = job(each_mpi, 2, averages(before=same, after=check))
    else:
        ended = job(each_mpi, 2, averages(after=f"{same}; {check}"))
    alone = ("suspicious MPI execution environment", "ImportError: libmpi", *(["MPI library is"] * (order == "before")))
    if any(words in ended.output for words in alone):
        pytest.skip(f"mpi4py alone does not find the library of {each_mpi.name} here")
    assert ended.lines("rank") == ["rank 0 of 2 is right", "rank 1 of 2 is right"], ended.output
    assert ended.code == 0


def test_a_script_that_never_calls_finalize_ends_cleanly(job, each_mpi):
    ended = job(each_mpi, 2, averages(end=""))
    assert (ended.code, len(ended.lines("rank"))) == (0, 2), ended.output


ENDS = {
    "exception": "raise ValueError('bad sample')",
    "exit": "sys.exit(3)",
    "kill": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("mpi4py", ["", "from mpi4py import MPI"], ids=["alone", "with mpi4py"])
def test_a_rank_that_dies_ends_the_job_within_seconds(job, any_mpi, end, mpi4py):
    program = f"""
        import os, sys, time
        {mpi4py}
        import numpy as np, dl_comm
        dl_comm.init()
        for step in range(1000):
            dl_comm.gradients([np.zeros(1000)])
            if step == 3 and dl_comm.get_rank() == 1:
                {ENDS[end]}
    """
    begun = time.monotonic()
    ended = job(any_mpi, 3, program)
    if "MPI library is" in ended.output:
        pytest.skip("mpi4py alone finds the library of another MPI here")
    assert time.monotonic() - begun < 45
    assert ended.code != 0
    if end == "exception":
        assert "bad sample" in ended.output


def test_a_rank_that_fails_knows_whether_its_words_have_been_read(tmp_path):
    from dl_comm import rank_exit

    reader, writer = os.pipe()
    os.write(writer, b"Traceback")
    assert not rank_exit._is_read(writer)
    os.read(reader, 100)
    assert rank_exit._is_read(writer)
    os.close(reader)
    os.close(writer)
    with (tmp_path / "log").open("w") as log:
        log.write("what a file holds need not be waited for")
        assert rank_exit._is_read(log.fileno())


def test_without_a_launcher_a_process_is_rank_0_of_1_and_loads_no_mpi():
    program = """if True:
        import numpy as np, dl_comm
        dl_comm.init()
        array = np.arange(5, dtype="f4")
        assert (dl_comm.get_rank(), dl_comm.get_nranks()) == (0, 1)
        assert (dl_comm.get_localrank(), dl_comm.get_localsize()) == (0, 1)
        assert np.array_equal(dl_comm.gradients([array])[0], array)
        dl_comm.broadcast([array]); dl_comm.barrier(); dl_comm.finalize(); dl_comm.finalize()
        assert "libmpi" not in open("/proc/self/maps").read()
        print("right")
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI", "DLRUN_"))}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == ("right\n", "")


def test_a_library_of_another_family_than_the_launcher_is_refused(job, each_mpi):
    other = "libmpi.so.40" if each_mpi.name.startswith("mpich") else "libmpich.so.12"
    import ctypes

    try:
        ctypes.CDLL(other)
    except OSError:
        pytest.skip(f"{other} is not installed")
    ended = job(each_mpi, 2, "import dl_comm; dl_comm.init()", DL_COMM_MPI_LIBRARY=other)
    assert ended.code != 0
    assert "every rank would be rank 0 of 1" in ended.output


def test_a_size_other_than_dlrun_asked_for_is_refused(job, any_mpi):
    ended = job(any_mpi, 2, "import dl_comm; dl_comm.init()", DLRUN_SIZE="8")
    assert ended.code != 0
    assert "asked 8 ranks, the library sees 2" in ended.output


@pytest.mark.parametrize(
    ("variable", "value"),
    [("DL_COMM_TIMEOUT_S", "soon"), ("DL_COMM_DEFAULT_PREC_LEVEL", "2"), ("DL_COMM_WIRE_DTYPE", "float8")],
)
def test_a_bad_setting_is_refused_by_its_name(variable, value):
    env = {**os.environ, variable: value}
    program = "import dl_comm; dl_comm.init()"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert f"{variable} is '{value}'" in ended.stderr


@pytest.mark.parametrize(("name", "first", "second"), [("STAGE_KB", "256", "64"), ("GPU_PATH", "nccl", "staged")])
def test_ranks_with_different_settings_are_refused_by_the_name_of_the_setting(job, any_mpi, name, first, second):
    program = f"""
        import os
        rank = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
        os.environ["DL_COMM_{name}"] = "{second}" if rank == "1" else "{first}"
        import dl_comm
        try:
            dl_comm.init()
        except dl_comm.CommError as error:
            print("rank", rank, error.message, flush=True)
    """
    ended = job(any_mpi, 2, program)
    said = f"the ranks do not agree: DL_COMM_{name} is '{first}' on rank 0 but '{second}' on rank 1"
    assert ended.lines("rank") == [f"rank {rank} {said}" for rank in range(2)], ended.output


def test_two_hosts_on_one_machine_use_the_wire_between_them(job, each_mpi):
    program = """
        import os
        rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
        os.environ["DL_COMM_HOST"] = "ab"[rank // 2]
        import numpy as np, dl_comm
        dl_comm.init()
        assert dl_comm.get_localsize() == 2 and dl_comm.get_localrank() == rank % 2
        for count in (1, 1000, 300_000):
            for dtype in ("f4", "f2", "i4"):
                total = dl_comm.gradients([np.full(count, rank * 2, dtype)])[0]
                assert np.all(total == 3), total
        print("rank", rank, "right", flush=True)
    """
    ended = job(each_mpi, 4, program)
    assert len(ended.lines("rank")) == 4, ended.output


def test_a_forked_child_is_no_rank_and_does_not_disturb_its_parent(job, any_mpi):
    program = """
        import os, sys
        import numpy as np, dl_comm
        dl_comm.init()
        child = os.fork()
        if child == 0:
            try:
                dl_comm.barrier()
            except dl_comm.CommError as error:
                print("child:", str(error).splitlines()[0], flush=True)
            sys.exit(0)
        os.waitpid(child, 0)
        assert np.all(dl_comm.gradients([np.ones(10)])[0] == 1)
        print("rank", dl_comm.get_rank(), "right", flush=True)
    """
    ended = job(any_mpi, 2, program)
    assert len(ended.lines("rank")) == 2, ended.output
    assert "was forked from rank" in ended.output
    assert ended.code == 0


def test_a_process_that_a_rank_starts_is_refused_in_one_line(job, any_mpi):
    program = """
        import subprocess, sys
        import dl_comm
        if len(sys.argv) == 1:
            dl_comm.init()
            child = subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True, timeout=30)
            assert "was started by rank" in child.stderr, child.stderr
            dl_comm.barrier()
            print("rank", dl_comm.get_rank(), "right", flush=True)
        else:
            dl_comm.init()
    """
    ended = job(any_mpi, 2, program)
    assert (len(ended.lines("rank")), ended.code) == (2, 0), ended.output


def test_init_after_finalize_is_refused(job, any_mpi):
    program = """
        import dl_comm
        dl_comm.init()
        dl_comm.init()
        rank = dl_comm.get_rank()
        dl_comm.finalize()
        try:
            dl_comm.init()
        except dl_comm.CommError as error:
            assert "has been finalized" in str(error)
            print("rank", rank, "right", flush=True)
    """
    ended = job(any_mpi, 2, program)
    assert (len(ended.lines("rank")), ended.code) == (2, 0), ended.output


@pytest.mark.parametrize("how", ["memfd", "shm", "none"])
def test_each_way_to_share_memory_gives_the_same_numbers(job, any_mpi, how):
    ended = job(
        any_mpi,
        3,
        averages().replace("assert (dl_comm.get_localrank", "(dl_comm.get_localrank"),
        DL_COMM_SHARED_MEMORY=how,
    )
    assert (len(ended.lines("rank")), ended.code) == (3, 0), ended.output


@pytest.mark.parametrize("family", ["mpich 5", "mpich 4", "openmpi 4"])
def test_nothing_is_left_when_every_rank_is_killed(job, family):
    program = """
        import os
        import numpy as np, dl_comm
        dl_comm.init()
        dl_comm.gradients([np.ones(100_000)])
        names = {line.split()[5] for line in open("/proc/self/maps") if "/dev/shm/" in line}
        os.write(1, b"".join(b"maps %s\\n" % name.encode() for name in names))
        dl_comm.barrier()
        os.kill(os.getpid(), 9)
        os.write(1, b"alive\\n")
    """
    ended = job(find_mpi(family), 2, program, DL_COMM_SHARED_MEMORY="shm")
    # MPICH 4.2's mpiexec returns 0 now and then when all ranks are killed at once: its code says nothing. And
    # nothing_left_in_shared_memory is asked, as after every test of dl_comm.
    assert not ended.lines("alive")
    names = {Path(line.split()[1]) for line in ended.lines("maps")}
    assert names and not [name for name in names if name.exists()], names
