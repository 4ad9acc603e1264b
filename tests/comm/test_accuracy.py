"""Adversarial numbers on up to 64 ranks: the error stays within its bound, and all ranks hold the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EPS = np.finfo("f4").eps


def buffer(array):
    return (array.ctypes.data, array.size, array.dtype.name)


def mean_on(threads, arrays, level=0):
    def body(session, rank):
        session.create_team(1, 1, level)
        mine = arrays[rank].copy()
        session.allreduce([buffer(mine)], "mean", 1)
        return mine

    results = threads(len(arrays), body)
    assert all(isinstance(result, np.ndarray) for result in results), results
    assert len({result.tobytes() for result in results}) == 1
    return results[0]


# Numbers by their bits, and often ones that cancel, vanish, or overflow.
EDGES = {"u4": [0, 1, 0x00800000, 0x3F7FFFFF, 0x3F800000, 0x4B800000, 0x7F7FFFFF], "u2": [0, 1, 0x0400, 0x3C00, 0x7BFF]}


def finite(bits):
    """Return a strategy for the bits of any finite number whose bits are of type ``bits``."""
    *_, largest = EDGES[bits]
    sign = {"u4": 0x80000000, "u2": 0x8000}[bits]
    magnitudes = st.one_of(st.sampled_from(EDGES[bits]), st.integers(0, largest))
    return st.builds(lambda negative, magnitude: magnitude | sign * negative, st.booleans(), magnitudes)


def on_ranks(data, n, bits, copies=1):
    """Draw an array for each of n ranks, all of one to four numbers, repeated so often."""
    rows = data.draw(st.lists(st.lists(finite(bits), min_size=n, max_size=n), min_size=1, max_size=4))
    columns = np.array(rows, bits).view(bits.replace("u", "f")).T
    return np.tile(columns, copies)


adversarial = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@adversarial
@given(data=st.data(), n=st.sampled_from([2, 3, 5, 8, 16, 64]))
def test_the_error_of_a_float32_mean_is_within_the_bound_of_sequential_summation(threads, data, n):
    # Little data take one way, much take slices in chunks.
    columns = on_ranks(data, n, "u4", data.draw(st.sampled_from([1, 3000])))
    mean = mean_on(threads, list(columns)).astype("f8")
    exact, size = columns.astype("f8").sum(axis=0) / n, np.abs(columns.astype("f8")).sum(axis=0) / n
    finite = np.isfinite(mean)
    bound = n * EPS * size + np.finfo("f4").smallest_subnormal
    assert np.all(np.abs(mean - exact)[finite] <= bound[finite])
    overflows = np.abs(columns.astype("f8")).sum(axis=0) > np.finfo("f4").max
    assert np.all(finite | overflows)


@adversarial
@given(data=st.data(), n=st.sampled_from([2, 7, 32]))
def test_at_level_1_a_float32_mean_is_the_rounded_mean_in_double(threads, data, n):
    columns = on_ranks(data, n, "u4")
    total = columns[0].astype("f8")
    for column in columns[1:]:
        total = total + column
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(mean_on(threads, list(columns), level=1), (total / n).astype("f4"))


@adversarial
@given(data=st.data(), n=st.sampled_from([2, 3, 64]))
def test_a_float16_mean_is_the_float32_mean_rounded_once(threads, data, n):
    columns = on_ranks(data, n, "u2", 50)
    total = columns[0].astype("f4")
    for column in columns[1:]:
        total = total + column.astype("f4")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(mean_on(threads, list(columns)), (total / np.float32(n)).astype("f2"))


@pytest.mark.parametrize("n", [3, 64])
def test_cancellations_and_subnormals_on_many_ranks(threads, n):
    rng = np.random.default_rng(n)
    tiny = np.float32(1e-45)
    arrays = [
        np.concatenate([(rng.normal(size=500) * 10.0 ** rng.integers(-30, 30, 500)).astype("f4"), [tiny] * 3])
        for _ in range(n)
    ]
    arrays[-1][:500] = -np.sum([array[:500].astype("f8") for array in arrays[:-1]], axis=0).astype("f4")
    total = arrays[0].astype("f4").copy()
    for array in arrays[1:]:
        total = total + array.astype("f4")
    mean = mean_on(threads, [array.astype("f4") for array in arrays])
    np.testing.assert_array_equal(mean, total / np.float32(n))


@pytest.mark.parametrize("hosts", [[], ["a", "b", "c", "d"]])
def test_an_inf_or_nan_of_one_of_64_ranks_arrives_on_all(threads, hosts):
    arrays = [np.ones(200, "f4") for _ in range(64)]
    arrays[41][7], arrays[63][199], arrays[5][100] = np.inf, np.nan, -np.inf

    def body(session, rank):
        mine = arrays[rank].copy()
        session.allreduce([buffer(mine)], "mean")
        return mine

    results = threads(64, body, hosts=[hosts[rank % 4] for rank in range(64)] if hosts else [])
    for result in results:
        assert result[7] == np.inf and np.isnan(result[199]) and result[100] == -np.inf
        assert np.isfinite(result).sum() == 197
        assert result.tobytes() == results[0].tobytes()
