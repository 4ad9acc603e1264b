"""The Cray face with arrays on GPUs, on real ranks: what CuPy and others hand over, the choice of path, and errors."""

from __future__ import annotations

import re

import pytest
from gpu_programs import ONE, START, failing
from gpus import HERE, real_driver
from on_gpus import checks_in, said_on_a_real_gpu

ALONE = (
    START
    + """
    one = gpu.array(drawn(0, 9), 0)
    assert dl_comm.average(one) is one
    assert np.array_equal(gpu.read(one), drawn(0, 9))
    print("rank 0 is right")
"""
)

FACE = (
    START
    + """
    stream = gpu.stream()
    late, here = gpu.array(drawn(rank, 30_000), stream, late=0.05), drawn(rank, 500)
    means = dl_comm.gradients([late, None, here, gpu.array(drawn(rank, (20, 50), "f2"), stream)])
    assert np.allclose(gpu.read(means[0]), mean(30_000), atol=1e-5)
    assert means[1] is None and np.allclose(means[2], mean(500), atol=1e-5)
    assert np.allclose(gpu.read(means[3]), mean((20, 50), "f2"), atol=2e-2) and means[3].shape == (20, 50)
    assert np.array_equal(gpu.read(late), drawn(rank, 30_000))  # gradients() gives new arrays
    assert dl_comm.average(late) is late
    assert np.allclose(gpu.read(late), mean(30_000), atol=1e-5)
    other = gpu.array(drawn(rank, 777), stream)
    dl_comm.broadcast([other, here], 1)
    assert np.array_equal(gpu.read(other), drawn(1, 777))
    plain = OnlyDlpack(gpu.array(drawn(rank, (30, 70)), 0))  # as TensorFlow's and others' arrays
    (there,) = dl_comm.gradients([plain])
    assert np.allclose(gpu.read(there.array), mean((30, 70)), atol=1e-5) and there is not plain
    dl_comm.broadcast([plain], 1)
    plain.array.stream = stream  # another one: the host has waited, since nobody knew of it
    assert np.array_equal(gpu.read(plain.array), drawn(1, (30, 70)))
    own = gpu.array(drawn(rank, 5), stream)
    assert dl_comm.check_buffers_match([other, own, here]) == 1
    assert np.array_equal(here, drawn(1, 500))
    dl_comm.config_team(0, 0, 1, 3, 0, 0)  # the second call returns the mean of the first
    first = dl_comm.gradients([gpu.array(drawn(rank, 64), stream)])
    second = dl_comm.gradients([gpu.array(drawn(rank, 64) + 1, stream)])
    third = dl_comm.gradients([gpu.array(drawn(rank, 64) + 2, stream)])
    print(f"rank {rank} is right by {path()}")
"""
)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_arrays_with_the_cuda_array_interface_are_averaged_and_broadcast(ranks, n):
    if n == 1:
        assert ranks(1, ALONE).lines("rank") == ["rank 0 is right"]
        return
    ended = ranks(n, FACE, DL_COMM_GPU_PATH="staged", DL_COMM_PIPELINE_CHUNK_KB="8")
    expected = [f"rank {r} is right by the host, as DL_COMM_GPU_PATH says" for r in range(n)]
    assert ended.lines("rank") == expected, ended.output


def test_a_driver_that_cannot_wait_in_a_stream_is_served_by_functions_of_the_host(fake_ranks):
    more = {"DL_COMM_PIPELINE_CHUNK_KB": "8", "DL_COMM_NUM_CUDA_STREAMS": "2", "FAKE_CUDA_DELAY_US": "200"}
    ended = fake_ranks(3, FACE, ["WITHOUT_MEMORY_OPERATIONS"], **more)
    why = "ranks 0 and 1 share a GPU, and CUDA IPC failed: rank 0: the driver's streams cannot wait for a number"
    expected = [f"rank {r} is right by the host, since {why} (cuStreamWaitValue32)" for r in range(3)]
    assert ended.lines("rank") == expected, ended.output


