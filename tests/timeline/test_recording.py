"""What ranks record: on disk at once, bounded, on one clock, and opened by Perfetto."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import perfetto_reader
import pytest
from dl_comm.timeline import offset
from dl_comm.timeline_ring import Ring

from dlrun.timeline.rings import read, read_all

HAS_MPI = shutil.which("mpiexec") or (Path(sys.executable).parent / "mpiexec").exists()
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="no mpiexec: nothing can start ranks")
needs_perfetto = pytest.mark.skipif(bool(perfetto_reader.missing()), reason=perfetto_reader.missing())


def test_a_ring_is_bounded_and_the_oldest_records_give_way(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 3, slots=10)
    for number in range(25):
        ring.add("allreduce", f"w{number % 2}", number, number + 1, 8, number)
    track = read(tmp_path / "timeline-3.ring")  # as after a SIGKILL: nobody closed anything
    assert (track.rank, track.lost) == (3, 15)
    assert [e.ticket for e in track.events] == list(range(15, 25))
    assert {e.name for e in track.events} == {"w0", "w1"}


def test_many_threads_write_whole_records(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 0)
    threads = [
        threading.Thread(target=lambda n=n: [ring.add("wait", f"t{n}", i, i + n, n, n) for i in range(500)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read(tmp_path / "timeline-0.ring").events
    assert len(events) == 2000
    assert all(e.name == f"t{e.ticket}" and e.nbytes == e.ticket for e in events)


def test_half_a_name_of_a_killed_rank_is_passed_over(tmp_path: Path) -> None:
    Ring(tmp_path, 0).add("wait", "whole", 1, 2)
    with (tmp_path / "timeline-0.names").open("a") as file:
        file.write('[12, "ha')
    assert [e.name for e in read(tmp_path / "timeline-0.ring").events] == ["whole"]


def test_the_offset_of_another_nodes_clock_is_found_through_disturbed_readings() -> None:
    ranks = threading.Barrier(2)
    told: dict[int, bytes] = {}
    found: dict[int, tuple[int, int]] = {}
    readings = {0: iter(range(1000, 9000, 10)), 1: iter(range(501_000, 509_000, 10))}

    def rank(me: int) -> None:
        count = iter(range(100))

        def clock() -> int:  # every third reading comes late
            return next(readings[me]) + (7_777 if next(count) % 3 == me else 0)

        def gather(mine: bytes) -> list[bytes]:
            told[me] = mine
            ranks.wait()
            return [told[0], told[1]]

        found[me] = offset(ranks.wait, gather, clock)  # type: ignore[arg-type]

    other = threading.Thread(target=rank, args=(1,))
    other.start()
    rank(0)
    other.join()
    assert found[0][1] == 0
    assert found[1][1] == 500_000


TORCH = """
import os, signal, sys, time
import torch
import dl_comm.torch as dl
dl.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dl.broadcast(model, optimizer)
if "overlap" in sys.argv:
    dl.overlap(optimizer)
for step in range(12):
    time.sleep(0.02 if dl.get_rank() == 1 else 0.002)
    optimizer.zero_grad()
    model(torch.randn(4, 64)).sum().backward()
    dl.gradients(optimizer)
    optimizer.step()
    if "crash" in sys.argv and step == 8:
        dl.barrier()  # all ranks have made this step
        if dl.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
dl.save(model.state_dict(), "model.pt")
dl.finalize()
"""


def launch(folder: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (folder / "train_dist.py").write_text(TORCH)
    command = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--timeline", "trace.json", "--log-dir", "logs"]
    return subprocess.run(
        [*command, *options, "train_dist.py", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_mpi
def test_every_phase_of_a_run_is_recorded_and_a_window_keeps_its_steps_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = launch(tmp_path, "overlap", options=("--timeline-steps", "4:7"))
    assert done.returncode == 0, done.stderr
    tracks = read_all(tmp_path / "logs/latest")
    assert [t.rank for t in tracks] == [0, 1]
    for track in tracks:
        kinds = [e.kind for e in track.events]
        phases = {"start", "import", "init", "backward", "pack", "issue", "wait", "reduce", "unpack", "step"}
        assert set(kinds) >= phases
        assert set(track.steps()) == {4, 5, 6}
        assert (kinds.count("backward"), kinds.count("step"), kinds.count("pack")) == (3, 3, 12)
        assert len(kinds) <= 3 * 20 + 10, "a step of a small network leaves at most 20 records"
        flights = {e.ticket: e for e in track.events if e.kind == "reduce"}
        issued = {e.ticket: e for e in track.events if e.kind == "issue"}
        assert all(e.begin >= issued[t].begin and e.name == issued[t].name for t, e in flights.items())
    whole = launch(tmp_path, options=("--log-dir", "all"))
    assert whole.returncode == 0, whole.stderr
    assert "checkpoint" in {e.kind for e in read_all(tmp_path / "all/latest")[0].events}
    assert set(read_all(tmp_path / "all/latest")[0].steps()) == set(range(1, 12))


@needs_mpi
@needs_perfetto
@pytest.mark.parametrize("end", ["well", "crash"])
@pytest.mark.wide("well")
def test_perfetto_opens_the_trace_also_when_a_rank_was_killed(end: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = launch(tmp_path, end)
    assert done.returncode == (0 if end == "well" else 137), done.stderr
    assert "came last" in done.stdout
    processes, threads, phases, faults, crossing = perfetto_reader.ask(
        tmp_path / "trace.json",
        "select json_group_array(name) from process where name is not null",
        "select json_group_array(json_array(p.name, t.name)) from thread t join process p using(upid)",
        "select json_group_object(category, n) from (select category, count(*) n from slice where dur > 0 group by 1)",
        "select json_group_array(name) from stats where severity = 'error' and value > 0",
        "select json_group_array(s.name) from slice s join slice p on s.parent_id = p.id"
        " where s.ts + s.dur > p.ts + p.dur",
    )
    assert [name.split(" on ")[0] for name in sorted(processes)] == ["rank 0", "rank 1"]
    assert {name for _, name in threads} >= {"script", "steps"}
    steps = 11 if end == "well" else 8
    assert phases["period"] == 2 * steps
    assert min(phases[kind] for kind in ("forward", "backward", "allreduce", "step")) >= 2 * steps
    assert phases["wait"] >= steps
    assert not faults
    assert not crossing
    again = subprocess.run(
        [sys.executable, "-m", "dlrun", "timeline", "trace.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
