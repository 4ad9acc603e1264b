"""Sums that are formed on the GPUs, on real ranks over the fake driver: NCCL, CUDA IPC, and the host between nodes.

With a real GPU those ways, too, that ranks can go who share it.
"""

from __future__ import annotations

import pytest
from gpu_programs import ONE, START, failing
from gpus import real_driver

TOGETHER = (
    START
    + """
    from dl_comm import _core
    session, stream = _core.session(), gpu.stream()
    by_mpi = os.environ.get("DL_COMM_GPU_PATH") == "mpi"

    def values(rank, size, dtype):
        numbers = np.random.default_rng(77 + rank).normal(size=size) * 30
        if dtype == "bfloat16":
            return (numbers.astype("f4").view("u4") >> 16).astype("u2")
        return numbers.astype("i8").astype(dtype) if dtype[0] in "iu" else numbers.astype(dtype)

    def wide(array, dtype):
        return (array.astype("u4") << 16).view("f4").astype("f8") if dtype == "bfloat16" else array.astype("f8")

    def reduced(arrays, op):
        buffers = [(a.address, a.size, a.dtype) for a in arrays]
        ticket = session.allreduce_on_gpu(buffers, op, 0, [], stream)
        session.follow_on_gpu(ticket, stream)
        return [gpu.read(a) for a in arrays]

    close = {"float64": 1e-12, "float32": 1e-6, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    for dtype, allowed in close.items():
        for size in (1, 20_001):  # a block holds 8192 float32: several, and a part of one
            array = gpu.array(values(rank, size, dtype), stream, late=0.002, name=dtype)
            there = wide(reduced([array], "mean")[0], dtype)
            terms = [wide(values(r, size, dtype), dtype) for r in range(n)]
            right, largest = np.mean(terms, axis=0), np.max(np.abs(terms), axis=0)
            assert np.all(np.abs(there - right) <= allowed * np.abs(right) + 3e-7 * largest), (dtype, size)
            if path() == "CUDA IPC" or path().startswith("CUDA IPC, "):  # one node: the host's very bits
                host = values(rank, size, dtype)
                session.allreduce([(host.ctypes.data, size, dtype)], "mean")
                assert np.array_equal(there, wide(host, dtype)), (dtype, size)

    # Half types are summed in float32: 2048 and 1 + 1 + 1 are more than 2048, and 60000 four times is no infinity.
    first = gpu.array(np.full(5, 2048 if rank == 0 else 1, "f2"), stream)
    large = gpu.array(np.full(7, 60000, "f2"), stream)
    assert np.all(reduced([first], "sum")[0] == np.float16(2048 + n - 1))
    assert np.all(reduced([large], "mean")[0] == 60000)

    for dtype, op in [("int32", "sum"), ("uint8", "max"), ("int64", "prod"), ("int8", "min"), ("int16", "sum"),
                      ("int32", "mean"), ("float16", "max"), ("float32", "min"), ("float64", "prod")]:
        host = values(rank, 3000, dtype)
        there = reduced([gpu.array(host, stream)], op)[0]
        session.allreduce([(host.ctypes.data, host.size, dtype)], op)
        assert np.allclose(there, host, rtol=1e-14), (dtype, op)

    shapes, several = [1, 64, 15, 1000, 7] * 20, []
    for i, size in enumerate(shapes):
        several.append(gpu.array(values(rank * 1000 + i, size, ("float32", "float16")[i % 3 == 0]), stream))
    for i, found in enumerate(reduced(several, "sum")):
        terms = [values(r * 1000 + i, shapes[i], several[i].dtype).astype("f8") for r in range(n)]
        assert np.allclose(found, np.sum(terms, axis=0), rtol=2e-3, atol=2e-2), i

    sent = gpu.array(values(rank, 30_001, "float32"), stream, late=0.01)
    dl_comm.broadcast([sent], n - 1)
    assert np.array_equal(gpu.read(sent), values(n - 1, 30_001, "float32"))

    import threading
    array, other = gpu.array(values(rank, 30_000, "float32"), stream), gpu.array(values(rank, 500, "float16"), stream)
    gpu.read(array)
    gpu.forget()
    returned, in_time = threading.Event(), []
    gpu.later(stream, lambda: in_time.append(returned.wait(60)))  # the stream goes on once the calls have returned
    buffers = [(a.address, a.size, a.dtype) for a in (array, other)]
    ticket = session.allreduce_on_gpu(buffers, "mean", 0, [], stream)
    if by_mpi:  # then the host waits where a stream follows
        returned.set()
    session.follow_on_gpu(ticket, stream)
    returned.set()
    calls, threads = gpu.calls(), gpu.threads()
    right = np.mean([values(r, 30_000, "float32").astype("f8") for r in range(n)], axis=0)
    assert np.allclose(gpu.read(array), right, atol=1e-5)
    waited = f"it did not wait: {in_time} on {threads} thread{'s' * (threads > 1)},"
    print(f"rank {rank} is right by {path()}; {waited}", *sorted(set(calls)), flush=True)
"""
)

