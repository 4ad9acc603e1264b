"""MPS is started where ranks share GPUs in exclusive mode, by one rank of the node, and ended with the job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlrun.rank import mps


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment whose driver tells what the file ``modes`` says, and whose MPS writes down what it is told."""
    smi = f"cat {tmp_path}/modes\n"
    control = f'echo "$@" $(cat) >> {tmp_path}/told\n[ "$1" = -d ] && touch $CUDA_MPS_PIPE_DIRECTORY/control\ntrue\n'
    for name, text in (("nvidia-smi", smi), ("nvidia-cuda-mps-control", control)):
        (tmp_path / name).write_text("#!/bin/sh\n" + text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "modes").write_text("Default\nExclusive_Process\n")
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_the_first_rank_of_a_node_starts_it_the_others_use_it_and_it_ends_without_a_trace(env, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", env["PATH"])
    other = dict(env)
    assert mps.join(env, 0, f"{os.getpid():032x}"[::-1])
    assert not mps.join(other, 1, f"{os.getpid():032x}"[::-1])
    assert env == other
    pipe = Path(env["CUDA_MPS_PIPE_DIRECTORY"])
    assert (pipe / "control").exists() and pipe.stat().st_mode & 0o777 == 0o700
    mps.end(env)
    assert not pipe.exists() and not Path(env["CUDA_MPS_LOG_DIRECTORY"]).exists()
    assert (tmp_path / "told").read_text().split() == ["-d", "quit", "-t", "10"]


def test_gpus_that_may_be_shared_need_none(env, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", env["PATH"])
    (tmp_path / "modes").write_text("Default\nDefault\n")
    assert not mps.join(env, 0, "job") and "CUDA_MPS_PIPE_DIRECTORY" not in env


def test_a_service_of_the_sites_is_used_as_it_is(env):
    env["CUDA_MPS_PIPE_DIRECTORY"] = "/run/mps"
    assert not mps.join(env, 0, "job") and env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps"


def test_without_nvidias_tools_nothing_happens(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert not mps.join({"PATH": "/nowhere"}, 0, "job")
