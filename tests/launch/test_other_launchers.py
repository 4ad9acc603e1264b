"""What people type who come from other launchers."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dlrun.cli import main
from dlrun.errors import DlrunError
from dlrun.launch.other_launchers import translate

VALUED = {"-n", "--ranks", "--per-node", "--hosts", "--env"}


def spelled(line: str, gpus: int = 4, cores: int = 8) -> str:
    return " ".join(translate(line.split(), VALUED, gpus, cores)[0])


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("-np 4 t.py -np 3", "--ranks 4 t.py -np 3"),
        ("-np 4 -H n1:2,n2:2 t.py", "--ranks 4 --hosts n1:2,n2:2 t.py"),
        ("--nnodes=2 --nproc-per-node=4 t.py", "--ranks 8 --per-node 4 t.py"),
        ("--nproc_per_node gpu t.py", "--ranks 4 --per-node 4 t.py"),
        ("--num_processes 3 --env -np=1 t.py", "--ranks 3 --env -np=1 t.py"),
        ("--num_processes 8 --num_machines 2 --machine_rank 0 t.py", "--ranks 8 --per-node 4 t.py"),
        ("-np 8 -npernode 4 t.py", "--ranks 8 --per-node 4 t.py"),
        ("-n 4:8 t.py", "--min-ranks 4 --ranks 8 t.py"),
        ("-n auto t.py", "--ranks 4 t.py"),
        ("-n cpu t.py", "--ranks 8 t.py"),
        ("-n 2 --mps t.py", "--ranks 2 --mps t.py"),
        ("-n x t.py", "--ranks x t.py"),
        ("--num_gpus=2 t.py", "--ranks 2 --per-node 2 t.py"),
        ("--nnodes 1:4 --nproc_per_node=2 t.py", "--min-ranks 2 --ranks 8 --per-node 2 t.py"),
        ("-n 8 -ppn 4 t.py", "--ranks 8 --per-node 4 t.py"),
        ("-n 8 --ntasks-per-node=4 t.py", "--ranks 8 --per-node 4 t.py"),
        ("--oversubscribe -np 2 -x PATH -x NCCL_DEBUG=INFO t.py -x 3", "--ranks 2 --env NCCL_DEBUG=INFO t.py -x 3"),
    ],
)
def test_other_launchers_options_are_understood(line, ours):
    assert spelled(line) == ours


def test_without_gpus_auto_is_the_cores_and_gpu_an_error():
    assert spelled("-n auto t.py", gpus=0) == "--ranks 8 t.py"
    with pytest.raises(DlrunError, match="-n gpu: dlrun sees no GPU here"):
        spelled("-n gpu t.py", gpus=0)


def test_what_dlrun_does_not_need_is_told():
    words, notes = translate(["--standalone", "--master_port=29500", "-n", "2", "t.py"], VALUED, 0, 8)
    assert words == ["--ranks", "2", "t.py"]
    assert len(notes) == 2 and notes[1].startswith("--master_port is not needed")


@pytest.mark.parametrize(
    "line", ["--nproc-per-node 0 t.py", "-np x t.py", "--nnodes 2 t.py", "--nnodes :2 t.py", "-np"]
)
def test_numbers_that_are_none_are_told(line):
    with pytest.raises(DlrunError):
        spelled(line)


def test_a_whole_line_of_torchruns_is_one_of_dlruns(tmp_path):
    (tmp_path / "t.py").write_text("")
    line = ["launch", "--dry-run", "--backend", "local", "--nproc-per-node=1", "--nnodes", "1", str(tmp_path / "t.py")]
    assert CliRunner().invoke(main, line).exit_code == 0
