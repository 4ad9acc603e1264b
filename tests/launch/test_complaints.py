"""The 25 complaints that people bring to the trackers of launchers, and the test that keeps each from being ours.

The table is read by the last test: a row whose test is gone fails.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import LAUNCHERS, Lab

from dlrun.errors import DlrunError
from dlrun.launch.commands import inherit
from dlrun.launch.plan import Host, LaunchPlan
from dlrun.launch.resolve import resolve
from dlrun.launch.site import Allocation, Launcher, Site

TESTS = Path(__file__).parents[1]
TABLE = """
one rank raises and all others hang             launch/test_launch.py a_rank_that_fails_ends_the_job_with_its_code
other ranks live on after a non-zero exit       launch/test_cluster.py every_failure_has_one_end
the first error is buried                       launch/test_first_failure.py a_rank_that_fell_over_another_is_not_blamed
rank 0 of 1 everywhere                          launch/test_backends.py a_library_of_the_other_family_is_refused
srun without the right PMI                      launch/test_complaints.py srun_that_does_not_speak_the_librarys_pmi
zombies hold the GPU's memory                   launch/test_launch.py a_signal_to_dlrun_ends_everything
killing one run kills another                   launch/test_complaints.py ending_one_run_leaves_another_alone
the start hangs in the wrong network card       launch/test_cluster.py ranks_that_never_start_end_the_job
thirty seconds are too short for a start        launch/test_complaints.py the_time_to_start_grows_with_the_ranks
a GPU is invisible or used twice                rank/test_gpus.py the_own_gpu_comes_first_and_all_stay_visible
the scheduler's mask is ignored                 rank/test_gpus.py what_the_scheduler_left_is_all_there_is
ROCR, HIP and CUDA mask each other              rank/test_gpus.py of_amds_masks_one_remains
GPUs in exclusive mode are busy                 rank/test_mps.py the_first_rank_of_a_node_starts_it
all ranks run on one core                       launch/test_preflight.py all_ranks_on_one_cpu_are_told
srun loses the cores of a task                  launch/test_backends.py srun_restates_cores_that_the_job_was_given
Open MPI 5 drops the options of 4               launch/test_launch.py each_rank_knows_its_place
a variable is not forwarded, or cut             launch/test_complaints.py every_variable_reaches_every_rank
no time to save before the job is preempted     launch/test_stop.py a_signal_to_every_process_of_the_job_as_slurm
a stall, and nobody says who is missing         launch/test_stall.py a_real_stall_names_the_missing_rank
ranks average different tensors without a word  launch/test_launch.py an_error_that_dl_comm_raises_on_every_rank
logs and progress bars of all ranks are mixed   launch/test_launch.py several_ranks_are_shown_each_line_with_its_rank
a wrong setting is passed over                  launch/test_config.py a_mistake_has_its_line
DataLoader workers crash beside RDMA            rank/test_pinning.py forks_are_made_safe
not enough slots, and running as root           launch/test_backends.py openmpi_gets_leave_to_run_as_root
what was tuned or recorded cannot be used       launch/test_profile.py launch_applies_what_fits
"""


def rows() -> list[tuple[str, str, str]]:
    """(complaint, file, how the test's name begins)."""
    split = (re.split(r"  +", line) for line in TABLE.strip().splitlines())
    return [(complaint, *test.split(" ")) for complaint, test in split]  # type: ignore


def test_there_are_25():
    assert len(rows()) == 25


@pytest.mark.parametrize(("complaint", "file", "name"), rows(), ids=[row[0] for row in rows()])
def test_every_complaint_has_a_test(complaint: str, file: str, name: str):
    assert f"def test_{name}" in (TESTS / file).read_text()


def test_srun_that_does_not_speak_the_librarys_pmi_is_refused_before_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.py").touch()
    there = Launcher("/usr/bin/srun", "srun", "24.05", why="this is a slurm allocation")
    monkeypatch.setattr(Site, "launchers", lambda self: iter([there]))
    monkeypatch.setattr("dlrun.launch.choose_launcher.pmi_types", lambda srun: ("none", "pmi2"))
    monkeypatch.setattr("dlrun.launch.choose_launcher.family_of", lambda path: "openmpi")
    where = Site("n1", 1000, 4, 4, 0, Allocation("slurm", "1", 2, 4), {"DL_COMM_MPI_LIBRARY": "/opt/libmpi.so.40"})
    with pytest.raises(DlrunError) as caught:
        resolve(LaunchPlan(("t.py",), ranks=4), where)
    assert "this Slurm offers none, pmi2, and /opt/libmpi.so.40 speaks pmix" in caught.value.message
    assert caught.value.hint == "use the library's own launcher: --backend openmpi"


def test_the_time_to_start_grows_with_the_ranks():
    assert LaunchPlan(("t.py",), ranks=2).start_limit == 120
    assert LaunchPlan(("t.py",), ranks=4096).start_limit > 500
    assert LaunchPlan(("t.py",), ranks=4096, start_timeout=30).start_limit == 30


def start(folder: Path, mpiexec: str) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "waits.py").write_text(
        "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('done')\n"
    )
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--mpiexec", mpiexec, "waits.py"]
    run = subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout and run.stdout.readline() == "up\n"
    return run


