"""Sums, means, extremes and gathered entries of several values, with the tensors of each backend."""

from collections import Counter

import dl_comm.keras as dl
import keras
import numpy as np
from dl_comm.keras.backend import KERAS_3, read

_r, _n = dl.get_rank(), dl.get_nranks()
_sum = _n * (_n - 1) // 2
if KERAS_3:
    _tensor, _variable = keras.ops.convert_to_tensor, keras.Variable
else:
    import tensorflow as tf

    _tensor, _variable = tf.convert_to_tensor, tf.Variable


def several_values_keep_their_kinds():
    tensor, variable = _tensor(np.float32([_r, 1.0])), _variable([1.0, _r])
    found = dl.total(_r, 0.5, tensor, variable, np.arange(3), {"a": [_r, 1.5]}, Counter({_r: 2}), None)
    assert found[:2] == (_sum, 0.5 * _n)
    assert type(found[2]) is type(tensor) and read(found[2]).tolist() == [_sum, _n]
    assert read(found[3]).tolist() == [_n, _sum]
    assert (found[4].tolist(), found[5]) == ([0, _n, 2 * _n], {"a": [_sum, 1.5 * _n]})
    assert (found[6], found[7]) == (dict.fromkeys(range(_n), 2), None)
    lacks = _r == _n - 1
    assert read(dl.total(0 if lacks else tensor)).tolist() == [sum(range(_n - 1)), _n - 1]
    means = dl.average(float(_r), tensor, 3)
    assert (means[0], read(means[1]).tolist(), means[2]) == (_sum / _n, [_sum / _n, 1.0], 3)
    assert dl.maximum(_r, -_r) == (_n - 1, 0) and read(dl.minimum(tensor)).tolist() == [0.0, 1.0]
    assert dl.agree(_r) == 0 and dl.any_rank(_r == 0) and not dl.all_ranks(_r == 0)


def entries_come_back_in_the_serial_order_and_without_padding():
    for length in (13, 12, 7):
        rows = np.arange(float(length))
        shared = dl.shard(rows)
        assert dl.is_shard(shared) and not dl.is_shard(rows)
        tensor = _tensor(shared)
        found = dl.gather(shared.tolist(), shared, tensor, set(shared.tolist()), over=shared)
        assert found[0] == rows.tolist() and np.array_equal(found[1], rows) and found[3] == set(rows.tolist())
        assert type(found[2]) is type(_tensor(rows))
        assert np.array_equal(read(found[2]), rows)
    values = ([1], np.ones(2))
    assert all(one is other for one, other in zip(dl.gather(*values, over=rows), values, strict=True))


def moving_statistics_of_a_model_are_averaged_in_a_loop_by_hand():
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.layers[-2].moving_mean.assign(np.full(3, float(_r)))
    found, seen = dl.average(model, _r)
    assert found is model and seen == _sum / _n
    means = read(model.layers[-2].moving_mean)
    np.testing.assert_allclose(means, np.full(3, _sum / _n), rtol=1e-6)
