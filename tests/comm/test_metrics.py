"""Metric objects in the manner of Keras: their variables are sums over samples, taken out and put back."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from dl_comm.reduction.metrics import is_metric, put_state, state_of


class Variable:
    def __init__(self, value, dtype="f4"):
        self.value = np.array(value, dtype)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.value)

    def assign(self, value):
        assert value.dtype == self.value.dtype
        self.value = value


class Mean:
    def __init__(self):
        self.variables = [Variable(0.0), Variable(0, "i8")]

    def update_state(self, number):
        self.variables[0].value = self.variables[0].value + np.float32(number)
        self.variables[1].value = self.variables[1].value + 1

    def result(self):
        return self.variables[0].value / self.variables[1].value


def test_metrics_are_told_by_what_they_offer():
    one = Mean()
    assert is_metric(one) and is_metric([one, Mean()]) and is_metric({"a": one}) and is_metric({"a": [one]})
    for other in (3, "metric", [], {}, [one, 3], {"a": one, "b": 1.0}, np.zeros(2), None):
        assert not is_metric(other)


def test_the_state_is_apart_from_the_metric_and_comes_back_in_its_dtypes():
    mean = Mean()
    mean.update_state(4)
    state = state_of(mean)
    mean.update_state(6)
    assert [float(a) for a in state] == [4, 1]
    assert put_state(mean, [np.float64(9.0), np.float64(3.0)]) is mean
    assert mean.result() == 3 and mean.variables[1].value.dtype == np.int64


def test_several_have_a_state_each():
    both = {"a": Mean(), "b": [Mean()]}
    both["a"].update_state(2)
    both["b"][0].update_state(5)
    state = state_of(both)
    for metric in (both["a"], both["b"][0]):
        metric.update_state(100)
    assert put_state(both, state) is both
    assert (both["a"].result(), both["b"][0].result()) == (2, 5)


def test_a_state_of_another_metric_is_refused():
    with pytest.raises(ValueError):
        put_state(Mean(), [np.zeros(1)])
    with pytest.raises(ValueError):
        put_state([Mean(), Mean()], [state_of(Mean())])


RANKS = """
    import os
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import dl_comm.keras as dl
    dl.init()
    rank, n = dl.get_rank(), dl.get_nranks()
    mean, accuracy = keras.metrics.Mean(), keras.metrics.BinaryAccuracy()
    mean.update_state(50.0)
    before = dl.snapshot(mean)
    for k in range(rank + 1):
        mean.update_state(float(k))
        accuracy.update_state([1.0, 0.0], [1.0, float(rank % 2)])
    assert dl.total(mean, since=before) is mean
    dl.total({"accuracy": accuracy})
    rows = [float(k) for r in range(n) for k in range(r + 1)]
    assert abs(float(mean.result()) - (50 + sum(rows)) / (1 + len(rows))) < 1e-5, mean.result()
    right = sum((r + 1) * (2 - r % 2) for r in range(n)) / (2 * len(rows))
    assert abs(float(accuracy.result()) - right) < 1e-6, accuracy.result()
    print("rank", rank, "is right", flush=True)
"""


@pytest.mark.skipif(not find_spec("keras") or not find_spec("torch"), reason="Keras and PyTorch are not both here")
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.wide("2")
def test_metrics_of_keras_are_those_of_all_samples_on_ranks(job, any_mpi, n):
    ended = job(any_mpi, n, RANKS)
    assert ended.lines("rank") == [f"rank {rank} is right" for rank in range(n)], ended.output
