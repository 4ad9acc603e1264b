"""Scripts in the styles that people write them in, of TensorFlow 1 and 2: each trains like one process."""

import itertools
import tempfile

import dl_comm.tensorflow as dl
import numpy as np
import tensorflow as tf
from agreement import same_bits

_r, _n = dl.get_rank(), dl.get_nranks()
_v1 = tf.compat.v1
dl.init()


def _trains_like_one_process(train, rtol=1e-9, infinities=(False, True)):
    """``train(batch, distributed)`` returns arrays; ``batch(k, *shape)`` is this process's part of some numbers.

    All is done again with an infinity among the last rank's numbers: then the same results must be no numbers.
    """

    def run(distributed, infinite):
        calls = itertools.count(1)

        def batch(k, *shape):
            whole = np.random.default_rng(k).normal(size=(4 * _n, *shape))
            if infinite and next(calls) == 3:
                whole[_n - 1].reshape(-1)[-1:] = np.inf
            return whole[_r::_n] if distributed else whole

        return [np.asarray(array) for array in train(batch, distributed)]

    for infinite in infinities:
        expected, got = run(False, infinite), run(True, infinite)
        for one, many in zip(expected, got, strict=True):
            np.testing.assert_allclose(many, one, rtol=rtol, atol=rtol)
        same_bits(got)


def _first(shape, distributed, seed=1):
    """First values of a variable: other ones on ranks that are to be broadcast to."""
    return np.random.default_rng([seed, _r if distributed else 0]).normal(size=shape) / 3


def two_networks_and_two_ops_of_one_session():
    def train(batch, distributed):
        with tf.Graph().as_default():
            noise, real = _v1.placeholder(tf.float64, [None, 3]), _v1.placeholder(tf.float64, [None, 2])

            with _v1.variable_scope("judge"):
                inner = _v1.get_variable("inner", initializer=_first([2, 4], distributed, 1))
                outer = _v1.get_variable("outer", initializer=_first([4, 1], distributed, 2))

            def judge(x):
                return tf.tanh(x @ inner) @ outer

            with _v1.variable_scope("make"):
                made = tf.tanh(noise @ _v1.get_variable("w", initializer=_first([3, 2], distributed, 3)))
            of_judge = tf.reduce_mean(judge(made)) - tf.reduce_mean(judge(real) - judge(real) ** 2)
            of_make = tf.reduce_mean(judge(made) ** 2)
            steps = []
            for scope, loss in (("judge", of_judge), ("make", of_make)):
                optimizer = _v1.train.AdamOptimizer(0.01)
                if distributed:
                    optimizer = dl.DistributedOptimizer(optimizer)
                variables = _v1.get_collection(_v1.GraphKeys.TRAINABLE_VARIABLES, scope)
                steps.append(optimizer.minimize(loss, var_list=variables))
            start = dl.broadcast_variables() if distributed else tf.no_op()
            with _v1.Session() as session:
                session.run(_v1.global_variables_initializer())
                session.run(start)
                for k in range(4):
                    given = {noise: batch(k, 3), real: batch(50 + k, 2)}
                    session.run(steps[0], given)
                    session.run(steps[1], given)
                return session.run(_v1.trainable_variables())

    _trains_like_one_process(train)


def two_networks_and_two_tapes():
    def train(batch, distributed):
        make, judge = (tf.Variable(_first(shape, distributed)) for shape in ([3, 2], [2, 1]))
        optimizers = [tf.keras.optimizers.SGD(0.1, momentum=0.9) for _ in range(2)]
        if distributed:
            dl.broadcast_variables([make, judge], *optimizers)

        @tf.function
        def step(noise, real):
            with tf.GradientTape() as one, tf.GradientTape() as other:
                made = tf.tanh(noise @ make)
                of_judge = tf.reduce_mean(made @ judge) + tf.reduce_mean((real @ judge) ** 2)
                of_make = tf.reduce_mean((made @ judge) ** 2)
            grads = [one.gradient(of_judge, [judge]), other.gradient(of_make, [make])]
            for optimizer, grad, variable in zip(optimizers, grads, (judge, make), strict=True):
                grad = dl.gradients(grad) if distributed else grad
                optimizer.apply_gradients(zip(grad, [variable], strict=True))

        for k in range(4):
            step(tf.constant(batch(k, 3)), tf.constant(batch(50 + k, 2)))
        return make.numpy(), judge.numpy()

    _trains_like_one_process(train, rtol=1e-6)  # Keras's rates are float32


def a_scaled_loss_whose_overflow_on_one_rank_skips_the_step():
    def train(batch, distributed):
        v = tf.Variable(tf.cast(_first([6, 1], distributed), tf.float32))
        if distributed:
            dl.broadcast_variables([v])
        inner = tf.keras.optimizers.SGD(0.1)
        keras_3 = hasattr(inner, "stateless_apply")
        kind = (tf.keras.optimizers if keras_3 else tf.keras.mixed_precision).LossScaleOptimizer
        optimizer = kind(inner, initial_scale=16.0)
        optimizer.build([v])

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(x @ v) - y) ** 2)
                scaled = optimizer.scale_loss(loss) if keras_3 else optimizer.get_scaled_loss(loss)
            grads = tape.gradient(scaled, [v])
            grads = dl.gradients(grads) if distributed else grads
            grads = grads if keras_3 else optimizer.get_unscaled_gradients(grads)
            optimizer.apply_gradients(zip(grads, [v], strict=True))

        seen = []
        for k in range(4):
            step(*(tf.constant(batch(k + 50 * i, width), tf.float32) for i, width in enumerate((6, 1))))
            seen.append(v.numpy())
        assert np.isfinite(seen).all()
        return seen

    _trains_like_one_process(train, rtol=1e-5)


