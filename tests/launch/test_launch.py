"""Real launches of small programs, under every MPI launcher that is installed."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from launchers import LAUNCHERS

FAILS = """
import os, sys, time
how = sys.argv[1]
if os.environ["DLRUN_RANK"] == "1":
    time.sleep(0.2)
    if how == "exception": raise ValueError("bad shape (3, 4)")
    if how == "sys.exit": sys.exit(7)
    if how == "os._exit": os._exit(7)
    if how == "SIGKILL": os.kill(os.getpid(), 9)
    if how == "SIGSEGV":
        import ctypes; ctypes.string_at(0)
time.sleep(60)
"""
MPI_FAILS = "from mpi4py import MPI\n" + FAILS.replace("time.sleep(60)", "MPI.COMM_WORLD.Barrier()")
ENDS = {
    "exception": (1, "ValueError: bad shape (3, 4) at fails.py:{line}"),
    "sys.exit": (7, "sys.exit(7) at fails.py:{line}"),
    "os._exit": (7, "exit code 7 at fails.py:{line}"),
    "SIGKILL": (137, "killed by SIGKILL"),
    "SIGSEGV": (139, "killed by SIGSEGV at fails.py:{line}"),
}


def left_running(folder: Path, patience: float = 20) -> list[str]:
    """Return the command lines of the processes in ``folder``, launchers included, that do not end by themselves."""
    deadline = time.monotonic() + patience  # what was killed may take a moment to be gone
    while (found := ours(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def ours(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            try:
                if (process / "cwd").resolve() == folder:
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return [line for line in found if line]


def test_each_rank_knows_its_place_and_rank_0_is_on_the_console(dlrun, mpiexec, tmp_path):
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE", "NNODES"]
    (tmp_path / "place.py").write_text(
        f"import os, sys\nprint(*[os.environ['DLRUN_' + n] for n in {names}], sys.argv[1:])\n"
    )
    done = dlrun("-n", "3", "--mpiexec", mpiexec, "--log-dir", "runs", "place.py", "-n", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 3 0 3 0 1 ['-n', 'a b']\n"
    for rank in range(3):
        assert (tmp_path / f"runs/latest/rank-{rank}.log").read_text() == f"{rank} 3 {rank} 3 0 1 ['-n', 'a b']\n"


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("mpi", [False, True], ids=["plain", "in-a-barrier"])
@pytest.mark.wide("openmpi-4.1.4", "mpich-4.0.2")
def test_a_rank_that_fails_ends_the_job_with_its_code(dlrun, mpiexec, tmp_path, how, mpi):
    text = MPI_FAILS if mpi else FAILS
    (tmp_path / "fails.py").write_text(text)
    code, what = ENDS[how]
    line = next(i for i, x in enumerate(text.splitlines(), 1) if f'"{how}"' in x) + (how == "SIGSEGV")
    start = time.monotonic()
    done = dlrun("-n", "3", "--mpiexec", mpiexec, "--log-dir", "runs", "fails.py", how)
    seconds = time.monotonic() - start
    assert done.returncode == code, done.stderr
    first = next(x for x in done.stderr.splitlines() if x.startswith("dlrun: rank"))
    assert first.startswith("dlrun: rank 1 (host ")
    assert first.endswith("ended the job: " + what.format(line=line)), done.stderr
    assert seconds < 50, "the others would have slept for 60 s, or waited in the barrier for ever"
    assert json.loads((tmp_path / "runs/latest/failure.json").read_text())["rank"] == 1
    assert left_running(tmp_path) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_to_dlrun_ends_everything(mpiexec, tmp_path, number, code):
    (tmp_path / "waits.py").write_text(
        "import os, time\nfolder = os.environ['DLRUN_RUN_DIR'] + '/.saving-x' + os.environ['DLRUN_RANK']\n"
        "os.mkdir(folder)\nos.symlink('/dev/null', folder + '/last.pt')\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--mpiexec", mpiexec, "waits.py"]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout and process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert process.wait(100) == code
    process.stdout.close()
    told = f"dlrun: {number.name} ended the job (exit code {code}); logs: " in (tmp_path / "errors").read_text()
    assert told == (code > 0)
    assert left_running(tmp_path, 40) == []
    left = list(tmp_path.glob("dlrun-runs/*/.saving-*"))  # of checkpoints that were being written
    # Whom SIGKILL ends cannot clear up; the watchers do, where MPICH's proxies do not kill them first (1 of 300 times).
    name = next(each for each, path in LAUNCHERS.items() if path == mpiexec)
    assert not left or (number == signal.SIGKILL and name.startswith("mpich"))
    assert all(path.is_symlink() for folder in left for path in folder.iterdir())


DISAGREES = """
import numpy as np
import dl_comm as mc

