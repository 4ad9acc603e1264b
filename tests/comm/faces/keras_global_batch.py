"""``distribute(model, batch="global")``: n ranks leave the parameters of one process, and its metrics."""

import dl_comm.keras as dl
import keras
import numpy as np
from dl_comm.keras.backend import backend, read
from keras_nets import make_data, n, same_bits, set_seed

_RTOL = 1e-9 if backend() == "tensorflow" else 1e-5
_SEQUENCE = keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence
_OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, clipnorm=1.0),
}


def _model(optimizer, **options):
    set_seed(5)
    real = {"dtype": "float64"}
    layers = [
        keras.layers.Input((6,), **real),
        keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2", **real),
        keras.layers.Dense(1, activation="sigmoid", **real),
    ]
    model = keras.Sequential(layers)
    metrics = [keras.metrics.TruePositives(name="tp"), keras.metrics.FalsePositives(name="fp")]
    model.compile(optimizer, "binary_crossentropy", metrics=metrics, **options)
    return model


def _data(rows):
    x, y = make_data(rows)
    return x, (y > 0).astype("float64")


def _agrees(make, train):
    """``train(model)`` of one process, and of the ranks, which get the same."""
    serial = make()
    set_seed(7)
    expected = train(serial)
    ported = dl.distribute(make(), batch="global")
    set_seed(7)
    found = train(ported)
    for one, many in zip(serial.trainable_variables, ported.trainable_variables, strict=True):
        np.testing.assert_allclose(read(many), read(one), rtol=_RTOL, atol=_RTOL)
    same_bits(ported)
    assert list(found) == list(expected)
    for name, values in expected.items():
        if backend() == "torch" and name in ("tp", "fp") and f"val_{name}" in expected:
            continue  # there Keras's own are those of the validation: views of the metric's variables
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
        if name.endswith("p"):
            assert np.array_equal(found[name], values), (name, found[name], values)


def fits_leave_the_parameters_of_one_process():
    x, y = _data(43)  # batches of ten or eight, and one of three
    options = {
        "sgd": {"batch_size": 8},
        "momentum": {"batch_size": 10, "sample_weight": np.linspace(0.5, 2.0, 43)},
        "adam": {"batch_size": 8, "class_weight": {0: 1.0, 1: 3.0}},
    }
    for name, optimizer in _OPTIMIZERS.items():
        _agrees(
            lambda optimizer=optimizer: _model(optimizer()),
            lambda m, name=name: m.fit(x, y, epochs=5, verbose=0, **options[name]).history,
        )


def batches_of_any_kind_are_divided():
    x, y = _data(43)

    class Batches(_SEQUENCE):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            rows = slice(index * 10, index * 10 + 10)
            return x[rows], y[rows]

    def generate():
        while True:
            for at in range(0, 43, 10):
                yield x[at : at + 10], y[at : at + 10]

    makers = [lambda: (Batches(), {}), lambda: (generate(), {"steps_per_epoch": 5})]
    if backend() == "tensorflow":
        import tensorflow as tf

        makers.append(lambda: (tf.data.Dataset.from_tensor_slices((x, y)).shuffle(43, seed=3).batch(10), {}))
    for make in makers:

        def train(model, make=make):
            data, options = make()
            return model.fit(data, epochs=4, verbose=0, shuffle=False, **options).history

        _agrees(lambda: _model(_OPTIMIZERS["momentum"]()), train)
    _agrees(
        lambda: _model(_OPTIMIZERS["sgd"]()),
        lambda m: m.fit(x, y, 10, 3, verbose=0, validation_split=0.3, shuffle=False).history,
    )


def a_second_fit_of_a_model_that_draws_by_itself_shuffles_arrays_alike():
    x, y = _data(43)

    class Own(keras.layers.Layer):  # may draw random numbers, which are local
        def call(self, inputs):
            return inputs + 0.0

    def make():
        model = _model("sgd")
        layers = [keras.layers.Input((6,), dtype="float64"), Own(dtype="float64"), *model.layers]
        model = keras.Sequential(layers)
        model.compile(_OPTIMIZERS["momentum"](), "binary_crossentropy")
        return model

    def train(model):
        fits = [model.fit(x, y, 10, 2, verbose=0).history["loss"] for _ in range(3)]
        return {"loss": [loss for losses in fits for loss in losses]}

    _agrees(make, train)


def sequences_that_shuffle_behind_each_epoch_and_validation_go_on_alike():
    x, y = _data(43)

    class Shuffled(_SEQUENCE):
        def __init__(self):
            super().__init__()
            self.order = np.arange(40)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            rows = self.order[index * 10 : index * 10 + 10]
            return x[rows], y[rows]

        def on_epoch_end(self):
            np.random.shuffle(self.order)

    def train(model):
        return model.fit(Shuffled(), epochs=5, verbose=0, shuffle=False, validation_data=Shuffled()).history

    _agrees(lambda: _model(_OPTIMIZERS["momentum"]()), train)


def loops_around_train_on_batch_leave_the_parameters_of_one_process():
    x, y = _data(43)

    def train(model):
        found = []
        for _ in range(4):
            for at in range(0, 43, 10):
                found.append(model.train_on_batch(x[at : at + 10], y[at : at + 10], return_dict=True))
        return {name: [float(one[name]) for one in found] for name in found[0]}

    _agrees(lambda: _model(_OPTIMIZERS["adam"]()), train)


def what_no_weights_make_exact_is_refused():
    class Own(keras.Model):
        def train_step(self, *data):
            return super().train_step(*data)

    inputs = keras.Input((6,))
    reduced = {"loss": keras.losses.MeanSquaredError(reduction="sum")}
    for model, options, why in (
        (Own(inputs, keras.layers.Dense(1)(inputs)), {"loss": "mse"}, "train_step() of its own"),
        (keras.Sequential([inputs, keras.layers.Dense(1)]), reduced, "no mean over the samples"),
    ):
        model.compile("sgd", **options)
        try:
            dl.distribute(model, batch="global")
        except ValueError as error:
            assert why in str(error) or n == 1
        else:
            assert n == 1