ENQUEUED = {
    "cuEventCreate",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuStreamIsCapturing",
}
STAGED = {"cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"}
NCCL = {"ncclGroupStart", "ncclGroupEnd", "ncclReduceScatter", "ncclAllGather"}
IPC = {"cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2", "cuMemcpyDtoDAsync_v2"}
SHARED = "since ranks 0 and 1 share a GPU"
TWO_NODES = {"HOSTS": "a,a,b,b"}


OWN = {"OWN_GPU": "1"}
WITHIN = "within the nodes and the host between them"


@pytest.mark.parametrize(
    ("n", "variables", "path", "calls"),
    [
        (3, OWN, "NCCL 2.21.5", ENQUEUED | NCCL | {"ncclAllReduce"}),
        (4, OWN | TWO_NODES, f"NCCL 2.21.5 {WITHIN}", ENQUEUED | NCCL | STAGED),
        (3, {}, f"CUDA IPC, {SHARED}", ENQUEUED | IPC),
        (4, TWO_NODES, f"CUDA IPC {WITHIN}, {SHARED}", ENQUEUED | IPC | STAGED),
    ],
)
def test_every_way_gives_the_right_numbers_and_waits_for_no_gpu(fake_ranks, n, variables, path, calls):
    more = {"DL_COMM_PIPELINE_CHUNK_KB": "1", "FAKE_CUDA_DELAY_US": "50", **variables}
    ended = fake_ranks(n, TOGETHER, **more)
    lines = ended.lines("rank")
    assert len(lines) == n, ended.output
    for rank, line in enumerate(lines):
        start = f"rank {rank} is right by {path}; it did not wait: [True] on 1 thread, "
        assert line.startswith(start), line
        assert set(line.removeprefix(start).split()) == calls


@pytest.mark.parametrize(
    ("n", "variables", "path"),
    [
        (2, {"DL_COMM_GPU_PATH": "ipc"}, "CUDA IPC"),
        (3, {"DL_COMM_GPU_PATH": "ipc"}, "CUDA IPC"),
        (4, {"DL_COMM_GPU_PATH": "ipc", **TWO_NODES}, f"CUDA IPC {WITHIN}"),
        (3, {"DL_COMM_GPU_PATH": "staged"}, "the host, as DL_COMM_GPU_PATH says"),
    ],
)
@pytest.mark.parametrize("chunk", ["1", "256"])
def test_ranks_that_share_a_real_gpu_get_the_right_numbers_and_do_not_wait(
    job, any_mpi, programs, n, variables, path, chunk
):
    more = {"DL_COMM_CUDA_LIBRARY": real_driver(), "DL_COMM_PIPELINE_CHUNK_KB": chunk, **variables, **programs}
    ended = job(any_mpi, n, TOGETHER, **more)
    lines = ended.lines("rank")
    assert len(lines) == n, ended.output
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank} is right by {path}; it did not wait: [True]"), line


MPI = {"cuEventQuery", "MPI_Isend_of_a_GPU", "MPI_Irecv_of_a_GPU"}
BY_MPI, WITHIN_IPC = "MPI, from GPU to GPU", " between the nodes, and CUDA IPC within them"


@pytest.mark.parametrize(
    ("n", "hosts", "path", "calls"),
    [(4, "a,a,b,b", f"{BY_MPI}{WITHIN_IPC}", MPI | {"cuMemcpyDtoDAsync_v2"}), (3, "a,b,c", BY_MPI, MPI)],
)
def test_an_mpi_that_takes_the_gpus_memory_gets_it_and_no_stream_waits(fake_ranks, aware, n, hosts, path, calls):
    more = {"DL_COMM_PIPELINE_CHUNK_KB": "1", "FAKE_CUDA_DELAY_US": "50", "HOSTS": hosts, **aware}
    ended = fake_ranks(n, TOGETHER, lacks=["WITHOUT_MEMORY_OPERATIONS"], **more)
    lines = ended.lines("rank")
    assert len(lines) == n, ended.output
    for rank, line in enumerate(lines):
        start = f"rank {rank} is right by {path}; it did not wait: [True] on 2 threads, "
        assert line.startswith(start), line
        assert set(line.removeprefix(start).split()) == ENQUEUED | calls


