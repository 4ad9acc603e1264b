"""A job without progress: who is missing, and where it stands."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from dlrun.launch.plan import LaunchPlan
from dlrun.launch.stall import Lookout, Stack, frames, missing, verdict

DUMP = """Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3/site-packages/dl_comm/torch.py", line 12 in gradients
  File "/home/me/train.py", line 88 in step
  File "/home/me/train.py", line 120 in <module>
  File "/x/dlrun/rank/script.py", line 69 in _run_file
  File "<frozen runpy>", line 88 in _run_code
"""


def stack(rank: int, *lines: str) -> Stack:
    return Stack(rank, "n1", 100 + rank, lines, 0)


def test_the_frames_of_a_dump_are_the_users_and_the_libraries():
    assert frames(DUMP) == (
        "/usr/lib/python3/site-packages/dl_comm/torch.py:12 gradients",
        "/home/me/train.py:88 step",
        "/home/me/train.py:120 <module>",
    )
    assert frames("") == ()


def test_the_rank_that_stands_elsewhere_is_missing():
    stacks = {r: stack(r, *frames(DUMP)) for r in range(4)}
    stacks[2] = stack(2, "/home/me/data.py:7 read", "/home/me/train.py:70 <module>")
    assert [s.rank for s in missing(stacks)] == [2]
    told = verdict(stacks, 301)
    assert told[0] == "no progress for 301 s: 3 ranks wait (0, 1, 3) at /home/me/train.py:88 step"
    assert told[1] == "  missing: rank 2 (host n1, pid 102) at /home/me/data.py:7 read"
    assert told[2] == "  | /home/me/data.py:7 read"


def test_ranks_at_one_line_but_in_different_exchanges_are_told_apart():
    lines = frames(DUMP)
    calls = [f"call {number} of team 0: gradients (mean)" for number in (412, 411, 412)]
    told = verdict({rank: Stack(rank, "n1", 100 + rank, lines, 0, call) for rank, call in enumerate(calls)}, 301)
    assert told[0].endswith(f"2 ranks wait (0, 2) in {calls[0]}, at /home/me/train.py:88 step")
    assert told[1].endswith(f"rank 1 (host n1, pid 101) in {calls[1]}, at /home/me/train.py:88 step")


def test_of_two_ranks_the_one_that_communicates_is_the_one_that_waits():
    stacks = {0: stack(0, "/home/me/data.py:7 read"), 1: stack(1, *frames(DUMP))}
    assert [s.rank for s in missing(stacks)] == [0]


def test_once_all_have_answered_twice_there_is_nothing_to_wait_for():
    lookout = Lookout(0.0)
    lookout.asked = 2
    answer = {"pid": 1, "dump": DUMP, "call": "", "begun": "", "stopped": False, "written": 0}
    answer |= {"seconds": [1.0, 0.0, 0.0], "child": "", "spins": False}
    for _ in range(2):
        assert lookout.look()
        for rank in range(2):
            assert lookout.due > time.monotonic()
            lookout.seen(rank, "n1", answer)
    assert lookout.due <= time.monotonic()
    assert sorted(lookout.stalled()) == [0, 1]


# Rank 0 speaks until all have come to where they are to stall: a start that takes long is no stall.
STARTING = """
import threading
over = threading.Event()
def speak():
    while not over.wait(0.2):
        print("starting", flush=True)
threading.Thread(target=speak, daemon=True).start()
"""
STALLS = """
import os, time, starting
from mpi4py import MPI
def slow_loader():
    time.sleep(300)
MPI.COMM_WORLD.Barrier()
starting.over.set()
if os.environ["DLRUN_RANK"] == "1":
    slow_loader()
MPI.COMM_WORLD.Barrier()
"""


def test_a_real_stall_names_the_missing_rank_its_line_and_ends_the_job_when_asked(dlrun, mpiexec, tmp_path):
    (tmp_path / "starting.py").write_text(STARTING)
    (tmp_path / "stalls.py").write_text(STALLS)
    words = ["--stall-timeout", "1", "--on-stall", "abort", "stalls.py"]
    done = dlrun("-n", "3", "--mpiexec", mpiexec, *words)
    assert done.returncode == 124, done.stderr
    told = ("dlrun: no", "dlrun: rank", "  missing:")
    lines = [line for line in done.stderr.splitlines() if line.startswith(told)]
    assert lines[0].startswith("dlrun: no progress for ") and lines[0].endswith("(0, 2) at stalls.py:10 <module>")
    assert lines[1].startswith("  missing: rank 1 (host ") and lines[1].endswith("at stalls.py:5 slow_loader")
    assert "ended the job: no progress for" in lines[2]


STALLS_IN_TRAINING = """
import time, starting
import numpy as np
import dl_comm as mc
mc.init(1, 1, 100)
for step in range(100):
    if step == 7:
        starting.over.set()
    if step == 7 and mc.get_rank() == 1:
        time.sleep(300)
    mc.gradients([np.ones(50, np.float32), np.ones(9, np.float32)], 0)
