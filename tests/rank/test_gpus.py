"""GPUs of recorded machines: which are here, which are near, and the one variable that masks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrun.rank.gpus import Gpu, assign, by_number, cpu_list, gpus, mask, visible

FOUR = [Gpu("GPU-a"), Gpu("GPU-b"), Gpu("GPU-c"), Gpu("GPU-d")]


def masked(env: dict[str, str], vendor: str, found: list[Gpu], rank: int, size: int = 4, each: int = 1):  # type: ignore
    left = visible(env, vendor, found)
    return mask(env, vendor, left, assign([frozenset()] * size, left, each)[rank])


def cuda(env: dict[str, str], rank: int, **options: int) -> str:
    return masked(env, "nvidia", FOUR, rank, **options).get("CUDA_VISIBLE_DEVICES", "unset")


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


def test_the_own_gpu_comes_first_and_all_stay_visible():
    assert cuda({}, 2) == "GPU-c,GPU-a,GPU-b,GPU-d"


def test_by_number_every_rank_sees_the_same_order_in_which_its_own_has_its_local_rank():
    near = [Gpu("GPU-a", frozenset({1})), Gpu("GPU-b", frozenset({0})), Gpu("GPU-c")]
    taken = assign([frozenset({0}), frozenset({1})], near)
    assert mask({}, "nvidia", near, by_number(taken))["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a,GPU-c"
    shared = assign([frozenset()] * 4, FOUR[:1])
    assert mask({}, "nvidia", FOUR[:1], by_number(shared))["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert mask({}, "nvidia", [], by_number(assign([frozenset()] * 2, []))) == {}


def test_several_gpus_for_each_rank():
    assert cuda({}, 1, each=2, size=2) == "GPU-c,GPU-d,GPU-a,GPU-b"


def test_what_the_scheduler_left_is_all_there_is():
    assert cuda({"CUDA_VISIBLE_DEVICES": "1,3"}, 1) == "3,1"


def test_mig_parts_that_the_scheduler_names_are_handed_out_like_gpus():
    assert cuda({"CUDA_VISIBLE_DEVICES": "MIG-5c8a,MIG-GPU-a/1/0"}, 1) == "MIG-GPU-a/1/0,MIG-5c8a"


def test_a_mask_of_one_gpu_stays_as_it_is_on_every_rank():
    assert [cuda({"CUDA_VISIBLE_DEVICES": "GPU-c"}, rank) for rank in range(4)] == ["GPU-c"] * 4


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles"])
def test_a_mask_that_hides_all_gpus_stays(hidden):
    assert masked({"CUDA_VISIBLE_DEVICES": hidden}, "nvidia", FOUR, 0) == {}


def test_gpus_are_counted_as_schedulers_count_them_unless_said_otherwise():
    assert masked({}, "nvidia", FOUR, 0)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in masked({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "nvidia", FOUR, 0)


def test_nothing_is_set_where_there_is_no_gpu():
    assert mask({"CUDA_VISIBLE_DEVICES": "0"}, "", [], []) == {}


AMD = [Gpu("0"), Gpu("1"), Gpu("2"), Gpu("3")]


@pytest.mark.parametrize(
    ("env", "ours"),
    [
        ({}, "1,0,2,3"),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, "3,2"),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, "3,2"),  # flux tells AMD's GPUs so
        ({"HIP_VISIBLE_DEVICES": "2,3"}, "3,2"),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "GPU_DEVICE_ORDINAL": "2,3"}, "3,2"),  # Slurm sets both alike
        ({"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "0,2"}, "3,1"),  # HIP counts what ROCR has left
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "5"}, "3,2"),
        ({"HIP_VISIBLE_DEVICES": "-1"}, None),
    ],
)
def test_of_amds_masks_one_remains_and_says_what_they_said_together(env, ours):
    assert masked(env, "amd", AMD, 1) == ({"ROCR_VISIBLE_DEVICES": ours} if ours else {})


def test_intels_mask_cannot_order_so_a_rank_sees_its_own_alone():
    assert masked({}, "intel", [Gpu("0"), Gpu("1")], 1, size=2) == {"ZE_AFFINITY_MASK": "1"}


def test_each_rank_takes_the_gpu_that_is_near_its_cores():
    """A node like Polaris': one NUMA node for each GPU, in the reverse order of the bus."""
    near = [frozenset(range(8 * i, 8 * i + 8)) for i in range(4)]
    left = [Gpu(f"GPU-{i}", near[3 - i]) for i in range(4)]
    assert assign(near, left) == [[3], [2], [1], [0]]


