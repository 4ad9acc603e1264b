"""The first failure is told, whoever speaks first: by the words alone, and in real launches of dl_comm."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest

from dlrun.launch.first_failure import FirstFailure, doubt
from dlrun.launch.rank_server import Call
from dlrun.launch.result import Failure

LEFT = "CommError: rank 2 has left: it called finalize or ended"


def failed(rank: int, what: str, code: int = 1) -> dict[str, object]:
    return {"rank": rank, "host": "n1", "pid": 7, "what": what, "where": "t.py:3", "code": code, "time": 0.0}


GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer"


def test_a_rank_that_the_system_killed_is_told_of_memory_and_of_time():
    failure = Failure(1, "n1", 7, "killed by SIGKILL", "", 137)
    assert "memory" in failure.hint
    missing = Failure(1, "n1", 7, "ModuleNotFoundError: No module named 'torch'", "t.py:1", 1)
    assert missing.hint.startswith(f"the ranks run {sys.executable}: install it there")
    assert "/dev/shm" in Failure(1, "n1", 7, "killed by SIGBUS", "", 135).hint
    assert not Failure(1, "n1", 7, "exit code 7", "", 7).hint


DISAGREES = "CommError: call 4: the ranks do not agree: rank 0 calls allreduce (mean), rank 1 calls finalize"


@pytest.mark.parametrize("what", [LEFT, DISAGREES, "Exception: MPI_ERR_OTHER", "killed by SIGSEGV", GLOO])
def test_words_that_another_ranks_end_may_have_caused_are_doubted(what):
    assert doubt(what) > 0


@pytest.mark.parametrize("what", ["ValueError: bad shape", "sys.exit(7)", "exit code 7", "killed by SIGKILL"])
def test_words_of_a_ranks_own_end_are_believed(what):
    assert doubt(what, "t.py:3") == 0


def test_an_exit_that_no_line_of_the_script_asked_for_is_doubted():
    assert doubt("exit code 14", "") > 0


def test_a_rank_that_its_mpi_library_ended_is_not_blamed_for_the_one_that_left(tmp_path: Path):
    left = Call(socket.socket(), rank=2, host="n2", pid=8)
    left.connection.close()
    blame = FirstFailure(3, tmp_path)
    blame.fails({**failed(0, "exit code 14", 14), "where": ""})
    assert blame.due > time.monotonic()
    blame.leaves(left)
    assert blame.due <= time.monotonic()
    blame.decide()
    assert blame.failure and (blame.failure.rank, blame.failure.code) == (2, 1)


def test_a_rank_that_a_library_ended_is_blamed_where_nothing_else_explains_it(tmp_path: Path):
    blame = FirstFailure(2, tmp_path)
    blame.fails({**failed(1, "exit code 3", 3), "where": ""})
    blame.decide()
    assert blame.failure and (blame.failure.rank, blame.failure.code) == (1, 3)


def test_a_rank_that_fell_over_another_is_not_blamed(tmp_path: Path):
    blame = FirstFailure(3, tmp_path)
    blame.fails(failed(0, LEFT))
    assert blame.due > time.monotonic()
    blame.fails(failed(2, "sys.exit(7)", 7))
    assert blame.due <= time.monotonic()
    blame.decide()
    assert blame.failure and (blame.failure.rank, blame.failure.code, blame.failure.others) == (2, 7, 2)
    assert json.loads((tmp_path / "failure.json").read_text())["rank"] == 2


def test_a_crash_is_likelier_than_what_names_another_ranks_end(tmp_path: Path):
    blame = FirstFailure(2, tmp_path)
    blame.fails(failed(0, "CommError: rank 0, team 0: rank 1 (process 15402) has died"))
    blame.fails(failed(1, "killed by SIGSEGV", 139))
    blame.decide()
    assert blame.failure and (blame.failure.rank, blame.failure.code) == (1, 139)


@pytest.mark.parametrize("end", ["killed by SIGSEGV", "killed by SIGABRT"])
def test_a_crash_is_likelier_than_a_connection_that_its_other_side_has_closed(tmp_path: Path, end: str):
    blame = FirstFailure(3, tmp_path)
    blame.fails(failed(0, GLOO))
    blame.fails(failed(2, end, 139))
    blame.decide()
    assert blame.failure and (blame.failure.rank, blame.failure.code) == (2, 139)


def test_who_has_ended_is_blamed_where_the_others_connections_were_closed(tmp_path: Path):
    done = Call(socket.socket(), rank=2, host="n1", pid=8, left="t.py:20")
    done.connection.close()
    blame = FirstFailure(3, tmp_path)
    blame.leaves(done)
    blame.fails(failed(0, GLOO))
    blame.decide()
    assert blame.failure and (blame.failure.rank, blame.failure.where) == (2, "t.py:20")


def test_who_has_ended_and_is_named_is_blamed_where_the_launcher_then_kills_the_one_that_named_it(tmp_path: Path):
    done = Call(socket.socket(), rank=1, host="n1", pid=8, left="t.py:20")
    killed = Call(socket.socket(), rank=0, host="n1", pid=7)
    for call in (done, killed):
        call.connection.close()
    blame = FirstFailure(3, tmp_path)
    blame.leaves(done)
    blame.fails(failed(0, "CommError: rank 0, team 0, call 5: rank 1 has left: it called finalize or ended"))
    blame.loses(killed)
    blame.decide()
    assert blame.failure and (blame.failure.rank, blame.failure.where) == (1, "t.py:20")


@pytest.mark.parametrize("what", ["ConnectionResetError: Connection reset by peer", "BrokenPipeError: Broken pipe"])
def test_who_has_ended_is_not_blamed_for_the_scripts_own_connections(tmp_path: Path, what: str):
    done = Call(socket.socket(), rank=2, host="n1", pid=8, left="")
    done.connection.close()
    blame = FirstFailure(3, tmp_path)
    blame.leaves(done)
    blame.fails(failed(0, what))
    blame.decide()
    assert blame.failure and blame.failure.rank == 0


def test_who_left_without_a_word_is_blamed_where_the_others_fell_over_it_and_only_then(tmp_path: Path):
    left = Call(socket.socket(), rank=1, host="n1", pid=8)
    left.connection.close()
    for what, blamed in ((LEFT, 1), (GLOO, 1), ("ValueError: bad", 0)):
        blame = FirstFailure(3, tmp_path)
        blame.leaves(left)
        blame.decide()
        assert blame.failure is None, "all ranks may end so"
        blame.fails(failed(0, what))
        blame.decide()
        assert blame.failure and (blame.failure.rank, blame.failure.code) == (blamed, 1)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Abort(3) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1", 3),
        ("application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1", 7),
        ("Abort(69354895): Fatal error in internal_Init_thread: Other MPI error, error stack:", 1),
    ],
)
def test_of_ranks_that_are_lost_at_once_the_one_that_aborted_is_blamed_in_its_own_words(tmp_path: Path, said, code):
    blame = FirstFailure(3, tmp_path)
    for rank, words in ((0, ""), (1, f"epoch 1\n{said}\n"), (2, "an Abort(1) in the middle\n")):
        (tmp_path / f"rank-{rank}.log").write_text(words)
        call = Call(socket.socket(), rank=rank, host="n1", pid=8)
        call.connection.close()
        blame.loses(call)
    blame.decide()
    assert blame.failure and (blame.failure.rank, blame.failure.what, blame.failure.code) == (1, said, code)
    assert blame.failure.tail == ("epoch 1", said)


def test_of_two_that_failed_by_themselves_the_first_is_blamed(tmp_path: Path):
    blame = FirstFailure(3, tmp_path)
    blame.fails(failed(1, "ValueError: bad"))
    blame.fails(failed(0, "sys.exit(7)", 7))
    blame.decide()
    assert blame.failure and blame.failure.rank == 1


def test_when_every_rank_fell_over_the_first_is_told_at_once(tmp_path: Path):
    blame = FirstFailure(2, tmp_path)
    blame.fails(failed(1, LEFT))
    blame.fails(failed(0, LEFT))
    assert blame.due <= time.monotonic()
    blame.decide()
    assert blame.failure and blame.failure.rank == 1


FALLS_OVER = """
import os, sys, time
class CommError(RuntimeError): pass
ending = os.environ["DLRUN_RUN_DIR"] + "/ending"
if os.environ["DLRUN_RANK"] == "1":
    open(ending, "w").close()
    os._exit(int(sys.argv[1]))
