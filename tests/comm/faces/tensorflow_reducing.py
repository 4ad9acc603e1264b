"""Sums, means, extremes and gathered entries of several values, against one process on all data."""

import warnings
from collections import Counter, deque

import dl_comm.tensorflow as dl
import numpy as np
import tensorflow as tf
from dl_comm import _core

_r, _n = dl.get_rank(), dl.get_nranks()
_sum = _n * (_n - 1) // 2


def several_values_keep_their_kinds():
    kept = {"a": {"b": [_r, 1.5]}}
    values = (_r, 0.5, tf.constant([1, _r]), tf.Variable([1.0, 2.0]), np.arange(3), kept, Counter({_r: 2}))
    found = dl.total(*values, None, tf.cast([_r, 1.0], tf.bfloat16), True)
    assert found[:2] == (_sum, 0.5 * _n) and type(found[0]) is int
    assert (found[2].dtype, found[2].numpy().tolist()) == (tf.int32, [_n, _sum])
    assert (found[3].dtype, found[3].numpy().tolist()) == (tf.float32, [_n, 2.0 * _n])
    assert found[4].tolist() == [0, _n, 2 * _n] and found[4].dtype == np.int64
    assert found[5] == {"a": {"b": [_sum, 1.5 * _n]}}
    assert found[6] == dict.fromkeys(range(_n), 2) and type(found[6]) is Counter
    assert found[7] is None and found[9] == _n
    assert (found[8].dtype, tf.cast(found[8], tf.float32).numpy().tolist()) == (tf.bfloat16, [_sum, _n])
    lacks = _r == _n - 1
    assert dl.total(0 if lacks else tf.ones(2)).numpy().tolist() == [_n - 1.0] * 2
    assert dl.average(_r, tf.constant(4.0 * _r), 7)[2] == 7
    largest, smallest = dl.maximum(tf.constant([_r, -_r]), _r), dl.minimum({"x": _r, _r: 1.0})
    assert (largest[0].numpy().tolist(), largest[1]) == ([_n - 1, 0], _n - 1)
    assert smallest == {"x": 0, **dict.fromkeys(range(_n), 1.0)}
    assert dl.agree(_r) == 0 and dl.any_rank(_r == 0) and not dl.all_ranks(_r == 0)


def tensors_of_a_graph_are_reduced_in_it():
    @tf.function
    def folded(x, k):
        return dl.total(x, k), dl.average(x), dl.maximum(x, k), dl.total({"x": x, "list": [k, k]})

    (x, k), mean, (worst, last), kept = folded(tf.constant([1.0, float(_r)]), tf.constant(_r))
    assert (x.numpy().tolist(), k.numpy(), k.dtype) == ([_n, _sum], _sum, tf.int32)
    assert np.allclose(mean, [1.0, _sum / _n]) and worst.numpy()[1] == _n - 1 == last.numpy()
    assert kept["list"][1].numpy() == _sum
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        right, seen = dl.total(tf.constant(_r), tf.constant(2.0))
        assert session.run([right, seen]) == [_sum, 2.0 * _n]


def _batches(length, size):
    return tf.data.Dataset.range(length).batch(size)


