"""More ranks than GPUs on this machine: refused unless asked for, then told."""

from __future__ import annotations

import click
import pytest

from dlrun.cli.launch import command
from dlrun.errors import DlrunError
from dlrun.launch.plan import LaunchPlan
from dlrun.launch.resolve import resolve
from dlrun.launch.site import Allocation, Site

SITE = Site("n1", 1000, cores=16, cpus=16, gpus=2, allocation=Allocation(), env={"PATH": "/nowhere"})
PLAN = LaunchPlan((__file__,), backend="mpich")


def notes(ranks: int, gpus: int | None, site: Site = SITE) -> str:
    return " ".join(resolve(PLAN._replace(ranks=ranks, gpus=gpus), site).notes)


def test_a_gpu_for_each_rank_is_refused_where_there_are_too_few():
    with pytest.raises(DlrunError, match="--gpus 1 for 4 ranks needs 4 GPUs; n1 has 2") as refused:
        notes(4, 1)
    assert "--share-gpus in place of --gpus, and the ranks share them" in str(refused.value.hint)


def test_more_ranks_than_gpus_are_refused_unless_they_are_to_share():
    alone = PLAN._replace(share_gpus=False)
    with pytest.raises(DlrunError, match="4 ranks, and n1 has 2 GPUs") as refused:
        resolve(alone._replace(ranks=4), SITE)
    assert "give -n 2, or --share-gpus" in str(refused.value.hint)
    resolve(alone._replace(ranks=2), SITE)
    resolve(alone._replace(ranks=4, mps=True), SITE)
    resolve(alone._replace(ranks=4), SITE._replace(gpus=0))


def test_the_command_line_asks_for_it_by_an_option_or_a_variable(monkeypatch):
    monkeypatch.delenv("DLRUN_SHARE_GPUS", raising=False)
    option = next(p for p in command.params if p.name == "share_gpus")
    assert option.get_default(click.Context(command)) is False
    monkeypatch.setenv("DLRUN_SHARE_GPUS", "1")
    assert option.value_from_envvar(click.Context(command))


def test_ranks_that_share_gpus_are_told_so():
    assert "4 ranks share 2 GPUs and have it in time slices: --mps lets them run on it at once; one rank" in notes(
        4, None
    )
    assert "3 ranks share 1 GPU and have it" in notes(3, None, SITE._replace(gpus=1))
    served = SITE._replace(gpus=1, env={**SITE.env, "CUDA_MPS_PIPE_DIRECTORY": "/run/mps"})
    assert "3 ranks share 1 GPU; one rank for each is faster" in notes(3, None, served)


@pytest.mark.parametrize(
    ("ranks", "gpus", "backend", "said"),
    [
        (4, 2, "mpich", ""),
        (2, 2, "mpich", "every rank has a GPU of its own"),
        (2, 0, "mpich", "dlrun sees no GPU on n1"),
        (4, 2, "srun", "dlrun starts NVIDIA's service for ranks of this machine alone"),
    ],
)
def test_a_service_for_shared_gpus_that_is_not_started_is_told_with_the_reason(ranks, gpus, backend, said):
    plan = PLAN._replace(ranks=ranks, backend=backend, mps=True)
    told = [note for note in resolve(plan, SITE._replace(gpus=gpus)).notes if note.startswith("--mps")]
    assert [note.partition(": ")[2].startswith(said) for note in told] == ([True] if said else [])


def test_gpus_that_are_asked_for_and_not_there_are_told():
    assert "dlrun sees no GPU on n1, and gives the ranks none" in notes(4, 1, SITE._replace(gpus=0))


def test_nothing_is_said_where_gpus_suffice_or_none_are_asked_for():
    assert "GPU" not in notes(2, 1) + notes(2, None) + notes(4, None, SITE._replace(gpus=0))
