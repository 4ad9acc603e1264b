"""What dl_comm.keras must do on every rank, for whichever Keras and backend there is."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import dl_comm.keras as dl
import keras
import numpy as np
from dl_comm import _core
from dl_comm.keras.backend import KERAS_3, backend, read, variables_of

_r, _n = dl.get_rank(), dl.get_nranks()
dl.init()
keras.backend.set_floatx("float64")


def _same_bits(model):
    data = b"".join(np.ascontiguousarray(read(v)).tobytes() for v in variables_of(model) if "seed" not in v.name)
    assert len(set(_core.allgather_bytes(hashlib.sha256(data).digest()))) == 1


def _data(samples=48):
    generator = np.random.default_rng(2)
    return generator.normal(size=(samples, 6)), generator.normal(size=(samples, 1))


def _seed(seed):
    keras.utils.set_random_seed(seed)


def _model(seed=1, built=True, **options):
    """A net in float64; on ranks with another seed it begins elsewhere."""
    _seed(seed)
    layers = [keras.layers.Dense(8, activation="tanh", dtype="float64"), keras.layers.Dense(1, dtype="float64")]
    model = keras.Sequential(([keras.layers.Input((6,), dtype="float64")] if built else []) + layers)
    options.setdefault("optimizer", keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(loss="mse", **options)
    return model


def _assert_fits_like_one_process(make, fit):
    """``fit(model, batch)`` with a local batch of 4, against one process with a batch of 4 n."""
    # The torch backend of Keras computes gradients of float64 models in part in float32.
    rtol, atol = (1e-9, 1e-12) if backend() == "tensorflow" else (1e-5, 1e-6)
    serial = make(1)
    expected = fit(serial, 4 * _n)
    ported = dl.distribute(make(1 + _r))
    got = fit(ported, 4)
    for one, many in zip(serial.trainable_variables, ported.trainable_variables, strict=True):
        np.testing.assert_allclose(read(many), read(one), rtol=rtol, atol=atol)
    _same_bits(ported)
    return expected, got


def a_fit_is_that_of_one_process_with_the_global_batch():
    x, y = _data(4 * _n * 3)
    optimizers = [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.Adam(0.01),
        lambda: keras.optimizers.RMSprop(0.01, clipnorm=0.05),
        lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05),
    ]
    if not KERAS_3:
        optimizers += [lambda: keras.optimizers.legacy.SGD(0.1), lambda: keras.optimizers.legacy.Adam(clipnorm=0.1)]
    for optimizer in optimizers:
        expected, got = _assert_fits_like_one_process(
            lambda seed, optimizer=optimizer: _model(seed, optimizer=optimizer()),
            lambda model, batch: model.fit(x, y, batch, 2, shuffle=False, verbose=0).history["loss"],
        )
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def a_model_that_waits_for_its_first_batch_begins_alike_too():
    x, y = _data(4 * _n * 2)
    _assert_fits_like_one_process(
        lambda seed: _model(seed, built=False), lambda model, batch: model.fit(x, y, batch, shuffle=False, verbose=0)
    )


def batches_by_hand_and_steps_of_ones_own_are_averaged():
    x, y = _data(12 * _n)

    def by_hand(model, batch):
        mine = slice(_r, None, _n) if batch == 4 else slice(None)
        for k in range(3):
            whole = slice(k * 4 * _n, (k + 1) * 4 * _n)
            model.train_on_batch(x[whole][mine], y[whole][mine])

    _assert_fits_like_one_process(_model, by_hand)


def data_sets_and_sequences_are_divided():
    x, y = _data(2 * _n * 4)
    model = dl.distribute(_model())
    seen = []
    base = keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence

    class Batches(base):
        def __len__(self):
            return 2 * _n

        def __getitem__(self, index):
            seen.append(index)
            return x[index * 4 : index * 4 + 4], y[index * 4 : index * 4 + 4]

    model.fit(Batches(), verbose=0, shuffle=False)
    assert {i for i in seen if i % _n == _r} >= set(range(_r, 2 * _n, _n))
    if backend() == "tensorflow":
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(4)
        history = model.fit(dataset, epochs=2, verbose=0)
        assert len(history.history["loss"]) == 2
        model.fit(dataset.repeat(), steps_per_epoch=2 * _n, verbose=0)
    _same_bits(model)


def metrics_are_averaged_before_others_see_them():
    x, y = _data(8 * _n)
    y = y + np.arange(8 * _n)[:, None] % _n * 10  # the ranks' losses differ widely
    seen = []

    class See(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append({name: float(value) for name, value in logs.items()})

    model = dl.distribute(_model(metrics=["mae"]))
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=1e9)
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=1e9)
    history = model.fit(x, y, 4, 9, callbacks=[See(), stop, plateau], validation_split=0.25, verbose=0)
    assert len(seen) < 9
    assert set(seen[0]) >= {"loss", "mae", "val_loss", "val_mae"}
    everyone = [json.loads(b) for b in _core.allgather_bytes(json.dumps(seen).encode())]
    assert all(one == everyone[0] for one in everyone)
    assert history.history["loss"] == [one["loss"] for one in seen]


def validation_data_are_split_off_first_and_not_divided():
    x, y = _data(8 * _n)
    model = dl.distribute(_model())
    seen = []

    class See(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            seen.append(batch)

    model.fit(x, y, 2, validation_split=0.5, callbacks=[See()], verbose=0)
    assert len(seen) == 2 * _n  # half of the samples in batches of 2


def only_rank_0_writes_and_what_it_writes_loads_without_dl_comm():
    folder = Path(_core.broadcast_bytes(tempfile.mkdtemp().encode(), 0).decode())
    x, y = _data(8 * _n)
    model = dl.distribute(_model())
    endings = [".keras"] if KERAS_3 else [".keras", ".h5"]
    callbacks = [keras.callbacks.ModelCheckpoint(str(folder / f"best{_r}{ending}")) for ending in endings]
    model.fit(x, y, 4, callbacks=[*callbacks, keras.callbacks.CSVLogger(str(folder / f"log{_r}.csv"))], verbose=0)
    dl.barrier()
    assert sorted(p.name for p in folder.iterdir()) == sorted([f"best0{ending}" for ending in endings] + ["log0.csv"])
    dl.barrier()
    if _r > 0:
        return
    expected = model.predict(x, verbose=0)
    model.export(str(folder / "served")) if backend() == "tensorflow" and KERAS_3 else None
    np.savez(folder / "data.npz", x=x, expected=expected)
    program = f"""
