"""Evaluations, validations and predictions that the ranks share: what one process finds, on all ranks."""

import contextlib
import inspect
import io
import json
import tempfile
from functools import partial
from pathlib import Path

import dl_comm.keras as dl
import keras
import numpy as np
from dl_comm import _core
from dl_comm.keras.backend import KERAS_3, backend, read
from dl_comm.keras.folding import folds
from keras_nets import n, r, set_seed

_KINDS = ("FalsePositives", "TruePositives", "TrueNegatives", "FalseNegatives", "Precision", "Recall", "AUC")
_KINDS += ("BinaryAccuracy", "MeanAbsoluteError", "RootMeanSquaredError")
_COUNTS = [name for name in _KINDS if name.startswith(("False", "True"))]
_SEQUENCE = keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence
# Rows, 4 in a batch: an uneven tail, fewer batches than there are ranks, one row. More where nothing is compiled.
_LENGTHS = (8 * n + 3, 4 * (n - 1) or 4, 1)
if backend() == "torch":
    _LENGTHS += (4 * n, 4 * n + 1, 3)


def _data(rows):
    generator = np.random.default_rng(rows)
    x = generator.normal(size=(rows, 3)).astype("float32")
    return x, (x[:, :1] + 0.5 * x[:, 1:2] > 0.2).astype("float32")


def _model(extra=(), evaluate="shared", rate=0.0, make=None):
    set_seed(3)
    shape = {"shape": (3,), "dtype": "float32"}
    inputs = keras.Input(**shape)
    hidden = keras.layers.Dense(4, activation="tanh", dtype="float32")(inputs)
    hidden = keras.layers.BatchNormalization(dtype="float32")(keras.layers.Dropout(0.3, dtype="float32")(hidden))
    output = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden)
    model = (make or keras.Model)(inputs, output)
    metrics = [getattr(keras.metrics, kind)(name=kind, dtype="float32") for kind in _KINDS]
    model.compile(keras.optimizers.SGD(rate), "binary_crossentropy", metrics=[*metrics, *extra])
    return dl.distribute(model, evaluate=evaluate)


def _serial(model, *args, **options):
    return keras.Model.evaluate(model, *args, verbose=0, return_dict=True, **options)


def _same(found, serial):
    assert list(found) == list(serial), (list(found), list(serial))
    for name, value in serial.items():
        if name in _COUNTS:
            assert found[name] == value, (name, found[name], value)
        np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=1e-7, err_msg=name)
    everyone = set(_core.allgather_bytes(json.dumps([float(v) for v in found.values()]).encode()))
    assert len(everyone) == 1


def _batches(x, y, size=4):
    return [(x[at : at + size], y[at : at + size]) for at in range(0, len(x), size)]


def arrays_are_evaluated_as_by_one_process():
    model = _model()
    for rows in _LENGTHS:
        x, y = _data(rows)
        weights = np.linspace(0.5, 2, rows).astype("float32")
        for options in ({}, {"sample_weight": weights}, {"steps": 2}):
            serial = _serial(model, x, y, batch_size=4, **options)
            _same(model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True, **options), serial)
        found = model.evaluate(x, y, 4, 0)
        assert isinstance(found, list)
        np.testing.assert_allclose(found, keras.Model.evaluate(model, x, y, 4, 0), rtol=2e-6, atol=1e-7)
        totals = [float(np.ravel(read(metric.variables[0]))[0]) for metric in model.metrics if metric.variables]
        assert len(set(_core.allgather_bytes(repr(totals).encode()))) == 1  # what metrics keep, too
    x, y = _data(40)
    _same(model.evaluate(x, y, verbose=0, return_dict=True), _serial(model, x, y))  # Keras's own batch size


