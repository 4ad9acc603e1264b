"""Many ranks, and the few files that a system lets a process have open."""

from __future__ import annotations

import resource


def with_limits(soft: int, hard: int):
    """The words for a subprocess that may have so many files open, and may raise that to ``hard``."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))}


def test_more_ranks_call_than_a_process_may_have_files_open(dlrun, any_mpiexec, tmp_path):
    """The launcher starts with the limit that was there; this one is a script that raises its own."""
    launcher = tmp_path / "mpiexec"
    launcher.write_text(f'#!/bin/bash\nulimit -Sn > limit\nulimit -Sn 1000\nexec {any_mpiexec} "$@"\n')
    launcher.chmod(0o755)
    (tmp_path / "rank.py").write_text("import os\nprint(os.environ['DLRUN_SIZE'])\n")
    words = ("-n", "14", "--no-bind", "--mpiexec", str(launcher), "--show", "13", "rank.py")
    done = dlrun(*words, **with_limits(20, 1000))
    assert (done.returncode, done.stdout) == (0, "14\n"), done.stderr
    assert (tmp_path / "limit").read_text() == "20\n"


def test_a_limit_that_cannot_be_raised_is_told_with_the_numbers(dlrun, any_mpiexec, tmp_path):
    (tmp_path / "rank.py").write_text("")
    done = dlrun("-n", "100", "--no-bind", "--mpiexec", any_mpiexec, "rank.py", **with_limits(100, 150))
    assert done.returncode == 1
    assert "100 ranks need 164 open files here, one for each rank, and no more than 150 are allowed" in done.stderr
    assert "-n 86 or less" in done.stderr
    done = dlrun("-n", "2", "--no-bind", "--mpiexec", any_mpiexec, "rank.py", **with_limits(40, 40))
    assert "2 ranks need 66 open files here" in done.stderr
    assert "-n 1" not in done.stderr, "one rank does not fit either"
