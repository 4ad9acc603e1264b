"""Ranks where something is scarce: room in /dev/shm, shared memory, threads that MPI lets in."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace

import pytest
from mpis import find_mpi

BELOW_MULTIPLE = """
int PMPI_Init_thread(int *, char ***, int, int *);
int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided) {
  (void)wanted;
  return PMPI_Init_thread(argc, argv, LEVEL, provided);
}
int MPI_Query_thread(int *provided) { *provided = LEVEL; return 0; }
"""
LEVELS = {"single": 0, "funneled": 1, "serialized": 2}
SHM_RIGHT = """
    import numpy as np, dl_comm
    from dl_comm import _core
    dl_comm.init()
    rank = dl_comm.get_rank()
    {more}
    assert np.all(dl_comm.gradients([np.full(300_000, 2 * rank, "f4")])[0] == 1)
    dl_comm.barrier()
    print("rank", rank, "right, nodes", _core.session().nodes(), flush=True)
"""


@pytest.fixture
def with_little(tmp_path):
    """Return with_little(mpi, size): the MPI, with a /dev/shm of this size for its ranks."""

    def wrap(mpi, size):
        mount = f"mount -t tmpfs -o size={size} none /dev/shm"
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("a /dev/shm of one's own needs root and unshare")
        tried = subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.skip(f"no mounts here: {tried.stderr.strip()}")
        script = tmp_path / "mpiexec"
        script.write_text(f'#!/bin/sh\nexec unshare --mount sh -c \'{mount} && exec "$@"\' sh {mpi.mpiexec} "$@"\n')
        script.chmod(0o755)
        return replace(mpi, mpiexec=str(script))

    return wrap


def test_where_the_stages_do_not_fit_into_dev_shm_the_ranks_talk_through_mpi_and_say_so(job, each_mpi, with_little):
    ended = job(
        with_little(each_mpi, "64m"),
        2,
        SHM_RIGHT.format(more=""),
        DL_COMM_SHARED_MEMORY="shm",
        DL_COMM_STAGE_KB="65536",
    )
    assert ended.lines("rank") == [f"rank {rank} right, nodes 2" for rank in range(2)], ended.output
    assert "share no memory (shm: No space left on device for " in ended.output
    assert ended.code == 0


def test_an_arena_that_does_not_fit_is_refused_on_every_rank_which_then_go_on(job, any_mpi, with_little):
    more = """
    try:
        _core.arena(100 << 20)
    except dl_comm.CommError as error:
        assert "no shared memory for an arena of 104857600 bytes: shm: No space left on device" in str(error), error
        print("arena refused", flush=True)
    """
    ended = job(with_little(any_mpi, "64m"), 2, SHM_RIGHT.format(more=more), DL_COMM_SHARED_MEMORY="shm")
    assert len(ended.lines("arena refused")) == 2, ended.output
    assert ended.lines("rank") == [f"rank {rank} right, nodes 1" for rank in range(2)], ended.output


@pytest.mark.parametrize("family", ["mpich 5", "mpich 4"])
def test_that_mpich_may_die_of_a_small_dev_shm_is_said_before_it_does(job, with_little, family):
    ended = job(with_little(find_mpi(family), "64k"), 2, SHM_RIGHT.format(more=""))
    assert "/dev/shm has 0 MiB left; MPICH takes about 12 MiB of it for 2 ranks" in ended.output, ended.output


@pytest.mark.parametrize("level", LEVELS)
def test_an_mpi_that_lets_in_one_thread_at_a_time_gives_the_same_numbers(job, any_mpi, before_mpi, level):
    shim = before_mpi(BELOW_MULTIPLE, f"-DLEVEL={LEVELS[level]}")
    program = """
        import os, threading
        rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
        os.environ["DL_COMM_HOST"] = "ab"[rank // 2]
        import numpy as np, dl_comm
        from dl_comm import _core
        dl_comm.init(2, 2, 1000)
        assert "before.so" in _core.mpi_description()
        wrong = []
        def reduce_on(team):
            for step in range(20):
                mean = dl_comm.gradients([np.full(100_000, rank * 2 + step + team, "f4")], team)[0]
                if not np.all(mean == 3 + step + team):
                    wrong.append((team, step))
        both = [threading.Thread(target=reduce_on, args=(team,)) for team in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        dl_comm.barrier()
        print("rank", rank, "wrong:", wrong, flush=True)
    """
    ended = job(any_mpi, 4, program, DL_COMM_MPI_LIBRARY=shim, DL_COMM_WIRE="4096:doubling,*:mpi")
    assert ended.lines("rank") == [f"rank {rank} wrong: []" for rank in range(4)], ended.output
    assert ended.code == 0


HOSTS = """
    import os, sys, time
    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["DL_COMM_HOST"] = "ab"[rank % 2]
    import numpy as np, dl_comm
    dl_comm.init()
"""


def test_the_librarys_own_allreduce_between_hosts_gives_the_right_numbers(job, each_mpi):
    program = f"""{HOSTS}
    for dtype in ("f4", "f8", "i8", "f2", "i4"):
        for count in (1, 1000, 300_000):
            mean = dl_comm.gradients([np.full(count, 2 * rank, dtype)])[0]
            assert np.all(mean == 3), mean
            assert dl_comm.check_buffers_match([mean]) == 0
    print("rank", rank, "right", flush=True)
    """
    ended = job(each_mpi, 4, program, DL_COMM_WIRE="*:mpi")
    assert (len(ended.lines("rank")), ended.code) == (4, 0), ended.output


def test_a_rank_that_never_comes_to_the_librarys_allreduce_is_an_error_in_time(job, any_mpi):
    program = f"""{HOSTS}
    dl_comm.barrier()
    if rank == 1:
        time.sleep(600)
    begun = time.monotonic()
    try:
        dl_comm.gradients([np.ones(300_000, "f4")])
    except dl_comm.CommError as error:
        print("late:", str(error).splitlines()[0], flush=True)
        assert time.monotonic() - begun < 30
        sys.exit(5)
    """
    ended = job(any_mpi, 2, program, DL_COMM_WIRE="*:mpi", DL_COMM_TIMEOUT_S="4")
    assert ended.code != 0
    assert "rank 1" in ended.lines("late:")[0] and "4 s" in ended.lines("late:")[0], ended.output
