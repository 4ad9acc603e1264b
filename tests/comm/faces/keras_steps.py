"""Training steps under dl_comm.keras on every rank: each way to take them trains like one process."""

import contextlib
import io

import dl_comm.keras as dl
import keras
import numpy as np
from dl_comm.keras.backend import KERAS_3, backend, read
from keras_nets import assert_fits_like_one_process, make_data, make_model, n, r, same_bits, set_seed


def a_fit_is_that_of_one_process_with_the_global_batch():
    x, y = make_data(4 * n * 3)
    optimizers = [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.RMSprop(0.01, clipnorm=0.05),
        lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05),
    ]
    if backend() == "jax":
        optimizers = optimizers[::3]  # each step is compiled anew
    if not KERAS_3:
        optimizers += [lambda: keras.optimizers.legacy.SGD(0.1), lambda: keras.optimizers.legacy.Adam(clipnorm=0.1)]
    for optimizer in optimizers:
        expected, got = assert_fits_like_one_process(
            lambda seed, optimizer=optimizer: make_model(seed, optimizer=optimizer()),
            lambda model, batch: model.fit(x, y, batch, 2, shuffle=False, verbose=0).history["loss"],
        )
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def a_model_that_waits_for_its_first_batch_begins_alike_too():
    x, y = make_data(4 * n * 2)
    assert_fits_like_one_process(
        lambda seed: make_model(seed, built=False),
        lambda model, batch: model.fit(x, y, batch, shuffle=False, verbose=0),
    )

    def from_a_generator(model, batch):
        batches = ((x[i : i + batch], y[i : i + batch]) for i in range(0, len(x), batch))
        return model.fit(batches, steps_per_epoch=len(x) // batch, verbose=0)

    if backend() != "jax":  # each step is compiled anew
        assert_fits_like_one_process(lambda seed: make_model(seed, built=False), from_a_generator)


def batches_by_hand_and_steps_of_ones_own_are_averaged():
    x, y = make_data(12 * n)

    def by_hand(model, batch):
        mine, losses = slice(r, None, n) if batch == 4 else slice(None), []
        model.trainable = KERAS_3  # before, what could be trained at compile() is, as in GANs
        for k in range(4):
            whole = slice(k * 3 * n, (k + 1) * 3 * n)
            losses.append(model.train_on_batch(x[whole][mine], y[whole][mine], return_dict=k > 1))
        model.trainable = True
        return losses[1:3] if batch != 4 else [dl.average(loss) for loss in losses[1:3]]

    for metrics in ([], ["mae"]):
        built = bool(metrics)  # else each rank would begin elsewhere
        expected, got = assert_fits_like_one_process(
            lambda seed, m=metrics, built=built: make_model(seed, built, metrics=m), by_hand
        )
        np.testing.assert_allclose(np.ravel(got[0]), np.ravel(expected[0]), rtol=1e-6)
        assert list(got[1]) == list(expected[1])
        np.testing.assert_allclose(list(got[1].values()), list(expected[1].values()), rtol=1e-6)


def after_batches_by_hand_all_ranks_evaluate_one_model():
    x, y = make_data(8 * n)
    set_seed(1)
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    dl.distribute(model)
    for k in range(2):
        model.train_on_batch(x[k::2][r::n] * (r + 1), y[k::2][r::n])
    same_bits(model)  # moving means and variances, too


def steps_that_are_eager_or_several_at_a_time_are_averaged():
    x, y = make_data(4 * n * 4)
    several = {"steps_per_execution": 2 if backend() != "torch" else 1}  # Keras on torch takes them one by one
    for options in ({"run_eagerly": True}, several):
        assert_fits_like_one_process(
            lambda seed, options=options: make_model(seed, **options),
            lambda model, batch: model.fit(x, y, batch, shuffle=False, verbose=0),
        )


def a_compiled_step_works_or_is_switched_off_with_a_line_that_says_so():
    if backend() == "torch":
        return "torch.compile on every rank takes a minute"
    x, y = make_data(4 * n * 2)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert_fits_like_one_process(
            lambda seed: make_model(seed, jit_compile=True),
            lambda model, batch: model.fit(x, y, batch, shuffle=False, verbose=0),
        )
        again = dl.distribute(make_model())
        again.compile(optimizer="sgd", loss="mse", jit_compile=True)
        again.fit(x, y, 4, verbose=0)
    lines = [line for line in said.getvalue().splitlines() if "jit_compile is switched off" in line]
    assert len(lines) == (2 if r == 0 and backend() == "tensorflow" else 0), said.getvalue()
    return None


def gradients_of_megabytes_pass():
    set_seed(1)
    model = keras.Sequential([keras.layers.Input((1000,)), keras.layers.Dense(1500), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    generator = np.random.default_rng(r)
    dl.distribute(model).fit(generator.normal(size=(32, 1000)), np.ones((32, 1)), 4, shuffle=False, verbose=0)
    same_bits(model)


def an_overflow_on_one_rank_skips_the_step_on_all():
    set_seed(1)
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    inner = keras.optimizers.SGD(0.1)
    scaling = {"initial_scale": 4.0, "dynamic_growth_steps": 1000} if KERAS_3 else {"initial_scale": 4.0}
    scaled = (keras.optimizers if KERAS_3 else keras.mixed_precision).LossScaleOptimizer(inner, **scaling)
    model.compile(optimizer=scaled, loss="mse")
    dl.distribute(model)
    before = [read(v) for v in model.trainable_variables]
    x = np.ones((4, 6), np.float32)
    bad = x * (np.inf if r == 1 else 1.0)
    model.train_on_batch(bad, x[:, :1] * 3)
    assert all((read(v) == b).all() for v, b in zip(model.trainable_variables, before, strict=True))
    model.train_on_batch(x * (r + 1), x[:, :1] * 3)
    assert not all((read(v) == b).all() for v, b in zip(model.trainable_variables, before, strict=True))
    assert all(np.isfinite(read(v)).all() for v in model.trainable_variables)
    same_bits(model)


def a_fit_ends_on_all_ranks_where_a_callback_ends_it_on_one():
    x, y = make_data(16 * n)
    seen = []

    class Until(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)
            self.model.stop_training = batch == 1 and r == n - 1  # its own batch, say, has no labels

    class Hurry(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(epoch)
            self.model.stop_training = epoch == 1 and r == n - 1  # a clock of its own

    for callbacks, expected in (([[Until()]], [0, 1]), (Hurry(), [0, 1])):
        seen.clear()
        callbacks = [callbacks, dl.rank0(keras.callbacks.History)()]
        dl.distribute(make_model()).fit(x, y, 4, 3, callbacks=callbacks, verbose=0)
        assert seen == expected, seen
    dl.distribute(make_model()).fit(x, y, 4, callbacks=Hurry(), verbose=0)  # a single one
