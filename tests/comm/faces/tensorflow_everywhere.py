"""What dl_comm.tensorflow must do on every rank, in eager code and in tf.function."""

import json
import os
import subprocess
import sys
import tempfile

import dl_comm.tensorflow as dl
import numpy as np
import tensorflow as tf
from agreement import go_on_alike, same_bits
from dl_comm import CommError, _core
from dl_comm.ranks import _faces
from tensorflow.python.data.util import random_seed
from tensorflow.python.eager import context

_r, _n = dl.get_rank(), dl.get_nranks()
_v1 = tf.compat.v1
tf.random.set_seed(7 + _r)
dl.init(alike=False)
_own = context.global_seed(), random_seed.get_seed.__module__
_faces.clear()
dl.init()
_seed = context.global_seed()


def _data():
    generator = np.random.default_rng(2)
    return generator.normal(size=(5, 12, 6)), generator.normal(size=(5, 12, 1))


def a_seed_set_before_the_ranks_meet_is_rank_0s_on_all_and_its_own_where_that_is_asked_for():
    assert _seed == 7
    assert _own == (7 + _r, random_seed.__name__)  # the order of data sets, too


def rates_warm_up_and_decay_in_eager_code_and_in_functions():
    def used(compile_it):
        optimizer, weight = tf.keras.optimizers.SGD(dl.lr_scale(1.0)), tf.Variable(0.0)
        optimizer.build([weight])
        dl.warmup(optimizer, 4)

        def step():
            optimizer.apply_gradients([(tf.constant(1.0), weight)])

        step = tf.function(step) if compile_it else step
        rates = []
        for epoch in range(3):
            dl.decay(optimizer, epoch, (2,), 0.1)
            for _ in range(3):
                before = float(weight)
                step()
                rates.append(before - float(weight))
        return rates

    expected = [1 + (_n - 1) * k / 4 for k in range(4)] + [_n] * 2 + [_n * (0.1 if _n > 1 else 1)] * 3
    for compile_it in (False, True):
        np.testing.assert_allclose(used(compile_it), expected, rtol=1e-4)
    weight = tf.Variable([[3.0, 4.0]])
    dl.lars(tf.keras.optimizers.SGD(2.0)).apply_gradients([(tf.constant([[0.5, 0.0]]), weight)])
    np.testing.assert_allclose(weight, [[3 - 2 * (0.001 * 10 * 0.5 if _n > 1 else 0.5), 4]], rtol=1e-5)
    for wrong in (_v1.train.GradientDescentOptimizer(0.1), tf.keras.optimizers.SGD(_schedule())):
        try:
            dl.warmup(wrong, 3)
        except TypeError:
            continue
        raise AssertionError(wrong)


def _schedule():
    return tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)


def gradients_are_means_in_eager_code_and_in_functions():
    given = [
        tf.fill([3, 2], float(_r)),
        None,
        tf.constant(_r, tf.float64),
        tf.cast(tf.fill([4], 2 * _r), tf.bfloat16),
        tf.cast(tf.fill([4], 4 * _r), tf.float16),
        tf.complex(tf.fill([2], float(_r)), tf.fill([2], -float(_r))),
        tf.zeros([0, 3]),
    ]
    mean = (_n - 1) / 2
    for call in (dl.gradients, tf.function(dl.gradients)):
        for _ in range(2):
            a, none, b, c, d, e, empty = call(given)
            assert none is None
            assert (a.numpy() == mean).all()
            assert b.numpy() == mean
            assert (c.numpy() == 2 * mean).all()
            assert (d.numpy() == 4 * mean).all()
            assert (e.numpy() == complex(mean, -mean)).all()
            assert empty.shape == (0, 3)
    assert (given[0].numpy() == _r).all()


def what_the_op_reads_is_not_changed_when_others_read_it_too():
    @tf.function
    def step(x):
        y = x * 2
        (mean,) = dl.gradients([y])
        return x, y, mean

    x, y, mean = step(tf.fill([1000], float(_r)))
    assert (x.numpy() == _r).all()
    assert (y.numpy() == 2 * _r).all()
    assert (mean.numpy() == _n - 1).all()


def tensors_that_a_script_puts_on_a_gpu_are_averaged():
    with tf.device("/GPU:0"):  # where there is none, TensorFlow takes the CPU
        v = tf.Variable(tf.fill([10], float(_r)))
        for call in (dl.gradients, tf.function(dl.gradients)):
            (mean,) = call([v * 2.0])
            v.assign_add(mean)
    assert (v.numpy() == _r + 4 * (_n - 1)).all()


def sparse_gradients_keep_the_rows_of_all_ranks():
    slices = tf.IndexedSlices(tf.fill([2, 3], float(_r + 1)), tf.constant([0, _r + 1]), tf.constant([_n + 1, 3]))
    for call in (dl.gradients, tf.function(dl.gradients)):
        (mean,) = call([slices])
        dense = tf.convert_to_tensor(mean).numpy()
        expected = np.zeros((_n + 1, 3))
        for r in range(_n):
            expected[0] += (r + 1) / _n
            expected[r + 1] += (r + 1) / _n
        np.testing.assert_allclose(dense, expected, rtol=1e-6)
        alike = tf.IndexedSlices(tf.constant([[0.1, 0.7], [1e-8, 3.0]]), tf.constant([2, 2]), tf.constant([4, 2]))
        (same,) = call([alike])
        assert same.values.numpy().tobytes() == alike.values.numpy().tobytes(), "what all bring alike comes back"
        assert same.indices.numpy().tolist() == [2, 2]


