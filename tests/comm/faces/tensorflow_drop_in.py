"""Scripts written for Cray's plugin and for IBM's DDL run unchanged."""

import tempfile

import dl_comm.tensorflow as dl
import numpy as np
import tensorflow as tf
from dl_comm import averaging

_r, _n = dl.get_rank(), dl.get_nranks()
_v1 = tf.compat.v1
_x = np.random.default_rng(2).normal(size=(5, 12, 6))
_y = np.random.default_rng(3).normal(size=(5, 12, 1))


def _loss(first):
    a, b = _v1.placeholder(tf.float64, [None, 6]), _v1.placeholder(tf.float64, [None, 1])
    v = _v1.get_variable("v", initializer=np.linspace(-1, 1, 6)[:, None] + first)
    return a, b, v, tf.reduce_mean((tf.tanh(a @ v) - b) ** 2)


def _serial():
    """Weights after five steps of one process, by hand. The optimizer keeps its rates in float32."""
    v, velocity = np.linspace(-1, 1, 6)[:, None], 0.0
    rate, momentum = float(np.float32(0.1)), float(np.float32(0.9))
    for a, b in zip(_x, _y, strict=True):
        t = np.tanh(a @ v)
        velocity = momentum * velocity + a.T @ (2 * (t - b) * (1 - t**2)) / len(a)
        v = v - rate * velocity
    return v


class _BcastTensors(_v1.train.SessionRunHook):
    def __init__(self, mc):
        self.mc, self.bcast = mc, None

    def begin(self):
        new_vals = self.mc.broadcast(_v1.trainable_variables(), 0)
        self.bcast = [_v1.assign(v, new_vals[k]) for k, v in enumerate(_v1.trainable_variables())]

    def after_create_session(self, session, coord):
        session.run(self.bcast)


def the_script_of_the_manual_runs_under_both_names():
    import dl_comm
    import ml_comm

    before = averaging.of(0).calls
    for mc in (dl_comm, ml_comm):
        with tf.Graph().as_default():
            a, b, v, loss = _loss(mc.get_rank())
            opt = _v1.train.MomentumOptimizer(0.1, 0.9)
            totsize = sum(int(np.prod(w.shape)) for w in _v1.trainable_variables())
            mc.init(2, 1, totsize, "tensorflow")
            mc.config_team(0, 0, 5, 5, 1, 100)
            gvs = opt.compute_gradients(loss)
            grads = mc.gradients([g for g, _ in gvs], 0)
            step = opt.apply_gradients([(g, w) for g, (_, w) in zip(grads, gvs, strict=True)])
            with _v1.train.MonitoredTrainingSession(hooks=[_BcastTensors(mc)]) as session:
                for k in range(5):
                    session.run(step, {a: _x[k][_r::_n], b: _y[k][_r::_n]})
                got = session.run(v)
        np.testing.assert_allclose(got, _serial(), rtol=1e-10)
    team = averaging.of(0)
    assert team.calls == before + 10
    assert team.waited > 0


def the_estimator_of_the_manual_trains_like_one_process():
    if not hasattr(_v1, "estimator"):
        return "TensorFlow has no Estimator from 2.16 on"
    import ml_comm as mc

    mc.init_mpi()
    max_steps = 5

    def model_fn(features, labels, mode):
        v = _v1.get_variable("v", initializer=np.linspace(-1, 1, 6)[:, None] + mc.get_rank())
        loss = tf.reduce_mean((tf.tanh(features @ v) - labels) ** 2)
        optimizer = _v1.train.MomentumOptimizer(0.1, 0.9)
        totsize = sum(int(np.prod(w.shape)) for w in _v1.trainable_variables())
        mc.init(2, 1, totsize, "tensorflow")
        mc.config_team(0, 0, max_steps, max_steps, 1, 100)
        gvs = optimizer.compute_gradients(loss)
        grads = mc.gradients([g for g, _ in gvs], 0)
        pairs = [(g, w) for g, (_, w) in zip(grads, gvs, strict=True)]
        step = optimizer.apply_gradients(pairs, _v1.train.get_global_step())
        return _v1.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

    def input_fn():
        return tf.data.Dataset.from_tensor_slices((_x[:, mc.get_rank() :: _n], _y[:, mc.get_rank() :: _n]))

    estimator = _v1.estimator.Estimator(model_fn, model_dir=tempfile.mkdtemp())
    estimator.train(input_fn, hooks=[_BcastTensors(mc)], max_steps=max_steps)
    np.testing.assert_allclose(estimator.get_variable_value("v"), _serial(), rtol=1e-10)
    return None


def pipelined_calls_return_the_means_of_the_step_before():
    import dl_comm as mc

    def given(k):
        bf = tf.cast(tf.fill([2], 2 * (_r + k)), tf.bfloat16)
        return [tf.fill([3], float(_r + 10 * k)), bf, tf.complex(tf.fill([2], float(k)), tf.fill([2], float(_r)))]

    def expected(k):
        mean = (_n - 1) / 2
        return [mean + 10 * k], [float(tf.cast(2 * (mean + k), tf.bfloat16))], [complex(k, mean)]

    def check(got, k):
        for array, value in zip(got, expected(k), strict=True):
            assert set(array.astype("c8").tolist()) == set(value), (k, array, value)

    mc.init(2, 3, 8, "tensorflow")
    for team, call in ((1, mc.gradients), (2, tf.function(mc.gradients))):
        mc.config_team(team, 0, 2, 6, 0, 100)  # two calls block, then each returns the means of the one before
        for k, lag in enumerate((0, 0, 0, 1, 1, 1)):
            check([g.numpy() for g in call(given(k), team)], k - lag)
    mc.config_team(3, 0, -3, 6, 0, 100)  # three lag, then all block
    with tf.Graph().as_default():
        step = _v1.placeholder(tf.float32, [])
        one, other = mc.gradients([step + tf.fill([2], float(_r))], 3), mc.gradients([step * tf.ones([3])], 3)
        with _v1.Session() as session:
            for k, lag in enumerate((0, 1, 1, 0, 0, 0)):
                a, b = session.run([one[0], other[0]], {step: float(k)})
                assert a.tolist() == [k - lag + (_n - 1) / 2] * 2
                assert b.tolist() == [k - lag] * 3


