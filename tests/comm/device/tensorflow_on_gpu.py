"""Checks of dl_comm.tensorflow with tensors on a real GPU, or the fake driver's (``tensorflow_as_if_on_gpu.py``)."""

import os

import dl_comm
import dl_comm.tensorflow as dl
import numpy as np
import tensorflow as tf
from dl_comm import _core
from dl_comm.tensorflow import gpu, op
from gpus import Gpu

dl.init()
_r, _n = dl.get_rank(), dl.get_nranks()
_TOLERANCE = {tf.float64: 1e-12, tf.float32: 1e-5, tf.float16: 4e-3, tf.bfloat16: 4e-2}


def _drawn(rank, shape, dtype=tf.float32):
    return tf.cast(np.random.default_rng(rank).normal(size=shape), dtype)


def _mean(shape, dtype=tf.float32):
    return np.mean([tf.cast(_drawn(rank, shape, dtype), tf.float64).numpy() for rank in range(_n)], axis=0)


def _went_over_the_gpu(act):
    """What ``act`` returns; the list op on the host is not to be asked for any float in it."""
    asked, on_host = [], op.on_host
    op.on_host = lambda tensors, *how: asked.extend(tensors) or on_host(tensors, *how)
    try:
        return act(), not any(t.dtype in gpu.TYPES for t in asked)
    finally:
        op.on_host = on_host


def gradients_of_all_types_and_shapes_agree_with_float64_and_what_was_given_stays():
    shapes = [(3, 5), (), (0, 4), (70_001,), (1,)]
    given = [_drawn(_r, shape, kind) for kind in _TOLERANCE for shape in shapes]
    shared = [tf.identity(t) for t in given]  # the same memory
    before = [tf.cast(t, tf.float64).numpy() for t in given]
    means, over = _went_over_the_gpu(lambda: dl.gradients([*given, None, tf.constant([_r, 7])]))
    assert over, "floats went through the host"
    assert means[-2] is None and means[-1].numpy()[1] == 7
    for mean, one, twin, was in zip(means, given, shared, before, strict=False):
        assert mean.dtype == one.dtype and mean.shape == one.shape
        allowed = _TOLERANCE[one.dtype]
        expected = _mean(tuple(one.shape), one.dtype)
        assert np.allclose(tf.cast(mean, tf.float64), expected, atol=allowed, rtol=allowed), (one.dtype, one.shape)
        assert np.array_equal(tf.cast(one, tf.float64), was) and np.array_equal(tf.cast(twin, tf.float64), was)


def variables_are_broadcast_and_numbers_averaged():
    variables = [tf.Variable(_drawn(_r, (40, 3))), tf.Variable(_r), tf.Variable(_drawn(_r, 7, tf.float64))]
    _, over = _went_over_the_gpu(lambda: dl.broadcast_variables(variables, root=_n - 1))
    assert over
    assert np.array_equal(variables[0], _drawn(_n - 1, (40, 3))) and variables[1].numpy() == _n - 1
    assert np.array_equal(variables[2], _drawn(_n - 1, 7, tf.float64))
    assert float(dl.average(tf.constant(float(_r)))) == (_n - 1) / 2
    assert int(dl.total(tf.constant(_r + 1))) == _n * (_n + 1) // 2
    own = tf.constant([float(_r), 1.0])
    assert np.allclose(dl_comm.average(own), [(_n - 1) / 2, 1.0]) and float(own[0]) == _r
    assert np.allclose(dl_comm.gradients([own])[0], [(_n - 1) / 2, 1.0])


def a_compiled_step_averages_as_an_eager_one():
    def steps(compiled):
        w = [tf.Variable(_drawn(0, (6, 4))), tf.Variable(tf.zeros(4)), tf.Variable(_drawn(3, (9, 4)))]

        def step(x, rows):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ w[0] + w[1])) + tf.reduce_sum(tf.gather(w[2], rows) ** 2)
            means = dl.gradients(tape.gradient(loss, w))
            for variable, mean in zip(w, means, strict=True):
                variable.assign_sub(0.1 * tf.convert_to_tensor(mean))
            return dl.average(loss)

        act = tf.function(step, reduce_retracing=True) if compiled else step
        losses = [float(act(_drawn(10 * i + _r, (8 + i % 2, 6)), tf.constant([_r, i]))) for i in range(4)]
        return losses, [v.numpy() for v in w]

    (eager, there), over = _went_over_the_gpu(lambda: steps(False))
    (compiled, here), over_too = _went_over_the_gpu(lambda: steps(True))
    assert over and over_too
    assert np.allclose(eager, compiled, rtol=1e-5)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(there, here, strict=True))
    assert all(dl_comm.check_buffers_match([a]) == 0 for a in here)