def xla_is_refused_with_a_sentence_and_may_compile_what_does_not_communicate():
    @tf.function(jit_compile=True)
    def square(x):
        return x * x

    @tf.function
    def step(x):
        return dl.gradients([square(x)])[0]

    assert step(tf.fill([2], 3.0 * _r)).numpy().tolist() == [sum(9 * r * r for r in range(_n)) / _n] * 2
    try:
        tf.function(lambda x: dl.gradients([x]), jit_compile=True)(tf.fill([2], 1.0))
    except Exception as error:
        assert "XLA cannot compile the averaging of gradients" in str(error), error
        assert "Leave jit_compile out here" in str(error), error
    else:
        raise AssertionError("no error")


def a_tape_loop_trains_like_one_process():
    x, y = _data()

    def train(mine, average):
        v = tf.Variable(np.linspace(-1, 1, 6)[:, None])
        velocity = tf.Variable(tf.zeros_like(v))

        @tf.function
        def step(a, b):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(a @ v) - b) ** 2)
            (grad,) = average([tape.gradient(loss, v)])
            velocity.assign(0.9 * velocity + grad)
            v.assign_sub(0.1 * velocity)

        for a, b in zip(x, y, strict=True):
            step(tf.constant(a[mine]), tf.constant(b[mine]))
        return v.numpy()

    for _ in range(2):
        ported = train(slice(_r, None, _n), dl.gradients)
        np.testing.assert_allclose(ported, train(slice(None), list), rtol=1e-11)
        same_bits([ported])
        x[2, _n - 1, 0] = np.inf  # in the last rank's third batch, the second time
    assert not np.isfinite(train(slice(None), list)).all()


def variables_take_the_roots_values():
    kinds = [tf.float32, tf.float64, tf.bfloat16, tf.int32, tf.int64, tf.bool, tf.uint8, tf.complex64]
    variables = [tf.Variable(tf.cast(tf.fill([2, 3], _r), kind)) for kind in kinds]
    dl.broadcast_variables(variables, root=1)
    for v in variables:
        assert (v.numpy() == np.ones((2, 3)).astype(v.numpy().dtype)).all()
    a, b = dl.broadcast([tf.fill([2], _r + 5), tf.constant(float(_r))], 0)
    assert a.numpy().tolist() == [5, 5]
    assert b.numpy() == 0


def generators_go_on_as_rank_0s():
    go_on_alike(dl.broadcast)


def a_model_that_its_first_batch_builds_is_broadcast_whole():
    for compiled in (False, True):
        tf.keras.utils.set_random_seed(_r)
        layers = [tf.keras.layers.Dense(4), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)]
        model, optimizer = tf.keras.Sequential(layers), tf.keras.optimizers.SGD(0.0)  # Dropout has its generator
        dl.broadcast_variables(model, optimizer)

        def step(x, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            grads = dl.gradients(tape.gradient(loss, model.trainable_variables))
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        step = tf.function(step) if compiled else step
        for _ in range(2):
            for x in dl.shard(tf.data.Dataset.from_tensor_slices(tf.ones((2 * _n, 3))).batch(1)):
                step(x)
        same_bits([w.numpy() for w in model.trainable_variables])


def what_only_rank_0_has_done_all_ranks_learn():
    with tempfile.TemporaryDirectory() as folder:
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(x=tf.Variable(1.0)), folder, max_to_keep=2)
        assert dl.broadcast(dl.rank0(manager.save)()).endswith("ckpt-1")
        assert [name[-1] for name in dl.broadcast(manager.checkpoints)] == ["1"]
        assert dl.broadcast(manager.latest_checkpoint).endswith("ckpt-1")


def different_gradients_are_an_error_on_every_rank():
    for call in (dl.gradients, tf.function(dl.gradients)):
        try:
            call([tf.zeros([2]), tf.zeros([3 + (_r == 0)])])
        except (CommError, tf.errors.OpError) as error:  # on the ranks' GPUs eager code gets the first
            assert "gradient 1 of 2" in str(error), error
            shapes = ("(4,)", "(3,)") if call is dl.gradients else ("4 elements", "3 elements")
            assert all(shape in str(error) for shape in shapes), error
        else:
            raise AssertionError("no error")
    assert dl.gradients([tf.constant(float(_r))])[0].numpy() == (_n - 1) / 2


