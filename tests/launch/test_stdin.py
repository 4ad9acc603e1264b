"""Standard input: one rank's script has that of dlrun launch, piece by piece as it reads; pdb works on it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

READS = """
import os, sys, time
if os.environ["DLRUN_RANK"] == "0":
    said = "got %s %d %r\\n" % (input(), sum(len(line) for line in sys.stdin), sys.stdin.read())
    sys.stdout.write(said)  # at once: a note of dlrun's may come between the pieces of a print
else:
    print(repr(sys.stdin.read()))
"""


def test_rank_0_reads_what_is_piped_in_and_another_that_reads_is_told_that_there_is_none(dlrun, mpiexec, tmp_path):
    (tmp_path / "reads.py").write_text(READS)
    done = dlrun("-n", "2", "--mpiexec", mpiexec, "--log-dir", "runs", "reads.py", input="me\n" + 60_000 * "1 2 3\n")
    assert done.stdout == "got me 360000 ''\n", done.stderr
    told = [line for line in done.stderr.splitlines() if "standard input" in line]
    assert len(told) == 1 and told[0].startswith("dlrun: rank 1 reads standard input, and finds it empty")


def test_of_another_machine_too_rank_0_reads_what_is_piped_in(dlrun, lab, tmp_path):
    (tmp_path / "reads.py").write_text(READS)
    words = ["-n", "2", "--backend", "srun", "--hosts", "n1:1,n2:1", "reads.py"]
    assert dlrun(*words, input="me\n" + 60_000 * "1 2 3\n", env=lab.env).stdout == "got me 360000 ''\n"


def test_a_program_that_is_no_python_script_reads_it_too(dlrun, mpiexec, tmp_path):
    (tmp_path / "counts.sh").write_text('#!/bin/sh\n[ "$DLRUN_RANK" = 1 ] || exec wc -c\n')
    (tmp_path / "counts.sh").chmod(0o755)
    done = dlrun("-n", "2", "--mpiexec", mpiexec, "./counts.sh", input=200_000 * "x")
    assert done.stdout.strip() == "200000", done.stderr


def test_a_script_that_does_not_read_leaves_the_input_to_the_shells_loop(any_mpiexec, tmp_path):
    (tmp_path / "console.py").write_text("import sys\nNUMBER = sys.__stdin__.fileno()\n")  # as rich does
    (tmp_path / "script.py").write_text("import console\nassert console.NUMBER == 0\n")
    launch = f"{sys.executable} -m dlrun launch -n 2 --mpiexec {any_mpiexec} script.py"
    line = f"while read number; do {launch}; echo $number; done"
    done = subprocess.run(line, shell=True, cwd=tmp_path, input="1\n2\n3\n", text=True, capture_output=True, check=True)
    assert done.stdout == "1\n2\n3\n" and "standard input" not in done.stderr, done.stderr


DEBUGS = """
import os, sys, time
number = int(os.environ["DLRUN_RANK"]) + 10
breakpoint()
done = os.environ["DLRUN_RUN_DIR"] + "/done"
if os.environ["DLRUN_RANK"] == "1":
    open(done, "w").close()
while not os.path.exists(done): time.sleep(0.01)
print(number)
"""


def test_pdb_works_on_the_rank_to_debug_at_a_terminal_while_the_others_wait(any_mpiexec, tmp_path):
    (tmp_path / "debugs.py").write_text(DEBUGS)
    ours, its = pty.openpty()
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "3", "--mpiexec", any_mpiexec, "--debug", "1", "debugs.py"]
    process = subprocess.Popen(line, cwd=tmp_path, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    seen = until(ours, b"(Pdb) ")
    for typed in (b"p number\n", b"number = 99\n", b"c\n"):
        os.write(ours, typed)
        seen += until(ours, b"(Pdb) " if typed != b"c\n" else b"99")
    assert process.wait(60) == 0, seen
    os.close(ours)
    assert b"11\r\n" in seen
    runs = next((tmp_path / "dlrun-runs").iterdir())
    assert [(runs / f"rank-{rank}.log").read_text() for rank in (0, 2)] == ["10\n", "12\n"]


def until(terminal: int, words: bytes) -> bytes:
    """Return what comes from a terminal, up to these words."""
    seen, deadline = b"", time.monotonic() + 60
    while words not in seen and time.monotonic() < deadline:
        seen += os.read(terminal, 1000)
    return seen


LATE = """
import os, time
if os.environ["DLRUN_RANK"] == "1":
    import atexit, ctypes
    from dlrun.rank.script import STACK_SIGNAL
    import faulthandler; faulthandler.unregister(STACK_SIGNAL)  # as Python does at its very end
    os.kill(os.getpid(), STACK_SIGNAL)
"""


def test_a_rank_that_is_asked_for_its_stack_as_python_ends_lives_on(dlrun, any_mpiexec, tmp_path: Path):
    (tmp_path / "late.py").write_text(LATE)
    done = dlrun("-n", "2", "--mpiexec", any_mpiexec, "late.py")
    assert done.returncode == 0, done.stderr