def test_ranks_with_a_gpu_each_go_through_nccl(fake_ranks):
    ended = fake_ranks(2, FACE, OWN_GPU="1", FAKE_CUDA_DELAY_US="200")
    assert ended.lines("rank") == [f"rank {r} is right by NCCL 2.21.5" for r in range(2)], ended.output


NO_NCCL = {"DL_COMM_NCCL_LIBRARY": "/none.so"}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OWN_GPU": "1", "DL_COMM_GPU_PATH": "staged"}, "is right by the host, as DL_COMM_GPU_PATH says"),
        ({}, "is right by CUDA IPC, since ranks 0 and 1 share a GPU"),
        (
            {"FAKE_CUDA_ELAPSED_US": "745"},
            "is right by the host, since ranks 0 and 1 share a GPU, and CUDA IPC is slow: a "
            "sum takes 745 us where ranks have a GPU in time slices; NVIDIA's MPS ends that",
        ),
        ({"FAKE_CUDA_ELAPSED_US": "745", "DL_COMM_GPU_PATH": "ipc"}, "is right by CUDA IPC"),
        (
            {"FAKE_CUDA_ELAPSED_US": "745", "OWN_GPU": "1", "DL_COMM_NCCL_LIBRARY": "/none.so"},
            "is right by CUDA IPC, since",
        ),
        (
            {"HOSTS": "a,b", "DL_COMM_GPU_PATH": "ipc"},
            "got: DL_COMM_GPU_PATH is ipc, but every node has one rank; leave",
        ),
        ({"HOSTS": "a,b"}, "the host, since every node has one rank; DL_COMM_GPU_PATH=nccl takes NCCL 2.21.5 over"),
        ({"OWN_GPU": "1", "HOSTS": "a,b", "DL_COMM_GPU_PATH": "nccl"}, "is right by NCCL 2.21.5"),
        ({"OWN_GPU": "1", "DL_COMM_CHECK": "1e-3"}, "the host, since DL_COMM_CHECK compares what the host reduces"),
        ({"DL_COMM_GPU_PATH": "nccl"}, "got: DL_COMM_GPU_PATH is nccl, but ranks 0 and 1 share a GPU; leave it"),
        ({"OWN_GPU": "1", "FAKE_NCCL_VERSION": "20900"}, "right by CUDA IPC, since rank 0 has no NCCL: NCCL 2.9.0 ("),
        ({"OWN_GPU": "1", **NO_NCCL}, "is right by CUDA IPC, since rank 0 has no NCCL: NCCL is not here: /none.so"),
        ({"OWN_GPU": "1", "DL_COMM_GPU_PATH": "nccl", **NO_NCCL}, "is nccl, but rank 0 has no NCCL: NCCL is not here"),
    ],
)
def test_the_path_is_chosen_by_what_all_ranks_have(fake_ranks, variables, said):
    lines = fake_ranks(2, ONE, **variables).lines("rank")
    assert len(lines) == 2
    assert all(said in line for line in lines), lines


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            ("cuMemHostRegister_v2", 1, 2),
            "KiB of pinned memory: CUDA's driver refused "
            "cuMemHostRegister_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)",
        ),
        (("cuMemHostAlloc", 2, 2), "of pinned memory: CUDA's driver refused cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_memory_that_one_rank_lacks_is_an_error_on_all(fake_ranks, where, said):
    ended = fake_ranks(2, failing(*where), DL_COMM_PIPELINE_CHUNK_KB="4")
    lines = ended.lines("rank")
    assert len(lines) == 2, ended.output
    assert all(said in line for line in lines), lines


def test_a_copy_that_fails_on_one_rank_ends_the_reduction_on_all(fake_ranks):
    more = {"DL_COMM_PIPELINE_CHUNK_KB": "4", "DL_COMM_GPU_PATH": "staged"}
    ended = fake_ranks(2, failing("cuMemcpyDtoHAsync_v2", 1, 700), **more)
    first, second = ended.lines("rank")
    assert "rank 0" in first
    assert re.search(
        r"rank 1 gave up on team 0, call \d+, allreduce \(mean\) on a GPU of \(5000,\): CUDA's driver", first
    ), first
    assert "rank 1 got: CUDA's driver refused cuMemcpyDtoHAsync_v2: CUDA_ERROR_OTHER" in second


@pytest.mark.parametrize(
    ("lacks", "variables", "said"),
    [
        (["TOO_OLD"], {}, "rank 0 cannot reduce on its GPU: CUDA's driver is too old: "),
        ([], {"DL_COMM_CUDA_LIBRARY": "/none.so"}, "rank 0 cannot reduce on its GPU: CUDA's driver is not here: /"),
        ([], {"FAKE_CUDA_INIT": "100"}, "refused cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable"),
    ],
)
def test_a_driver_that_is_missing_or_too_old_is_named(fake_ranks, fake, lacks, variables, said):
    # The arrays are those of a driver that works; dl_comm is given the other.
    hidden = "code = os.environ.pop('FAKE_CUDA_INIT', '0')\n    gpu = Gpu(os.environ['GOOD'])"
    program = ONE.replace("gpu = Gpu()", hidden + "\n    os.environ['FAKE_CUDA_INIT'] = code")
    ended = fake_ranks(2, program, lacks, GOOD=fake(), **variables)
    lines = ended.lines("rank")
    assert len(lines) == 2, ended.output
    assert all(said in line for line in lines), lines


def test_different_arrays_on_the_ranks_are_named_on_all(fake_ranks):
    program = ONE.replace("drawn(rank, 5000)", "drawn(rank, 5000 + rank)")
    lines = fake_ranks(2, program).lines("rank")
    assert len(lines) == 2
    said = "array 0 is (5000,) float32, 5000 elements on rank 0 but (5001,) float32, 5001 elements on rank 1"
    assert all(said in line for line in lines), lines


def test_a_rank_that_brings_its_array_on_the_host_is_told(fake_ranks):
    program = ONE.replace("array = gpu.array(", "array = drawn(rank, 5000) if rank else gpu.array(")
    lines = fake_ranks(2, program).lines("rank")
    assert len(lines) == 2
    assert all("rank 0 calls the ranks' GPUs, rank 1 calls allreduce (mean)" in line for line in lines), lines


def test_no_thread_but_the_frameworks_calls_cuda_and_none_waits_for_it(fake_ranks):
    program = (
        START
        + """
    from dl_comm import _core
    stream = gpu.stream()
    array = gpu.array(drawn(rank, 200_000), stream)
    dl_comm.average(array)
    gpu.read(array)
    gpu.forget()
    import threading
    returned, in_time = threading.Event(), []
    gpu.later(stream, lambda: in_time.append(returned.wait(60)))  # the stream goes on once the calls have returned
    ticket = _core.session().allreduce_on_gpu([(array.address, array.size, "float32")], "mean", 0, [], stream)
    _core.session().follow_on_gpu(ticket, stream)
    returned.set()
    calls, threads = gpu.calls(), gpu.driver.fake_threads()
    assert np.allclose(gpu.read(array), mean(200_000), atol=1e-5)
    print(f"rank {rank} did not wait: {in_time} on {threads} thread", sorted(set(calls)), flush=True)
    """
    )
    ended = fake_ranks(2, program, DL_COMM_GPU_PATH="staged")
    calls = [
        "cuEventCreate",
        "cuEventRecord",
        "cuLaunchHostFunc",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuStreamIsCapturing",
        "cuStreamWaitEvent",
        "cuStreamWaitValue32_v2",
        "cuStreamWriteValue32_v2",
    ]
    assert ended.lines("rank") == [f"rank {r} did not wait: [True] on 1 thread {calls}" for r in (0, 1)], ended.output


CUPY = "cupy_on_real_gpu.py"


@pytest.mark.parametrize(("n", "path"), [(1, "auto"), (2, "auto"), (3, "staged")])
@pytest.mark.parametrize("check", checks_in(HERE, (CUPY,)))
def test_arrays_of_cupys_on_a_real_gpu(check, n, path):
    real_driver()
    pytest.importorskip("cupy")
    said = said_on_a_real_gpu(n, path, CUPY)
    assert f"passed {check}" in said.splitlines(), said[-8000:]