def entries_come_back_in_the_serial_order_and_without_padding():
    for length, size in ((13, 2), (12, 4), (7, 1), (29, 3), (_n, 1)):
        if -(-length // size) < _n:
            continue
        rows = np.arange(float(length))
        shared, sliced = dl.shard(rows), [dl.shard(rows)[i : i + size] for i in range(0, -(-length // _n), size)]
        tail = dl.shard(tf.data.Dataset.range(length)).batch(size)
        serial = [batch.numpy().tolist() for batch in _batches(length, size)]
        for data, batches in ((dl.shard(_batches(length, size)), None), (shared, sliced), (tail, None)):
            batches = [np.asarray(batch).tolist() for batch in (data if batches is None else batches)]
            flat = [value for batch in batches for value in batch]
            assert dl.is_shard(data)
            pairs = [value for x in flat for value in (x, -x)]
            given = (batches, flat, np.array(flat), tf.constant(flat), set(flat), pairs)
            found = dl.gather(*given, over=data)
            whole = list(range(length))
            assert len(batches[0]) < size or found[0] == serial, (found[0], serial)
            assert found[1] == whole and found[2].tolist() == whole and found[3].numpy().tolist() == whole
            assert found[3].dtype == given[3].dtype
            assert found[4] == set(whole) and found[5] == [value for x in whole for value in (x, -x)]
    assert dl.gather(deque([(0, _r), (1, _r)], maxlen=2)) == deque([(1, rank) for rank in range(_n)], maxlen=2)
    assert [x.numpy() for x in dl.gather([tf.constant(_r)])] == list(range(_n))


def what_is_a_share_is_known_and_what_is_none_is_not_exchanged():
    data = _batches(4 * _n, 2)
    x, y = dl.shard((np.arange(_n), tf.range(_n)))
    shares = [dl.shard(data), dl.shard(data).map(lambda x: x).prefetch(1), x, y, x[:1], dl.shard([1] * _n)]
    shares += [dl.shard(x for x in range(_n)), iter(dl.shard(data)), dl.turns(range(_n)), dl.stretch(np.arange(_n))]
    assert all(map(dl.is_shard, shares))
    assert not any(map(dl.is_shard, [data, iter(data), np.arange(3), tf.range(3), [1], None]))
    plain, exchanges = _core.allreduce, []
    _core.allreduce = lambda *args, **options: exchanges.append(args)
    try:
        value = tf.ones(2)
        assert dl.total(value, over=data) is value and dl.gather([1], over=data) == [1] and not exchanges
    finally:
        _core.allreduce = plain


def moving_statistics_of_a_model_are_averaged_in_a_loop_by_hand():
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)])
    dl.broadcast_variables(model)
    model(tf.random.normal((8, 3), mean=_r), training=True)
    own = model.layers[-2].moving_mean.numpy().tobytes()
    everyone = [np.frombuffer(b, np.float32) for b in _core.allgather_bytes(own)]
    weights = model.layers[-1].kernel.numpy()
    found, seen = dl.average(model, _r)
    assert found is model and seen == _sum / _n
    np.testing.assert_allclose(model.layers[-2].moving_mean, np.mean(everyone, axis=0), rtol=1e-6)
    assert np.array_equal(weights, model.layers[-1].kernel.numpy())


def rank_0_tells_that_elements_of_a_data_set_are_taken_twice():
    for length, taken in ((101 * _n, 0), (101 * _n + 1, _n - 1)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            share = dl.shard(tf.data.Dataset.range(length))
        texts = [str(each.message) for each in told]
        assert len(texts) == (taken > 0 and _r == 0)
        assert all(f"{_n} ranks do not divide {length} elements of a data set" in text for text in texts)
        assert dl.total(len(list(share))) == length + taken


def whole_batches_are_those_of_the_serial_script_uneven_or_fewer_than_the_ranks_too():
    for length, size in ((1, 1), (5, 4), (12, 2), (13, 3), (29, 4)):
        serial = [batch.numpy() for batch in _batches(length, size)]
        shares = [dl.shard(_batches(length, size), whole="batches"), dl.shard(serial, whole="batches")]
        shares += [dl.shard((batch for batch in serial), whole="batches")]
        assert len(shares[0]) == len(serial[_r::_n])
        for share in shares:
            batches = [np.asarray(batch) for batch in share]
            assert len(batches) == len(serial[_r::_n])
            assert dl.is_shard(share) and all(map(np.array_equal, batches, serial[_r::_n]))
            seen, count = dl.total(sum(map(len, batches)), len(batches), over=share)
            assert (seen, count) == (length, len(serial))
            flat = [value for batch in batches for value in batch.tolist()]
            found = dl.gather(flat, batches, over=share)
            assert found[0] == list(range(length)) and all(map(np.array_equal, found[1], serial))


def moving_statistics_of_a_session_are_averaged_in_a_graph_that_is_finalized():
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        mean = v1.get_variable("norm/moving_mean", initializer=np.float32([_r, 1.0]), trainable=False)
        other = v1.get_variable("norm/count", initializer=np.float32([_r]), trainable=False)
        start = v1.global_variables_initializer()
        graph.finalize()
        with v1.Session() as session:
            session.run(start)
            assert dl.average(session) is session
            assert session.run(mean).tolist() == [_sum / _n, 1.0] and session.run(other).tolist() == [_r]


def batches_of_unknown_number_are_gathered_in_the_serial_order():
    rows = tf.data.Dataset.range(29).filter(lambda row: True).batch(4)
    share = dl.shard(rows, whole="batches")
    flat = [value for batch in share for value in batch.numpy().tolist()]
    assert dl.gather(flat, over=share) == list(range(29))


def metrics_are_averaged_as_what_they_keep():
    counts, means, added = tf.keras.metrics.TruePositives(), tf.keras.metrics.Mean(), tf.keras.metrics.Sum()
    counts.update_state([1.0, 1.0], [1.0, 0.0])
    means.update_state(float(_r))
    added.update_state(float(_r))
    found = dl.average(counts, _r, means, added)
    assert found[0] is counts and found[1] == _sum / _n
    assert float(counts.result()) == _n
    np.testing.assert_allclose([float(means.result()), float(added.result())], [_sum / _n] * 2)


def parts_of_a_global_batch_are_weighed_by_their_samples():
    x = np.arange(29, dtype=np.float32)
    weight = tf.Variable(2.0)

    @tf.function
    def gradient(part):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * part**2)
        return dl.gradients([tape.gradient(loss, weight)])[0]

    for data in (tf.data.Dataset.from_tensor_slices(x).batch(8), [x[at : at + 8] for at in range(0, 29, 8)]):
        for _ in range(2):  # the graph that was made in the first pass reads the weights of the second
            parts = dl.shard(data if not isinstance(data, list) else (batch for batch in data), batch="global")
            found = [float(gradient(tf.convert_to_tensor(part))) for part in parts]
            np.testing.assert_allclose(found, [np.mean(x[at : at + 8] ** 2) for at in range(0, 29, 8)], rtol=1e-6)
    for at in range(0, 29, 8):
        part, same = dl.part(x[at : at + 8]), dl.part((tf.constant(x[at : at + 8]), None))[0]
        np.testing.assert_array_equal(part, same)
        np.testing.assert_allclose(gradient(tf.convert_to_tensor(part)), np.mean(x[at : at + 8] ** 2), rtol=1e-6)
    total = dl.total(
        sum(len(part) for part in dl.shard(tf.data.Dataset.from_tensor_slices(x).batch(8), batch="global"))
    )
    assert total == 29 and dl.total(dl.part(29)) == 29
    for name in ("batch", "unbatch"):
        many = dl.shard(tf.data.Dataset.from_tensor_slices(x).batch(8), batch="global")
        try:
            assert dl.get_nranks() == 1 or getattr(many, name)(2) is None
        except TypeError as error:
            assert "other batches of what is shared already" in str(error)
