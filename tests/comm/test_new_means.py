"""gradients() of NumPy arrays: means as new arrays, read where the caller's lie, on one node and between several."""

from __future__ import annotations

import numpy as np
import pytest

LAYOUTS = {"one node": "aaaa", "two of two": "aabb", "three of one": "abc", "two of one": "ab", "uneven": "aab"}
LENGTHS = (1, 700, 20_001, 90_000, 700_003)  # through the agreement, partly so, in one piece, in several


def average(threads, pattern, arrays, **how):
    """Return the list of means of rank 0, which all ranks got, and check that nobody's own arrays changed."""

    def body(session, rank):
        before = [array.copy() for array in arrays[rank]]
        for _ in range(2):
            means = session.means(arrays[rank])
        assert all(np.array_equal(array, old) for array, old in zip(arrays[rank], before, strict=True))
        return means

    results = threads(len(pattern), body, hosts=list(pattern), **how)
    assert all(isinstance(result, list) for result in results), results
    for others in results[1:]:
        assert all(np.array_equal(one, other) for one, other in zip(results[0], others, strict=True))
    return results[0]


@pytest.mark.parametrize("pattern", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("stage_kb", [16, 2048])
def test_means_are_right_the_same_everywhere_and_leave_the_arrays_alone(threads, pattern, stage_kb):
    n = len(pattern)
    for length in LENGTHS:
        arrays = [[np.random.default_rng(rank).normal(size=length).astype("f4")] for rank in range(n)]
        expected = np.mean(np.array([array[0] for array in arrays], "f8"), axis=0)
        mean = average(threads, pattern, arrays, stage_kb=stage_kb)[0]
        np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pattern", LAYOUTS.values(), ids=LAYOUTS)
def test_shapes_and_types_are_kept_and_many_arrays_go_in_one_call(threads, pattern):
    n = len(pattern)
    shapes = {"f4": [(), (3,), (0, 4), (300, 1000)], "f8": [(2, 1, 5)], "f2": [(40_000,)], "i8": [(7, 11)]}
    arrays = [
        [
            np.array(np.arange(np.prod(shape)).reshape(shape) % 50 + 2 * rank, dtype)
            for dtype in shapes
            for shape in shapes[dtype]
        ]
        for rank in range(n)
    ]
    for array, mean in zip(arrays[0], average(threads, pattern, arrays), strict=True):
        assert (mean.shape, mean.dtype, type(mean)) == (array.shape, array.dtype, np.ndarray)
        assert mean.flags.writeable and mean.flags.c_contiguous
        assert np.array_equal(mean, array + array.dtype.type(n - 1))


@pytest.mark.parametrize("pattern", ["aaaa", "aabb", "abcd"])
@pytest.mark.parametrize("how", [{"wire": "*:ring"}, {"wire_dtype": "float16"}, {"check": 1e-2}], ids=str)
def test_settings_that_say_how_data_go_hold_for_new_arrays_too(threads, pattern, how):
    arrays = [[np.full(50_001, rank, "f4"), np.full(9, rank, "f4")] for rank in range(4)]
    for mean in average(threads, pattern, arrays, **how):
        np.testing.assert_allclose(mean, 1.5, rtol=1e-3)


def test_what_the_core_cannot_take_is_left_to_the_interpreter():
    import dl_comm
    from dl_comm import _core

    dl_comm.init()
    plain = np.arange(12.0).reshape(3, 4)
    others = [
        plain.T,
        plain[:, ::2],
        plain.astype(">f8"),
        plain.astype("c16"),
        plain > 3,
        np.ma.array(plain),
        None,
        1.0,
    ]
    for other in others:
        assert _core.means([plain, other]) is None
    assert _core.means(iter([plain])) is None
    frozen = plain.copy()
    frozen.flags.writeable = False
    for array in (plain.T, plain[:, ::2], plain.astype(">f8"), frozen):
        mean = dl_comm.gradients((array, array))[1]
        assert np.array_equal(mean, array) and mean.flags.writeable and not np.shares_memory(mean, array)


def test_memory_of_results_serves_the_next_ones_and_never_two_at_once():
    import dl_comm

    dl_comm.init()
    shapes = [(1 << 19,), (3, 1 << 18), (1 << 19,)]
    held = []
    for step in range(4):
        means = dl_comm.gradients([np.full(shape, step, "f4") for shape in shapes])
        assert all(np.all(mean == step) for mean in means)
        held.append(means)
    places = {mean.ctypes.data for means in held for mean in means}
    assert len(places) == 12 and all(np.all(mean == step) for step, means in enumerate(held) for mean in means)
    view = held[0][1][1:]
    del means, held
    again = dl_comm.gradients([np.full(shape, 9, "f4") for shape in shapes])
    assert {mean.ctypes.data for mean in again} < places
    assert np.all(view == 0)  # what is still looked at is nobody else's


@pytest.mark.parametrize("hosts", ["aaaa", "aabb", "abcd"])
def test_processes_average_new_arrays_and_are_told_where_these_differ(job, any_mpi, hosts):
    program = f"""
        import os
        rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
        os.environ["DL_COMM_HOST"] = "{hosts}"[rank]
        import numpy as np, dl_comm
        dl_comm.init(2)
        arrays = [np.random.default_rng(one).normal(size=2_100_001).astype("f4") for one in range(4)]
        expected = np.mean(np.array(arrays, "f8"), axis=0)
        for length in (1, 5000, 60_000, 300_000, 2_100_001):
            mean = dl_comm.gradients([arrays[rank][:length]])[0]
            assert np.allclose(mean, expected[:length], atol=1e-5), length
            assert dl_comm.check_buffers_match([mean]) == 0
            odd = np.zeros((length + (rank == 3), 1), "f4")
            try:
                dl_comm.gradients([odd])
            except dl_comm.CommError as error:
                assert f"({{length}}, 1) float32" in str(error) and f"({{length + 1}}, 1) float32" in str(error), error
            else:
                raise SystemExit("nobody was told")
        print("rank", rank, "right", flush=True)
    """
    ended = job(any_mpi, 4, program)
    assert (len(ended.lines("rank")), ended.code) == (4, 0), ended.output