def each_rank_evaluates_only_batches_of_its_own():
    model, seen = _model(), []

    class Batches(_SEQUENCE):
        def __init__(self, x, y):
            super().__init__()
            self.held = _batches(x, y)

        def __len__(self):
            return len(self.held)

        def __getitem__(self, index):
            seen.append(index)
            return self.held[index]

    for rows in _LENGTHS:
        x, y = _data(rows)
        serial = _serial(model, Batches(x, y))
        seen.clear()
        _same(model.evaluate(Batches(x, y), verbose=0, return_dict=True), serial)
        own = set(range(r, -(-rows // 4), n))
        assert own <= set(seen) <= own | {0}, (rows, seen)  # Keras looks at one first; who has none takes it
        rows_of = keras.Model.predict(model, Batches(x, y), verbose=0)
        np.testing.assert_allclose(model.predict(Batches(x, y), verbose=0), rows_of, rtol=1e-5, atol=1e-7)
        if rows > 8:
            serial = _serial(model, Batches(x, y), steps=2)
            _same(model.evaluate(Batches(x, y), verbose=0, return_dict=True, steps=2), serial)


def generators_go_on_where_one_process_is():
    if n == 1:
        return  # what Keras reads ahead for its own ends is lost to the next evaluation
    model = _model()
    x, y = _data(8 * n + 3)

    def endless():
        while True:
            for a, b in _batches(x, y):
                yield a + np.float32(np.random.rand()), b  # alike on all ranks

    said = io.StringIO()
    for steps in (1, n + 1, 2 * n):
        np.random.seed(7 + r)
        mine = endless()
        found = [model.evaluate(mine, steps=steps, verbose=0, return_dict=True)]
        with contextlib.redirect_stderr(said):
            found.append(model.evaluate(mine, steps=steps, verbose=0, return_dict=True))
        np.random.seed(7)
        theirs = endless()
        # Keras reads ahead: the serial numbers are those of as many batches, one after the other.
        pairs = [[next(theirs) for _ in range(steps)] for _ in range(2)]
        for one, batches in zip(found, pairs, strict=True):
            _same(one, _serial(model, (batch for batch in batches), steps=steps))
    assert said.getvalue().count("goes on in its generator where the last one ended") == (r == 0 and KERAS_3)
    for rows in _LENGTHS:
        x, y = _data(rows)
        batches = _batches(x, y)
        _same(model.evaluate((b for b in batches), verbose=0, return_dict=True), _serial(model, (b for b in batches)))
        expected = keras.Model.predict(model, x, 4, 0)
        np.testing.assert_allclose(model.predict(((a,) for a, _ in batches), verbose=0), expected, rtol=1e-5, atol=1e-7)


def data_sets_are_evaluated_as_by_one_process():
    if backend() != "tensorflow":
        return
    import tensorflow as tf

    model = _model()
    for rows in _LENGTHS:
        x, y = _data(rows)
        plain = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
        unknown = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda a, b: True).batch(4)
        for dataset, options in (
            (plain, {}),
            (unknown, {}),
            (plain.repeat(), {"steps": n + 2}),
            (unknown, {"steps": 1}),
        ):
            serial = _serial(model, dataset, **options)
            _same(model.evaluate(dataset, verbose=0, return_dict=True, **options), serial)
            expected = keras.Model.predict(model, dataset, verbose=0, **options)
            found = model.predict(dataset, verbose=0, **options)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def loaders_are_evaluated_as_by_one_process():
    if backend() != "torch":
        return
    import torch

    model = _model()
    for rows in _LENGTHS:
        x, y = map(torch.from_numpy, _data(rows))
        for shuffle in (False, True):
            loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 4, shuffle=shuffle)
            _same(model.evaluate(loader, verbose=0, return_dict=True), _serial(model, x, y, batch_size=4))
        _same(model.evaluate(x, y, 4, verbose=0, return_dict=True), _serial(model, x, y, batch_size=4))


def predictions_of_several_outputs_come_in_order():
    set_seed(2)
    inputs = {name: keras.Input((2,), name=name, dtype="float32") for name in ("a", "b")}
    both = keras.layers.Concatenate(dtype="float32")(list(inputs.values()))
    outputs = {
        "one": keras.layers.Dense(1, dtype="float32")(both),
        "two": keras.layers.Reshape((3, 1), dtype="float32")(keras.layers.Dense(3, dtype="float32")(both)),
    }
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"one": "mse", "two": "mse"})
    dl.distribute(model)
    for rows in _LENGTHS:
        x = {name: np.random.default_rng(i).normal(size=(rows, 2)).astype("float32") for i, name in enumerate("ab")}
        expected = keras.Model.predict(model, x, 4, 0)
        found = model.predict(x, batch_size=4, verbose=0)
        assert sorted(found) == sorted(expected)
        for name, array in expected.items():
            assert found[name].shape == array.shape and found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
        y = {"one": x["a"][:, :1], "two": np.repeat(x["b"][:, :1, None], 3, 1)}
        serial = keras.Model.evaluate(model, x, y, 4, 0, return_dict=True)
        _same(model.evaluate(x, y, 4, 0, return_dict=True), serial)


