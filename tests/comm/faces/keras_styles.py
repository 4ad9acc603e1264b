"""Models and loops in the styles that people write them in: each trains like one process."""

import contextlib
import io

import dl_comm.keras as dl
import keras
import numpy as np
from agreement import go_on_alike
from dl_comm.keras.backend import KERAS_3, backend, read
from keras_nets import assert_fits_like_one_process, make_data, make_model, n, r, same_bits, set_seed

_layers = keras.layers


def _compiled(build):
    """Return what makes a model from a seed, for a train_step() of its own."""

    def make(seed):
        set_seed(seed)
        model = build()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
        return model

    return make


def several_outputs_with_weights_of_samples_classes_and_losses():
    x, y = make_data(4 * n * 3)
    generator = np.random.default_rng(4)
    kinds, weights = generator.integers(3, size=len(x)), generator.uniform(0.1, 2, size=(2, len(x)))

    def make(seed):
        set_seed(seed)
        one, other = keras.Input((6,), name="one"), keras.Input((1,), name="other")
        hidden = _layers.Dense(5, activation="tanh")(_layers.concatenate([one, other]))
        outputs = {"price": _layers.Dense(1, name="price")(hidden), "kind": _layers.Dense(3, name="kind")(hidden)}
        model = keras.Model({"one": one, "other": other}, outputs)
        entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        losses = {"price": "mse", "kind": entropy}
        model.compile(keras.optimizers.Adam(0.01), losses, loss_weights={"price": 0.3, "kind": 2.0})
        return model

    samples = {"one": x, "other": y}, {"price": y, "kind": kinds}
    each = {"price": weights[0], "kind": weights[1]}
    assert_fits_like_one_process(
        make, lambda model, batch: model.fit(*samples, batch, shuffle=False, sample_weight=each, verbose=0)
    )

    if backend() == "jax":
        return  # each step is compiled anew

    def make_classifier(seed):
        set_seed(seed)
        model = keras.Sequential([keras.Input((6,)), _layers.Dense(3, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    several = {0: 1.0, 1: 5.0, 2: 0.5}
    assert_fits_like_one_process(
        make_classifier, lambda model, batch: model.fit(x, kinds, batch, shuffle=False, class_weight=several, verbose=0)
    )


def a_train_step_of_ones_own_and_losses_that_layers_add():
    class Penalty(_layers.Layer):
        def call(self, x):
            self.add_loss(0.1 * (keras.ops if KERAS_3 else keras.backend).mean(x * x))
            return x

    def of_tensorflow(self, data):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data[0], training=True) - data[1]) ** 2) + sum(self.losses)
        grads = dl.gradients(tape.gradient(loss, self.trainable_variables))  # else the optimizer would, too late
        grads, _ = tf.clip_by_global_norm(grads, 0.1)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        return {"loss": loss}

    def of_torch(self, data):
        import torch

        self.zero_grad()
        loss = keras.ops.mean((self(data[0], training=True) - data[1]) ** 2) + sum(self.losses)
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in weights], weights)
        return {"loss": loss.item()}

    def of_jax(self, state, data):
        import jax

        trainable, fixed, slots, metrics = state

        def compute(trainable):
            predicted, changed, losses = self.stateless_call(
                trainable, fixed, data[0], training=True, return_losses=True
            )
            return keras.ops.mean((predicted - data[1]) ** 2) + sum(losses), changed

        (loss, fixed), grads = jax.value_and_grad(compute, has_aux=True)(trainable)
        trainable, slots = self.optimizer.stateless_apply(slots, grads, trainable)
        return {"loss": loss}, (trainable, fixed, slots, metrics)

    steps = {"tensorflow": of_tensorflow, "torch": of_torch, "jax": of_jax}

    class Net(keras.Model):
        train_step = steps[backend()]

        def __init__(self):
            super().__init__()
            self.first, self.penalty = _layers.Dense(8, activation="tanh"), Penalty()
            self.second = _layers.Dense(1)

        def call(self, x, training=False):
            return self.second(self.penalty(self.first(x)))

        def fit(self, *args, **options):  # names none of the options that dl_comm changes
            return super().fit(*args, **options)

    make = _compiled(Net)
    x, y = make_data(4 * n * 2)
    assert_fits_like_one_process(make, lambda model, batch: model.fit(x, y, batch, shuffle=False, verbose=0))


