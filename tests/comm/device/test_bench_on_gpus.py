"""`dlrun bench allreduce --device cuda` and `dlrun tune --device cuda`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import measure
from gpus import HERE, real_driver

from dlrun.bench.cases import Case
from dlrun.bench.result import from_json
from dlrun.launch import LaunchPlan
from dlrun.tune.search import Trial
from dlrun.tune.space import Space, plugin_axes
from dlrun.tune.trial import ModelJob


def dlrun(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlrun", *words]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250, check=False
    )


BENCH = ("bench", "allreduce", "--device", "cuda", "-n", "2", "--seconds", "0.05", "--json")


def test_the_means_of_arrays_on_gpus_are_exact_beside_a_copy_out_and_back(any_mpi, fake, tmp_path):
    sizes = ("--sizes", "4,80KB", "--models", "cnn")
    done = dlrun(tmp_path, *BENCH, *sizes, DL_COMM_CUDA_LIBRARY=fake(), DL_COMM_GPU_PATH="staged")
    assert done.returncode == 0, done.stderr
    result = from_json(json.loads(done.stdout), "stdout")
    cells = {(case, way) for case in ("4 B", "80 KB", "cnn") for way in ("dl_comm", "memcpy")}
    assert {(c.case, c.way) for c in result.cells} == cells
    assert not result.wrong()
    assert result.machine["path"] == "the host, as DL_COMM_GPU_PATH says"


def test_without_a_gpu_one_line_says_what_is_missing(any_mpi, tmp_path):
    done = dlrun(tmp_path, *BENCH, "--sizes", "4", "--models", "none", DL_COMM_CUDA_LIBRARY="/none/libcuda.so")
    assert done.returncode == 1
    said = "dlrun: nothing can be measured on GPUs: rank 0: CUDA's driver is not here (/none/libcuda.so: cannot open"
    assert said in done.stderr


def test_a_trial_of_tune_measures_arrays_on_gpus_with_its_settings(any_mpi, fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DL_COMM_CUDA_LIBRARY", fake())
    space = Space(plugin_axes(nodes=1, overlaps=False, gpu=True))
    of_gpus = {"DL_COMM_NUM_CUDA_STREAMS", "DL_COMM_PIPELINE_CHUNK_KB", "DL_COMM_GPU_PATH"}
    assert of_gpus <= {axis.name for axis in space.axes}
    settings = (("DL_COMM_NUM_CUDA_STREAMS", "2"), ("DL_COMM_PIPELINE_CHUNK_KB", "64"))
    job = ModelJob(space, LaunchPlan((), ranks=2), Case("two", (1000, 70_000)), seconds=0.02, device="cuda")
    outcome = job.run(Trial(settings, "search", 0))
    assert not outcome.error
    assert outcome.value


def test_tune_says_in_a_line_that_there_is_no_gpu(any_mpi, tmp_path):
    words = ("tune", "-n", "2", "--model", "cnn", "--device", "cuda", "--budget", "1s")
    done = dlrun(tmp_path, *words, DL_COMM_CUDA_LIBRARY="/none/libcuda.so")
    assert done.returncode == 1
    assert "nothing can be measured on GPUs: rank 0: CUDA's driver is not here (/none/libcuda.so" in done.stderr


def test_one_command_measures_all_that_needs_a_gpu(tmp_path):
    command = [sys.executable, str(HERE / "measure.py"), "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    asked, commands = done.stdout.splitlines()[::2], done.stdout.splitlines()[1::2]
    assert all(line.startswith("# ") for line in asked)
    steps = ("-k real", "DL_COMM_GPU_PATH=staged", "DL_COMM_NUM_CUDA_STREAMS=2", "--mps", "--model resnet50 --size 224")
    for step in steps:
        assert any(step in command for command in commands), done.stdout
    files = [word for command in commands for word in shlex.split(command) if word.startswith(str(HERE.parents[2]))]
    assert {Path(file).name for file in files if file.endswith(".py")} == {"compare.py"}
    assert all(Path(file).exists() for file in files)
    env = {**os.environ, "DL_COMM_CUDA_LIBRARY": "/none/libcuda.so"}
    none = subprocess.run(command[:-1], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert none.returncode == 1
    assert none.stdout.startswith("Nothing can be measured here: CUDA's driver is not here (/none/libcuda.so"), none
    assert not list(tmp_path.iterdir())


def test_a_rehearsal_takes_tests_that_run_without_a_gpu():
    asked = [step.command for step in measure.steps(rehearsed=True) if "pytest" in step.command]
    assert asked
    assert all("real" not in command for command in asked), asked


def test_chunks_and_streams_reach_the_speed_of_pinned_copies_on_a_real_gpu(any_mpi, tmp_path):
    real_driver()
    ratios = {}
    for chunk in (1024, 4096):
        for streams in (1, 2):
            more = {"DL_COMM_PIPELINE_CHUNK_KB": str(chunk), "DL_COMM_NUM_CUDA_STREAMS": str(streams)}
            words = ("--sizes", "256MB", "--models", "none")
            done = dlrun(tmp_path, *BENCH, *words, DL_COMM_GPU_PATH="staged", **more)
            assert done.returncode == 0, done.stderr
            cells = {c.way: c.best for c in from_json(json.loads(done.stdout), "stdout").cells}
            ratios[chunk, streams] = cells["memcpy"] / cells["dl_comm"]
    print(ratios)
    assert max(ratios.values()) > 0.7, ratios
