"""What dlrun prints, on terminals and in pipes that do not take every letter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from dlrun import __version__
from dlrun.cli import main


@pytest.mark.parametrize(
    ("encoding", "name", "shown"),
    [
        ("latin-1", "größe ✓ ✗ 1·2.py".encode(), "größe + x 1·2.py".encode("latin-1")),
        ("iso8859-5", "größe 1·2.py".encode(), b"gr??e 1-2.py"),
        ("utf-8", b"gr\xf6\xdfe.py", b"gr\xf6\xdfe.py"),  # no text: from a system of another encoding
    ],
)
def test_a_letter_that_cannot_be_shown_ends_nothing(tmp_path: Path, encoding: str, name: bytes, shown: bytes) -> None:
    script = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    script.touch()
    words = [sys.executable, "-m", "dlrun", "launch", "-n", "1", "--backend", "local", "--dry-run", script.name]
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_ends_nothing(tmp_path: Path, closed: str) -> None:
    (tmp_path / "says.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    words = [sys.executable, "-m", "dlrun", "launch", "-n", "1", "--backend", "local", "--log-dir", "run", "says.py"]
    line = ["sh", "-c", f'exec "$@" {closed}', "sh", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (b"" if " >&-" in f" {closed}" else b"out\n")
    assert sorted((tmp_path / "run/latest/rank-0.log").read_text().split()) == ["err", "out"]


@pytest.mark.parametrize("full", [">/dev/full", "2>/dev/full", ">/dev/full 2>&1"])
def test_a_job_whose_output_goes_to_a_full_disk_goes_on(tmp_path: Path, full: str) -> None:
    (tmp_path / "says.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('end')\n")
    words = [sys.executable, "-m", "dlrun", "launch", "-n", "1", "--backend", "local", "--log-dir", "run", "says.py"]
    line = ["sh", "-c", f'exec "$@" {full}', "sh", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "out\nend\n" if full.startswith("2") else "")
    assert sorted((tmp_path / "run/latest/rank-0.log").read_text().split()) == ["end", "err", "out"]
    told = "dlrun: what the ranks write cannot be shown here (No space left on device); the job goes on"
    assert done.stderr.count(told) == (full == ">/dev/full"), "once"


@pytest.mark.parametrize("words", ["--version", "--help", "launch --help", "doctor"])
def test_what_a_full_disk_does_not_take_is_one_line(tmp_path: Path, words: str) -> None:
    line = ["sh", "-c", f"exec {sys.executable} -m dlrun {words} > /dev/full"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "dlrun: No space left on device", "after how far it has come"


def test_a_pipe_that_does_not_block_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text("print(3000 * (99 * 'x' + '\\n') + 'end')\n")
    words = [sys.executable, "-m", "dlrun", "launch", "-n", "1", "--backend", "local", "says.py"]
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with subprocess.Popen(words, cwd=tmp_path, stdout=writes, stderr=subprocess.PIPE) as process:
        os.close(writes)
        assert process.stderr
        time.sleep(1)
        with open(reads, "rb") as pipe:  # noqa: PTH123
            assert len(pipe.read()) == 300_004
        assert process.wait(60) == 0, process.stderr.read()


def test_what_two_ranks_write_at_their_end_reaches_a_reader_who_takes_his_time(tmp_path: Path) -> None:
    """Their launcher has long ended by then; 1.5 s without a word it is given."""
    (tmp_path / "says.py").write_text("print(20_000 * (99 * 'x' + '\\n') + 'end')\n")
    words = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--show", "all", "says.py"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        shown = b""
        for _ in range(3):
            shown += process.stdout.read(400_000)
            time.sleep(2)
        shown += process.stdout.read()
        assert process.wait(60) == 0, process.stderr.read()
    lines = shown.splitlines()
    of_both = sum(line.startswith(b"[all] ") for line in lines if line.endswith(b"x"))
    assert shown.count(b"x\n") + of_both == 40_000
    assert sum(lines.count(end) for end in (b"[1] end", b"[all] end")) == 1


@pytest.mark.parametrize("verb", ["launch -n 2 train.py", "port train.py", "logs"])
def test_a_folder_that_is_gone_is_told(tmp_path: Path, verb: str) -> None:
    line = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m dlrun {verb}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == "dlrun: the folder that this shell is in is gone\n  go to one that is there: cd ..\n"
    assert done.returncode == 1


def test_a_fault_of_dlrun_itself_is_told_as_one_with_the_lines_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(depth: int) -> None:
        fails(depth - 1) if depth else {}["nothing"]

    monkeypatch.setattr("dlrun.doctor.examine", lambda: fails(50))
    done = CliRunner().invoke(main, ["doctor"])
    lines = done.stderr.splitlines()
    assert done.exit_code == 1 and len(lines) < 25
    assert "KeyError: 'nothing'" in lines
    assert lines[-2:] == [
        f"dlrun: a fault of dlrun {__version__} itself, not of what you gave it: KeyError",
        "  Please report it, with the lines above and what you typed.",
    ]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(s, marks=pytest.mark.wide) for s in (signal.SIGTERM, signal.SIGHUP))]
)
def test_what_ends_a_verb_ends_what_it_has_started_and_clears_up(tmp_path: Path, number: signal.Signals) -> None:
    """As a batch system ends it whose time is up: Python alone would die of it, and leave all that behind."""
    (tmp_path / "train.py").write_text("import torch, pathlib, os, time\npathlib.Path('up').touch()\ntime.sleep(60)\n")
    (tmp_path / "tmp").mkdir()
    words = [sys.executable, "-m", "dlrun", "port", "--observe", "--diff", "train.py"]
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    verb = subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("up")):
        assert verb.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    verb.send_signal(number)
    told = verb.communicate(timeout=60)[1]
    assert verb.returncode == 128 + number, told
    assert ("dlrun: interrupted" if number == signal.SIGINT else f"dlrun: ended by {number.name}") in told
    assert not list((tmp_path / "tmp").iterdir())
    running = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    assert not [entry for entry in running if _begins_with(entry, str(tmp_path))]


def _begins_with(process: Path, folder: str) -> bool:
    try:
        return str((process / "cwd").readlink()).startswith(folder) and bool((process / "cmdline").read_bytes())
    except OSError:
        return False