def test_ending_one_run_leaves_another_alone(mpiexec, tmp_path):
    one, other = start(tmp_path / "one", mpiexec), start(tmp_path / "other", mpiexec)
    one.send_signal(signal.SIGKILL)
    one.communicate(timeout=200)
    (tmp_path / "other/go").touch()
    out, errors = other.communicate(timeout=200)
    assert (other.returncode, out) == (0, "done\n"), errors


def test_ranks_that_do_not_start_are_named(dlrun, any_mpiexec, tmp_path):
    """A launcher that starts all ranks but the last."""
    (tmp_path / "t.py").write_text("print('up')\n")
    (tmp_path / "bin").mkdir()
    lame = tmp_path / "bin/mpiexec"
    one_less = 'case $1 in -n) exec sh -c \'n=$1; shift; exec "$0" -n $((n - 1)) "$@"\' "$real" "${@:2}";; esac'
    lame.write_text(f'#!/bin/bash\nreal={any_mpiexec}\n{one_less}\nexec $real "$@"\n')
    lame.chmod(0o755)
    words = ["-n", "3", "--mpiexec", str(lame), "--start-timeout", "20", "t.py"]
    done = dlrun(*words)
    assert done.returncode != 0 and done.stdout == ""
    assert re.search(r"launcher started rank \d of 2|1 of 3 ranks did not start within 20 s: rank 2", done.stderr)


def test_where_no_rank_of_other_nodes_starts_what_they_must_see_is_said(dlrun, tmp_path):
    (tmp_path / "t.py").write_text("")
    (tmp_path / "mpiexec").write_text("#!/bin/sh\necho 'HYDRA build details:\n    Version: 4.0.2'\nexit 255\n")
    (tmp_path / "mpiexec").chmod(0o755)
    done = dlrun("-n", "2", "--hosts", "n1,n2", "--mpiexec", "./mpiexec", "t.py")
    said = done.stderr.splitlines()
    assert (done.returncode, said[0]) == (
        255,
        "dlrun: the launcher ended (exit code 255) before rank 0, 1 of 2 had started",
    ), said
    assert said[1] == f"  every node must be there, and see {tmp_path} and {sys.executable}"


HARD = "comma, 'quote' \"double\" $HOME %PATH% = \\ ünïcode\nsecond line"


def test_every_variable_reaches_every_rank_as_it_is(dlrun, mpiexec, tmp_path):
    (tmp_path / "t.py").write_text("import os\nprint(ascii(os.environ['HARD']), ascii(os.environ['MINE']))\n")
    words = ["-n", "2", "--mpiexec", mpiexec, "--env", f"HARD={HARD}", "--log-dir", "runs", "t.py"]
    done = dlrun(*words, env={**os.environ, "MINE": HARD, "HARD": "other"})
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert (tmp_path / f"runs/latest/rank-{rank}.log").read_text() == f"{HARD!a} {HARD!a}\n"


@pytest.mark.parametrize("name", sorted(LAUNCHERS) or [None])
def test_every_variable_reaches_every_rank_on_other_machines(lab: Lab, dlrun, tmp_path, name):
    if name is None:
        pytest.skip("no MPI launcher is installed (mpich, openmpi)")
    (tmp_path / "t.py").write_text("import os\nprint(ascii(os.environ['MINE']))\n")
    words = ["-n", "2", "--hosts", "n1,n2", "--mpiexec", LAUNCHERS[name], "--log-dir", "runs", "t.py"]
    done = dlrun(*words, env={**lab.ssh, "MINE": HARD})
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"runs/latest/rank-{rank}.log").read_text() for rank in range(2)] == [f"{HARD!a}\n"] * 2


def test_what_belongs_to_this_machine_is_not_carried_to_others():
    env = {
        "MINE": "1",
        "SLURM_PROCID": "3",
        "CUDA_VISIBLE_DEVICES": "1",
        "HOME": "/root",
        "PMI_RANK": "0",
        "BASH_FUNC_x%%": "() { :; }",
    }
    where = Site("n1", 1000, 4, 4, 0, Allocation(), env)
    plan = LaunchPlan(("t.py",), ranks=2, hosts=(Host("n1"),), launcher=Launcher("mpirun", "openmpi"), local=False)
    assert inherit(plan, where) == {"MINE": "1"}