"""


def test_of_a_stall_in_training_the_exchange_is_told_which_the_others_wait_in(dlrun, any_mpiexec, tmp_path):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "starting.py").write_text(STARTING)
    (tmp_path / "stalls.py").write_text(STALLS_IN_TRAINING)
    words = ["--stall-timeout", "1", "--on-stall", "abort", "stalls.py"]
    done = dlrun("-n", "3", "--mpiexec", any_mpiexec, *words)
    assert done.returncode == 124, done.stderr
    lines = done.stderr.splitlines()
    waits = next(line for line in lines if line.startswith("dlrun: no progress for "))
    where = "2 ranks wait (0, 2) in call 7 of team 0: allreduce (mean) of (50,) and 1 more, at stalls.py:11 <module>"
    assert waits.endswith(where), waits
    missing = next(line for line in lines if line.startswith("  missing: rank 1 (host "))
    assert missing.endswith(") at stalls.py:10 <module>")


def test_a_slow_job_that_moves_is_no_stall(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "moves.py").write_text("import time\n" + "time.sleep(0.02)\n" * 200)  # never twice at one line
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "--stall-timeout", "1", "--on-stall", "abort", "moves.py")
    assert done.returncode == 0, done.stderr


TRAINS_IN_SILENCE = """
import time
import numpy as np
import dl_comm as mc
mc.init(1, 1, 1000)
for step in range(300): mc.gradients([np.ones(50, np.float32)], 0); time.sleep(0.02)
"""


def test_training_in_silence_in_one_line_is_no_stall(dlrun, any_mpiexec, tmp_path):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "trains.py").write_text(TRAINS_IN_SILENCE)
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "--stall-timeout", "1", "--on-stall", "abort", "trains.py")
    assert (done.returncode, "no progress" in done.stderr) == (0, False), done.stderr


STOPS = STALLS_IN_TRAINING.replace("time.sleep(300)", "os.kill(os.getpid(), signal.SIGSTOP)").replace(
    "import time", "import os, signal", 1
)


def test_a_rank_that_somebody_has_stopped_is_the_one_that_is_missing(dlrun, any_mpiexec, tmp_path):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "starting.py").write_text(STARTING)
    (tmp_path / "stops.py").write_text(STOPS)
    done = dlrun("-n", "3", "--mpiexec", any_mpiexec, "--stall-timeout", "1", "--on-stall", "abort", "stops.py")
    assert done.returncode == 124, done.stderr
    missing = next(line for line in done.stderr.splitlines() if line.startswith("  missing: "))
    assert missing.startswith("  missing: rank 1 (host ") and missing.endswith("a stop: somebody sent it SIGSTOP")


WORKS = """
import os, subprocess, sys, time
BUSY = "import time\\nend = time.monotonic() + 8\\nwhile time.monotonic() < end: pass"
IDLE = "import time; time.sleep(300)"
if os.environ["DLRUN_RANK"] == "1":
    subprocess.run([sys.executable, "-c", BUSY])
    if len(sys.argv) > 1: subprocess.run([sys.executable, "-c", IDLE])
    open("over", "w").close()
while not os.path.exists("over"): time.sleep(0.05)
"""


@pytest.mark.parametrize("idle", [[], ["idle"]])
def test_a_rank_whose_process_computes_is_told_and_left_to_go_on_and_one_whose_process_is_idle_ends(
    dlrun, any_mpiexec, tmp_path, idle
):
    (tmp_path / "works.py").write_text(WORKS)
    words = ["--stall-timeout", "1", "--on-stall", "abort", "works.py", *idle]
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, *words)
    assert done.returncode == (124 if idle else 0), done.stderr
    missing = [line for line in done.stderr.splitlines() if line.startswith("  missing: rank 1 (host ")]
    assert re.search(
        r"at works\.py:6 <module>, and waits for its process \d+ \(python.*\), which computes$", missing[0]
    ), done.stderr
    assert "  the job is not ended while it works there" in done.stderr
    assert [line.rpartition(") ")[2] for line in missing[1:]] == (["at works.py:7 <module>"] if idle else [])


@pytest.mark.parametrize(
    ("own", "below", "spins", "works", "told"),
    [
        (0.0, 0.0, False, False, ""),
        (1.9, 0.0, False, True, ", and computes"),
        (1.9, 0.0, True, False, ", and computes, or spins while it waits for others: that looks the same"),
        (1.9, 0.9, True, False, ", and computes, or spins while it waits for others: that looks the same"),
        (0.0, 0.9, True, True, ", and waits for its process 7 (sort), which computes"),
    ],
)
def test_a_rank_works_where_it_or_what_it_started_used_the_processor_between_the_looks(own, below, spins, works, told):
    before = stack(1, "/home/me/data.py:7 read")._replace(seconds=(100.0, 5.0, 1.0), child="7 (sort)", spins=spins)
    seen = before._replace(seconds=(102.0, 5.0 + own, 1.0 + below)).since(before)
    assert (seen.works, seen.doing) == (works, told)
    assert verdict({0: stack(0, *frames(DUMP)), 1: seen}, 301)[1].endswith(f"data.py:7 read{told}")


@pytest.mark.parametrize("where", [{"stopped": True}, {"call": "call 12 of team 0: barrier"}])
def test_a_rank_that_waits_in_an_exchange_or_was_stopped_does_not_work_whatever_it_uses(where):
    before = stack(1, "/home/me/data.py:7 read")._replace(seconds=(100.0, 5.0, 1.0), **where)
    assert not before._replace(seconds=(102.0, 7.0, 3.0)).since(before).works


def test_a_stall_is_told_before_dl_comm_gives_up():
    settings = (Path(__file__).parents[2] / "comm/src/settings.h").read_text()
    gives_up = float(settings.partition("double timeout_s = ")[2].partition(";")[0])
    assert LaunchPlan(("train.py",)).stall_timeout + 10 < gives_up