def loops_by_hand_with_an_optimizer_that_averages():
    x, y = make_data(4 * n * 3)

    def train(model, mine, distributed):
        optimizer = keras.optimizers.Adam(0.01)
        if distributed:
            dl.DistributedOptimizer(optimizer)
            dl.broadcast(model)
        optimizer.build(model.trainable_variables)
        step = _loop_of[backend()](model, optimizer)
        for k in range(3):
            whole = slice(k * 4 * n, (k + 1) * 4 * n)
            step(x[whole][mine], y[whole][mine])
        return model

    serial = train(make_model(), slice(None), False)
    ported = train(make_model(1 + r), slice(r, None, n), True)
    for one, many in zip(serial.trainable_variables, ported.trainable_variables, strict=True):
        np.testing.assert_allclose(read(many), read(one), rtol=1e-5, atol=1e-6)
    same_bits(ported)


def _loop_in_tensorflow(model, optimizer):
    import tensorflow as tf

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return step


def _loop_in_torch(model, optimizer):
    import torch

    def step(x, y):
        model.zero_grad()
        keras.ops.mean((model(x, training=True) - keras.ops.convert_to_tensor(y)) ** 2).backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in model.trainable_weights], model.trainable_weights)

    return step


def _loop_in_jax(model, optimizer):
    import jax

    state = [[v.value for v in model.trainable_variables], [v.value for v in optimizer.variables]]
    fixed = [v.value for v in model.non_trainable_variables]

    def compute(trainable, x, y):
        predicted, _ = model.stateless_call(trainable, fixed, x, training=True)
        return keras.ops.mean((predicted - y) ** 2)

    @jax.jit
    def update(trainable, slots, x, y):
        grads = jax.grad(compute)(trainable, x, y)
        return optimizer.stateless_apply(slots, grads, trainable)

    def step(x, y):
        state[:] = update(*state, x, y)
        for variable, value in zip(model.trainable_variables, state[0], strict=True):
            variable.assign(value)

    return step


_loop_of = {"tensorflow": _loop_in_tensorflow, "torch": _loop_in_torch, "jax": _loop_in_jax}


def averages_of_weights_and_accumulated_gradients():
    x, y = make_data(4 * n * 4)
    options = {"use_ema": True, "ema_momentum": 0.5}
    if KERAS_3:
        options["gradient_accumulation_steps"] = 2
    assert_fits_like_one_process(
        lambda seed: make_model(seed, optimizer=keras.optimizers.Adam(0.01, global_clipnorm=0.1, **options)),
        lambda model, batch: model.fit(x, y, batch, 2, shuffle=False, verbose=0),
    )


def mixed_precision_by_policy():
    keras.backend.set_floatx("float32")
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        set_seed(1)
        model = keras.Sequential([keras.Input((6,)), _layers.Dense(8, "tanh"), _layers.Dense(1, dtype="float32")])
        model.compile("sgd", "mse")
        assert "LossScale" in type(model.optimizer).__name__
        dl.distribute(model)
        x = np.full((8, 6), 0.1, np.float32)
        for scale, moves in ((np.inf if r == n - 1 else 1.0, False), (1.0 + r, True)):
            before = [read(v) for v in model.trainable_variables]
            model.fit(x * scale, x[:, :1], 4, shuffle=False, verbose=0)
            same = [(read(v) == b).all() for v, b in zip(model.trainable_variables, before, strict=True)]
            assert not any(same) if moves else all(same)
            assert all(np.isfinite(read(v)).all() for v in model.trainable_variables)
            same_bits(model)
    finally:
        keras.mixed_precision.set_global_policy("float64")
        keras.backend.set_floatx("float64")


def averaging_inside_of_loss_scaling_is_refused():
    set_seed(1)
    inner = dl.DistributedOptimizer(keras.optimizers.SGD(0.1))
    kind = (keras.optimizers if KERAS_3 else keras.mixed_precision).LossScaleOptimizer
    model = make_model(optimizer=kind(inner))
    x, y = make_data(8)
    try:
        model.fit(x, y, verbose=0)
    except Exception as error:
        assert "DistributedOptimizer(LossScaleOptimizer(...))" in str(error), error
    else:
        raise AssertionError("no error")
    both = dl.distribute(make_model(optimizer=kind(dl.DistributedOptimizer(keras.optimizers.SGD(0.1)))))
    both.fit(x, y, verbose=0)
    same_bits(both)


def an_infinity_in_one_ranks_batch_is_that_of_one_process():
    x, y = make_data(4 * n * 2)
    x[4 * n + n - 1, 2] = np.inf  # a sample of the last rank's second batch
    assert_fits_like_one_process(make_model, lambda model, batch: model.fit(x, y, batch, shuffle=False, verbose=0))


