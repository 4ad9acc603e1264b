"""Batch scripts, host files, logs and placement tables."""

from __future__ import annotations

import shlex
import subprocess

import pytest
import yaml

from dlrun.cli.logs import folded
from dlrun.errors import DlrunError
from dlrun.launch import Host, LaunchPlan
from dlrun.launch.explain import placement
from dlrun.launch.hosts import hostfile, hosts
from dlrun.launch.job import SUBMIT, Job, script
from dlrun.launch.site import look

PLAN = LaunchPlan(("train.py", "--lr", "0.1"), ranks=8, per_node=4, cores=6, gpus=1, env=(("A", "b c"),))
WORDS = ["-n", "8", "--per-node", "4", "--env", "A=b c", "train.py", "--lr", "0.1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):  # type: ignore
    """A folder that holds the script."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def test_a_slurm_script_asks_for_the_nodes_and_runs_the_same_launch():
    text = script(PLAN, Job("slurm", "2:00:00", account="m42", queue="gpu"), WORDS)
    lines = text.splitlines()
    wanted = ["--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=6", "--gpus-per-node=4"]
    wanted += ["--time=2:00:00", "--account=m42", "--partition=gpu", "--job-name=train"]
    assert {f"#SBATCH {word}" for word in wanted} <= set(lines)
    assert lines[-1] == "exec dlrun launch -n 8 --per-node 4 --env 'A=b c' train.py --lr 0.1"


def test_pbs_counts_cores_and_gpus_per_node():
    assert "#PBS -l select=2:ncpus=24:mpiprocs=4:ngpus=4" in script(PLAN, Job("pbs"), WORDS).splitlines()


BATCH = [system for system in SUBMIT if system != "kubernetes"]


@pytest.mark.parametrize("system", BATCH)
def test_every_batch_script_is_valid_bash_and_ends_in_the_launch(system):
    text = script(PLAN, Job(system, account="a", queue="q"), WORDS)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert text.splitlines()[-1].startswith("exec dlrun launch -n 8 ")
    assert "\n\n\n" not in text


DIRECTIVES = {
    "slurm": ["#SBATCH --nodes=2", "#SBATCH --ntasks=8", "#SBATCH --time=2:30:00", "#SBATCH --account=a"],
    "pbs": ["#PBS -l select=2:ncpus=24:mpiprocs=4:ngpus=4", "#PBS -l walltime=2:30:00", "#PBS -A a", "#PBS -q q"],
    "cobalt": ["#COBALT -n 2", "#COBALT -t 2:30:00", "#COBALT -A a", "#COBALT -q q"],
    "lsf": ["#BSUB -nnodes 2", "#BSUB -W 2:30", "#BSUB -P a", "#BSUB -q q"],
    "flux": ["# flux: -N 2", "# flux: -n 8", "# flux: -c 6", "# flux: -g 1", "# flux: -t 9000s", "# flux: --bank=a"],
}


@pytest.mark.parametrize("system", BATCH)
def test_every_batch_script_asks_for_the_same_in_its_systems_words(system):
    lines = script(PLAN, Job(system, "2:30:00", account="a", queue="q"), WORDS).splitlines()
    assert set(DIRECTIVES[system]) <= set(lines)


def test_a_kubernetes_job_is_yaml_that_the_mpi_operator_takes():
    text = script(PLAN, Job("kubernetes", "2:30:00", queue="q", image="site/train:1", volume="home"), WORDS)
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"], job["metadata"]["name"]) == ("kubeflow.org/v2beta1", "MPIJob", "train")
    spec = job["spec"]
    assert spec["slotsPerWorker"] == 4 and spec["mpiImplementation"] == "OpenMPI"
    assert spec["runPolicy"] == {"cleanPodPolicy": "Running", "backoffLimit": 0, "activeDeadlineSeconds": 9000,
                                 "schedulingPolicy": {"queue": "q"}}  # fmt: skip
    pods = {name: spec["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker")}
    assert (pods["Launcher"]["replicas"], pods["Worker"]["replicas"]) == (1, 2)
    launcher, worker = (pod["template"]["spec"]["containers"][0] for pod in pods.values())
    assert launcher["command"][:4] == ["dlrun", "launch", "--hostfile", "/etc/mpi/hostfile"]
    assert launcher["command"][-3:] == ["train.py", "--lr", "0.1"] and "A=b c" in launcher["command"]
    assert worker["resources"] == {"limits": {"cpu": 24, "nvidia.com/gpu": 4}}
    assert {mount["mountPath"] for mount in worker["volumeMounts"]} == {"/work", "/dev/shm"}


def test_a_kubernetes_job_quotes_what_yaml_would_read_otherwise():
    plan = LaunchPlan(("My_Script.py", "no", "1e3", "{{ x }}: 'y'\n\"z\""), ranks=2)
    job = yaml.safe_load(script(plan, Job("kubernetes", image="a: b", volume="true"), plan.program))
    assert job["metadata"]["name"] == "my-script"
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    assert launcher["containers"][0]["command"][-4:] == list(plan.program)
    assert launcher["containers"][0]["image"] == "a: b"
    assert launcher["volumes"][0]["persistentVolumeClaim"]["claimName"] == "true"
    assert "resources" not in job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]


def test_kubernetes_without_an_image_is_refused():
    with pytest.raises(DlrunError, match="Kubernetes wants --image and --volume"):
        script(PLAN, Job("kubernetes"), WORDS)


def test_the_command_line_writes_the_file_and_says_how_to_submit_it(dlrun, tmp_path):
    words = ["-n", "4", "--per-node", "2", "--as", "kubernetes", "--image", "i", "--volume", "v", "--job", "job.yaml"]
    done = dlrun(*words, "train.py")
    assert (done.returncode, done.stderr) == (0, "dlrun: wrote job.yaml; submit it: kubectl apply -f job.yaml\n")
    assert yaml.safe_load((tmp_path / "job.yaml").read_text())["spec"]["slotsPerWorker"] == 2


EVERY_OPTION = shlex.split(
    "-n 4 --per-node 2 --cores 3 --gpus 1 --no-bind --backend srun --mpiexec srun --native '-A x' --env 'A=b c' "
    "--env D=1 --show 0,3 --log-dir runs --no-tuned --timeline t.json --timeline-steps 1:9 --start-timeout 9.0 "
    "--save-time 90.0 --stall-timeout 70.0 --on-stall abort --max-restarts 2 "
    "--resume '--from last.pt' --silence 30 --check -m"
)


def test_no_option_of_the_launch_is_lost_on_the_way_into_the_batch_script(dlrun, tmp_path):
    about = ["--job", "job.sh", "--time", "0:30:00", "--account", "a", "--queue", "q"]
    done = dlrun(*EVERY_OPTION, *about, "train", "-n", "7")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "job.sh").read_text()
    words = shlex.split(text.splitlines()[-1])
    assert words[:3] == ["exec", "dlrun", "launch"] and words[-3:] == ["train", "-n", "7"]
    assert sorted(words[3:-3]) == sorted(EVERY_OPTION)
    assert "#SBATCH --signal=B:USR1@90" in text, "the warning comes as early as saving takes"


def test_hosts_are_not_for_a_batch_script(dlrun):
    done = dlrun("-n", "2", "--hosts", "n1,n2", "--job", "job.sh", "train.py")
    assert done.stderr.startswith("dlrun: --hosts in a batch script: the batch system chooses the hosts")


def test_a_time_that_is_none_is_refused():
    with pytest.raises(DlrunError, match="--time 2h is no time"):
        script(PLAN, Job("slurm", "2h"), WORDS)


def test_a_real_slurm_takes_the_script(lab, tmp_path):
    plan = LaunchPlan(("who.py",), ranks=4, per_node=2)
    words = ["-n", "4", "--per-node", "2", "--backend", "srun", "--log-dir", "runs", "who.py"]
    (tmp_path / "who.py").write_text("import os, socket\nprint(os.environ['DLRUN_RANK'], socket.gethostname())\n")
    (tmp_path / "job.sh").write_text(script(plan, Job("slurm"), words))
    line = ["sbatch", "-W", "job.sh"]
    done = subprocess.run(line, cwd=tmp_path, env=lab.env, capture_output=True, text=True, timeout=200, check=False)
    out = "".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert done.returncode == 0, done.stderr + out
    placed = {(tmp_path / f"runs/rank-{rank}.log").read_text() for rank in range(4)}
    assert placed == {"0 n1\n", "1 n1\n", "2 n2\n", "3 n2\n"}


def test_host_files_of_every_kind(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# mine\nn1 slots=4 max_slots=8\nn2:2\n\nn3   # one\nn4\nn4\n")
    assert hostfile(str(file)) == (Host("n1", 4), Host("n2", 2), Host("n3"), Host("n4", 2))


def test_a_host_file_may_come_from_any_editor(tmp_path):
    (tmp_path / "hosts").write_bytes("\ufeffn1:2\r\n".encode() + "# Büro\r\nn2\r\n".encode("latin-1"))
    assert hostfile(str(tmp_path / "hosts")) == (Host("n1", 2), Host("n2"))


@pytest.mark.parametrize("text", ["", "# none\n"])
def test_a_host_file_without_hosts_never_means_this_machine(tmp_path, text):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(DlrunError, match="names no host"):
        hostfile(str(tmp_path / "hosts"))
    with pytest.raises(DlrunError, match="No such file"):
        hostfile(str(tmp_path / "none"))


def test_a_host_that_is_named_twice_is_one_on_the_command_line_too():
    assert hosts("n1,n1,n2:3") == (Host("n1", 2), Host("n2", 3))


def test_a_mistake_in_a_host_file_has_its_line(tmp_path):
    (tmp_path / "hosts").write_text("n1\nn2 slots=x\n")
    with pytest.raises(DlrunError, match="hosts, line 2: 'n2 slots=x' is no host"):
        hostfile(str(tmp_path / "hosts"))


def test_hosts_are_filled_one_after_the_other():
    plan = LaunchPlan(("t.py",), ranks=4, hosts=hosts("n1:3,n2:2"), local=False)
    assert placement(plan, look({})) == [("n1", 0, 3), ("n1", 1, 3), ("n1", 2, 3), ("n2", 0, 1)]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a\n 10%\r 50%\r100%\nb\n", "a\n100%\nb\n"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        (" 10%\r", " 10%"),
        ("plain\n", "plain\n"),
        ("\r\ra\r\rb\r\r\n\r\n", "b\n\n"),
        (10_000_000 * "x", 10_000_000 * "x"),
    ],
)
def test_progress_bars_are_shown_as_they_last_stood(written, shown):
    assert folded(written) == shown