def validations_decide_by_all_samples():
    x, y = _data(12 * n)
    vx, vy = _data(8 * n + 3)
    folder = Path(_core.broadcast_bytes(tempfile.mkdtemp().encode(), 0).decode())
    after = []

    class Serially(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            after.append(
                (dict(logs), _serial(self.model, vx, vy, batch_size=4), float(read(self.model.optimizer.learning_rate)))
            )

    def generate():
        while True:
            yield from _batches(vx, vy)

    steps = len(_batches(vx, vy))
    ways = [({"validation_data": (vx, vy), "validation_batch_size": 4}, 4)]
    ways.append(({"validation_split": 0.5}, None))
    # Keras 3 itself reads a generator ahead: alone, and on TensorFlow always, the second validation begins later.
    if not KERAS_3 or (backend() != "tensorflow" and dl.get_nranks() > 1):
        ways.append(({"validation_data": generate(), "validation_steps": steps}, 4))
    if backend() == "tensorflow":
        import tensorflow as tf

        ways.append(({"validation_data": tf.data.Dataset.from_tensor_slices((vx, vy)).batch(4)}, 4))
    for options, compared in ways:
        after.clear()
        model = _model(rate=0.5)
        plateau = keras.callbacks.ReduceLROnPlateau(
            monitor="val_FalsePositives", mode="min", patience=1, min_delta=1e9, factor=0.5
        )
        stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, min_delta=1e9)
        best = keras.callbacks.ModelCheckpoint(
            str(folder / "best.weights.h5"),
            "val_TruePositives",
            mode="max",
            save_best_only=True,
            save_weights_only=True,
        )
        history = model.fit(x, y, 4, 9, 0, [Serially(), plateau, stop, best], **options).history
        assert len(after) == 3 and after[-1][2] < 0.5
        for logs, serial, _ in after if compared else ():
            _same({name: logs[f"val_{name}"] for name in serial}, serial)
        assert len(set(_core.allgather_bytes(json.dumps(history, default=float).encode()))) == 1
        _same(model.evaluate(vx, vy, 4, 0, return_dict=True), _serial(model, vx, vy, batch_size=4))


