"""GPUs and cores of a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrun.rank.place import cores, gpus, mask, share

UUIDS = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


def test_the_own_gpu_comes_first_and_all_stay_visible():
    assert mask({}, "nvidia", UUIDS, 2)["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-a,GPU-b,GPU-d"


def test_what_the_scheduler_left_is_all_there_is():
    assert mask({"CUDA_VISIBLE_DEVICES": "1,3"}, "nvidia", UUIDS, 1)["CUDA_VISIBLE_DEVICES"] == "3,1"


def test_a_mask_of_one_gpu_stays_as_it_is_on_every_rank():
    for rank in range(4):
        assert mask({"CUDA_VISIBLE_DEVICES": "GPU-c"}, "nvidia", UUIDS, rank)["CUDA_VISIBLE_DEVICES"] == "GPU-c"


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles"])
def test_a_mask_that_hides_all_gpus_stays(hidden):
    assert mask({"CUDA_VISIBLE_DEVICES": hidden}, "nvidia", UUIDS, 0) == {}


def test_several_gpus_for_each_rank():
    assert mask({}, "nvidia", UUIDS, 1, each=2)["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-d,GPU-a,GPU-b"


def test_gpus_are_counted_as_schedulers_count_them_unless_said_otherwise():
    assert mask({}, "nvidia", UUIDS, 0)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in mask({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "nvidia", UUIDS, 0)


def test_amd_gpus_are_masked_by_one_variable_only():
    assert mask({}, "amd", ["0", "1"], 1) == {"ROCR_VISIBLE_DEVICES": "1,0"}


def test_nothing_is_set_where_there_is_no_gpu():
    assert mask({"CUDA_VISIBLE_DEVICES": "0"}, "", [], 0) == {}


def test_nvidia_gpus_are_found_in_pci_order_when_their_device_is_here(tmp_path: Path):
    for bus, uuid, minor in (("0000:81:00.0", "GPU-z", 1), ("0000:01:00.0", "GPU-y", 0), ("0000:a1:00.0", "GPU-x", 2)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t A100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    (tmp_path / "dev").mkdir()
    for minor in (0, 1):
        (tmp_path / f"dev/nvidia{minor}").write_text("")
    assert gpus(str(tmp_path)) == ("nvidia", ["GPU-y", "GPU-z"])


def test_amd_gpus_are_the_topologys_nodes_that_have_one(tmp_path: Path):
    for node, gpu in (("0", "0"), ("1", "51"), ("2", "52")):
        folder = tmp_path / "sys/class/kfd/kfd/topology/nodes" / node
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(gpu + "\n")
    assert gpus(str(tmp_path)) == ("amd", ["0", "1"])


def test_hardware_threads_of_a_core_stay_together_package_by_package(tmp_path: Path):
    for cpu in range(8):  # two packages of two cores of two threads, numbered as Linux does
        topology = tmp_path / f"cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(str(cpu % 4 // 2))
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert cores(set(range(8)), str(tmp_path)) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert cores({1, 3, 5}, str(tmp_path)) == [(1, 5), (3,)]


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