mc.init(1, 1, 10)
mc.gradients([np.ones(3 + mc.get_rank(), np.float32)], 0)
"""


@pytest.mark.wide("openmpi-4.1.4", "mpich-4.0.2")
def test_an_error_that_dl_comm_raises_on_every_rank_is_told_with_its_line_in_the_script(dlrun, mpiexec, tmp_path):
    (tmp_path / "disagrees.py").write_text(DISAGREES)
    for _ in range(3):  # the ranks end at nearly the same time, and their launcher with them: a race that was lost once
        done = dlrun("-n", "2", "--mpiexec", mpiexec, "disagrees.py")
        assert done.returncode == 1, done.stderr
        told = [line for line in done.stderr.splitlines() if line.startswith("dlrun: rank ")]
        assert "array 0 is (3,) float32, 3 elements on rank 0 but (4,)" in told[0], done.stderr
        assert told[0].endswith(" at disagrees.py:6"), told[0]


@pytest.mark.parametrize("code", [256, -512])
def test_an_exit_code_of_which_the_system_keeps_0_ends_the_job_as_a_failure(dlrun, any_mpiexec, tmp_path, code):
    text = (
        "import sys, numpy as np, dl_comm as dl\n"
        "dl.init()\n"
        "for step in range(1000):\n"
        "    dl.gradients([np.ones(3, np.float32)])\n"
        f"    if step == 5 and dl.get_rank() == 1: sys.exit({code})\n"
    )
    (tmp_path / "fails.py").write_text(text)
    done = dlrun("-n", "3", "--mpiexec", any_mpiexec, "fails.py")
    assert done.returncode == 1, done.stderr
    first = next(line for line in done.stderr.splitlines() if line.startswith("dlrun: rank"))
    assert first.startswith("dlrun: rank 1 (host ")
    assert first.endswith(f"ended the job: sys.exit({code}) at fails.py:5"), done.stderr


@pytest.mark.parametrize(("terminal", "seen"), [(True, b"\r 10%"), (False, b" 10%\n")])
def test_a_progress_bar_is_shown_while_it_moves(any_mpiexec, tmp_path, terminal, seen):
    (tmp_path / "bar.py").write_text("import time\nprint('\\r 10%', end='')\ntime.sleep(60)\n")
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--mpiexec", any_mpiexec, "bar.py"]
    ours, its = os.openpty() if terminal else os.pipe()
    process = subprocess.Popen(line, cwd=tmp_path, stdout=its, stderr=subprocess.DEVNULL)
    shown = b""
    while len(shown) < 5:
        shown += os.read(ours, 5 - len(shown))
    assert shown == seen
    process.terminate()
    process.wait(100)
    os.close(ours)
    os.close(its)


def test_copies_of_a_serial_script_are_told_so(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "serial.py").write_text("print('done')\n")
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "serial.py")
    assert done.returncode == 0
    assert "copies of a serial script" in done.stderr and "dlrun port" in done.stderr
    (tmp_path / "talks.py").write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.size)\n")
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "talks.py")
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_copies_of_a_serial_script_are_told_so_while_they_still_run(any_mpiexec, tmp_path, monkeypatch):
    from dlrun.launch import LaunchPlan, launch

    monkeypatch.chdir(tmp_path)
    Path("waits.py").write_text("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n")
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if "make it a data-parallel one first (dlrun port)" in text:
            Path("go").touch()  # the script waits for it

    plan = LaunchPlan(("waits.py",), ranks=2, mpiexec=any_mpiexec, serial_after=0.2)
    assert launch(plan, on_note=note).returncode == 0
    assert notes[-1].startswith("after 0.2 s no rank has loaded anything to talk to the others with")


def test_several_ranks_are_shown_each_line_with_its_rank(dlrun, any_mpiexec, tmp_path):
    bar = "for i in range(1001): print(f'\\r{i / 10:5} %', end='')\nprint()\n"
    (tmp_path / "says.py").write_text("import os\nprint('I am', os.environ['DLRUN_RANK'])\n" + bar)
    done = dlrun("-n", "3", "--mpiexec", any_mpiexec, "--show", "0,2", "says.py")
    for rank in (0, 2):
        shown = [line for line in done.stdout.splitlines() if line.startswith((f"[{rank}] ", "[all] "))]
        assert shown[0] == f"[{rank}] I am {rank}" and shown[-1].endswith("] 100.0 %")
        assert len(shown) < 20, "a state of the bar now and then, not all 1001"
    assert not [line for line in done.stdout.splitlines() if not line.startswith(("[0] ", "[2] ", "[all] "))]


def test_what_a_rank_left_running_is_ended_with_it(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "forks.py").write_text("import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True)\n")
    assert dlrun("-n", "2", "--mpiexec", any_mpiexec, "forks.py").returncode == 0
    assert left_running(tmp_path) == []


def test_launch_from_python_hands_over_lines(any_mpiexec, tmp_path, monkeypatch):
    from dlrun.launch import LaunchPlan, launch

    monkeypatch.chdir(tmp_path)
    only_rank_0 = "import os, sys, time\nif os.environ['DLRUN_RANK'] == '1': time.sleep(60)\n"
    meet = "while not os.path.exists(os.environ['DLRUN_RUN_DIR'] + '/rank-1.log'): time.sleep(0.01)\n"
    (tmp_path / "says.py").write_text(only_rank_0 + meet + "print('one\\rtwo')\nsys.exit(3)\n")
    lines: list[tuple[int, str, str]] = []
    plan = LaunchPlan(("says.py",), ranks=2, mpiexec=any_mpiexec)
    result = launch(plan, on_line=lambda *line: lines.append(line))
    assert lines == [(0, "out", "one"), (0, "out", "two")]
    assert result.returncode == 3
    assert result.failure and result.failure.what == "sys.exit(3)"
    assert (result.run_dir / "rank-1.log").exists()


@pytest.mark.wide("openmpi-4.1.4", "mpich-4.0.2")
def test_rank_0s_last_words_come_before_dlruns_on_lines_of_their_own(dlrun, mpiexec, tmp_path):
    words = "import sys, time\nsys.stdout.write('\\r 10%')\nsys.stdout.flush()\nraise ValueError('x' * 3000)\n"
    (tmp_path / "words.py").write_text(words)
    for _ in range(3):
        done = dlrun("-n", "2", "--mpiexec", mpiexec, "--env", "DLRUN_TEST=1", "words.py")
        lines = done.stderr.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("dlrun: rank "))
        if "rank 0 (host" in lines[first]:
            assert lines[first - 1] == "ValueError: " + "x" * 3000


@pytest.mark.wide("openmpi-4.1.4", "mpich-4.0.2")
def test_what_python_reads_as_it_starts_may_be_set_for_the_ranks(dlrun, mpiexec, tmp_path: Path):
    """Python is up by then: it starts once more."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/mine.py").write_text("number = 17\n")
    asks = "import os, mine, sys\nprint(mine.number, sys.flags.hash_randomization, hash('a'))\n"
    (tmp_path / "asks.py").write_text(f"{asks}print([name for name in os.environ if 'AGAIN' in name])\n")
    words = ["--env", f"PYTHONPATH={tmp_path / 'lib'}", "--env", "PYTHONHASHSEED=7"]
    done = dlrun("-n", "1", "--mpiexec", mpiexec, *words, "asks.py")
    own = subprocess.run(
        [sys.executable, "-c", "print(hash('a'))"],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert done.stdout == f"17 1 {own}[]\n", done.stderr


def test_a_set_of_texts_has_one_order_on_all_ranks(dlrun, any_mpiexec, tmp_path: Path, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    order = "import os, pathlib\nwords = ' '.join(set('the texts of a set in an order of their own'.split()))\n"
    (tmp_path / "order.py").write_text(f"{order}pathlib.Path(os.environ['DLRUN_RANK'] + '.txt').write_text(words)\n")
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "order.py")
    assert (tmp_path / "0.txt").read_text() == (tmp_path / "1.txt").read_text(), done.stderr


_TRIES = """
import os, pathlib, sys, time
first = "--resume" not in sys.argv
if first and os.environ["DLRUN_RANK"] == "0":
    print("unfinished", end="", flush=True)
    time.sleep(60)
print(os.environ["DLRUN_ATTEMPT"], sys.argv[1:])
log = pathlib.Path(os.environ["DLRUN_RUN_DIR"], "rank-0.log")
while first and not (log.exists() and log.read_text() == "unfinished"):  # dlrun has it, too
    time.sleep(0.01)
sys.exit(5 if first else 0)
"""


def test_what_ucx_has_to_say_is_not_among_what_rank_0_prints(dlrun, mpiexec, tmp_path, monkeypatch):
    monkeypatch.delenv("UCX_LOG_FILE", raising=False)
    (tmp_path / "prints.py").write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.rank)\n")
    done = dlrun("-n", "2", "--mpiexec", mpiexec, "--env", "UCX_NO_SUCH_THING=1", "prints.py")  # UCX warns of that
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_failed_job_is_started_again_with_the_words_that_resume_it(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "tries.py").write_text(_TRIES)
    words = ["--log-dir", "runs", "--max-restarts", "2", "--resume", "--resume last.pt", "tries.py", "--lr", "1"]
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "unfinished\n2 ['--lr', '1', '--resume', 'last.pt']\n"
    assert "dlrun: attempt 2 of 3" in done.stderr
    assert (tmp_path / "runs/latest/attempt-1/failure.json").exists()
    assert (tmp_path / "runs/latest/attempt-2/rank-1.log").read_text() == "2 ['--lr', '1', '--resume', 'last.pt']\n"
    assert not (tmp_path / "runs/latest/attempt-3").exists()
    again = "2 ['--lr', '1', '--resume', 'last.pt']\n"
    for run, wrote in (("runs", again), ("runs/latest/attempt-1", "1 ['--lr', '1']\n")):
        logs = [sys.executable, "-m", "dlrun", "logs", "-r", "1", run]
        shown = subprocess.run(logs, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
        assert shown.stdout == wrote, "of a run with several attempts the last"


def test_after_the_last_restart_the_failure_stands(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "fails.py").write_text("import sys\nsys.exit(5)\n")
    assert dlrun("-n", "2", "--mpiexec", any_mpiexec, "--max-restarts", "1", "fails.py").returncode == 5


def test_ten_launches_of_eight_ranks_leave_no_process_and_no_file(any_mpiexec, tmp_path, monkeypatch):
    from dlrun.launch import LaunchPlan, launch

    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(temporary))  # where the launchers keep what they forget
    (tmp_path / "script.py").write_text("")
    fds = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        assert launch(LaunchPlan(("script.py",), ranks=8, mpiexec=any_mpiexec, run_dir="runs")).returncode == 0
    assert left_running(tmp_path) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == fds
    assert list(temporary.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs", "script.py", "tmp"]


def test_a_full_disk_ends_no_rank_whether_it_is_shown_or_not(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "prints.py").write_text("for _ in range(30):\n    print(1000 * 'x')\n")
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (9000, 9000))  # of each file, as a disk that has no more
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "prints.py", preexec_fn=full)
    assert (done.returncode, done.stdout) == (0, 30 * (1000 * "x" + "\n"))
    for rank in range(2):
        assert f"rank-{rank}.log cannot be written (File too large); the job goes on without it" in done.stderr