while not os.path.exists(ending):
    time.sleep(0.001)
raise CommError("rank 1 has left: it called finalize or ended")
"""


LEFT_SILENTLY = "exit code 0 in the middle of the job, by os._exit() or the like"


@pytest.mark.parametrize(("end", "what"), [(7, "exit code 7"), (0, LEFT_SILENTLY)])
def test_in_a_launch_the_rank_that_speaks_first_is_not_blamed_for_anothers_end(dlrun, any_mpiexec, tmp_path, end, what):
    (tmp_path / "falls.py").write_text(FALLS_OVER)
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "falls.py", str(end))
    assert done.returncode == (end or 1), done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("dlrun: rank")]
    assert len(told) == 1 and told[0].startswith("dlrun: rank 1 ") and told[0].endswith(f"{what} at falls.py:7")


TRAINS = """
import os, sys
import numpy as np
import dl_comm as mc
mc.init(1, 1, 1000)
for step in range(1000):
    if step == 5 and mc.get_rank() == mc.get_nranks() - 1:
        if sys.argv[1] == "sys.exit": sys.exit("no data")
        if sys.argv[1] == "exception": raise ValueError("bad shape (3, 4)")
        if sys.argv[1] == "os._exit": os._exit(7)
        if sys.argv[1] == "exit(0)": sys.exit(0)
        if sys.argv[1] == "os._exit(0)": os._exit(0)
        if sys.argv[1] == "SIGKILL": os.kill(os.getpid(), 9)
        if sys.argv[1] == "SIGTERM": os.kill(os.getpid(), 15)
    mc.gradients([np.ones(50000, np.float32), np.ones(100, np.float32)], step)
