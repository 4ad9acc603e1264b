"""Wrong input: one line of what is so, one of what to do, exit code 1; and what --dry-run prints."""

from __future__ import annotations

import errno
import os

import pytest
from click.testing import CliRunner

from dlrun.cli import VERBS, main

FILES = {"train.py": "print('trained')\n", "average.c": "int main() { return 0; }\n", "run.sh": "./average --often\n"}


@pytest.fixture(autouse=True)
def folder(tmp_path):  # type: ignore
    (tmp_path / "sort").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


@pytest.fixture
def said(tmp_path, monkeypatch):  # type: ignore
    """Run a line of dlrun's in this process, outside of any batch job: its exit code, and what it said."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)

    def run(*words):
        done = CliRunner().invoke(main, words)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output.splitlines()

    return run


@pytest.mark.parametrize(
    ("words", "what", "todo"),
    [
        (["-n", "0", "train.py"], "-n 0: a job has at least one rank", "give -n 1 or more"),
        (["-n", "2", "trian.py"], "there is no script trian.py", "did you mean train.py?"),
        (["-n", "2", "--backend", "lsf", "train.py"], "--backend lsf is not known", "known are auto, mpich"),
        (["-n", "2", "--show", "2", "train.py"], "--show 2: the ranks are 0 to 1", ""),
        (["-n", "2", "--env", "A", "train.py"], "--env A has no value", "write --env NAME=VALUE"),
        (["-n", "2", "--hosts", "n1:x", "train.py"], "--hosts n1:x: 'n1:x' is no host", "write n1,n2 or n1:4,n2:2"),
        (["-n", "2", "--hosts", "n1:0,n2:2", "train.py"], "--hosts n1:0,n2:2: n1 takes no rank", "leave it out"),
        (["-n", "2", ""], "the name of the script is empty", "name one"),
        (["-n", "2", "/dev/null"], "/dev/null is no file", "write it to one"),
        (["-n", "2", "é.py"], "there is no script é.py", "looked in"),
        (["-n", "2", "--job", "j.sh", "--time", "1:99:00", "train.py"], "--time 1:99:00 is no time", "write H:MM:SS"),
        (["-n", "4", "--hosts", "n1:1,n2:2", "train.py"], "-n 4 ranks, and the 2 hosts named take 3", "give -n 3"),
        (["-n", "2", "--as", "kubernetes", "train.py"], "--as kubernetes: there is no command", "write it: --job FILE"),
        (["-n", "2", "--as", "sge", "train.py"], "--as sge: no batch system of this name", "known are slurm, pbs"),
        (["train.py"], "how many ranks is not said", "say so: dlrun launch -n 2 train.py"),
        (["-n", "2", "sort"], "sort is a folder, and no script", "the program of this name: /"),
        (
            ["train.py", "-n", "2"],
            "how many ranks is not said, and there is no batch job to ask; -n after train.py is that script's own",
            "say so: dlrun launch -n 2 train.py",
        ),
        (["-n", "2", "."], ". is a folder, and no script", "a package's name goes after -m"),
        (["-n", "2", "-m", "nothere.x"], "-m nothere.x: there is no module nothere", "looked in"),
        (["-n", "2", "-m", "trian"], "-m trian: there is no module trian", "did you mean train?"),
        (["-n", "2", "-m", "train.py"], "-m train.py: train is a module, and no package", "leave out -m: this is a"),
        (["-n", "2", "-m", "train.x"], "-m train.x: train is a module, and no package", "write it as import does"),
        (["-n", "2", "-m", "./train.py"], "-m ./train.py: no module has such a name", "leave out -m: this is a file"),
        (["-n", "2", "-m", "json.fool"], "-m json.fool: the package json has no module fool", "looked in"),
        (["-n", "2", "-m", "json"], "-m json: the package json has no __main__.py", "name the module in it"),
        (["-n", "2", "average.c"], "average.c is no Python script, and it is not", "compile it, and launch"),
        (["-n", "2", "run.sh"], "run.sh is no Python script, and it is not", "if it is a program: chmod +x run.sh"),
        (["-n", "2", "--gpus", "0", "train.py"], "--gpus 0: a rank is kept from GPUs by", "give --gpus 1 or more"),
        (["-n", "2", "--silence", "-1", "train.py"], "--silence -1: a node gets", "give --silence 1 or more"),
        (["-n", "2", "--start-timeout", "nan", "train.py"], "--start-timeout nan: ranks get", "give --start-timeout 1"),
        (["-n", "2", "--debug", "5", "train.py"], "--debug 5: the ranks are 0 to 1", ""),
        (["-n", "2", "--native", "'", "train.py"], "--native ': No closing quotation", "quotes in it come in pairs"),
        (["-n", "2", "--resume", "'", "train.py"], "--resume ': No closing quotation", "quotes in it come in pairs"),
        (["-n", "2", "--mpiexec", "bin/mpiexec", "train.py"], "--mpiexec bin/mpiexec: there is no", "give its path"),
        (["-n", "0", "--job", "job.sh", "train.py"], "-n 0: a job has at least one rank", "give -n 1 or more"),
        (["-n", "2", "--job", "job.sh", "trian.py"], "there is no script trian.py", "did you mean train.py?"),
        (["-n", "2", "--job", "train.py", "train.py"], "--job train.py is the script that the job is to run", "name"),
    ],
)
def test_a_wrong_option_is_named(said, words, what, todo):
    code, lines = said("launch", *words)
    assert code == 1
    assert lines[0].startswith(f"dlrun: {what}")
    assert todo in "".join(lines[1:]) and len(lines) <= 2


@pytest.mark.parametrize("name", ["train", "json.tool", "of.names.alone", "made_up.later", "dlrun.rank"])
def test_a_module_that_python_finds_is_run_wherever_it_lies(said, tmp_path, name):
    for file, text in {"of/names/alone.py": "", "made_up/__init__.py": "__path__ = ['elsewhere']"}.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    code, lines = said("launch", "-n", "2", "--dry-run", "-m", name)
    assert code == 0 and lines[-1].endswith(f" -- {name}"), lines


@pytest.mark.parametrize(("words", "ranks"), [((), 3), (("-n", "2"), 2)])
def test_as_many_ranks_as_the_hosts_take_unless_said(said, words, ranks):
    code, lines = said("launch", *words, "--hosts", "n1:1,n2:2", "--backend", "mpich", "--as", "slurm", "train.py")
    assert code == 0, lines
    assert any(f" -n {ranks} " in line for line in lines), lines


@pytest.mark.parametrize(
    "words",
    [
        ["launch", "-n", "2", "--timeline", "none/trace.json", "train.py"],
        ["launch", "-n", "2", "--job", "none/job.sh", "train.py"],
        ["bench", "allreduce", "--out", "none/now.json"],
        ["tune", "-n", "2", "--journal", "none/tune.jsonl", "train.py"],
    ],
)
def test_a_file_that_cannot_be_written_in_the_end_is_refused_in_the_beginning(said, tmp_path, words):
    code, lines = said(*words)
    assert code == 2 and lines[-1].endswith("There is no folder 'none'.")
    assert {p.name for p in tmp_path.iterdir()} == {"sort", *FILES}


def test_what_the_system_refuses_about_a_file_is_said_without_a_traceback(said, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "train_dist.py")

    monkeypatch.setattr("dlrun.port.files.port_file", full)
    assert said("port", "train.py") == (1, ["dlrun: train_dist.py: No space left on device"])


def test_a_mistyped_command_is_recognised(said):
    assert said("lanch")[1][-1] == "Error: There is no command 'lanch'; did you mean launch?"
    assert said("train.py")[1][-1] == (
        "Error: train.py is no command; dlrun port train.py ports a script, dlrun launch -n 2 train.py starts one."
    )


def test_where_a_scripts_own_options_go_is_told(said):
    for verb, place in (("port", "--"), ("scale", "--"), ("launch", "it")):
        code, lines = said(verb, "--epochs", "3", "train.py")
        assert code == 2 and f"The script's own options come after {place}." in lines[-1]


def test_the_list_of_commands_says_of_each_in_a_whole_sentence_what_it_does(said):
    listed = said("--help")[1][-len(VERBS) :]
    assert [line.split()[0] for line in listed] == list(VERBS)
    assert all(line.endswith(".") and not line.endswith("...") for line in listed), listed


def test_dry_run_prints_the_line_for_any_launcher_and_runs_nothing(dlrun, tmp_path):
    done = dlrun("-n", "64", "--backend", "aprun", "--per-node", "4", "--dry-run", "train.py", "--lr", "0.1")
    assert done.returncode == 0
    assert done.stdout.startswith("aprun -n 64 -N 4 -cc none -b ")
    assert done.stdout.endswith("-- train.py --lr 0.1\n")
    assert {p.name for p in tmp_path.iterdir()} == {"sort", *FILES}


def test_two_dashes_before_a_scripts_arguments_are_dlruns_as_with_the_other_verbs(dlrun):
    words = ("-n", "2", "--backend", "aprun", "--per-node", "2", "--dry-run", "train.py", "--", "--lr", "1", "--", "x")
    done = dlrun(*words)
    assert done.stdout.endswith("-- train.py --lr 1 -- x\n"), done.stderr
    done = dlrun(*words[:6], "-m", *words[6:7], "json.tool", *words[8:])
    assert done.stdout.endswith("-- json.tool --lr 1 -- x\n"), done.stderr


def test_without_any_launcher_dry_run_still_prints_and_a_launch_says_what_to_install(dlrun, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    import sys
    from pathlib import Path

    if (Path(sys.executable).parent / "mpiexec").exists():
        pytest.skip("this environment holds an MPI launcher beside its python")
    done = dlrun("-n", "64", "--dry-run", "train.py")
    assert done.stdout.startswith("mpiexec -n 64 ")
    assert 'pip install "dlrun[mpi]"' in done.stderr
    done = dlrun("-n", "2", "train.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "dlrun: no MPI launcher is here"


def test_a_launch_by_a_launcher_that_is_not_here_starts_nothing(dlrun, tmp_path):
    done = dlrun("-n", "2", "--backend", "jsrun", "train.py")
    said = done.stderr.splitlines()
    assert (done.returncode, said[0]) == (1, "dlrun: no jsrun launcher is here"), done.stderr
    assert len(said) == 2
    assert {p.name for p in tmp_path.iterdir()} == {"sort", *FILES}


def test_a_launcher_that_is_here_and_not_set_up_is_named(dlrun, tmp_path, monkeypatch):
    (srun := tmp_path / "srun").write_text("#!/bin/sh\necho no configuration >&2\nexit 1\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = dlrun("-n", "2", "--backend", "srun", "train.py").stderr.splitlines()
    assert said[0] == f"dlrun: no srun launcher is here: {srun} tells no version"
    assert "--mpiexec" in said[1]


def test_one_rank_needs_no_launcher(dlrun):
    done = dlrun("-n", "1", "--backend", "local", "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "echo\n",
            (
                126,
                "",
                "dlrun: ./ls does not start: Exec format error; a script begins with the line #!/bin/sh, or the like",
            ),
        ),
        ("#!/bin/sh\necho of this folder\n", (0, "of this folder\n", "")),
        (
            "#!/no/interpreter\n",
            (
                126,
                "",
                "dlrun: ./ls does not start: it is there, and what its first line names is not: #!/no/interpreter",
            ),
        ),
    ],
)
def test_a_program_of_this_folder_comes_before_one_on_path_and_says_why_it_does_not_start(dlrun, tmp_path, text, said):
    (tmp_path / "ls").write_text(text)
    (tmp_path / "ls").chmod(0o755)
    done = dlrun("-n", "1", "--backend", "local", "ls")
    assert (done.returncode, done.stdout, done.stderr.partition("\n")[0]) == said


def test_logs_of_a_run_that_is_not_there_are_refused_in_two_lines(said):
    told = ["dlrun: there is no run directory nowhere", "  leave it out for the latest run in dlrun-runs"]
    assert said("logs", "nowhere") == (1, told)


def test_a_log_of_a_rank_that_wrote_nothing_is_said_to_be_empty(said, tmp_path):
    (log := tmp_path / "rank-1.log").touch()
    assert said("logs", "-r", "1", str(tmp_path)) == (0, [f"dlrun: {log} is empty: rank 1 wrote nothing"])


def test_logs_of_a_run_whose_disk_was_full_are_shown_nevertheless(said, tmp_path):
    (tmp_path / "rank-0.log").write_text("epoch 1\n")
    for kept in (b"", b"{}", b"\xff"):
        (tmp_path / "failure.json").write_bytes(kept)
        assert "epoch 1" in said("logs", str(tmp_path))[1]
    for other in ("rank-0.bak.log", "attempt-old"):
        (tmp_path / other).mkdir()
    assert said("logs", "-r", "7", str(tmp_path))[1][1] == "  it has that of rank 0 alone"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("bench", "allreduce", "--seconds", "nan"), "nan is no number to reckon with."),
        (("tune", "-n", "2", "--model", "cnn", "--seconds", "inf"), "inf is no number to reckon with."),
        (("scale", "--target", "nan", "train.py"), "nan is no number to reckon with."),
        (("tune", "-n", "2", "--budget", "x", "train.py"), "'x' is no time; write 90s, 5m or 1h"),
        (("tune", "-n", "2", "--set", "NOPE=1", "train.py"), "dl_comm has no setting NOPE"),
    ],
)
def test_what_cannot_be_measured_with_is_refused_before_anything_runs(said, tmp_path, words, what):
    code, told = said(*words)
    assert code != 0 and what in "".join(told), told
    assert not (tmp_path / "dlrun-runs").exists()


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_done(said, tmp_path):
    (tmp_path / "file").touch()
    for verb in (("scale", "t.py", "--out"), ("demo", "--dir"), ("verify", "t.py", "t.py", "--keep")):
        code, told = said(*verb, str(tmp_path / "file" / "folder"))
        assert code == 2 and told[-1].endswith("folder' cannot be written.")


def test_as_another_system_does_not_miss_that_systems_launcher_here(dlrun):
    done = dlrun("-n", "8", "--per-node", "4", "--as", "lsf", "train.py")
    assert done.returncode == 0 and done.stdout.startswith("jsrun -n 2 -r 1 -a 4 ")
    assert done.stderr == "dlrun: jsrun\n"
    assert "dlrun: no jsrun launcher is here" in dlrun("-n", "8", "--backend", "jsrun", "--dry-run", "train.py").stderr


NO_SCRIPTS = {
    "nb.ipynb": "nb.ipynb is a notebook, and no script",
    "link.py": "link.py is a link to gone.py, and nothing is there",
    "pipe.py": "pipe.py is no file",
}


@pytest.mark.parametrize(
    ("verb", "name"),
    [*(("launch -n 2 --dry-run", name) for name in NO_SCRIPTS), ("port", "link.py"), ("port", "pipe.py")],
)
def test_what_is_no_script_is_told_in_a_sentence(tmp_path, verb, name):
    (tmp_path / "nb.ipynb").write_text('{"cells": []}')
    (tmp_path / "link.py").symlink_to("gone.py")
    os.mkfifo(tmp_path / "pipe.py")
    done = CliRunner().invoke(main, [*verb.split(), str(tmp_path / name)])
    assert done.exit_code == 1
    assert NO_SCRIPTS[name] in done.output