def importing_ddl_distributes_a_session():
    import ddl

    assert (ddl.rank(), ddl.size(), ddl.local_rank(), ddl.num_hosts()) == (_r, _n, _r, 1)
    for monitored in (False, True):
        with tf.Graph().as_default():
            a, b, v, loss = _loss(_r)
            step = _v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
            with _v1.train.MonitoredTrainingSession() if monitored else _v1.Session() as session:
                if not monitored:
                    session.run(_v1.global_variables_initializer())
                for k in range(5):
                    session.run(step, {a: _x[k][_r::_n], b: _y[k][_r::_n]})
                got = session.run(v)
        np.testing.assert_allclose(got, _serial(), rtol=1e-10)


def variables_of_ddl_start_with_rank_0s_values_whatever_initializes_them():
    import ddl
    import dl_comm

    def start(initialize):
        with tf.Graph().as_default():
            w = _v1.get_variable("w", [5, 3])
            twice = _v1.get_variable("twice", initializer=w.initial_value * 2)
            own = _v1.get_variable("own", initializer=float(ddl.rank()), trainable=False)
            with _v1.Session() as session:
                initialize(session)
                first, second, third = session.run([w, twice, own])
        assert dl_comm.check_buffers_match([first, second]) == 0
        assert third == ddl.rank()

    def those_not_yet_initialized(session):
        session.run([v.initializer for v in _v1.global_variables() if not session.run(_v1.is_variable_initialized(v))])

    start(lambda session: session.run(_v1.global_variables_initializer()))
    start(lambda session: session.run(_v1.initializers.variables(_v1.global_variables())))
    start(lambda session: session.run([v.initializer for v in _v1.global_variables()]))
    start(those_not_yet_initialized)
    eager = [tf.Variable(tf.random.normal([4]) + ddl.rank()), tf.Variable(float(ddl.rank()), trainable=False)]
    assert dl_comm.check_buffers_match([eager[0].numpy()]) == 0
    assert eager[1].numpy() == ddl.rank()


def the_first_reduction_of_ddl_refuses_variables_that_differ():
    import ddl
    from dl_comm.tensorflow import starting

    def refused(act):
        try:
            act()
        except Exception as error:
            assert "differs between rank" in str(error), error
            assert "weight" in str(error), error
            return True
        return False

    weight = tf.Variable(tf.ones([2]), name="weight")
    weight.assign_add([0.0, float(ddl.rank())])
    optimizer = _v1.train.GradientDescentOptimizer(0.1)
    assert refused(lambda: optimizer.apply_gradients([(tf.ones([2]), weight)]))
    with tf.Graph().as_default(), _v1.Session() as session:
        same, weight = _v1.get_variable("same", [2, 3]), _v1.get_variable("weight", [2, 3])
        step = optimizer.minimize(tf.reduce_sum(same**2))
        session.run(_v1.global_variables_initializer())
        session.run(weight.assign_add(tf.fill([2, 3], float(ddl.rank()))))
        assert not refused(lambda: session.run(step))
        compared = starting.check_alike([weight])
        assert refused(lambda: session.run(compared)) == (ddl.rank() > 0)  # they compare with rank 0's
        assert not refused(lambda: session.run(compared))


def reductions_of_ddl_are_compared_with_those_of_mpi():
    import ddl
    from ddl import averaging

    given = [tf.fill([5, 2], float(_r)), None, tf.range(3.0) * _r]
    for options, factor in (({}, 1), ({"average": False}, _n), ({"op": "sum"}, _n), ({"mpi": True}, 1)):
        for check in (0.0, 1e-3):
            if not (check and "mpi" in options):
                a, none, b = ddl.allreduce_n(given, check=check, **options)
                assert none is None
                np.testing.assert_allclose(a.numpy(), factor * (_n - 1) / 2, rtol=1e-6)
                np.testing.assert_allclose(b.numpy(), np.arange(3) * factor * (_n - 1) / 2, rtol=1e-6)
    ours, theirs = tf.constant([1.0, 2.0]), tf.constant([1.0, 2.1])
    averaging.checked(7, ours, theirs, 0.1)
    try:
        averaging.checked(7, ours, theirs, 0.01)
    except Exception as error:
        assert "tensor 7" in str(error), error
        assert f"rank {_r}" in str(error), error
        assert "0.0476" in str(error), error
    else:
        raise AssertionError("no error")
    assert ddl.bcast(tf.constant(float(_r)), 1).numpy() == 1


def callbacks_of_ddl_distribute_a_keras_model():
    import ddl

    def make(seed):
        tf.keras.utils.set_random_seed(seed)
        layers = [tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential([tf.keras.Input((6,)), *layers])
        model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        return model

    x, y = _x.reshape(-1, 6).astype("f4"), _y.reshape(-1, 1).astype("f4")
    serial, ported = make(1), make(1 + _r)
    expected = serial.fit(x, y, 12, 2, shuffle=False, verbose=0).history["loss"]
    callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    got = ported.fit(x[_r::_n], y[_r::_n], 12 // _n, 2, shuffle=False, verbose=0, callbacks=callbacks).history["loss"]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for one, many in zip(serial.get_weights(), ported.get_weights(), strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-4, atol=1e-6)
