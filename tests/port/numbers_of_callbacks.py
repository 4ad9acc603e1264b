"""What callbacks, and models with a step of their own, count while fit() trains; a rate of 0."""

# ruff: noqa

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
x = np.random.randn(96, 4).astype("float32")
y = np.random.randint(0, 3, 96)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.0), loss_of)


class Kept(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.batches, self.epochs, self.seen = {}, {}, 0

    def on_train_batch_end(self, batch, logs=None):
        for k, v in logs.items():
            self.batches.setdefault(k, []).append(v)
        self.seen += 1
        if batch % 6 == 0:
            print("batch", batch)
        if batch % 6 == 5:
            print("six more", batch + 1)

    def on_epoch_end(self, epoch, logs=None):
        for k, v in logs.items():
            self.epochs.setdefault(k, []).append(v)

    def on_train_end(self, logs=None):
        print("trained", float(logs["loss"]), logs["loss"] == self.epochs["loss"][-1])


class Stepping(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.seen = self.add_weight(name="seen", shape=(), initializer="zeros", trainable=False)
        self.steps = tf.Variable(0, trainable=False)

    def call(self, a):
        return self.dense(a)

    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            loss = loss_of(b, self(a, training=True))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.seen.assign_add(tf.cast(tf.shape(a)[0], tf.float32))
        self.steps.assign_add(1)
        return {"loss": loss}


told = {"batches": 0}


def after(batch, logs):
    told["batches"] += 1
    if batch % 3 == 0:
        print("after", batch)


def behind(epoch, logs):
    print("counted", told["batches"])
    told["batches"] = 0


kept = Kept()
fitted = model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[kept])
print("fitted", len(fitted.epoch), fitted.params["steps"], fitted.history["loss"][-1])
print("kept", len(kept.batches["loss"]), len(kept.epochs["loss"]), kept.seen)
by_lambda = keras.callbacks.LambdaCallback(on_train_batch_end=after, on_epoch_end=behind)
model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[by_lambda])
stepping = Stepping()
rate = keras.optimizers.schedules.ExponentialDecay(0.0, 12, 0.5)
stepping.compile(keras.optimizers.SGD(rate))
for again in range(2):
    stepping.fit(x, y, batch_size=8, epochs=2, verbose=0)
    print("stepped", float(stepping.seen.numpy()), int(stepping.steps.numpy()), int(stepping.optimizer.iterations))
print("rate", float(rate(stepping.optimizer.iterations)), float(stepping.optimizer.iterations) ** 0.5)


class Logging(Stepping):
    def __init__(self):
        super().__init__()
        self.total = tf.Variable(0.0, trainable=False)

    def train_step(self, data):
        a, b = data
        logs = super().train_step(data)
        self.total.assign_add(logs["loss"])
        logs["seen"] = tf.cast(self.seen, tf.int32)
        logs.update(total=self.total, half=self.steps / 2)
        mean = self.total / tf.cast(self.steps, tf.float32)
        return logs | {"mean": mean, "loss": 0.5 + 0.0 * mean}


class Looking(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("so far", int(self.model.steps), self.model.steps.numpy(), round(logs["loss"], 4))


logging = Logging()
logging.compile(keras.optimizers.SGD(0.0))
shown = logging.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Looking()]).history
for name in ("loss", "seen", "total", "half", "mean"):
    print(name, *(float(v) for v in shown[name]))

heat, noise = tf.Variable(4.0, trainable=False), tf.Variable(1.0, trainable=False)


class Cooling(keras.callbacks.Callback):
    def __init__(self, variable, decay=0.97):
        super().__init__()
        self.variable, self.decay, self.value = variable, decay, 4.0

    def on_train_batch_end(self, batch, logs=None):
        self.value = max(0.5, self.value * self.decay)
        self.variable.assign(self.value)
        noise.assign(noise * 0.95)


class Built(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.teacher = keras.layers.Dense(3), keras.layers.Dense(3)
        self.heat = tf.Variable(2.0, trainable=False)
        self.steps = tf.Variable(0, trainable=False)
        self.mean = keras.metrics.Mean(name="mean")

    def build(self, shape):
        self.dense.build(shape)
        self.teacher.build(shape)
        self.teacher.set_weights(self.dense.get_weights())
        self.built = True

    def call(self, a):
        return self.dense(a)

    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            loss = loss_of(b, self.dense(a) / self.heat)
            size = tf.cond(tf.equal(self.steps % 5, 0), lambda: tf.reduce_sum(self.dense.kernel**2), lambda: 0.0)
            total = loss + 0.1 * size
        grads = tape.gradient(total, self.dense.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.dense.trainable_variables))
        self.heat.assign(tf.maximum(0.5, self.heat * 0.9))
        self.steps.assign_add(1)
        self.mean.update_state(tf.cast(tf.shape(a)[0], tf.float32))
        return {"mean": self.mean.result(), "steps": self.steps}


built = Built()
built.compile(keras.optimizers.SGD(0.0))
shown = built.fit(x, y, batch_size=8, epochs=1, verbose=0, callbacks=list(filter(None, [Cooling(heat), None]))).history
print("built", shown["mean"], int(built.steps), float(built.heat), float(heat), float(noise))


class Counting(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.passes = self.add_weight(name="passes", shape=(), initializer="zeros", trainable=False)

    def call(self, a, training=False):
        if training:
            self.passes.assign_add(1.0)
        return a


class Counted(keras.Model):
    def __init__(self):
        super().__init__()
        self.count, self.dense = Counting(), keras.layers.Dense(3)

    def call(self, a, training=False):
        return self.dense(self.count(a, training=training))


counted = Counted()
counted.compile(keras.optimizers.SGD(0.0), loss_of)
for phase in range(2):
    counted.fit(x, y, batch_size=8, epochs=1, verbose=0)
    print("counted", float(counted.count.passes), float(abs(counted.predict(x[:8], verbose=0)).sum()))

chance = tf.Variable(1.0, trainable=False)


class Falling(keras.callbacks.Callback):
    """Takes a part of several numbers away with every batch: one that is used, one that steers, one that is shown."""

    def __init__(self, by=0.01):
        super().__init__()
        self.used, self.steers, self.shown, self.by = 1.0, 1.0, 1.0, by

    def on_train_batch_end(self, batch, logs=None):
        self.used -= self.by
        chance.assign(self.used)
        self.steers -= 0.005
        self.model.optimizer.learning_rate.assign(0.0 * self.steers)
        self.shown -= 0.02

    def on_epoch_end(self, epoch, logs=None):
        print("falling", round(self.used, 4), round(self.steers, 4), round(self.shown, 4), round(float(chance), 4))


model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[Falling()])
