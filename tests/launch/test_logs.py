"""What ranks wrote, afterwards and beside the console: logs of all ranks by time, and a copy of what is shown."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlrun.launch.console import Console
from dlrun.launch.other_launchers import translate
from dlrun.rank import wire
from dlrun.rank.log import TIMES, Log

TAKES_TURNS = """
import os, pathlib, time
me = int(os.environ["DLRUN_RANK"])
for turn in range(6):
    while turn % 2 != me and not os.path.exists(f"done-{turn}"): time.sleep(0.001)
    if turn % 2 == me:
        while turn and not os.path.exists(f"done-{turn - 1}"): time.sleep(0.001)
        print("turn", turn, flush=True)
        time.sleep(0.05)
        pathlib.Path(f"done-{turn}").touch()
"""


def logs(folder: Path, *words: str) -> str:
    line = [sys.executable, "-m", "dlrun", "logs", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=100, check=True).stdout


def test_the_logs_of_all_ranks_are_shown_in_the_order_in_which_they_were_written(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "turns.py").write_text(TAKES_TURNS)
    assert dlrun("-n", "2", "--mpiexec", any_mpiexec, "turns.py").returncode == 0
    lines = [f"[{turn % 2}] turn {turn}\n" for turn in range(6)]
    assert logs(tmp_path, "--all") == "".join(lines)
    assert logs(tmp_path, "--all", "-n", "2") == "".join(lines[-2:])
    for times in (tmp_path / "dlrun-runs/latest").glob("rank-*.times"):  # a run of an earlier dlrun
        times.unlink()
    assert logs(tmp_path, "--all") == "".join(lines[::2] + lines[1::2])


def test_a_log_notes_when_which_of_its_bytes_were_written(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("dlrun.rank.log.time.time", lambda: now[0])
    log = Log(str(tmp_path), 3)
    for seconds, data in ((0.0, b"one\n"), (0.0001, b"two\n"), (5.0, b"three\n")):
        now[0] = 100.0 + seconds
        log.write(data)
    assert list(TIMES.iter_unpack((tmp_path / "rank-3.times").read_bytes())) == [(100.0, 0), (105.0, 8)]
    os.close(log.fd)
    os.close(log.times)


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_what_is_shown_is_copied_by_lines_and_of_a_bar_what_it_came_to(ranks: tuple[int, ...], capfd):
    file = io.BytesIO()
    kept = []
    file.close = lambda: kept.append(file.getvalue())  # type: ignore[method-assign]
    console = Console(ranks, None, file)
    console.show(0, wire.OUT, b"epoch 1\n 10%\r 20%\r")
    console.show(0, wire.OUT, b"100%\nlast")
    console.close()
    label = b"[0] " if len(ranks) > 1 else b""
    lines = [label + line for line in (b"epoch 1\n", b" 20%\n", b"100%\n", b"last")]
    assert kept[-1] == b"".join(lines) + b"\n" * (len(ranks) > 1)


def test_a_launch_tees_what_it_shows_and_goes_on_where_that_cannot_be_written(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "says.py").write_text("import os, sys\nprint(os.environ['DLRUN_RANK'])\n")
    words = ["-n", "2", "--mpiexec", any_mpiexec, "--show", "all", "--tee"]
    for _ in range(2):  # not added to what an earlier job left
        done = dlrun(*words, "said.txt", "says.py")
        assert (tmp_path / "said.txt").read_text() == done.stdout
        assert sorted(done.stdout.splitlines()) == ["[0] 0", "[1] 1"]
    done = dlrun(*words, "/dev/full", "says.py")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    assert done.stderr.count("/dev/full cannot be written (No space left on device)") == 1


@pytest.mark.parametrize("words", ["--tee 3", "--tee=3", "--tee 0:1,1:3"])
def test_tee_as_torchrun_has_it_shows_all_ranks(words: str):
    assert translate([*words.split(), "-n", "2", "t.py"], {"-n", "--tee"}, 0, 8)[0] == [
        "--show",
        "all",
        "--ranks",
        "2",
        "t.py",
    ]
    assert translate(["--tee", "said.txt", "t.py"], {"--tee"}, 0, 8)[0] == ["--tee", "said.txt", "t.py"]
