"""What dl_comm.keras does around the steps, on every rank: data, metrics, callbacks, files."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import dl_comm
import dl_comm.keras as dl
import keras
import numpy as np
from dl_comm import _core
from dl_comm.keras.backend import KERAS_3, backend, read
from keras_nets import make_data, make_model, n, r, same_bits, set_seed


def data_sets_and_sequences_are_divided():
    x, y = make_data(2 * n * 4)
    model = dl.distribute(make_model())
    seen = []
    base = keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence

    class Batches(base):
        def __len__(self):
            return 2 * n

        def __getitem__(self, index):
            seen.append(index)
            return x[index * 4 : index * 4 + 4], y[index * 4 : index * 4 + 4]

    model.fit(Batches(), verbose=0, shuffle=False)
    assert {i for i in seen if i % n == r} >= set(range(r, 2 * n, n))
    if backend() == "tensorflow":
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(4)
        history = model.fit(dataset, epochs=2, verbose=0)
        assert len(history.history["loss"]) == 2
        model.fit(dataset.repeat(), steps_per_epoch=2 * n, verbose=0)
    same_bits(model)
    for alike in (False, True):
        dl.reseed(alike=alike)
        assert len(set(_core.allgather_bytes(repr(np.random.rand()).encode()))) == (1 if alike else n)


def lists_of_texts_and_numbers_come_back_as_rank_0s():
    assert dl.broadcast(["a", ("b", r)]) == ["a", ("b", 0)]
    assert dl.broadcast(sorted({"c", "d"}, reverse=r == 1)) == ["c", "d"]


def a_sequence_is_shuffled_alike_whatever_its_batches_drew():
    x, y = make_data(2 * n * 4)
    model, epochs = dl.distribute(make_model()), []
    base = keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence

    class Augmented(base):
        def __init__(self):
            super().__init__()
            self.on_epoch_end()

        def __len__(self):
            return 2 * n

        def __getitem__(self, index):
            np.random.rand(r + 1)  # as the last batch, which is smaller, draws less
            mine = self.order[index * 4 : index * 4 + 4]
            return x[mine], y[mine]

        def on_epoch_end(self):
            self.order = np.random.permutation(len(x))
            epochs.append(self.order.tolist())

    set_seed(3)
    model.fit(Augmented(), epochs=3, verbose=0, shuffle=False)
    assert len(epochs) > 3
    assert epochs[0] != epochs[1]
    assert len(set(_core.allgather_bytes(repr(epochs).encode()))) == 1


def a_stateful_model_goes_through_a_stretch_in_order():
    if backend() == "torch":
        return  # there Keras's own stateful layers do not train
    batch, steps = 2, 3
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=(steps * batch * n + 1, 5, 3)), generator.normal(size=(steps * batch * n + 1, 1))

    def make(size):
        set_seed(1)
        layers = [keras.layers.GRU(4, stateful=True, dtype="float64"), keras.layers.Dense(1, dtype="float64")]
        model = keras.Sequential([keras.layers.Input(batch_shape=(size, 5, 3), dtype="float64"), *layers])
        model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.1))
        return model

    # One process takes in a batch what the ranks take together.
    place = np.arange(steps * batch * n).reshape(n, steps, batch).swapaxes(0, 1).reshape(-1)
    serial, ported = make(batch * n), dl.distribute(make(batch))
    for _ in range(2):
        serial.fit(x[place], y[place], batch * n, shuffle=False, verbose=0)
        ported.fit(x, y, batch, shuffle=False, verbose=0)
    for one, many in zip(serial.trainable_variables, ported.trainable_variables, strict=True):
        np.testing.assert_allclose(read(many), read(one), rtol=1e-5, atol=1e-6)
    same_bits(ported)
    try:
        ported.fit(((x[:batch], y[:batch]) for _ in range(9)), steps_per_epoch=9, verbose=0)
    except TypeError as error:
        assert "for a stateful model" in str(error)
    else:
        raise AssertionError("no error")


def metrics_are_averaged_before_others_see_them():
    x, y = make_data(8 * n)
    y = y + np.arange(8 * n)[:, None] % n * 10  # the ranks' losses differ widely
    seen = []

    class See(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append({name: float(value) for name, value in logs.items()})

    model = dl.distribute(make_model(metrics=["mae"]))
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=1e9)
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=1e9)
    history = model.fit(x, y, 4, 9, callbacks=[See(), stop, plateau], validation_split=0.25, verbose=0)
    assert len(seen) < 9
    assert set(seen[0]) >= {"loss", "mae", "val_loss", "val_mae"}
    everyone = [json.loads(b) for b in _core.allgather_bytes(json.dumps(seen).encode())]
    assert all(one == everyone[0] for one in everyone)
    assert history.history["loss"] == [one["loss"] for one in seen]


def callbacks_of_keras_show_what_they_do_on_rank_0_alone():
    x, y = make_data(8 * n)
    shown = io.StringIO()
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=1e9, verbose=1)
    with contextlib.redirect_stdout(shown):
        dl.distribute(make_model()).fit(x, y, epochs=4, verbose=0, callbacks=[stop])
    assert ("early stopping" in shown.getvalue()) == (r == 0), shown.getvalue()


def metrics_of_batches_are_averaged_where_a_callback_of_any_rank_looks_at_them():
    x, y = make_data(8 * n)
    y = y + np.arange(8 * n)[:, None] % n * 10
    seen = []

    class See(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, sorted(logs), float(logs["loss"])))

    model = dl.distribute(make_model(metrics=["mae"]))
    losses = model.fit(x, y, 4, 2, callbacks=[See()], verbose=0).history["loss"]
    assert [batch for batch, _, _ in seen] == [0, 1, 0, 1]
    # The last of an epoch, of equal batches, is its mean, to the rounding of sums of the ranks' samples.
    assert np.allclose([loss for batch, _, loss in seen if batch], losses, rtol=1e-6)
    everyone = [json.loads(b) for b in _core.allgather_bytes(json.dumps(seen).encode())]
    assert all(one == everyone[0] for one in everyone)
    if backend() == "tensorflow":
        kept = [keras.callbacks.TensorBoard(tempfile.mkdtemp(), update_freq="batch")] if r == 0 else []
        model.fit(x, y, 4, callbacks=kept, verbose=0)  # on the other ranks nothing looks


def totals_keep_the_kind_of_what_they_add_up():
    alike = n * (n + 1) // 2
    assert (dl.total(r + 1), type(dl.total(r + 1))) == (alike, int)
    assert dl.total(0.5) == n / 2
    assert dl.total(np.float32(r + 1)).dtype == np.float32
    assert dl.total(np.array([r + 1, 2])).tolist() == [alike, 2 * n]
    assert dl.total({"right": r + 1, "loss": 0.5}) == {"right": alike, "loss": n / 2}
    try:
        dl.total(np.int8(127))
    except dl_comm.CommError as error:
        assert "int8 goes from -128 to 127" in str(error)
    else:
        raise AssertionError("no error")


def validation_data_are_split_off_first_and_not_divided():
    x, y = make_data(8 * n)
    model = dl.distribute(make_model())
    seen = []

    class See(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            seen.append(batch)

    model.fit(x, y, 2, validation_split=0.5, callbacks=[See()], verbose=0)
    assert len(seen) == 2 * n  # half of the samples in batches of 2


def only_rank_0_writes_and_what_it_writes_loads_without_dl_comm():
    folder = Path(_core.broadcast_bytes(tempfile.mkdtemp().encode(), 0).decode())
    x, y = make_data(8 * n)
    model = dl.distribute(make_model())
    endings = [".keras"] if KERAS_3 else [".keras", ".h5"]
    callbacks = [keras.callbacks.ModelCheckpoint(str(folder / f"best{r}{ending}")) for ending in endings]
    model.fit(x, y, 4, callbacks=[*callbacks, keras.callbacks.CSVLogger(str(folder / f"log{r}.csv"))], verbose=0)
    dl.barrier()
    assert sorted(p.name for p in folder.iterdir()) == sorted([f"best0{ending}" for ending in endings] + ["log0.csv"])
    dl.barrier()
    if r > 0:
        return
    expected = model.predict(x, verbose=0)
    model.export(str(folder / "served")) if backend() == "tensorflow" else None
    model.save(str(folder / "best0.h5"))
    model.save_weights(str(folder / "best0.weights.h5"))
    endings += [".h5"] if KERAS_3 else []
    if not KERAS_3:
        model.save(str(folder / "best0"))  # a SavedModel
        endings.append("")
    np.savez(folder / "data.npz", x=x, expected=expected)
    program = f"""
