"""More ranks than GPUs on this machine: refused where a GPU for each was asked for, else told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlrun.errors import DlrunError
from dlrun.launch.plan import LaunchPlan
from dlrun.launch.settle import settle
from dlrun.launch.site import Allocation, Site

SITE = Site("n1", 1000, cores=16, cpus=16, gpus=2, allocation=Allocation(), env={"PATH": "/nowhere"})
PLAN = LaunchPlan((__file__,), backend="mpich")


def notes(ranks: int, gpus: int | None, site: Site = SITE) -> str:
    return " ".join(settle(replace(PLAN, ranks=ranks, gpus=gpus), site).notes)


def test_a_gpu_for_each_rank_is_refused_where_there_are_too_few():
    with pytest.raises(DlrunError, match="--gpus 1 for 4 ranks needs 4 GPUs; n1 has 2") as refused:
        notes(4, 1)
    assert "leave out --gpus, and the ranks share them" in str(refused.value.hint)


def test_ranks_that_share_gpus_are_told_so():
    assert "4 ranks share 2 GPUs" in notes(4, None)
    assert "3 ranks share 1 GPU;" in notes(3, None, replace(SITE, gpus=1))


def test_nothing_is_said_where_gpus_suffice_or_there_are_none():
    assert "GPU" not in notes(2, 1) + notes(2, None) + notes(4, None, replace(SITE, gpus=0)) + notes(
        4, 1, replace(SITE, gpus=0)
    )