def test_two_gpus_of_each_numa_node_go_to_the_two_ranks_there():
    """A node like Frontier's: the GPUs of NUMA node 0 are 4 and 5, and so on."""
    numa = [frozenset(range(16 * i, 16 * i + 16)) for i in range(4)]
    left = [Gpu(str(i), numa[(3, 3, 1, 1, 0, 0, 2, 2)[i]]) for i in range(8)]
    blocks = [frozenset(range(8 * rank, 8 * rank + 7)) for rank in range(8)]
    assert [own for (own,) in assign(blocks, left)] == [4, 5, 2, 3, 6, 7, 0, 1]


def test_more_ranks_than_gpus_share_the_near_ones():
    near = [frozenset((0, 1)), frozenset((2, 3))]
    left = [Gpu("GPU-a", near[1]), Gpu("GPU-b", near[0])]
    assert assign([frozenset((0,)), frozenset((2,)), frozenset((1,)), frozenset((3,))], left) == [[1], [0], [1], [0]]


def test_nvidia_gpus_are_found_in_pci_order_when_their_device_is_here(tmp_path: Path):
    files = {
        "sys/devices/system/node/node0/cpulist": "0-3",
        "sys/devices/system/node/node1/cpulist": "4-7",
        "dev/nvidia0": "",
        "dev/nvidia1": "",
    }
    for bus, uuid, minor, node in (
        ("0000:81:00.0", "GPU-z", 1, 1),
        ("0000:01:00.0", "GPU-y", 0, 0),
        ("0000:A1:00.0", "GPU-x", 2, 1),
    ):
        facts = f"Model: \t\t A100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}"
        files[f"proc/driver/nvidia/gpus/{bus}/information"] = facts
        files[f"sys/bus/pci/devices/{bus.lower()}/numa_node"] = str(node)
    found = [Gpu("GPU-y", cpu_list("0-3")), Gpu("GPU-z", cpu_list("4-7"))]
    assert gpus(write(tmp_path, files)) == ("nvidia", found)
    assert visible({"CUDA_VISIBLE_DEVICES": "1"}, "nvidia", found) == [Gpu("1", cpu_list("4-7"))]
    assert visible({"CUDA_VISIBLE_DEVICES": "GPU-z"}, "nvidia", found) == [found[1]]


def test_amd_gpus_are_the_topologys_nodes_that_have_one_with_their_place_on_the_bus(tmp_path: Path):
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = {f"{nodes}/0/gpu_id": "0", "sys/devices/system/node/node1/cpulist": "8-9,12"}
    for node, location in ((1, 0xC100), (2, 0xC600), (10, 0xD100)):
        files[f"{nodes}/{node}/gpu_id"] = f"5{node}"
        files[f"{nodes}/{node}/properties"] = f"location_id {location}\ndomain 0"
    files["sys/bus/pci/devices/0000:c6:00.0/numa_node"] = "1"
    assert gpus(write(tmp_path, files)) == ("amd", [Gpu("0"), Gpu("1", frozenset((8, 9, 12))), Gpu("2")])


@pytest.mark.parametrize(("hierarchy", "names"), [("FLAT", "0 1 2 3"), ("COMPOSITE", "0.0 0.1 1.0 1.1")])
def test_intel_gpus_are_tiles_named_as_the_hierarchy_wants(tmp_path: Path, hierarchy: str, names: str):
    a_desktops_own = "sys/class/drm/card0/device"
    files = {f"{a_desktops_own}/vendor": "0x8086", f"{a_desktops_own}/class": "0x030000"}
    for card in (1, 2):
        files |= {
            f"sys/class/drm/card{card}/device/vendor": "0x8086",
            f"sys/class/drm/card{card}/device/class": "0x038000",
            f"sys/class/drm/card{card}/gt/gt0/id": "0",
            f"sys/class/drm/card{card}/gt/gt1/id": "1",
        }
    vendor, found = gpus(write(tmp_path, files), {"ZE_FLAT_DEVICE_HIERARCHY": hierarchy})
    assert (vendor, [gpu.name for gpu in found]) == ("intel", names.split())