import sys
sys.modules["dl_comm"] = None
import keras, numpy as np
data = np.load({str(folder / "data.npz")!r})
for ending in {endings!r}:
    model = keras.models.load_model({str(folder)!r} + "/best0" + ending, compile=not (ending == ".h5" and {KERAS_3}))
    np.testing.assert_allclose(model.predict(data["x"], verbose=0), data["expected"], rtol=1e-5, atol=1e-6)
    model.load_weights({str(folder / "best0.weights.h5")!r})
    if getattr(model, 'optimizer', None):  # Keras 3 cannot read the loss of its own .h5
        model.fit(data["x"], data["expected"], verbose=0)
if {(folder / "served").exists()}:
    import tensorflow as tf
    served = tf.saved_model.load({str(folder / "served")!r})
    np.testing.assert_allclose(served.serve(data["x"]).numpy(), data["expected"], rtol=1e-5, atol=1e-6)
"""
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDRA", "MPI"))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=alone, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def warming_up_leaves_the_full_rate_to_others():
    x, y = make_data(8 * n)
    used, shown = [], []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            used.append(float(read(self.model.optimizer.learning_rate)))

        def on_epoch_end(self, epoch, logs=None):
            shown.append(float(read(self.model.optimizer.learning_rate)))

    model = dl.distribute(make_model(optimizer=keras.optimizers.SGD(1.0)))
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
    model.fit(x, y, 4, 3, callbacks=[halve, dl.WarmUp(3), Rates()], verbose=0)
    factors = [1 / n + (1 - 1 / n) * k / 3 for k in range(3)]
    np.testing.assert_allclose(used, [factors[0], factors[1], factors[2] / 2, 0.5, 0.25, 0.25], rtol=1e-6)
    np.testing.assert_allclose(shown, [1.0, 0.5, 0.25], rtol=1e-6)

    used.clear()
    shown.clear()
    recipe = [dl.WarmUp(epochs=1), dl.Decay((1, 3), 0.1)]
    model = dl.distribute(make_model(optimizer=keras.optimizers.SGD(1.0)), callbacks=recipe)
    model.fit(x, y, 4, 2, callbacks=[Rates()], verbose=0)
    model.fit(x, y, 4, 2, callbacks=[Rates()], verbose=0)  # its epochs are the third and the fourth
    np.testing.assert_allclose(used, [1 / n, 1 / n + (1 - 1 / n) / 2, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01], rtol=1e-6)
    np.testing.assert_allclose(shown, [1.0, 0.1, 0.1, 0.01], rtol=1e-6)


def lars_takes_the_steps_of_the_paper():
    x, y = make_data(4 * n * 3)
    model = keras.Sequential([keras.layers.Input((6,), dtype="float64"), keras.layers.Dense(1, dtype="float64")])
    kernel, bias = np.linspace(-1, 1, 6)[:, None], np.zeros(1)
    model.set_weights([kernel, bias])
    model.compile(keras.optimizers.SGD(3.0, momentum=0.9), "mse")
    dl.distribute(model, use_lars=True).fit(x, y, 4, shuffle=False, verbose=0)
    velocity, plain = np.zeros_like(kernel), np.zeros_like(bias)
    for a, b in zip(np.split(x, 3), np.split(y, 3), strict=True):
        error = 2 * (a @ kernel + bias - b) / len(a)
        slope = a.T @ error
        local = 0.001 * np.linalg.norm(kernel) / np.linalg.norm(slope)
        velocity = 0.9 * velocity - 3.0 * local * slope
        plain = 0.9 * plain - 3.0 * error.sum(axis=0)
        kernel, bias = kernel + velocity, bias + plain
    rtol = 1e-7 if backend() == "tensorflow" else 1e-5
    for got, expected in zip(model.trainable_variables, (kernel, bias), strict=True):
        np.testing.assert_allclose(read(got), expected, rtol=rtol)
    same_bits(model)
    for wrong in (keras.optimizers.Adam(), keras.optimizers.SGD(clipnorm=1.0)):
        with contextlib.suppress(TypeError, ValueError):
            dl.lars(wrong)
            raise AssertionError(wrong)


def statistics_of_batch_normalization_are_one_for_all():
    x, y = make_data(8 * n)
    set_seed(1)
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    dl.distribute(model).fit(x + np.arange(8 * n)[:, None] % n, y, 4, verbose=0)
    same_bits(model)
    assert np.abs(read(model.layers[0].moving_mean)).sum() > 0


def what_cannot_work_is_refused():
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    try:
        dl.distribute(model)
    except ValueError as error:
        assert "compile" in str(error)
    else:
        raise AssertionError("no error")
    x, y = make_data(8)
    model = dl.distribute(make_model())
    try:
        model.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore(tempfile.mkdtemp())], verbose=0)
    except TypeError as error:
        assert "BackupAndRestore" in str(error)
    else:
        raise AssertionError("no error")


class _OfItsOwn(keras.metrics.Metric):
    """A metric whose variable is no sum."""

    def __init__(self):
        super().__init__(name="own")
        self.kept = self.add_weight(name="kept", shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept.assign(7.0)

    def result(self):
        return self.kept + 0.0


def metrics_of_an_epoch_are_those_of_all_samples():
    x = np.random.default_rng(4).normal(size=(24 * n, 3)).astype("float32")
    y = (x[:, :1] + 0.5 * x[:, 1:2] > 0.2).astype("float32")
    kinds = ("FalsePositives", "TruePositives", "Precision", "Recall", "AUC", "BinaryAccuracy")
    for validated in (False, True):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
        metrics = [getattr(keras.metrics, kind)(name=kind) for kind in kinds]
        model.compile(optimizer=keras.optimizers.SGD(0.0), loss="binary_crossentropy", metrics=[*metrics, _OfItsOwn()])
        dl.distribute(model)
        options = {"validation_data": (x[:24], y[:24])} if validated else {}
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False, **options).history
        serial = keras.Model.evaluate(model, x, y, batch_size=8, verbose=0, return_dict=True)
        for name in ("loss", *kinds):
            assert np.allclose(history[name], serial[name], rtol=1e-5), (name, history[name], serial[name])
        assert history["own"] == [7.0, 7.0]
        assert not validated or history["val_FalsePositives"][0] <= 24