class _Worst(keras.metrics.Metric):
    """Keeps an extreme and a sum by itself, and says so."""

    def __init__(self, name="worst_of_all", **options):
        super().__init__(name=name, **options)
        self.fold_over_ranks = {"worst": "max", "rows": "sum"}
        self.worst = self.add_weight(name="worst", shape=(), initializer="zeros")
        self.rows = self.add_weight(name="rows", shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        ops = keras.ops if KERAS_3 else __import__("tensorflow").math
        largest = (keras.ops.max if KERAS_3 else ops.reduce_max)(ops.abs(y_true - y_pred))
        self.worst.assign(ops.maximum(self.worst, largest))
        self.rows.assign(self.rows + 1.0)

    def result(self):
        return self.worst + self.rows


class _Silent(_Worst):
    """The same, of which nobody knows how it comes together."""

    def __init__(self, name="silent", **options):
        super().__init__(name, **options)
        self.fold_over_ranks = None


class _Doubled(keras.metrics.BinaryAccuracy):
    """Changes its state through a metric of Keras's alone."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(1.0 - y_true, 1.0 - y_pred, sample_weight)


class _Hits(keras.metrics.Metric):
    """Adds to states of its own, by ``assign_add()`` alone."""

    def __init__(self, name="hits", **options):
        super().__init__(name=name, **options)
        self.hits = self.add_weight(name="hits", shape=(), initializer="zeros")
        self.rows = self.add_weight(name="rows", shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        ops = keras.ops if KERAS_3 else __import__("tensorflow")
        right = ops.cast(y_pred > 0.5, "float32") * ops.cast(y_true, "float32")
        self.hits.assign_add((keras.ops.sum if KERAS_3 else __import__("tensorflow").reduce_sum)(right))
        self.rows.assign_add(8.0)

    def result(self):
        return self.hits / (self.rows + 1.0)

    def reset_state(self):
        self.hits.assign(0.0)
        self.rows.assign(0.0)


class _Forgets(_Hits):
    """Adds what it holds itself: no sum over the ranks."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.hits.assign_add(0.1 * (1.0 - self.hits))


class _FromOne(_Hits):
    """Begins at one: n ranks would count it n times."""

    def reset_state(self):
        self.hits.assign(1.0)


class _Both(keras.metrics.Metric):
    """Holds two of Keras's."""

    def __init__(self, name="both", **options):
        super().__init__(name=name, **options)
        self.one, self.other = keras.metrics.Precision(), keras.metrics.Recall()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.one.update_state(y_true, y_pred, sample_weight)
        self.other.update_state(y_true, y_pred, sample_weight)

    def result(self):
        return self.one.result() * self.other.result()

    def reset_state(self):
        self.one.reset_state()
        self.other.reset_state()


def metrics_of_the_scripts_own_that_only_add_are_sums():
    words = {kind.__name__: [word for _, word in folds(kind()) or ()] for kind in (_Hits, _Forgets, _FromOne)}
    assert words == {"_Hits": ["sum", "sum"], "_Forgets": [], "_FromOne": []}, words
    x, y = _data(16 * n)
    model = keras.Sequential([keras.Input((3,), dtype="float32"), keras.layers.Dense(1, dtype="float32")])
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[_Hits(dtype="float32")])
    shown = dl.distribute(model).fit(x, y, 8, 1, 0, shuffle=False).history["hits"][0]
    _same({"hits": shown}, {"hits": _serial(model, x, y, batch_size=8)["hits"]})


def metrics_of_the_scripts_own_are_folded_where_it_is_known_how():
    x, y = _data(8 * n + 3)
    of = {"dtype": "float32"}
    cases = [
        ([_Worst(**of)], True),
        ([_Hits(**of)], True),
        ([_Silent(**of)], False),
        ([_Doubled(name="d", **of), _Both(**of)], True),
    ]
    for extra, shared in cases:
        model, seen = _model(extra), []
        batches = _Recorded(x, y, seen)
        serial = _serial(model, batches)
        seen.clear()
        _same(model.evaluate(batches, verbose=0, return_dict=True), serial)
        own = set(range(r, len(batches), n)) | {0}
        assert (set(seen) <= own) == (shared or n == 1), (type(extra[0]).__name__, seen)
    wrong = _Worst()
    wrong.fold_over_ranks = "median"
    try:
        folds(wrong)
    except ValueError as error:
        assert "'median'" in str(error)
    else:
        raise AssertionError("no error")


class _Recorded(_SEQUENCE):
    def __init__(self, x, y, seen):
        super().__init__()
        self.held, self.seen = _batches(x, y), seen

    def __len__(self):
        return len(self.held)

    def __getitem__(self, index):
        self.seen.append(index)
        return self.held[index]


class _Stepping(keras.Model):
    """Returns its metrics' results."""

    def test_step(self, data):
        x, y = data
        predicted = self(x, training=False)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(keras.losses.binary_crossentropy(y, predicted))
            else:
                metric.update_state(y, predicted)
        return self.get_metrics_result()


class _Counting(keras.Model):
    """Returns a number of its last batch."""

    def test_step(self, data):
        super().test_step(data)
        x = data[0]
        mean = keras.ops.mean if KERAS_3 else __import__("tensorflow").reduce_mean
        return {"last": mean(self(x, training=False))}


class _Noisy(keras.layers.Layer):
    def call(self, inputs):
        random = keras.random if KERAS_3 else __import__("tensorflow").random
        return inputs + 0.0 * random.normal((1, 1), dtype="float32", seed=1)