DIES = """
import os, subprocess, time
if os.environ["DLRUN_RANK"] == "1":
    time.sleep(60)
if os.environ["DLRUN_RANK"] == "0":
    subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -{os.environ['HOW']} {os.getpid()}"])
from mpi4py import MPI
"""


def is_mapped(path):
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if str(path) in maps.read_text():
                return True
    return False


@pytest.mark.parametrize("how", ["SIGKILL", "SIGBUS"])
@pytest.mark.wide("openmpi-4.1.4", "mpich-4.0.2")
def test_a_rank_that_dies_in_mpi_init_leaves_nothing_in_memory(dlrun, mpiexec, tmp_path, how):
    (tmp_path / "dies.py").write_text(DIES)
    before = set(Path("/dev/shm").iterdir())
    done = dlrun("-n", "3", "--mpiexec", mpiexec, "--env", f"HOW={how[3:]}", "dies.py")
    assert done.returncode == 128 + getattr(signal, how), done.stderr
    left = [path for path in set(Path("/dev/shm").iterdir()) - before if "mpich_shm" in path.name]
    assert not [path for path in left if path.exists() and not is_mapped(path)]  # what is, is of a job beside this one


def test_what_the_ranks_of_a_failed_job_share_is_not_left_in_memory_and_others_is(dlrun, any_mpiexec, tmp_path):
    mapped, others = (Path(f"/dev/shm/mpich_shm_{name}{os.getpid()}") for name in ("mapped", "others"))
    (tmp_path / "shares.py").write_text(
        f"import mmap, os, pathlib, time\nfile = open({str(mapped)!r}, 'r+b')\n"
        "shared = mmap.mmap(file.fileno(), 4096)\n"
        "if os.environ['DLRUN_RANK'] == '0':\n    pathlib.Path('mapped').touch()\n    time.sleep(60)\n"
        "while not os.path.exists('mapped'):\n    time.sleep(0.01)\nraise SystemExit(7)\n"
    )
    try:
        for path in (mapped, others):
            path.write_bytes(4096 * b"x")
            os.utime(path, (0, 0))  # older than other jobs, which clear up what is mapped by nobody
        assert dlrun("-n", "2", "--mpiexec", any_mpiexec, "shares.py").returncode == 7
        assert (mapped.exists(), others.exists()) == (False, True)
    finally:
        for path in (mapped, others):
            path.unlink(missing_ok=True)