def averages_keep_the_kind():
    mean = (_n - 1) / 2
    assert dl.average(float(_r)) == mean
    assert dl.average(_r) == mean
    assert (type(dl.average(2 + (_r == 0))), type(dl.average(23)), type(dl.average(23.0))) == (float, int, float)
    assert dl.average(tf.constant([_r, _r])).numpy().tolist() == [mean, mean]
    assert dl.average(np.full(3, _r, np.float32)).dtype == np.float32
    assert dl.average([float(_r), 1.0]) == [mean, 1.0]
    assert [type(entry) for entry in dl.average([np.float32(_r), np.float32(1)])] == [np.float32, np.float32]
    names = ("loss", "mae") if _r == 0 else ("mae", "loss")  # filled in another order
    kept = {"of": "all", **{name: [float(_r), float(len(name))] for name in names}}
    assert dl.average(kept) == {"of": "all", "loss": [mean, 4.0], "mae": [mean, 3.0]}
    summed = sum(range(_n))
    assert (dl.total(_r), dl.total(float(_r)), type(dl.total(_r))) == (summed, summed, int)
    assert dl.total(tf.constant([_r, 1])).numpy().tolist() == [summed, _n]
    assert dl.total(np.full(3, _r, np.float32)).tolist() == [summed] * 3
    assert (dl.total([_r, 1]), dl.total({"own": _r})) == ([summed, _n], {"own": summed})
    assert (dl.total(True), dl.total(tf.constant([True, _r > 0])).numpy().tolist()) == (_n, [_n, _n - 1])
    for narrow in (tf.constant([1, 200], tf.uint8), np.array([-100], np.int8), np.int8(100)):
        try:
            dl.total(narrow)
        except CommError as error:
            assert "the sum over the ranks is" in str(error)
        else:
            raise AssertionError("no error")


def data_sets_are_divided_and_reshuffle():
    def everyone(dataset):
        mine = [np.asarray(batch).tolist() for batch in dataset]
        return [json.loads(b) for b in _core.allgather_bytes(json.dumps(mine).encode())]

    dataset = dl.shard(tf.data.Dataset.range(8 * _n).shuffle(100).batch(2))
    first, second = everyone(dataset), everyone(dataset)
    for shares in (first, second):
        assert len({len(rank) for rank in shares}) == 1
        assert sorted(x for rank in shares for batch in rank for x in batch) == list(range(8 * _n))
    assert first != second
    ragged = everyone(dl.shard(tf.data.Dataset.range(2 * _n * 2 + 1).batch(2)))
    assert len({len(rank) for rank in ragged}) == 1
    assert {x for rank in ragged for batch in rank for x in batch} == set(range(4 * _n + 1))
    pairs = dl.shard(tf.data.Dataset.from_tensor_slices(({"a": np.arange(4 * _n)}, np.arange(4 * _n))).batch(2))
    assert pairs.element_spec[0]["a"].shape.as_list() == [None]
    assert len(list(pairs)) == 2
    unknown = tf.data.Dataset.range(2 * _n + 1).filter(lambda x: True)
    assert len(list(dl.shard(unknown))) == 2
    a, b = dl.shard((np.arange(2 * _n), tf.range(2 * _n)))
    assert a.tolist() == b.numpy().tolist() == [_r, _r + _n]
    reader = _Reader(np.arange(2 * _n + 1))
    for _ in range(2):
        dl.reseed()
        epoch = everyone(dl.shard(reader))
        assert {len(rank) for rank in epoch} == {3}
        assert {x for rank in epoch for x in rank} == set(range(2 * _n + 1))


def a_generator_of_the_scripts_own_draws_other_numbers_on_each_rank_once_it_is_reseeded():
    own, before = np.random.default_rng(1), np.random.get_state()[1].tolist()
    dl.reseed(own)
    drawn = own.random()
    assert len(set(_core.allgather_bytes(repr(drawn).encode()))) == _n
    assert (drawn == np.random.default_rng(1).random()) == (dl.get_rank() == 0)
    assert np.random.get_state()[1].tolist() == before


class _Reader:
    """Begins its next epoch where it has raised StopIteration, in an order that all ranks draw alike."""

    def __init__(self, rows):
        self.rows, self.at = rows, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at < len(self.rows):
            self.at += 1
            return self.rows[self.at - 1]
        self.at = 0
        dl.reseed(alike=True)
        np.random.shuffle(self.rows)
        raise StopIteration


def what_is_served_loads_without_dl_comm():
    class Model(tf.Module):
        def __init__(self):
            self.v = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def train(self, x):
            (grad,) = dl.gradients([tf.reduce_mean(x)])
            return self.v.assign_sub(grad)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def serve(self, x):
            return x * self.v

    model = Model()
    model.train(tf.constant([float(_r)]))
    if _r == 0:
        folder = tempfile.mkdtemp()
        tf.saved_model.save(dl.serving_module(model, serve=model.serve), folder)
        program = (
            "import sys; sys.modules['dl_comm'] = None\n"
            "import tensorflow as tf\n"
            f"model = tf.saved_model.load({folder!r})\n"
            "print(model.serve(tf.constant([1.0])).numpy()[0])"
        )
        alone = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDRA", "MPI"))}
        out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=alone, check=True)
        assert float(out.stdout) == 2.0 - (_n - 1) / 2