mc.finalize()
"""
AGREES = """
import sys
import numpy as np
import dl_comm as mc
mc.init()
for step in range(9):
    mc.gradients([np.ones(4, np.float32)])
    if step == 3 and mc.get_rank() == 1:
        sys.exit(0)
"""


def test_a_rank_that_leaves_while_others_agree_on_what_to_exchange_is_told_with_its_line(dlrun, mpiexec, tmp_path):
    """Then it comes to their agreement with its ``finalize``, which fails, and dl_comm ends it by ``os._exit()``."""
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "agrees.py").write_text(AGREES)
    done = dlrun("-n", "2", "--mpiexec", mpiexec, "agrees.py")
    told = [line for line in done.stderr.splitlines() if line.startswith("dlrun: rank")]
    assert (done.returncode, len(told)) == (1, 1), done.stderr
    assert told[0].startswith("dlrun: rank 1 ")
    assert told[0].endswith("ended the job: sys.exit(0) in the middle of the job at agrees.py:9")


ENDS = {
    "sys.exit": (1, "sys.exit('no data') at trains.py:8"),
    "exception": (1, "ValueError: bad shape (3, 4) at trains.py:9"),
    "os._exit": (7, "exit code 7 at trains.py:10"),
    "exit(0)": (1, "sys.exit(0) in the middle of the job at trains.py:11"),
    "os._exit(0)": (1, f"{LEFT_SILENTLY} at trains.py:12"),
    "SIGKILL": (137, "killed by SIGKILL"),
    "SIGTERM": (143, "killed by SIGTERM"),
}


def check_the_last_rank_is_told(done, ranks: int, how: str) -> None:  # type: ignore
    code, what = ENDS[how]
    told = [line for line in done.stderr.splitlines() if line.startswith("dlrun: rank")]
    assert (done.returncode, len(told)) == (code, 1), done.stderr
    assert told[0].startswith(f"dlrun: rank {ranks - 1} ") and told[0].endswith(f"ended the job: {what}"), done.stderr
    assert how != "exception" or "  | ValueError: bad shape (3, 4)" in done.stderr.splitlines(), "its last lines"


@pytest.mark.parametrize(("ranks", "how"), [(2, "sys.exit"), *((3, how) for how in ENDS)])
@pytest.mark.wide("openmpi-4.1.4", "mpich-4.0.2")
def test_a_rank_that_ends_in_mid_training_is_told_while_the_others_wait_for_it(dlrun, mpiexec, tmp_path, ranks, how):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "trains.py").write_text(TRAINS)
    check_the_last_rank_is_told(dlrun("-n", str(ranks), "--mpiexec", mpiexec, "trains.py", how), ranks, how)


@pytest.mark.parametrize("how", ENDS)
def test_under_srun_too_a_rank_that_ends_in_mid_training_is_told(dlrun, lab, tmp_path, how):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "trains.py").write_text(TRAINS)
    words = ["-n", "3", "--backend", "srun", "--hosts", "n1:2,n2:1", "trains.py", how]
    check_the_last_rank_is_told(dlrun(*words, env=lab.env), 3, how)
