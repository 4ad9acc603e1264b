"""``dlrun config``: what it finds, asks, writes and checks; and files of variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dlrun.cli import main
from dlrun.errors import DlrunError
from dlrun.launch.config import env_file
from dlrun.launch.survey import Survey, default_partition, survey

SINFO = "#!/bin/sh\necho 'debug|(null)'\necho 'gpu*|gpu:a100:4(S:0-1)'\necho 'gpu*|gpu:a100:4'\n"


@pytest.fixture
def here(tmp_path, monkeypatch):  # type: ignore
    """Run dlrun in a folder of its own, at a site with nothing but what its ``bin`` holds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))

    def run(*words: str, says: str = "") -> tuple[int, str]:
        done = CliRunner().invoke(main, words, input=says)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    return run


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def slurm(folder: Path) -> None:
    program(folder, "sbatch", "#!/bin/sh\n")
    program(folder, "sinfo", SINFO)
    program(folder, "sacctmgr", "#!/bin/sh\necho m1234\n")


def launch_section(path: Path) -> dict[str, object]:
    return dict(yaml.safe_load(path.read_text())["launch"] or {})


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("debug*|(null)\n", ("debug", 0)),
        ("a|gpu:8\nb*|gpu:v100:2,gpu:a100:4(S:0)\n", ("b", 6)),
        ("b*|gres:gpu:4\nb*|gpu:2\n", ("b", 4)),
        ("", ("", 0)),
    ],
)
def test_the_default_partition_is_the_one_with_a_star(said: str, found: tuple[str, int]):
    assert default_partition(said) == found


def test_of_slurm_its_partition_its_gpus_and_the_users_account_are_found(here, tmp_path, monkeypatch):
    from dlrun.launch import look_here

    slurm(tmp_path / "bin")
    monkeypatch.setenv("USER", "ada")
    assert survey(look_here()) == Survey("slurm", 4, 4, "m1234", "gpu")


def test_return_at_each_question_takes_what_was_found_and_launch_uses_it(here, tmp_path, monkeypatch):
    slurm(tmp_path / "bin")
    monkeypatch.setenv("USER", "ada")
    code, said = here("config", says="\n" * 5)
    assert code == 0 and "Batch system" in said
    wanted = {"as": "slurm", "per-node": 4, "gpus": 1, "account": "m1234", "queue": "gpu"}
    assert launch_section(tmp_path / "dlrun.yaml") == wanted
    (tmp_path / "train.py").write_text("")
    assert here("launch", "-n", "8", "--job", "job.sh", "train.py")[0] == 0
    lines = (tmp_path / "job.sh").read_text().splitlines()
    for line in ("--nodes=2", "--gpus-per-node=4", "--account=m1234", "--partition=gpu"):
        assert f"#SBATCH {line}" in lines


def test_a_batch_system_in_the_file_is_that_of_scripts_and_does_not_keep_launch_from_starting(here, tmp_path):
    (tmp_path / "dlrun.yaml").write_text("launch:\n  as: pbs\n")
    (tmp_path / "train.py").write_text("")
    said = here("launch", "-n", "1", "--dry-run", "train.py")[1]
    assert "pals" not in said, said
    assert here("launch", "-n", "2", "--job", "job.sh", "train.py")[0] == 0
    assert "#PBS" in (tmp_path / "job.sh").read_text()


def test_other_answers_are_written_and_options_that_are_not_asked_for_stay(here, tmp_path):
    (tmp_path / "dlrun.yaml").write_text("launch:\n  queue: old\n  cores: 3\n  env:\n    A: b\n")
    code, said = here("config", says="pbs\n8\n4\nx1\n-\n")
    assert code == 1 and "dlrun.yaml is there already" in said
    code, said = here("config", "--overwrite", says="pbs\n8\n4\nx1\n-\n")
    wanted = {"as": "pbs", "per-node": 4, "gpus": 2, "account": "x1", "cores": 3, "env": {"A": "b"}}
    assert (code, launch_section(tmp_path / "dlrun.yaml")) == (0, wanted), said
    assert "old" in (tmp_path / "dlrun.yaml~").read_text()


def test_where_nobody_answers_nothing_is_written_and_yes_takes_what_was_found(here, tmp_path):
    code, said = here("config", "--user")
    assert code == 1 and "--yes takes what was found" in said
    assert here("config", "--user", "--yes")[0] == 0
    assert (tmp_path / "home/dlrun/dlrun.yaml").exists() and not (tmp_path / "dlrun.yaml").exists()
    assert here("config", "--check") == (0, f"{tmp_path / 'home/dlrun/dlrun.yaml'}: right: it sets nothing\n")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("per-nod: 4", "did you mean per-node?"),
        ("max-restarts: -1", "Invalid value for '--max-restarts'"),
        ("show: x", "--show x: these are no ranks"),
        ("as: slurmy", "as slurmy is not known"),
        ("backend: slurmy", "backend slurmy is not known"),
        ("mpiexec: nowhere", "mpiexec nowhere is no program"),
        ("hostfile: none", "none"),
    ],
)
def test_check_tells_what_launch_would_refuse(here, tmp_path, line: str, why: str):
    (tmp_path / "dlrun.yaml").write_text(f"launch:\n  {line}\n")
    code, said = here("config", "--check")
    assert code == 1 and "dlrun.yaml" in said and why in said, said


def test_check_says_what_a_right_file_sets_and_that_there_is_none(here, tmp_path):
    code, said = here("config", "--check")
    assert code == 1 and "there is no dlrun.yaml" in said
    (tmp_path / "dlrun.yaml").write_text("launch:\n  per-node: 4\n  env:\n    A: b\n")
    assert here("config", "--check") == (0, "dlrun.yaml: right: per-node 4; env A=b\n")


def test_a_file_of_variables_is_read_as_shells_and_containers_write_it(tmp_path):
    text = "# of the site\n\nA=1\nexport B='two words'\nC=\"x=y\"\nD=\n E.f = 7 \n"
    (tmp_path / "env").write_text(text)
    assert env_file(tmp_path / "env") == ("A=1", "B=two words", "C=x=y", "D=", "E.f=7")
    for wrong in ("no value", "2A=1", "A='x"):
        (tmp_path / "env").write_text(f"A=1\n{wrong}\n")
        with pytest.raises(DlrunError, match="line 2"):
            env_file(tmp_path / "env")


def test_the_command_line_comes_before_a_file_of_variables_and_that_before_dlrun_yaml(dlrun, tmp_path, any_mpiexec):
    (tmp_path / "dlrun.yaml").write_text("launch:\n  env:\n    A: yaml\n    B: yaml\n    C: yaml\n")
    (tmp_path / "site.env").write_text("B=file\nC=file\n")
    (tmp_path / "says.py").write_text("import os\nprint(*[os.environ[name] for name in 'ABC'])\n")
    words = ["-n", "1", "--mpiexec", any_mpiexec, "--env-file", "site.env", "--env", "C=line", "says.py"]
    assert dlrun(*words).stdout == "yaml file line\n"