def sizes_that_a_graph_does_not_know_are_taken():
    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([5])])
    def act(x, y):
        return dl.gradients([x, y, x])

    (x, y, again), over = _went_over_the_gpu(lambda: act(_drawn(_r, (4, 3)), _drawn(_r, 5)))
    assert over
    assert np.allclose(x, _mean((4, 3)), atol=1e-5) and np.allclose(again, x) and np.allclose(y, _mean(5), atol=1e-5)


def a_size_that_only_one_rank_knows_is_taken():
    @tf.function(input_signature=[tf.TensorSpec([4 if _r else None, 3]), tf.TensorSpec([5])])
    def act(x, y):
        return dl.gradients([x, y, x])

    (x, y, again), over = _went_over_the_gpu(lambda: act(_drawn(_r, (4, 3)), _drawn(_r, 5)))
    assert over
    assert np.allclose(x, _mean((4, 3)), atol=1e-5) and np.allclose(again, x) and np.allclose(y, _mean(5), atol=1e-5)


def keras_fit_trains_alike_on_all_ranks():
    import dl_comm.keras as dl_keras
    import keras

    def weights():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        dl_keras.distribute(model)
        x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
        model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, shuffle=False)
        return [np.array(w) for w in model.get_weights()]

    there, over = _went_over_the_gpu(weights)
    assert over
    assert dl_comm.check_buffers_match(there) == 0
    in_use, gpu.in_use = gpu.in_use, lambda: False
    try:
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(there, weights(), strict=True))
    finally:
        gpu.in_use = in_use


def pipelined_calls_return_the_means_of_the_call_before():
    dl_comm.config_team(5, 0, 1, 4, 0, 0)  # the first call blocks, the next one waits for its own means
    for i, late in enumerate((0, 1, 1, 2)):
        floats, whole = dl.gradients([tf.fill([3], float(i + _r)), tf.fill([2], i)], team=5)
        assert np.allclose(floats, late + (_n - 1) / 2) and np.array_equal(whole, [late, late]), (i, floats, whole)


def a_session_goes_through_the_host():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        (mean,) = dl.gradients([tf.constant([float(_r), 2.0])])
        assert np.allclose(session.run(mean), [(_n - 1) / 2, 2.0])


def different_gradients_are_named_on_all_ranks():
    def average(t):
        return dl.gradients([tf.zeros(3), t])

    sized = "gradient 1 of 2 float32 float32, 4 elements", "5 elements on rank 1"  # a graph's labels hold no shapes
    for act, said in (average, ("gradient 1 of 2 (4,) float32", "(5,) float32")), (tf.function(average), sized):
        try:
            act(tf.zeros(4 + _r))
        except (dl_comm.CommError, tf.errors.OpError) as error:
            assert all(part in str(error) for part in said), error
        else:
            raise AssertionError("nobody minds")


def _decided_anew():
    """The ranks come together again, by a new team."""
    gpu.in_use.cache_clear()
    gpu._team.cache_clear()


def _goes_over_the_gpu():
    means, over = _went_over_the_gpu(lambda: dl.gradients([_drawn(_r, 20_000)]))
    assert np.allclose(means[0], _mean(20_000), atol=1e-5)
    return over


_ONLY_FAKE = None if os.environ.get("FAKE_CUDA_OWNS_ALL") else "needs the fake driver"


def ranks_with_a_gpu_each_go_through_nccl():
    if not _ONLY_FAKE:
        assert _core.session().gpu_path(gpu._team()).startswith("CUDA IPC")
        os.environ["FAKE_CUDA_UUID"] = str(20 + _r)
        _decided_anew()
        assert _goes_over_the_gpu()
        assert _core.session().gpu_path(gpu._team()).startswith("NCCL")
        del os.environ["FAKE_CUDA_UUID"]
    return _ONLY_FAKE


def a_rank_without_a_gpu_is_said_and_all_go_through_the_host():
    if not _ONLY_FAKE:
        against = gpu._against
        gpu._against = lambda: "has no GPU that TensorFlow sees" if _r == _n - 1 else against()
        _decided_anew()
        assert not _goes_over_the_gpu()
        gpu._against = against
    return _ONLY_FAKE


def what_the_core_could_only_take_through_the_host_is_left_to_tensorflow():
    if not _ONLY_FAKE:
        Gpu().fail("cuMemAlloc_v2", 1, 2)
        _decided_anew()
        assert not _goes_over_the_gpu()
        assert _core.session().gpu_path(gpu._team()).startswith("the host")
    return _ONLY_FAKE
