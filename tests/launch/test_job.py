"""Batch scripts, host files, logs and placement tables."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time

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
    assert spec["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "backoffLimit": 0,
        "activeDeadlineSeconds": 9000,
        "schedulingPolicy": {"queue": "q"},
    }
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
    placed = {(tmp_path / f"runs/latest/rank-{rank}.log").read_text() for rank in range(4)}
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


def test_two_jobs_with_one_log_folder_have_a_folder_each_and_latest_leads_to_the_last(any_mpiexec, tmp_path):
    (tmp_path / "says.py").write_text("import sys, time\ntime.sleep(1)\nprint(sys.argv[1])\n")
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--mpiexec", any_mpiexec, "--log-dir", "runs"]
    jobs = [subprocess.Popen([*line, "says.py", word], cwd=tmp_path, stdout=subprocess.PIPE) for word in "ab"]
    assert sorted(job.communicate(timeout=100)[0] for job in jobs) == [b"a\n", b"b\n"]
    assert [job.returncode for job in jobs] == [0, 0]
    folders = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    assert sorted((path / "rank-1.log").read_text() for path in folders) == ["a\n", "b\n"]
    assert (tmp_path / "runs/latest").resolve() in folders
    assert all((path / "spec.json").stat().st_mode & 0o777 == 0o600 for path in folders)


def test_a_spec_file_that_somebody_else_has_put_there_is_not_written_to(any_mpiexec, tmp_path, monkeypatch):
    from dlrun.launch import LaunchPlan, launch

    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    (tmp_path / "runs").mkdir()
    (tmp_path / "theirs").write_text("untouched")
    (tmp_path / "runs/spec.json").symlink_to(tmp_path / "theirs")
    assert launch(LaunchPlan(("script.py",), ranks=2, mpiexec=any_mpiexec, run_dir="runs")).returncode == 0
    assert (tmp_path / "theirs").read_text() == "untouched"
    assert not (tmp_path / "runs/spec.json").is_symlink()
    assert (tmp_path / "runs/spec.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("option", ["account", "queue"])
def test_a_line_break_in_a_name_is_refused(tmp_path, option):
    (tmp_path / "t.py").write_text("")
    plan = LaunchPlan((str(tmp_path / "t.py"),), ranks=2)
    with pytest.raises(DlrunError, match=f"--{option} .* holds a line break"):
        script(plan, Job("slurm", **{option: "main\n#SBATCH --wrap=evil"}), ["t.py"])


@pytest.mark.parametrize(
    ("text", "found"),
    [("::1", Host("localhost")), ("[::1]:2", Host("localhost", 2)), ("n1:2", Host("n1", 2))],
)
def test_ipv6_addresses_are_hosts(tmp_path, text, found):
    assert hosts(text) == (found,)
    (tmp_path / "hosts").write_text(text.replace("]:2", "] slots=2") + "\n")
    assert hostfile(str(tmp_path / "hosts")) == (found,)


@pytest.mark.parametrize(
    ("text", "why"),
    [("1:2:3", "is no IPv6 address"), ("2001:db8::77:4", "knows the name of"), ("[n1]:2", "is no IPv6 address")],
)
def test_what_is_no_address_or_has_no_name_is_told(text, why):
    with pytest.raises(DlrunError, match=why):
        hosts(text)


def logs(folder, *words: str) -> subprocess.CompletedProcess[str]:  # type: ignore
    line = [sys.executable, "-m", "dlrun", "logs", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def test_a_log_that_a_rank_begins_later_is_followed_too(tmp_path):
    (tmp_path / "spec.json").write_text("{}")
    line = [sys.executable, "-m", "dlrun", "logs", "-f", "--all", str(tmp_path)]
    follows = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert follows.stdout
    for rank in range(2):
        (tmp_path / f"rank-{rank}.log").write_text(f"of {rank}\n")
        assert follows.stdout.readline() == f"[{rank}] of {rank}\n"
    (tmp_path / "launcher.log").touch()
    assert follows.communicate(timeout=100) and follows.returncode == 0


def test_the_logs_of_a_run_are_followed_to_its_end_and_those_of_all_ranks_shown(any_mpiexec, tmp_path):
    (tmp_path / "says.py").write_text(
        "import os, sys, time\nme = int(os.environ['DLRUN_RANK'])\nprint('one of', me)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\nprint('two of', me, end='')\n"
    )
    launch = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--mpiexec", any_mpiexec, "says.py"]
    job = subprocess.Popen(launch, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert job.stdout and job.stdout.readline() == "one of 0\n"
    run = tmp_path / "dlrun-runs/latest"
    while not (run / "rank-1.log").exists() or "one" not in (run / "rank-1.log").read_text():
        time.sleep(0.01)
    line = [sys.executable, "-m", "dlrun", "logs", "-f", "--all"]
    follows = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert follows.stdout
    assert {follows.stdout.readline() for _ in range(2)} == {"[0] one of 0\n", "[1] one of 1\n"}
    (tmp_path / "go").touch()
    assert set(follows.communicate(timeout=100)[0].splitlines()) == {"[0] two of 0", "[1] two of 1"}
    assert job.communicate(timeout=100) and (job.returncode, follows.returncode) == (0, 0)
    said = logs(tmp_path, "--all").stdout.splitlines()
    assert {*said[:2]} == {"[0] one of 0", "[1] one of 1"} and {*said[2:]} == {"[0] two of 0", "[1] two of 1"}
    assert logs(tmp_path, "-r", "1", "-n", "1").stdout == "two of 1"
    assert logs(tmp_path, "-r", "1", "--all").returncode == 2