import sys
sys.modules["dl_comm"] = None
import keras, numpy as np
data = np.load({str(folder / "data.npz")!r})
for ending in {endings!r}:
    model = keras.models.load_model({str(folder)!r} + "/best0" + ending)
    np.testing.assert_allclose(model.predict(data["x"], verbose=0), data["expected"], rtol=1e-5, atol=1e-6)
    model.fit(data["x"], data["expected"], verbose=0)
if {(folder / "served").exists()}:
    import tensorflow as tf
    served = tf.saved_model.load({str(folder / "served")!r})
    np.testing.assert_allclose(served.serve(data["x"]).numpy(), data["expected"], rtol=1e-5, atol=1e-6)
"""
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDRA", "MPI"))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=alone, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def an_overflow_on_one_rank_skips_the_step_on_all():
    if backend() != "tensorflow":
        return "Keras scales losses on TensorFlow only"
    _seed(1)
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    inner = keras.optimizers.SGD(0.1)
    scaling = {"initial_scale": 4.0, "dynamic_growth_steps": 1000} if KERAS_3 else {"initial_scale": 4.0}
    scaled = (keras.optimizers if KERAS_3 else keras.mixed_precision).LossScaleOptimizer(inner, **scaling)
    model.compile(optimizer=scaled, loss="mse")
    dl.distribute(model)
    before = [read(v) for v in model.trainable_variables]
    x = np.ones((4, 6), np.float32)
    bad = x * (np.inf if _r == 1 else 1.0)
    model.train_on_batch(bad, x[:, :1] * 3)
    assert all((read(v) == b).all() for v, b in zip(model.trainable_variables, before, strict=True))
    model.train_on_batch(x * (_r + 1), x[:, :1] * 3)
    assert not all((read(v) == b).all() for v, b in zip(model.trainable_variables, before, strict=True))
    assert all(np.isfinite(read(v)).all() for v in model.trainable_variables)
    _same_bits(model)
    return None


def warming_up_leaves_the_full_rate_to_others():
    x, y = _data(8 * _n)
    used, shown = [], []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            used.append(float(read(self.model.optimizer.learning_rate)))

        def on_epoch_end(self, epoch, logs=None):
            shown.append(float(read(self.model.optimizer.learning_rate)))

    model = dl.distribute(_model(optimizer=keras.optimizers.SGD(1.0)))
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
    model.fit(x, y, 4, 3, callbacks=[halve, dl.WarmUp(3), Rates()], verbose=0)
    factors = [1 / _n + (1 - 1 / _n) * k / 3 for k in range(3)]
    np.testing.assert_allclose(used, [factors[0], factors[1], factors[2] / 2, 0.5, 0.25, 0.25], rtol=1e-6)
    np.testing.assert_allclose(shown, [1.0, 0.5, 0.25], rtol=1e-6)


def statistics_of_batch_normalization_are_one_for_all():
    x, y = _data(8 * _n)
    _seed(1)
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    dl.distribute(model).fit(x + np.arange(8 * _n)[:, None] % _n, y, 4, verbose=0)
    _same_bits(model)
    assert np.abs(read(model.layers[0].moving_mean)).sum() > 0


def what_cannot_work_is_refused():
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    try:
        dl.distribute(model)
    except ValueError as error:
        assert "compile" in str(error)
    else:
        raise AssertionError("no error")
    x, y = _data(8)
    model = dl.distribute(_model())
    try:
        model.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore(tempfile.mkdtemp())], verbose=0)
    except TypeError as error:
        assert "BackupAndRestore" in str(error)
    else:
        raise AssertionError("no error")
