"""Checks of dl_comm with CuPy's arrays on a real GPU, which any number of ranks share."""

import cupy as cp
import dl_comm
import numpy as np

_r, _n = dl_comm.get_rank(), dl_comm.get_nranks()


def _drawn(rank, shape, dtype="f4"):
    return (np.random.default_rng(rank).normal(size=shape) * 9).astype(dtype)


def _mean(shape, dtype="f4"):
    return np.mean([_drawn(rank, shape, dtype).astype("f8") for rank in range(_n)], axis=0)


def means_agree_with_float64_for_every_type_and_size():
    for dtype, allowed in {"f8": 1e-12, "f4": 1e-5, "f2": 2e-2}.items():
        for size in (1, 1000, 3_000_001):
            array = cp.asarray(_drawn(_r, size, dtype))
            assert dl_comm.average(array) is array
            assert array.dtype == dtype
            assert np.allclose(cp.asnumpy(array), _mean(size, dtype), rtol=allowed, atol=allowed), (dtype, size)


def gradients_are_new_arrays_and_follow_the_stream_they_are_made_on():
    shapes = [(3, 5), (64,), (1,), (1000, 70)] * 10
    with cp.cuda.Stream(non_blocking=True) as stream:
        work = cp.ones((2000, 2000), "f4")
        for _ in range(20):
            work = work @ work * 1e-4  # what the arrays have to wait for
        arrays = [cp.asarray(_drawn(100 * _r + i, shape)) + 0 * work[0, 0] for i, shape in enumerate(shapes)]
        means = dl_comm.gradients(arrays)
        doubled = [2 * mean for mean in means]  # on the same stream, so after the mean is there
        stream.synchronize()
    for i, shape in enumerate(shapes):
        right = np.mean([_drawn(100 * r + i, shape).astype("f8") for r in range(_n)], axis=0)
        assert isinstance(means[i], cp.ndarray)
        assert means[i].shape == shape
        assert np.allclose(cp.asnumpy(doubled[i]) / 2, right, atol=1e-5), i
        assert np.allclose(cp.asnumpy(arrays[i]), _drawn(100 * _r + i, shape))


def a_broadcast_gives_the_roots_values():
    arrays = [cp.asarray(_drawn(_r, (30, 7), "f8")), cp.arange(5, dtype="i8") + _r]
    dl_comm.broadcast(arrays, _n - 1)
    assert np.array_equal(cp.asnumpy(arrays[0]), _drawn(_n - 1, (30, 7), "f8"))
    assert cp.asnumpy(arrays[1]).tolist() == [i + _n - 1 for i in range(5)]


def what_is_not_contiguous_is_refused_with_its_shape():
    try:
        dl_comm.average(cp.zeros((4, 6), "f4").T[::2])
    except dl_comm.CommError as error:
        assert "(3, 4)" in str(error), error
        assert "contiguous" in str(error), error
    else:
        raise AssertionError("it was taken")