def what_cannot_be_shared_stays_whole():
    x, y = _data(8 * n + 3)

    class Looks(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            pass

    def noisy(inputs, output):
        return keras.Model(inputs, _Noisy(dtype="float32")(output))

    def dropping(inputs, output):
        return keras.Model(inputs, keras.layers.Dropout(0.0, dtype="float32")(output, training=True))

    cases = [({}, {"callbacks": [Looks()]}), ({"make": noisy}, {}), ({"make": dropping}, {})]
    cases += (
        [({"make": partial(_Counting, name="counting")}, {})] if backend() != "jax" else []
    )  # where a test_step() takes a state, too
    cases.append(({"evaluate": "whole"}, {}))
    for how, options in cases:
        model, seen = _model(**how), []
        batches = _Recorded(x, y, seen)
        for _ in range(2):
            serial = _serial(model, batches)
            seen.clear()
            found = model.evaluate(batches, verbose=0, return_dict=True, **options)
            _same(found, serial)
            assert set(seen) == set(range(len(batches))), (how, options, seen)
    model, seen = _model(make=partial(_Stepping, name="stepping") if backend() != "jax" else None), []
    batches = _Recorded(x, y, seen)
    for shared in (False, True) if backend() != "jax" else ():  # the first one shows what test_step() returns
        serial = _serial(model, batches)
        seen.clear()
        _same(model.evaluate(batches, verbose=0, return_dict=True), serial)
        assert (set(seen) <= set(range(r, len(batches), n)) | {0}) == (shared or n == 1), seen
    with dl.rank0_first():
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)


def _of_class(kind):
    """A metric of a class of Keras's, and whether its targets are classes."""
    needs = inspect.signature(kind.__init__).parameters
    given = {"num_classes": 3, "target_class_ids": [0, 2], "class_id": 1} if "num_classes" in needs else {}
    given |= {"k": 2} if "TopK" in kind.__name__ else {}
    given |= {"recall": 0.5, "precision": 0.5, "specificity": 0.5, "sensitivity": 0.5}
    given = {name: value for name, value in given.items() if name in needs}
    if "normalizer" in needs:
        given["normalizer"] = [1.0, 2.0, 3.0]
    return kind(**given)


def every_metric_of_keras_is_folded():
    _set_type("float32")  # Keras 2's F-scores know no other
    try:
        _every_metric()
    finally:
        _set_type("float64")


def _set_type(name):
    keras.backend.set_floatx(name)
    keras.mixed_precision.set_global_policy(name)  # which one that a check before set hides


def _every_metric():
    generator = np.random.default_rng(5)
    classes = [kind for _, kind in inspect.getmembers(keras.metrics, inspect.isclass)]
    classes = [kind for kind in classes if issubclass(kind, keras.metrics.Metric)]
    abstract = {"Metric", "MeanMetricWrapper", "Wrapper", "Mean", "Sum", "MeanTensor"}
    tried = 0
    for kind in classes:
        if kind.__name__ in abstract:
            continue
        one, many = _of_class(kind), _of_class(kind)
        soft = np.abs(generator.normal(size=(5, 4, 3))).astype("float32")
        soft /= soft.sum(-1, keepdims=True)
        for b in range(2 * n + 1):
            predicted, true = soft[b % 5], np.eye(3, dtype="float32")[(np.arange(4) + b) % 3]
            if kind.__name__.startswith("Sparse"):
                true = true.argmax(-1)
            elif kind.__name__ in ("IoU", "MeanIoU"):
                true, predicted = true.argmax(-1), predicted.argmax(-1)
            elif kind.__name__ == "BinaryIoU":
                true, predicted = true[:, 0], predicted[:, 0]
            one.update_state(true, predicted)
            if b % n == r:
                many.update_state(true, predicted)
        assert folds(many) is not None, kind
        folded = dl.total(many)
        np.testing.assert_allclose(
            np.array(folded.result()), np.array(one.result()), rtol=1e-5, atol=1e-7, err_msg=kind.__name__
        )
        tried += 1
    assert tried > 30, tried
