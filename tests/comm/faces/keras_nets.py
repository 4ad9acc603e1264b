"""Small nets in float64, and what it means to train them like one process; for whichever Keras and backend there is."""

import agreement
import dl_comm.keras as dl
import keras
import numpy as np
from dl_comm.keras.backend import backend, read, variables_of

r, n = dl.get_rank(), dl.get_nranks()
dl.init()
keras.backend.set_floatx("float64")


def same_bits(model):
    agreement.same_bits(read(v) for v in variables_of(model) if "seed" not in v.name)


def make_data(samples=48):
    generator = np.random.default_rng(2)
    return generator.normal(size=(samples, 6)), generator.normal(size=(samples, 1))


def set_seed(seed):
    keras.utils.set_random_seed(seed)


def make_model(seed=1, built=True, **options):
    """A net in float64; on ranks with another seed it begins elsewhere."""
    set_seed(seed)
    layers = [keras.layers.Dense(8, activation="tanh", dtype="float64"), keras.layers.Dense(1, dtype="float64")]
    model = keras.Sequential(([keras.layers.Input((6,), dtype="float64")] if built else []) + layers)
    options.setdefault("optimizer", keras.optimizers.SGD(0.1, momentum=0.9))
    model.compile(loss="mse", **options)
    return model


def assert_fits_like_one_process(make, fit):
    """``fit(model, batch)`` with a local batch of 4, against one process with a batch of 4 n."""
    # On torch and jax Keras computes gradients of float64 models in part in float32.
    rtol, atol = (1e-9, 1e-12) if backend() == "tensorflow" else (1e-5, 1e-6)
    serial = make(1)
    expected = fit(serial, 4 * n)
    ported = dl.distribute(make(1 + r))
    got = fit(ported, 4)
    for one, many in zip(serial.trainable_variables, ported.trainable_variables, strict=True):
        np.testing.assert_allclose(read(many), read(one), rtol=rtol, atol=atol)
    same_bits(ported)
    return expected, got
