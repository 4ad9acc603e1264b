"""Timelines merge, tell who waited for whom, and survive what kills a rank."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dlrun.errors import DlrunError
from dlrun.timeline.rings import Event, Track, between, marks, read_all
from dlrun.timeline.summary import costs, lateness, overlap, shares, step_seconds, summary
from dlrun.timeline.trace import to_chrome

HAS_MPI = shutil.which("mpiexec") or (Path(sys.executable).parent / "mpiexec").exists()


def track(rank: int, compute: float, steps: int = 4) -> Track:
    """Steps of 10 ms in which both ranks leave together: computing for `compute` s, then waiting in an allreduce."""
    events = [Event("begin", "start and import", -0.5, -0.1), Event("init", "join the ranks", -0.1, 0.0)]
    for step in range(steps):
        events.append(Event("allreduce", "weight", 0.01 * step + compute, 0.01 * (step + 1), 4096))
    return Track(rank, "host", 100 + rank, tuple(events))


FAST, SLOW = track(0, 0.002), track(1, 0.009)


def test_a_step_is_found_by_the_return_of_its_first_exchange() -> None:
    assert marks(FAST) == pytest.approx([0.002, 0.012, 0.022, 0.032])
    assert step_seconds([FAST, SLOW]) == pytest.approx([0.01] * 3)


def test_several_buckets_are_one_step() -> None:
    events = [Event("start", name, t, t + 0.001, 8) for t in (0.0, 1.0, 2.0) for name in ("bucket 0", "bucket 1")]
    assert marks(Track(0, "", 0, tuple(events))) == [0.0, 1.0, 2.0]


def test_the_share_of_waiting_is_between_the_first_and_the_last_exchange() -> None:
    spent = shares(FAST)
    assert spent["allreduce"] / sum(spent.values()) == pytest.approx(0.8)
    assert "begin" not in spent
    slow = shares(SLOW)
    assert slow["allreduce"] / sum(slow.values()) == pytest.approx(0.1)


def test_the_slowest_rank_is_the_one_that_came_last() -> None:
    late = lateness([FAST, SLOW])
    assert late[0] == (0, 0.0)
    assert late[1] == (4, pytest.approx(0.007))


def test_overlap_is_what_of_a_flight_was_not_waited_for() -> None:
    flight = (Event("start", "b", 0.0, 0.001, 8, 7), Event("wait", "wait", 0.008, 0.010, 0, 7))
    assert overlap(Track(0, "", 0, flight)) == pytest.approx(0.8)
    assert overlap(FAST) is None


def test_the_largest_costs_are_named_with_computing_among_them() -> None:
    assert costs([SLOW])[0] == ("start and import", pytest.approx(0.4))
    assert "compute" in dict(costs([SLOW]))


def test_the_summary_names_everything_in_a_few_lines() -> None:
    said = summary([FAST, SLOW])
    assert "3 steps, median 10.0 ms" in said
    assert "80.0 %" in said
    assert "4 steps by 7.00 ms" in said


def test_a_window_of_steps_keeps_those_alone() -> None:
    kept = between(FAST, 1, 3)
    assert [round(e.begin, 3) for e in kept.events] == [0.012, 0.022]


def test_the_trace_holds_complete_events_and_names_as_its_readers_want_them() -> None:
    value = json.loads(json.dumps(to_chrome([FAST, SLOW])))
    events = value["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"X", "M"}
    assert all(isinstance(e["pid"], int) and isinstance(e["tid"], int) and e["dur"] >= 0 for e in complete)
    assert {e["pid"] for e in complete} == {0, 1}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "rank 0 on host, pid 100", "rank 1 on host, pid 101",
    ]  # fmt: skip
    computing = [e["dur"] for e in complete if e["pid"] == 1 and e["name"] == "compute"]
    assert computing == pytest.approx([9000] * 3)
    assert [e["dur"] for e in complete if e["pid"] == 1 and e["name"] == "set-up"] == pytest.approx([9000])


def test_a_folder_without_rings_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(DlrunError, match="holds no timeline"):
        read_all(tmp_path)
    (tmp_path / "timeline-0.ring").write_text("something else")
    with pytest.raises(DlrunError, match="is no timeline of dl_comm"):
        read_all(tmp_path)


SCRIPT = """
import os, signal, sys, time
import numpy as np
import dl_comm
dl_comm.init(2, 1, 1000, "numpy")
rank = dl_comm.get_rank()
for step in range(20):
    time.sleep(0.02 if rank == 1 else 0.002)
    mean = dl_comm.gradients([np.full(1000, rank, np.float32)], 0)
    assert mean[0][0] == 0.5
if "crash" in sys.argv and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dl_comm.gradients([np.full(1000, rank, np.float32)], 0)
dl_comm.finalize()
"""


@pytest.mark.skipif(not HAS_MPI, reason="no mpiexec: nothing can start ranks")
@pytest.mark.parametrize("end", ["well", "crash"])
def test_a_real_run_is_recorded_also_when_a_rank_is_killed(end: str, tmp_path: Path) -> None:
    (tmp_path / "train_dist.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--timeline", "trace.json", "--log-dir", "logs"]
    done = subprocess.run(
        [*command, "train_dist.py", end], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == (0 if end == "well" else 137), done.stderr
    tracks = read_all(tmp_path / "logs")
    assert [t.rank for t in tracks] == [0, 1]
    assert all(19 <= sum(e.kind == "allreduce" for e in t.events) <= 22 for t in tracks)
    assert all({"begin", "init"} <= {e.kind for e in t.events} for t in tracks)
    late = lateness(tracks)
    assert late[1][0] > late[0][0]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1}
    assert "came last" in done.stdout