IS_MPI = "DL_COMM_GPU_PATH is mpi, but"
SAYS_NO = "'s MPI does not say that it takes memory of GPUs:"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"HOSTS": "a,a"}, "rank {} is right by CUDA IPC, since ranks 0 and 1 share a GPU"),
        (
            {"DL_COMM_GPU_PATH": "auto"},
            "the host, since every node has one rank; DL_COMM_GPU_PATH=nccl takes NCCL "
            "2.21.5 over all ranks; DL_COMM_GPU_PATH=mpi gives MPI the GPUs' memory",
        ),
        ({"DL_COMM_MPI_LIBRARY": ""}, f"{IS_MPI} rank 0{SAYS_NO} MPIX_Query_cuda_support gives 0; leave it out, and"),
        ({"FAKE_MPI_CRAY": "1"}, f"{IS_MPI} rank 0{SAYS_NO} MPICH_GPU_SUPPORT_ENABLED is not 1"),
        ({"FAKE_MPI_CRAY": "1", "MPICH_GPU_SUPPORT_ENABLED": "1"}, f"rank {{}} is right by {BY_MPI}"),
        ({"FAKE_MPI_WRONG": "1"}, f"{IS_MPI} {BY_MPI} failed: rank 0: a trial gave 2.500000 where 1.500000 is right"),
        ({"FAKE_MPI_SILENT": "1", "DL_COMM_TIMEOUT_S": "8"}, "a trial of MPI with the GPUs' memory: rank "),
    ],
)
def test_mpi_gets_the_gpus_memory_only_where_it_says_so_and_a_trial_is_right(fake_ranks, aware, variables, said):
    ended = fake_ranks(2, ONE, **{"HOSTS": "a,b", **aware, **variables})
    lines = ended.lines("rank")
    assert len(lines) == 2, ended.output
    for rank, line in enumerate(lines):
        assert said.format(rank) in line, line


NO_NCCL = "NCCL 2.21.5 failed: rank 1: "
REFUSED = "NCCL refused {}: unhandled system error"
NO_IPC = "and CUDA IPC failed: rank 1: CUDA's driver refused {}: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
WRONG, IS_WRONG = {"FAKE_NCCL_WRONG": "1"}, "a trial gave 2.500000 where 1.500000 is right"


@pytest.mark.parametrize(
    ("fails", "variables", "path"),
    [
        (("ncclCommInitRankConfig", 1), OWN, f"CUDA IPC, since {NO_NCCL}{REFUSED}"),
        (("cuIpcOpenMemHandle_v2", 1), {}, f"the host, {SHARED}, {NO_IPC}"),
        (("cuIpcGetMemHandle", 1), OWN | WRONG, f"the host, since {NO_NCCL}{IS_WRONG}, {NO_IPC}"),
    ],
)
def test_what_fails_on_one_rank_is_left_by_all_who_say_why(fake_ranks, fails, variables, path):
    lines = fake_ranks(2, failing(*fails, 2), **variables).lines("rank")
    assert lines == [f"rank {r} is right by {path.format(fails[0])}" for r in range(2)]


def test_a_gpu_that_does_not_tell_how_long_a_trial_took_is_left_for_the_host(fake_ranks):
    lines = fake_ranks(2, failing("cuEventElapsedTime", 2, 700)).lines("rank")
    why = f"{SHARED}, and CUDA IPC failed: rank 1: CUDA's driver refused cuEventElapsedTime: CUDA_ERROR_OTHER (another)"
    assert lines == [f"rank {r} is right by the host, {why}" for r in range(2)]


def test_an_nccl_that_joins_nobody_is_left_by_all_once_the_first_has_waited_long_enough(fake_ranks):
    absent = {"FAKE_NCCL_ABSENT": "1", "DL_COMM_TIMEOUT_S": "8"}
    lines = fake_ranks(2, failing("no_function", 1, 2), **OWN, **absent).lines("rank")
    told = "CUDA IPC, since NCCL 2.21.5 failed: rank {}: after 8 s it is still not so that NCCL has joined the ranks"
    either = [[f"rank {rank} is right by {told.format(first)}" for rank in range(2)] for first in range(2)]
    assert lines in either  # both wait from the same moment on


AGAIN = """
        dl_comm.average(array)
        dl_comm.barrier()
        if rank == 1:
            gpu.fail("cuLaunchKernel", 2, 700)
        try:
            dl_comm.average(array)
        except dl_comm.CommError as error:
            print(f"rank {rank} got at once: {error.message}", flush=True)
        gpu.read(array)
        dl_comm.average(array)
"""


def test_a_kernel_that_fails_on_one_rank_leaves_no_gpu_waiting(fake_ranks):
    program = ONE.replace("        dl_comm.average(array)\n", AGAIN, 1)
    ended = fake_ranks(2, program, DL_COMM_TIMEOUT_S="20")
    lines = ended.lines("rank")
    why = "CUDA's driver refused cuLaunchKernel: CUDA_ERROR_OTHER (another)"
    assert any(line.startswith("rank 1 got at once") and why in line for line in lines), ended.output
    told = [line for line in lines if line.startswith("rank 0 got")]
    assert told, ended.output
    assert "rank 1 gave up on" in told[0]
    assert why in told[0]
