"""Variables, metrics and objects that are set back within a loop, and data sets that number their batches."""

# ruff: noqa

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
rng = np.random.RandomState(0)
X = rng.randn(96, 5).astype("float32")
Y = X.sum(1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.0)
mse = keras.losses.MeanSquaredError()


class Meter:
    def __init__(self):
        self.sum, self.n = 0.0, 0

    def add(self, value):
        self.sum += value
        self.n += 1


def train(x, y):
    with tf.GradientTape() as tape:
        out = model(x, training=True)
        loss = mse(y, out)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return out, loss


class Trainer:
    def __init__(self):
        self.all = tf.Variable(0.0)

    def one(self, epoch):
        self.mine = tf.Variable(0.0)
        for x, y in data:
            out, loss = train(x, y)
            self.mine.assign_add(tf.reduce_sum(out))
            self.all.assign_add(tf.reduce_sum(out))
        print("trainer", epoch, float(self.mine), float(self.all))

    def fit(self):
        for epoch in range(2):
            self.one(epoch)


low, step = 1e9, 0
for epoch in range(2):
    total, far, mean = tf.Variable(0.0), keras.metrics.Sum(), keras.metrics.Mean()
    meter, losses, seen = Meter(), [], 0
    for i, (x, y) in data.enumerate():
        out, loss = train(x, y)
        total.assign_add(tf.reduce_sum(out))
        far.update_state(tf.abs(out - y))
        mean.update_state(loss)
        meter.add(float(loss))
        losses.append(float(loss))
        seen += len(x)
        step += 1
        if step % 4 == 0:
            line = "window: " + ", ".join(map(str, [meter.sum / meter.n, step]))
            print(line)
            print(float(total), float(far.result()), float(mean.result()), meter.sum)
            low = min(low, float(np.mean(losses)))
            total, far, mean, meter = tf.Variable(0.0), keras.metrics.Sum(), keras.metrics.Mean(), Meter()
    print("epoch", seen, sum(losses), low)
Trainer().fit()
