"""aprun, PALS' mpiexec, jsrun and flux, whose systems cannot be had here: strict stand-ins that really start ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launchers import LAUNCHERS

STAND_IN = Path(__file__).parent / "fakes" / "launcher.py"
PROGRAMS = {"aprun": "bin/aprun", "pals": "opt/cray/pals/bin/mpiexec", "jsrun": "bin/jsrun", "flux": "bin/flux"}
HOSTS = {"aprun": "20,21", "pals": "x1000c0s0b0n0,x1000c0s0b0n1", "jsrun": "n1", "flux": "n1,n2"}
MPICH = next((path for name, path in sorted(LAUNCHERS.items(), reverse=True) if name.startswith("mpich")), "")

TRAINS = """
import os
import numpy as np
import dl_comm as mc
mc.init(1, 1, 10)
g = np.full(1000, mc.get_rank() + 1.0, np.float32)
(g,) = mc.gradients([g], 0)
print(g[0], mc.get_nranks(), os.environ["DLRUN_RANK"], os.environ["DLRUN_SIZE"])
mc.finalize()
"""
FAILS = """
import os, sys, time
if os.environ["DLRUN_RANK"] == "1":
    if sys.argv[1] == "exception": raise ValueError("bad shape (3, 4)")
    if sys.argv[1] == "sys.exit": sys.exit(7)
    os.kill(os.getpid(), 9)
time.sleep(300)
"""
ENDS = {
    "exception": (1, "ValueError: bad shape (3, 4) at fails.py:4"),
    "sys.exit": (7, "sys.exit(7) at fails.py:5"),
    "SIGKILL": (137, "killed by SIGKILL"),
}

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=PROGRAMS)
def tool(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the four in turn: it is on PATH, and starts its ranks through a real mpiexec."""
    if not MPICH:
        pytest.skip("no MPICH is installed, which starts the ranks for the stand-ins")
    name = str(request.param)
    program = tmp_path / PROGRAMS[name]
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {STAND_IN} {name} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_MPIEXEC", MPICH)
    return name


def test_an_option_that_the_tool_has_not_is_refused_by_the_stand_in(tool, tmp_path):
    start = ["run"] if tool == "flux" else []
    line = [tmp_path / PROGRAMS[tool], *start, "-n", "2", "--bind-to", "none", "true"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode != 0 and "--bind-to" in done.stderr


def test_the_ranks_train_together(tool, dlrun: Launch, tmp_path):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    (tmp_path / "trains.py").write_text(TRAINS)
    done = dlrun("-n", "3", "--backend", tool, "trains.py")
    assert (done.returncode, done.stdout) == (0, "2.0 3 0 3\n"), done.stderr


@pytest.mark.parametrize(
    "options",
    [["--no-bind"], ["--per-node", "2", "--cores", "1", "--gpus", "1"], ["--hosts", "HOSTS"]],
    ids=" ".join,
)
def test_every_way_to_place_ranks_is_spelled_as_the_tool_wants_it(tool, dlrun: Launch, tmp_path, options):
    (tmp_path / "says.py").write_text("import os\nprint(os.environ['DLRUN_RANK'], os.environ['DLRUN_SIZE'])\n")
    if options[0] == "--hosts":
        options = ["--hosts", HOSTS[tool]]
        if tool == "jsrun":
            assert "jsrun takes no hosts" in dlrun("-n", "4", "--backend", tool, *options, "says.py").stderr
            return
    done = dlrun("-n", "4", "--backend", tool, *options, "--log-dir", "runs", "says.py")
    assert (done.returncode, done.stdout) == (0, "0 4\n"), done.stderr
    assert [(tmp_path / f"runs/latest/rank-{r}.log").read_text() for r in range(4)] == [f"{r} 4\n" for r in range(4)]


@pytest.mark.parametrize("how", ENDS)
def test_a_rank_that_fails_ends_the_job_as_under_any_launcher(tool, dlrun: Launch, tmp_path, how):
    (tmp_path / "fails.py").write_text(FAILS)
    done = dlrun("-n", "3", "--backend", tool, "fails.py", how)
    told = [line for line in done.stderr.splitlines() if line.startswith("dlrun: rank")]
    assert (done.returncode, len(told)) == (ENDS[how][0], 1), done.stderr
    assert told[0].startswith("dlrun: rank 1 ") and told[0].endswith(ENDS[how][1])
