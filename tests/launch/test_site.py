"""What a batch system's variables say of an allocation, also where they say nothing."""

from __future__ import annotations

import pytest

from dlrun.launch import site
from dlrun.launch.site import Allocation, allocated, allocation


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8"}, Allocation("slurm", "7", 2, 8)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "", "SLURM_NNODES": "3"}, Allocation("slurm", "7", 3)),
        ({"SLURM_JOB_ID": "7", "SLURM_NNODES": "x", "SLURM_NTASKS": "-1"}, Allocation("slurm", "7")),
        ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 4 n2 2"}, Allocation("lsf", "7", 2, 6)),
        ({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 x n2 2"}, Allocation("lsf", "7", 2, 3)),
        ({"PE_HOSTFILE": "n1 4 all.q x\nn2 2 all.q x\n", "JOB_ID": "7"}, Allocation("sge", "7", 2, 6)),
        ({"PE_HOSTFILE": "n1\n\n", "JOB_ID": "7"}, Allocation("sge", "7", 1, 1)),
        ({"PBS_JOBID": "7", "PBS_NODEFILE": "n1\nn1\nn2\n"}, Allocation("pbs", "7", 2, 3)),
        ({}, Allocation()),
    ],
)
def test_an_allocation_is_what_its_variables_say(env, found, tmp_path):
    for name in ("PE_HOSTFILE", "PBS_NODEFILE"):
        if name in env:
            (tmp_path / name).write_text(env[name])
            env = {**env, name: str(tmp_path / name)}
    assert allocation(env) == found


def test_the_nodes_of_an_allocation_are_named_once_each_in_its_order(tmp_path):
    (tmp_path / "nodes").write_text("n2\nn2\nn1\n")
    (tmp_path / "slots").write_text("n3 4 all.q x\nn1 2 all.q x\n")
    control = tmp_path / "scontrol"
    control.write_text('#!/bin/sh\n[ "$1 $2 $3" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"\n')
    control.chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "PATH": str(tmp_path)}
    assert allocated(slurm | {"SLURM_JOB_NODELIST": "n[1-2]"}) == ("n1", "n2")
    assert allocated(slurm | {"SLURM_JOB_NODELIST": "?"}) == ()
    assert allocated({"PBS_JOBID": "7", "PBS_NODEFILE": str(tmp_path / "nodes")}) == ("n2", "n1")
    assert allocated({"PE_HOSTFILE": str(tmp_path / "slots")}) == ("n3", "n1")
    assert allocated({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 4 n2 2"}) == (), "jsrun takes no hosts"


@pytest.mark.parametrize("does", ["exec sleep 60", "echo 'slurm: no such file' >&2; exit 1", ""])
def test_a_program_that_does_not_answer_says_nothing_and_stops_nobody(monkeypatch, tmp_path, does):
    monkeypatch.setattr(site, "_ANSWERS", 0.2)
    for name in ("srun", "flux", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n" if does else "")
        (tmp_path / name).chmod(0o755)
    assert site.pmi_types(str(tmp_path / "srun")) == ()
    assert site.flux_nodes(str(tmp_path / "flux")) == 0
    assert site.recognise(str(tmp_path / "srun")) is None
    assert allocated({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "PATH": str(tmp_path)}) == ()