def test_ranks_fit_the_hosts_that_are_left_and_grow_again_with_those_that_are_named_anew():
    from dlrun.errors import DlrunError
    from dlrun.launch import Host, LaunchPlan, _Left

    three = tuple(Host(name) for name in ("n1", "n2.site", "n3"))
    left = _Left(LaunchPlan(("t.py",), ranks=6, hosts=three), 4)
    assert left.plan(three) == (6, three)
    left.without("n2.site")
    assert left.plan(three) == (4, (three[0], three[2]))
    assert left.plan((*three, Host("n4"))) == (6, (*three, Host("n4"))), "somebody has seen to it"
    left.without("n1")
    left.without("n2")
    left.without("n3")
    with pytest.raises(DlrunError, match="the hosts that are left take 2 ranks, and the job needs 4"):
        left.plan((*three, Host("n4")))


@pytest.mark.parametrize(
    ("words", "told", "ranks"),
    [
        ("--min-ranks 2 --max-restarts 1 --hosts localhost:3", "", "3\n"),
        ("-n 4:2 --max-restarts 1", "dlrun: there are to be 2 ranks, and 4 or more", ""),
        ("-n 1:2", "dlrun: --min-ranks 1 counts with --max-restarts alone", "2\n"),
    ],
)
def test_a_job_that_may_shrink_begins_with_all_its_ranks(dlrun, any_mpiexec, tmp_path, words, told, ranks):
    (tmp_path / "counts.py").write_text("import os\nprint(os.environ['DLRUN_SIZE'])\n")
    done = dlrun(*words.split(), "--mpiexec", any_mpiexec, "counts.py")
    assert (done.returncode, done.stdout) == (0 if ranks else 1, ranks), done.stderr
    assert told in done.stderr
