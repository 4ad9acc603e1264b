"""Cores and threads of a rank."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dlrun.rank import pinning
from dlrun.rank.gpus import Gpu
from dlrun.rank.pinning import bound, cores, fork_safety, share


def test_hardware_threads_of_a_core_stay_together_package_by_package(tmp_path: Path):
    for cpu in range(8):  # two packages of two cores of two threads, numbered as Linux does
        topology = tmp_path / f"cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(str(cpu % 4 // 2))
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert cores(set(range(8)), str(tmp_path)) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert cores({1, 3, 5}, str(tmp_path)) == [(1, 5), (3,)]


@settings(deadline=None, derandomize=True)
@given(n=st.integers(1, 70), size=st.integers(1, 20))
def test_shares_are_disjoint_contiguous_and_as_equal_as_can_be(n, size):
    all_cores = [(i,) for i in range(n)]
    shares = [share(all_cores, rank, size) for rank in range(size)]
    if n < size:
        assert all(len(s) == 0 for s in shares)
    else:
        assert [core for s in shares for core in s] == all_cores
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_asked_for_more_cores_than_there_are_nobody_is_bound():
    assert share([(0,), (1,)], 0, 2, each=2) == ()
    assert share([(0,), (1,), (2,)], 1, 2, each=1) == [(1,)]


def test_ranks_that_the_launcher_has_bound_keep_all_their_cores():
    want = {"bind": True, "cores": None, "cpus": [[0, 1], [2, 3]]}
    assert [sorted(cpu for core in block for cpu in core) for block in bound([(0,), (1,)], 2, want)] == [[0, 1], [2, 3]]


def test_forks_are_made_safe_only_where_there_is_such_a_card(tmp_path: Path):
    assert fork_safety(str(tmp_path / "none")) == {}
    (tmp_path / "mlx5_0").mkdir()
    assert fork_safety(str(tmp_path)) == {"RDMAV_FORK_SAFE": "1"}
    (tmp_path / "rdmap0s6").mkdir()
    assert fork_safety(str(tmp_path)) == {"RDMAV_FORK_SAFE": "1", "FI_EFA_FORK_SAFE": "1"}


def test_gpus_that_ranks_share_are_told_unless_the_launch_has_seen_to_them(monkeypatch):
    monkeypatch.setattr(pinning, "gpus", lambda env: ("nvidia", [Gpu("GPU-a")]))
    assert pinning.pin({}, 0, 2, {})
    assert not pinning.pin({}, 0, 2, {"served": True})
    assert not pinning.pin({}, 0, 1, {})