def callbacks_alone_do_it_too():
    x, y = make_data(4 * n * 3)
    mine = dl.shard((x, y))
    serial, ported = make_model(), make_model(1 + r)
    expected = serial.fit(x, y, 4 * n, 2, shuffle=False, verbose=0).history["loss"]
    got = ported.fit(*mine, 4, 2, shuffle=False, verbose=0, callbacks=[dl.Distribute()]).history["loss"]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for one, many in zip(serial.trainable_variables, ported.trainable_variables, strict=True):
        np.testing.assert_allclose(read(many), read(one), rtol=1e-5, atol=1e-6)
    same_bits(ported)
    used = []

    class See(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            used.append(float(read(self.model.optimizer.learning_rate)))

    scale = dl.ScaleRate("sqrt")
    for _ in range(2):  # scaled once
        ported.fit(*mine, 4, shuffle=False, verbose=0, callbacks=[dl.Distribute(), scale, dl.WarmUp(2), See()])
    full = 0.1 * n**0.5
    np.testing.assert_allclose(used, [full / n, (1 + 1 / n) / 2 * full, full] * 2, rtol=1e-6)
    same_bits(ported)


class _Falls(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.3 / (1.0 + step)

    def get_config(self):
        return {}


def a_schedule_is_told_the_steps_of_all_ranks():
    scaled = dl.lr_scale(_Falls())
    for k in range(3):
        np.testing.assert_allclose(float(scaled(k)), n * 0.3 / (1 + n * k), rtol=1e-6)
        np.testing.assert_allclose(float(dl.lr_scale(_Falls(), "none")(k)), 0.3 / (1 + n * k), rtol=1e-6)
    written = keras.optimizers.schedules.serialize(scaled)
    assert written == keras.optimizers.schedules.serialize(_Falls())


def generators_end_together_and_only_rank_0_shows_progress():
    x, y = make_data(4)

    def batches(count):
        yield from ((x, y) for _ in range(count))

    model, steps = dl.distribute(make_model()), []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append(batch)

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        model.fit(batches(2 * n + 1), callbacks=[Count()])
    assert len(steps) == 3  # the last round is padded
    assert ("loss" in shown.getvalue()) == (r == 0)
    same_bits(model)


def a_data_set_of_known_length_is_as_long_on_all_ranks_and_no_step_is_counted_beside():
    if backend() != "tensorflow":
        return
    import tensorflow as tf

    x, y = make_data(4 * (3 * n + 1))
    model = dl.distribute(make_model())
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(4), epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 2 * 4  # the last round is padded


def generators_go_on_as_rank_0s():
    go_on_alike(dl.broadcast)


def a_model_whose_call_takes_other_things_than_its_train_step_begins_alike():
    if backend() != "tensorflow":
        return
    import tensorflow as tf

    class Generator(keras.Model):
        def __init__(self):
            super().__init__()
            self.made, self.judged = _layers.Dense(len(x[0])), _layers.Dense(1)

        def call(self, noise):
            return self.made(noise)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                noise = tf.ones((tf.shape(data[0])[0], 2))
                loss = tf.reduce_mean((self.judged(data[0]) - self.judged(self.made(noise))) ** 2)
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
            return {"loss": loss}

    x, y = make_data(4 * n * 2)
    model = dl.distribute(_compiled(Generator)(r))
    model.fit(x, y, batch_size=4, verbose=0)
    same_bits(model)


def layers_that_a_train_step_alone_calls_begin_alike():
    if backend() != "tensorflow":
        return
    import tensorflow as tf

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.mean = _layers.Dense(4, activation="tanh"), _layers.Dense(1)
            self.deviation, self.never_called = _layers.Dense(1), _layers.Dense(1)

        def call(self, x):
            return self.mean(self.hidden(x))

        def train_step(self, data):
            with tf.GradientTape() as tape:
                hidden = self.hidden(data[0])
                wide = self.deviation(hidden)
                loss = tf.reduce_mean((self.mean(hidden) - data[1]) ** 2 * tf.exp(-wide) + wide)
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
            return {"loss": loss}

    make = _compiled(Net)
    x, y = make_data(4 * n * 2)
    assert_fits_like_one_process(make, lambda model, batch: model.fit(x, y, batch, shuffle=False, verbose=0))
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    for feed in (rows, ((x[i : i + 4], y[i : i + 4]) for i in range(0, len(x), 4))):
        model = dl.distribute(make(r))
        model.fit(feed, verbose=0)
        same_bits(model)
