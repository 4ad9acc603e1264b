"""dlrun.yaml: defaults, and mistakes with their line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlrun.errors import DlrunError
from dlrun.launch.config import defaults, files
from dlrun.launch.profile import read

KINDS = {
    "per_node": "count",
    "bind": "yes or no",
    "env": "variables",
    "backend": "text",
    "save_time": "seconds",
    "time_": "text",
    "on_stall": "report or abort",
}


def test_options_are_read_with_either_dash(tmp_path):
    (tmp_path / "dlrun.yaml").write_text(
        "launch:\n  per-node: 4\n  save_time: 1.5\n  bind: false\n  env:\n    A: b\n    N: 1\n"
    )
    read = defaults(tmp_path / "dlrun.yaml", KINDS)
    assert read == {"per_node": 4, "save_time": 1.5, "bind": False, "env": ["A=b", "N=1"]}


def test_a_time_and_a_choice_are_read_as_they_are_written(tmp_path):
    (tmp_path / "dlrun.yaml").write_text("launch:\n  time: 2:30:00\n  on-stall: abort\n")
    assert defaults(tmp_path / "dlrun.yaml", KINDS) == {"time_": "2:30:00", "on_stall": "abort"}


def test_the_projects_variables_the_users_and_the_command_lines_come_together(dlrun, tmp_path, any_mpiexec):
    (tmp_path / "home/dlrun").mkdir(parents=True)
    (tmp_path / "home/dlrun/dlrun.yaml").write_text("launch:\n  env:\n    A: user\n    B: user\n    C: user\n")
    (tmp_path / "dlrun.yaml").write_text("launch:\n  env:\n    B: project\n    C: project\n")
    (tmp_path / "says.py").write_text("import os\nprint(*[os.environ[name] for name in 'ABC'])\n")
    words = ["-n", "1", "--mpiexec", any_mpiexec, "--env", "C=line"]
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "home")}
    done = dlrun(*words, "says.py", env=env)
    assert done.stdout == "user project line\n"
    assert done.stderr.splitlines()[0] == "dlrun: from dlrun.yaml: --env A=user, --env B=project"
    told = dlrun(*words, "--explain", "says.py", env={**env, "DL_COMM_TIMEOUT_S": "7"}).stdout
    sources = {"A=user": "dlrun.yaml", "C=line": "the command line", "DL_COMM_TIMEOUT_S=7": "this shell"}
    for name, source in sources.items():
        assert any(name in line and line.endswith(f"on every rank, from {source}") for line in told.splitlines()), told


def test_variables_are_what_is_written(tmp_path):
    written = {"A": "true", "B": "007", "C": "", "D": "1e3", "E": "2:30:00", "F": "null"}
    lines = "".join(f"    {name}: {text}\n" for name, text in written.items())
    (tmp_path / "dlrun.yaml").write_text(f"launch:\n  env:\n{lines}    G: 'a b'\n")
    expected = [f"{name}={text}" for name, text in (written | {"G": "a b"}).items()]
    assert defaults(tmp_path / "dlrun.yaml", KINDS) == {"env": expected}


def test_an_empty_file_says_nothing(tmp_path):
    (tmp_path / "dlrun.yaml").write_bytes("# nothing for Büro yet\n".encode("latin-1"))
    assert defaults(tmp_path / "dlrun.yaml", KINDS) == {}


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("launch:\n  per-nod: 4\n", "line 2: per-nod is no option of dlrun launch", "did you mean per-node?"),
        ("launch:\n  per-node: many\n", "line 2: per-node is 'many', not a whole number", ""),
        ("launch:\n  bind: 3\n", "line 2: bind is 3, not true or false", ""),
        ("launch:\n  env: A\n", "line 2: env is 'A', not NAME: VALUE lines", ""),
        ("launch:\n  on-stall: stop\n", "line 2: on-stall is 'stop', not report or abort", ""),
        ("launch:\n  tim: 1:00:00\n", "line 2: tim is no option of dlrun launch", "did you mean time?"),
        ("start:\n  n: 4\n", "line 1: start is no section", "there is one: launch"),
        ("launch:\n  - 4\n", "line 2: these are no NAME: VALUE lines", "it looks like this:\n  launch:"),
        ("launch: [\n", "line 2: ", ""),
        ("launch:\n  per-node:\n  bind: true\n", "line 2: per-node is nothing, not a whole number", ""),
        ("launch:\n  env:\n    A: [1, 2]\n", "line 3: A is no text", 'put it in quotes: NAME: "1,2"'),
        (
            "launch:\n  per-node: !!python/name:os.system\n",
            "line 2: per-node has a value that is none",
            "it looks like",
        ),
        ("launch:\n  per-node: !!int x\n", "line 2: per-node has a value that is none", "it looks like"),
    ],
)
def test_a_mistake_has_its_line(tmp_path, text, what, hint):
    (tmp_path / "dlrun.yaml").write_text(text)
    with pytest.raises(DlrunError) as caught:
        defaults(tmp_path / "dlrun.yaml", KINDS)
    assert what in caught.value.message and hint in caught.value.hint


def test_the_command_line_comes_before_the_file_and_dry_run_says_what_came_from_it(dlrun, tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "dlrun.yaml").write_text("launch:\n  ranks: 8\n  per-node: 4\n  backend: aprun\n")
    done = dlrun("--dry-run", "train.py")
    assert done.stdout.startswith("aprun -n 8 -N 4 ")
    assert done.stderr.splitlines()[0] == "dlrun: from dlrun.yaml: --ranks 8, --per-node 4, --backend aprun"
    done = dlrun("--dry-run", "--per-node", "2", "train.py")
    assert done.stdout.startswith("aprun -n 8 -N 2 ")
    assert done.stderr.splitlines()[0] == "dlrun: from dlrun.yaml: --ranks 8, --backend aprun"
    (tmp_path / "dlrun.yaml").write_text("launch:\n  rank: 8\n")
    done = dlrun("--dry-run", "train.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "dlrun: dlrun.yaml, line 2: rank is no option of dlrun launch"


def test_a_configuration_of_another_users_is_none(tmp_path):
    home = f"/{300 * 'x'}"  # no system lets anybody look there; where HOME is root's, it lets no user
    assert files({"HOME": home}, tmp_path) == []
    assert read(Path(home)) == []
    (tmp_path / "dlrun.yaml").touch()
    assert files({"XDG_CONFIG_HOME": home}, tmp_path) == [tmp_path / "dlrun.yaml"]


def test_a_file_of_another_user_names_no_program_to_run(tmp_path: Path):
    if os.getuid() != 0:
        pytest.skip("to give a file away needs root")
    path = tmp_path / "dlrun.yaml"
    path.write_text("launch:\n  ranks: 2\n  mpiexec: ./evil\n")
    os.chown(path, 12345, -1)
    with pytest.raises(DlrunError, match="line 3: mpiexec names a program to run, and the file is another user's"):
        defaults(path, {"ranks": "count", "mpiexec": "text"})


@pytest.mark.parametrize(("owner", "mode", "why"), [(12345, 0o755, "is another user's"), (0, 0o777, "anybody can")])
def test_a_file_in_a_folder_of_others_names_no_program_to_run(tmp_path: Path, owner: int, mode: int, why: str):
    if os.getuid() != 0:
        pytest.skip("to give a folder away needs root")
    path = tmp_path / "dlrun.yaml"
    path.write_text("launch:\n  mpiexec: ./evil\n")
    assert defaults(path, {"mpiexec": "text"}) == {"mpiexec": "./evil"}
    os.chown(tmp_path, owner, -1)
    tmp_path.chmod(mode)
    with pytest.raises(DlrunError, match=f"line 2: mpiexec names a program to run, and .*{why}"):
        defaults(path, {"mpiexec": "text"})


def test_a_dry_run_does_not_run_the_program_that_the_folders_file_names(tmp_path: Path):
    (tmp_path / "evil").write_text("#!/bin/sh\ntouch ran\n")
    (tmp_path / "evil").chmod(0o755)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "dlrun.yaml").write_text("launch:\n  mpiexec: ./evil\n")
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--dry-run", "train.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--mpiexec ./evil comes from dlrun.yaml, and only running it tells what it is" in done.stderr
    assert not (tmp_path / "ran").exists()