def embeddings_whose_gradients_are_slices_and_clipped_by_their_global_norm():
    def train(batch, distributed, eager):
        def loss_of(table, v, x, y):
            rows = tf.cast(tf.clip_by_value(tf.abs(x[:, 0]) * 3, 0, 8), tf.int32)
            return tf.reduce_mean((tf.gather(table, rows) @ v - y) ** 2)

        def clipped(grads):
            assert isinstance(grads[0], tf.IndexedSlices)
            return tf.clip_by_global_norm(dl.gradients(grads) if distributed else grads, 0.2)[0]

        firsts = [_first([9, 4], distributed), _first([4, 1], distributed)]
        if eager:
            table, v = (tf.Variable(first) for first in firsts)
            if distributed:
                dl.broadcast_variables(table, v)
            for k in range(4):
                with tf.GradientTape() as tape:
                    loss = loss_of(table, v, *(tf.constant(batch(k + 50 * i, width)) for i, width in ((0, 2), (1, 1))))
                for variable, grad in zip((table, v), clipped(tape.gradient(loss, [table, v])), strict=True):
                    variable.assign_sub(0.5 * tf.convert_to_tensor(grad))
            return table.numpy(), v.numpy()
        with tf.Graph().as_default():
            x, y = _v1.placeholder(tf.float64, [None, 2]), _v1.placeholder(tf.float64, [None, 1])
            table, v = (_v1.get_variable(name, initializer=one) for name, one in zip("tv", firsts, strict=True))
            optimizer = _v1.train.AdagradOptimizer(0.1)
            pairs = optimizer.compute_gradients(loss_of(table, v, x, y))
            grads = clipped([g for g, _ in pairs])
            step = optimizer.apply_gradients(list(zip(grads, [w for _, w in pairs], strict=True)))
            with _v1.train.MonitoredTrainingSession(hooks=[dl.BroadcastHook()] if distributed else []) as session:
                for k in range(4):
                    session.run(step, {x: batch(k, 2), y: batch(50 + k, 1)})
                return session.run([table, v])

    for eager in (True, False):
        _trains_like_one_process(lambda batch, distributed, eager=eager: train(batch, distributed, eager))


def accumulation_in_a_loop_of_the_graph():
    def train(batch, distributed):
        v = tf.Variable(_first([6, 1], distributed))
        if distributed:
            dl.broadcast_variables(v)

        @tf.function
        def steps(x, y):
            for k in tf.range(3):
                total = tf.zeros_like(v)
                for i in tf.range(2):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean((tf.tanh(x[2 * k + i] @ v) - y[2 * k + i]) ** 2) / 2
                    total += tape.gradient(loss, v)
                grads = dl.gradients([total]) if distributed else [total]
                v.assign_sub(0.1 * tf.clip_by_norm(grads[0], 0.1))

        x, y = (np.stack([batch(k + first, width) for k in range(6)]) for first, width in ((0, 6), (50, 1)))
        steps(tf.constant(x), tf.constant(y))
        return [v.numpy()]

    _trains_like_one_process(train)


def a_monitored_session_goes_on_from_rank_0s_checkpoint():
    def train(batch, distributed):
        folder = tempfile.mkdtemp() if _r == 0 or not distributed else None
        for steps in (3, 6):
            with tf.Graph().as_default():
                x, y = _v1.placeholder(tf.float64, [None, 6]), _v1.placeholder(tf.float64, [None, 1])
                v = _v1.get_variable("v", initializer=_first([6, 1], distributed), use_resource=True)
                optimizer = _v1.train.MomentumOptimizer(0.1, 0.9)
                if distributed:
                    optimizer = dl.DistributedOptimizer(optimizer)
                count = _v1.train.get_or_create_global_step()
                step = optimizer.minimize(tf.reduce_mean((tf.tanh(x @ v) - y) ** 2), count)
                with tf.control_dependencies([step]):
                    after = [v.read_value(), tf.identity(count)]
                hooks = [_v1.train.StopAtStepHook(last_step=steps)] + ([dl.BroadcastHook()] if distributed else [])
                with _v1.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
                    while not session.should_stop():
                        k = steps  # the same numbers at every step of a session
                        result = session.run(after, {x: batch(k, 6), y: batch(50 + k, 1)})
        return result

    _trains_like_one_process(train, infinities=(False,))


def a_keras_model_in_a_loop_by_hand_trains_like_one_process():
    def train(batch, distributed):
        tf.keras.utils.set_random_seed(1 + (_r if distributed else 0))
        layers = [tf.keras.layers.Dense(4, "tanh", dtype="float64"), tf.keras.layers.Dense(1, dtype="float64")]
        model = tf.keras.Sequential([tf.keras.Input((6,), dtype="float64"), *layers])
        optimizer = tf.keras.optimizers.Adam(0.01, clipnorm=0.05)
        if distributed:
            dl.broadcast_variables(model, optimizer)
            dl.DistributedOptimizer(optimizer)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        for k in range(3):
            step(tf.constant(batch(k, 6)), tf.constant(batch(50 + k, 1)))
        return model.get_weights()

    _trains_like_one_process(train, rtol=1e-6)
