"""Which rank this is, from what each launcher was seen to set."""

from __future__ import annotations

import pytest

from dlrun.rank.identity import Identity, identity, tasks_on

SLURM_DAEMON = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
}


def test_without_a_launcher_this_is_rank_0_of_1():
    assert identity({"PATH": "/bin"}) == Identity(0, 1, 0, 1, 0)


@pytest.mark.parametrize(
    ("backend", "env", "place"),
    [
        (
            "openmpi",
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "OMPI_COMM_WORLD_NODE_RANK": "1",
            },
            Identity(3, 4, 1, 2, None),
        ),
        (
            "mpich",
            {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
            Identity(2, 4, 0, 2, None),
        ),
        (
            "pals",
            {"PALS_RANKID": "7", "PALS_LOCAL_RANKID": "3", "PALS_LOCAL_SIZE": "4", "PALS_NODEID": "1"},
            Identity(7, None, 3, 4, 1),
        ),
        ("aprun", {"ALPS_APP_PE": "5"}, Identity(5, None, None, None, None)),
        (
            "flux",
            {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1"},
            Identity(1, 4, 1, None, None),
        ),
        (
            "srun",
            {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "4",
                "SLURM_STEP_NUM_TASKS": "7",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
                "SLURM_NODEID": "2",
                "SLURM_NTASKS": "8",
            },
            Identity(4, 7, 0, 2, 2),
        ),
    ],
)
def test_each_launchers_variables_are_understood_also_without_being_told_whose_they_are(backend, env, place):
    assert identity(env, backend) == place
    assert identity(env) == place


def test_mpiexec_inside_a_slurm_job_is_believed_and_not_slurms_daemon():
    env = {**SLURM_DAEMON, "PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    assert identity(env).rank == 3
    env = {**SLURM_DAEMON, "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    assert identity(env).rank == 2


def test_srun_with_pmi2_is_slurm_when_it_was_srun_that_we_used():
    env = {**SLURM_DAEMON, "PMI_RANK": "1", "PMI_SIZE": "2"}
    assert identity(env, "srun") == Identity(1, 2, 0, 1, 1)


def test_slurm_variables_of_a_batch_script_make_no_rank():
    assert identity({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}) == Identity(0, 1, 0, 1, 0)


@pytest.mark.parametrize(("node", "tasks"), [(0, 2), (2, 2), (3, 1), (4, 5), (5, None)])
def test_slurms_list_of_tasks_per_node(node, tasks):
    assert tasks_on("2(x3),1,5", node) == tasks
