"""`dlrun launch --mps`: the service is there before the first rank and until the last; where it fails, none is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlrun.launch import LaunchPlan, mps
from dlrun.launch.site import Allocation, Site

WORKS, FAILS = ("sh", "-c", 'test -e "$CUDA_MPS_PIPE_DIRECTORY/control" && echo works'), ("false",)
PLAN = LaunchPlan(("train.py",), ranks=2, run_dir="run", mps=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A machine with one GPU whose tools write down what they are told; its compute mode is in the file ``mode``."""
    monkeypatch.setattr(mps, "_SITES", str(tmp_path / "none"))
    control = f'echo "$@" $(cat) >> {tmp_path}/told\n[ "$1" = -d ] && touch $CUDA_MPS_PIPE_DIRECTORY/control\ntrue\n'
    for name, text in (("nvidia-smi", f"cat {tmp_path}/mode\n"), ("nvidia-cuda-mps-control", control)):
        (tmp_path / name).write_text("#!/bin/sh\n" + text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "mode").write_text("Default\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Site("n1", 1000, cores=16, cpus=16, gpus=1, allocation=Allocation(), env={"PATH": os.environ["PATH"]})


def served(plan: LaunchPlan, site: Site, trial: tuple[str, ...] = WORKS) -> tuple[dict[str, str], list[str]]:
    """The variables for the ranks, and what was said; nothing is left of it afterwards."""
    said: list[str] = []
    with mps.served(plan, site, said.append, trial) as variables:
        for folder in variables.values():
            assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert not any(Path(folder).parent.exists() for folder in variables.values())
    return variables, said


def told(tmp_path: Path) -> list[str]:
    file = tmp_path / "told"
    return file.read_text().split() if file.exists() else []


def test_it_is_started_before_the_ranks_and_ended_after_them(site, tmp_path):
    variables, said = served(PLAN, site)
    assert set(variables) == {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
    assert said == []
    assert told(tmp_path) == ["-d", "quit"]


def test_one_that_does_not_serve_is_ended_and_the_ranks_take_turns(site, tmp_path):
    assert served(PLAN, site, FAILS) == (
        {},
        ["NVIDIA's MPS does not work here: the ranks have the GPUs in time slices"],
    )
    assert told(tmp_path) == ["-d", "quit"]


def test_an_error_of_the_run_ends_it_too(site, tmp_path):
    with pytest.raises(ZeroDivisionError), mps.served(PLAN, site, print, WORKS):
        raise ZeroDivisionError
    assert told(tmp_path) == ["-d", "quit"]


def test_gpus_in_exclusive_mode_get_it_unasked(site, tmp_path):
    assert served(PLAN._replace(mps=False), site) == ({}, [])
    (tmp_path / "mode").write_text("Exclusive_Process\n")
    assert served(PLAN._replace(mps=False), site)[0]


@pytest.mark.parametrize("change", [{"ranks": 1}, {"local": False}])
def test_ranks_that_share_no_gpu_of_this_machine_get_none(site, tmp_path, change):
    assert served(PLAN._replace(**change), site) == ({}, [])
    assert told(tmp_path) == []


def test_a_service_of_the_sites_is_left_as_it_is(site, tmp_path, monkeypatch):
    there = site._replace(env={**site.env, "CUDA_MPS_PIPE_DIRECTORY": "/run/mps"})
    assert served(PLAN, there) == ({}, [])
    (tmp_path / "control").touch()
    monkeypatch.setattr(mps, "_SITES", str(tmp_path / "control"))
    assert served(PLAN, site) == ({}, [])
    assert told(tmp_path) == []


def test_without_nvidias_tools_it_is_told_that_it_does_not_work(site, monkeypatch):
    there = site._replace(env={"PATH": "/nowhere"})
    monkeypatch.setenv("PATH", "/nowhere")
    assert served(PLAN, there)[1] == ["NVIDIA's MPS does not work here: the ranks have the GPUs in time slices"]


def test_a_real_launch_hands_the_variables_to_every_rank(any_mpiexec, site, tmp_path, monkeypatch):
    from dlrun import launch as launching

    monkeypatch.setattr(
        launching, "served", lambda plan, here, note: mps.served(plan, here._replace(gpus=1), note, WORKS)
    )
    (tmp_path / "show.py").write_text("import os\nprint(os.environ['CUDA_MPS_PIPE_DIRECTORY'], flush=True)\n")
    lines: list[str] = []
    plan = LaunchPlan(("show.py",), ranks=2, mps=True, cwd=str(tmp_path), show=None, tuned=False)
    result = launching.launch(plan, lambda rank, stream, line: lines.append(line))
    assert result.returncode == 0, lines
    assert len(lines) == 2
    assert len(set(lines)) == 1
    assert not Path(lines[0]).exists()
    assert told(tmp_path) == ["-d", "quit"]
