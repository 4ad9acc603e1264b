"""MPS is started where ranks share GPUs, by one rank of the node, tried out, and ended with the job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlrun.rank import mps

JOB = f"{os.getpid():032x}"[::-1]
WORKS, FAILS = ("sh", "-c", 'test -e "$CUDA_MPS_PIPE_DIRECTORY/control"'), ("false",)


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment whose MPS writes down what it is told."""
    monkeypatch.setattr(mps, "_SITES", str(tmp_path / "none"))
    control = tmp_path / "nvidia-cuda-mps-control"
    text = f'echo "$@" $(cat) >> {tmp_path}/told\n[ "$1" = -d ] && touch $CUDA_MPS_PIPE_DIRECTORY/control\ntrue\n'
    control.write_text("#!/bin/sh\n" + text)
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return {"PATH": os.environ["PATH"]}


def told(tmp_path: Path) -> list[str]:
    return (tmp_path / "told").read_text().split()


def nothing_is_left() -> bool:
    return not any(Path(folder).exists() for folder in mps.folders(JOB).values())


def test_the_first_rank_of_a_node_starts_it_the_others_use_it_and_it_ends_without_a_trace(env, tmp_path):
    other = dict(env)
    assert mps.join(env, 0, JOB, WORKS)
    assert not mps.join(other, 1, JOB, WORKS)
    assert env == other
    pipe = Path(env["CUDA_MPS_PIPE_DIRECTORY"])
    assert (pipe / "control").exists() and pipe.stat().st_mode & 0o777 == 0o700
    mps.end(env, JOB)
    assert nothing_is_left()
    assert told(tmp_path) == ["-d", "quit"]


def test_where_it_does_not_work_all_ranks_go_on_without_and_it_is_ended_at_once(env, tmp_path):
    other = dict(env)
    assert mps.join(env, 0, JOB, FAILS)
    assert not mps.join(other, 1, JOB, FAILS)
    assert set(env) == set(other) == {"PATH"}
    assert told(tmp_path) == ["-d", "quit"]
    mps.end(env, JOB)
    assert nothing_is_left()
    assert told(tmp_path) == ["-d", "quit"]


def test_a_service_of_the_sites_is_used_as_it_is(env, tmp_path, monkeypatch):
    monkeypatch.setattr(mps, "_SITES", str(tmp_path / "told"))
    (tmp_path / "told").touch()
    assert not mps.join(env, 0, JOB, WORKS) and set(env) == {"PATH"}
    monkeypatch.setattr(mps, "_SITES", str(tmp_path / "none"))
    env["CUDA_MPS_PIPE_DIRECTORY"] = "/run/mps"
    assert not mps.join(env, 0, JOB, WORKS) and env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps"
    assert not told(tmp_path)


def test_without_nvidias_tools_the_ranks_go_on_without(env, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    env["PATH"] = "/nowhere"
    assert mps.join(env, 0, JOB, WORKS) and set(env) == {"PATH"}
    mps.end(env, JOB)
    assert nothing_is_left()


def test_the_real_trial_finds_no_gpu_where_there_is_no_driver(env):
    trial = tuple(word.replace("libcuda.so.1", "libnone.so.1") for word in mps._TRIAL)
    assert mps.join(env, 0, JOB, trial) and set(env) == {"PATH"}
    mps.end(env, JOB)
