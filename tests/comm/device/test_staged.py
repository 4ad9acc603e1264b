"""Arrays on GPUs, reduced by the host: right numbers in stream order, whatever is late; ranks are threads here."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from dl_comm import CommError
from gpus import Gpu

TYPES = ["float64", "float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8"]
SIZES = [1, 1000, 9000]  # 256 elements of 8 bytes are a chunk here: many chunks, and a part of one


def widened(values: np.ndarray, dtype: str) -> np.ndarray:
    """As float64; bfloat16 lies in uint16."""
    return (values.astype("u4") << 16).view("f4").astype("f8") if dtype == "bfloat16" else values.astype("f8")


def drawn(rank: int, size: int, dtype: str) -> np.ndarray:
    numbers = np.random.default_rng(100 + rank).normal(size=size) * 30
    if dtype == "bfloat16":
        return (numbers.astype("f4").view("u4") >> 16).astype("u2")
    return numbers.astype("i8").astype(dtype) if dtype[0] in "iu" else numbers.astype(dtype)


def on_ranks(threads, driver, n, body, **how):
    """body(gpu, session, rank) on n ranks that are threads, with chunks of 2 KB."""

    def rank_body(session, rank):
        return body(Gpu(driver), session, rank)

    settings = {"pipeline_chunk_kb": 2, "threads": 2, "num_cuda_streams": 2, **how}
    results = threads(n, rank_body, cuda_library=driver, gpu_path="staged", **settings)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def mean_of(gpu, session, array, op="mean"):
    """Reduce in place; what the array's stream finds in it afterwards."""
    buffer = (array.address, array.size, array.dtype)
    session.follow_on_gpu(session.allreduce_on_gpu([buffer], op, 0, [], array.stream), array.stream)
    return gpu.read(array)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_reduced_as_on_the_host(threads, driver, n, dtype):
    def body(gpu, session, rank):
        stream = gpu.stream()
        for op in ("mean", "sum", "max"):
            for size in SIZES:
                host = drawn(rank, size, dtype)
                session.allreduce([(host.ctypes.data, size, dtype)], op)
                there = mean_of(gpu, session, gpu.array(drawn(rank, size, dtype), stream, name=dtype), op)
                assert np.array_equal(there, host), (op, size)

    on_ranks(threads, driver, n, body)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("n", [2, 4])
def test_a_reduction_begins_when_its_stream_is_ready_and_the_stream_goes_on_after_it(threads, driver, n, streams):
    def body(gpu, session, rank):
        stream, other = gpu.stream(), gpu.stream()
        for size in (5, 70_000):
            expected = np.mean([drawn(r, size, "float32").astype("f8") for r in range(n)], axis=0)
            # The values come 0.15 s late on another stream, and not at all before that: NaN.
            array = gpu.array(drawn(rank, size, "float32"), stream, late=0.15 if rank == n - 1 else 0.02)
            buffer = (array.address, size, "float32")
            ticket = session.allreduce_on_gpu([buffer], "mean", 0, [], stream)
            session.follow_on_gpu(ticket, other)
            array.stream = other
            assert np.allclose(gpu.read(array), expected, rtol=1e-6, atol=1e-5)
            session.await_on_gpu(ticket)

    on_ranks(threads, driver, n, body, num_cuda_streams=streams)


def test_many_small_arrays_of_several_types_travel_together(threads, driver):
    shapes = [(1,), (64,), (3, 5), (1000,), (7,)] * 30

    def body(gpu, session, rank):
        stream = gpu.stream()
        hosts, arrays = [], []
        for i, shape in enumerate(shapes):
            dtype = ("float32", "float16")[i % 3 == 0]
            values = drawn(rank * 1000 + i, int(np.prod(shape)), dtype).reshape(shape)
            hosts.append(values.copy())
            arrays.append(gpu.array(values, stream))
        if rank == 0:
            gpu.forget()
        ticket = session.allreduce_on_gpu([(a.address, a.size, a.dtype) for a in arrays], "mean", 0, [], stream)
        session.follow_on_gpu(ticket, stream)
        session.await_on_gpu(ticket)
        calls = gpu.calls()
        session.allreduce([(h.ctypes.data, h.size, h.dtype.name) for h in hosts], "mean")
        for array, host in zip(arrays, hosts, strict=True):
            assert np.array_equal(gpu.read(array), host)
        return calls

    calls = on_ranks(threads, driver, 2, body, pipeline_chunk_kb=64)[0]
    if calls:
        assert calls.count("cuMemcpyDtoHAsync_v2") == 0  # the kernel has gathered them
        assert 0 < calls.count("cuLaunchKernel") < len(shapes) / 4


