"""Keras as DDL's manual has it: ``import ddl`` and its two callbacks, in graphs of TensorFlow 1 or eager."""

import json
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

eager = "eager" in sys.argv
if not eager:
    tf.disable_v2_behavior()
    tf.enable_resource_variables()
import ddl  # noqa: E402

rank, size = ddl.rank(), ddl.size()
keras_3 = not hasattr(tf.keras.backend, "get_session")
own = tf.keras.optimizers if eager else tf.keras.optimizers.legacy
data = np.random.RandomState(3)
xs, ys = data.randn(36, 5).astype("f"), data.randn(36, 1).astype("f")
mine = xs[rank::size], ys[rank::size]
record = {}


def first(shape, dtype=None, **_):
    return np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype("f") + rank


def small():
    dense = tf.keras.layers.Dense
    return tf.keras.Sequential([dense(4, "tanh", kernel_initializer=first), dense(1, kernel_initializer=first)])


def functional():
    given = tf.keras.Input((5,))
    hidden = tf.keras.layers.Dense(3, "relu", kernel_initializer=first)(given)
    joined = tf.keras.layers.Concatenate()([given, hidden])
    return tf.keras.Model(given, tf.keras.layers.Dense(1, kernel_initializer=first)(joined))


class Subclass(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = tf.keras.layers.Dense(3, "tanh", kernel_initializer=first)
        self.outer = tf.keras.layers.Dense(1, kernel_initializer=first)

    def call(self, inputs):
        return self.outer(self.inner(inputs))


class Seen(tf.keras.callbacks.Callback):
    """What a callback after DDL's is told."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        self.losses += [float(logs[name]) for name in ("loss", "mae", "val_loss", "val_mae") if name in logs]


def fitted(name, model, optimizer, callbacks=True, **how):
    model.compile(loss="mse", optimizer=optimizer, metrics=["mae"])
    seen = Seen()
    both = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()] if callbacks else []
    model.fit(*mine, batch_size=12 // size, epochs=2, shuffle=False, verbose=0, callbacks=[*both, seen], **how)
    record[name] = [np.array(w).ravel().tolist() for w in model.get_weights()]
    if callbacks:
        record[name + " losses"] = seen.losses


def batches():
    while True:
        for k in range(3):
            rows = slice(12 * k + rank, 12 * (k + 1), size)
            yield xs[rows], ys[rows]


fitted("sgd", small(), own.SGD(0.05, momentum=0.9))
fitted("adam", functional(), own.Adam(0.05))
fitted("subclass", Subclass(), own.RMSprop(0.01))
fitted("without callbacks", small(), own.SGD(0.05), callbacks=False)
fitted("validated", small(), own.SGD(0.05), validation_data=(xs, ys))
fitted("clipped", small(), own.SGD(0.05, clipvalue=9e9))
if not keras_3:
    fitted("v1 momentum", small(), tf.train.MomentumOptimizer(0.05, 0.9))
    fitted("v1 adam", functional(), tf.train.AdamOptimizer(0.05))
    fitted("v1 named", small(), tf.train.RMSPropOptimizer(0.01))

model = small()
model.compile(loss="mse", optimizer=own.SGD(0.05))
for x, y in [next(made) for made in [batches()] for _ in range(3)]:
    model.train_on_batch(x, y)
record["train_on_batch"] = [np.array(w).ravel().tolist() for w in model.get_weights()]

model = small()
model.compile(loss="mse", optimizer=own.SGD(0.05))
callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
model.fit(batches(), steps_per_epoch=3, epochs=2, verbose=0, callbacks=callbacks)
record["generator"] = [np.array(w).ravel().tolist() for w in model.get_weights()]

if eager:
    model, optimizer = small(), tf.train.AdamOptimizer(0.05)
    lone = tf.Variable(1.0 + rank)
    for x, y in [next(made) for made in [batches()] for _ in range(3)]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2) * lone
        variables = [*model.trainable_variables, lone]
        variables = [v.value if hasattr(v, "path") else v for v in variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    record["tape"] = [np.array(w).ravel().tolist() for w in [*model.get_weights(), lone.numpy()]]
with open(os.path.join(os.environ["RECORDS"], "%d.json" % rank), "w") as file:
    json.dump({"weights": list(record.values()), **record}, file)