def test_a_broadcast_gives_every_rank_the_roots_bits(threads, driver):
    def body(gpu, session, rank):
        stream = gpu.stream()
        values = drawn(rank, 9001, "float32")
        values[:7] = np.nan
        one, other = gpu.array(values, stream, late=0.05), gpu.array(drawn(rank, 13, "uint8"), stream)
        buffers = [(a.address, a.size, a.dtype) for a in (one, other)]
        session.follow_on_gpu(session.broadcast_on_gpu(buffers, 1, 0, [], stream), stream)
        return gpu.read(one).tobytes() + gpu.read(other).tobytes()

    results = on_ranks(threads, driver, 3, body)
    root = drawn(1, 9001, "float32")
    root[:7] = np.nan
    assert set(results) == {root.tobytes() + drawn(1, 13, "uint8").tobytes()}


def test_reductions_that_are_under_way_together_do_not_touch_each_other(threads, driver):
    def body(gpu, session, rank):
        streams = [gpu.stream(), gpu.stream()]
        arrays = [gpu.array(drawn(rank * 50 + i, 3000 + i, "float32"), streams[i % 2], late=0.002) for i in range(20)]
        tickets = []
        for array in arrays:
            buffer = (array.address, array.size, array.dtype)
            tickets.append(session.allreduce_on_gpu([buffer], "mean", 0, [], array.stream))
        for ticket, array in reversed(list(zip(tickets, arrays, strict=True))):
            session.follow_on_gpu(ticket, array.stream)
        for i, array in enumerate(arrays):
            pair = [drawn(r * 50 + i, 3000 + i, "float32").astype("f8") for r in range(2)]
            assert np.allclose(gpu.read(array), np.mean(pair, axis=0), rtol=1e-6, atol=1e-5)

    on_ranks(threads, driver, 2, body)


def test_over_several_nodes_and_with_a_second_opinion(threads, driver):
    def body(gpu, session, rank):
        array = gpu.array(drawn(rank, 20_000, "float32"), gpu.stream())
        expected = np.mean([drawn(r, 20_000, "float32").astype("f8") for r in range(4)], axis=0)
        assert np.allclose(mean_of(gpu, session, array), expected, rtol=1e-5, atol=1e-4)

    on_ranks(threads, driver, 4, body, hosts=["a", "a", "b", "b"], check=1e-3)


def test_a_stream_that_is_captured_into_a_graph_is_refused_by_all_ranks(threads, fake):
    def body(gpu, session, rank):
        array = gpu.array(drawn(rank, 9000, "float32"), gpu.stream())
        said = []
        for stream in (array.stream, 0):  # CUDA refuses the default stream while another is captured
            gpu.driver.fake_capture(ctypes.c_void_p(array.stream), 1)
            with pytest.raises(CommError, match="the stream is being captured into a CUDA graph") as caught:
                session.allreduce_on_gpu([(array.address, array.size, "float32")], "mean", 0, [], stream)
            said.append(caught.value.message)
            session.barrier()
            gpu.driver.fake_capture(ctypes.c_void_p(array.stream), 0)
            session.barrier()
            mean = mean_of(gpu, session, array)
        assert np.allclose(mean, sum(drawn(r, 9000, "float32") for r in (0, 1)) / 2, atol=1e-4)
        return said

    first, second = on_ranks(threads, fake(), 2, body)
    assert first[0] == second[0]
    assert first[0].startswith("rank 0 cannot reduce on its GPU: " + first[1])
