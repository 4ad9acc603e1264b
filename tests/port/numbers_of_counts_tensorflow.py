"""Counts that TensorFlow and Keras keep, in variables, checkpoints, optimizers and callbacks; a rate of 0."""

# ruff: noqa

import time

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
x = np.random.randn(96, 4).astype("float32")
y = np.random.randint(0, 3, 96)
ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
opt = keras.optimizers.SGD(0.0)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
done = tf.Variable(1)
checkpoint = tf.train.Checkpoint(step=tf.Variable(1), opt=opt, net=model)
manager = tf.train.CheckpointManager(checkpoint, "kept", max_to_keep=3)
for epoch in range(2):
    for bx, by in ds:
        with tf.GradientTape() as tape:
            loss = loss_of(by, model(bx, training=True))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        checkpoint.step.assign_add(1)
        done.assign_add(1)
        if int(checkpoint.step) % 6 == 0:
            print("saved", int(checkpoint.step), manager.save())
        if done % 12 == 0:
            print("done", int(done), done.numpy())
    print("updates", int(opt.iterations), opt.iterations.numpy())


class Count(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1


class Told(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.all = self.params["epochs"] * self.params["steps"]

    def on_epoch_end(self, epoch, logs=None):
        print("of all", self.all)
        print("told", self.params["steps"], self.params["epochs"], int(self.model.optimizer.iterations))


count = Count()
model.compile(keras.optimizers.SGD(0.0), loss_of)
watching = [count]
model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[*watching, Told()])
print("behind", count.seen, int(model.optimizer.iterations))


class Line(tf.Module):
    def __init__(self):
        self.w = tf.Variable(tf.zeros((4, 3)))
        self.step = tf.Variable(0, trainable=False, dtype=tf.int64)


line = Line()
for bx, by in ds:
    with tf.GradientTape() as tape:
        loss = loss_of(by, bx @ line.w)
    for v, d in zip(line.trainable_variables, tape.gradient(loss, line.trainable_variables)):
        v.assign_sub(0.0 * d)
    line.step.assign_add(1)
    if int(line.step) % 6 == 0:
        print("line", int(line.step))
print("lines", int(line.step))

weight_at = tf.Variable(0, trainable=False)


@tf.function
def weighed(bx, by):
    weight = tf.minimum(1.0, tf.cast(weight_at, tf.float32) / 20)
    with tf.GradientTape() as tape:
        loss = weight * loss_of(by, model(bx))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    weight_at.assign_add(1)
    return {"loss": loss_of(by, model(bx)), "weight": weight}


class Meter:
    def __init__(self):
        self.sums, self.count = {}, 0

    def note(self, logs):
        for name, value in logs.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
        self.count += 1

    def show(self):
        print("means", {k: v / self.count for k, v in self.sums.items() if k != "weight"}, self.count)
        self.sums, self.count = {}, 0


meter, begin, step = Meter(), time.time(), 0
for epoch in range(2):
    for bx, by in ds:
        meter.note(weighed(bx, by))
        step += 1
        if step % 6 == 0:
            print(f"step {step} after {(time.time() - begin) // 1e6}")
            print("step %d after %d" % (step, (time.time() - begin) // 1e6))
    meter.show()
    line = "epoch {} ends at step {}, {:.0f}".format(epoch, step, (time.time() - begin) // 1e6)
    print(line, {"step": step, "time": (time.time() - begin) // 1e6})

for epoch in range(2):
    added, n, before = {}, 0, int(weight_at)
    for bx, by in ds:
        added["loss"] = added.get("loss", 0.0) + float(weighed(bx, by)["loss"])
        n += 1
    added["updates"] = int(weight_at)
    print("beside", {k: v / n for k, v in added.items() if k != "updates"}, int(weight_at) - before)
    print("an update", added["loss"] / (int(weight_at) - before))

window, kept, evals, ones, step = [], [], 0, 0.0, 0
for bx, by in ds:
    one = float(weighed(bx, by)["loss"]) * 0.0 + 1.0
    step += 1
    if step % 3 == 0:
        window.append(one)
        kept.append(one)
        evals += 1
        ones += one
    if step % 6 == 0:
        print("every so often", len(window), sum(window), len(kept), sum(kept), evals, ones, ones / evals)
        text = "step " + str(step)
        text += ": " + str(np.mean(window))
        print(text)
        print("seen " + repr(step) + " " + str(len(kept)))
        window = []

logs, step = {"steps": [], "loss": []}, 0
for epoch in range(2):
    total = 0.0
    for bx, by in ds:
        total += float(weighed(bx, by)["loss"])
        step += 1
    logs["steps"].append(step)
    logs["loss"].append(total / logs["steps"][-1])
print("lists", logs)


class Trainer:
    def __init__(self):
        self.kept = tf.train.Checkpoint(step=tf.Variable(0), best=tf.Variable(1e9), opt=opt, net=model)
        self.manager = tf.train.CheckpointManager(self.kept, "trainer", max_to_keep=2)
        self.seen = tf.Variable(0)

    def train(self, data, steps):
        kept = self.kept
        for bx, by in data.take(steps - kept.step.numpy()):
            kept.step.assign_add(1)
            self.seen.assign_add(1)
            loss = weighed(bx, by)["loss"] * 0.0 + 2.0
            if kept.step.numpy() % 6 == 0:
                kept.best = loss  # a tensor in place of the variable
                self.manager.save()
        print("trained", int(kept.step), int(self.seen))

    def restore(self):
        self.kept.restore(self.manager.latest_checkpoint)
        print("restored at", self.kept.step.numpy())


trainer = Trainer()
trainer.train(ds.repeat(), 12)
trainer.train(ds.repeat(), 30)
print("in all", trainer.kept.step.numpy(), trainer.seen.numpy())
trainer.restore()

steps, large, planned = 0, 0, 96
left, rows, shares = [], [], []
for epoch in range(2):
    for bx, by in ds:
        weighed(bx, by)
        steps += 1
        if epoch > 0:
            large += 1
    left.append(planned - steps)
    share = large / max(1, steps)
    shares.append(share)
    rows.append({"sixths": steps // 6, "rest": 100 * (1 - steps / planned), "share": large / max(steps, 1)})
print("left", left, rows, shares)


class Rows(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses, self.rows, self.batches = [], [], 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append([epoch, self.losses[-1]])
        print(
            "as planned", self.batches == 12 * (epoch + 1), self.batches < 15, int(self.model.optimizer.iterations) > 20
        )


class Tally(keras.layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight(name="seen", shape=(), initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.seen.assign_add(tf.cast(tf.shape(inputs)[0], tf.float32))
        return inputs


class Tallied(keras.Model):
    def __init__(self):
        super().__init__()
        self.tally, self.out = Tally(), keras.layers.Dense(3)

    def call(self, inputs, training=False):
        return self.out(self.tally(inputs, training=training))


kept_rows, tallied = Rows(), Tallied()
tallied.compile(keras.optimizers.SGD(0.0), loss_of)
tallied.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[kept_rows])
print("an epoch", kept_rows.batches / len(kept_rows.rows), "samples", float(tallied.tally.seen.numpy()))


class Budget(keras.callbacks.Callback):
    """Ends the training when so many samples are used up, and keeps the best of what it evaluates on the way."""

    def __init__(self, samples):
        super().__init__()
        self.left, self.steps, self.best = samples, 0, None

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 8
        self.steps += 1
        if self.steps % 6 == 0:
            error = float(np.abs(self.model.predict_on_batch(x)).mean())
            if self.best is None or error < self.best[1]:
                self.best = (self.steps, error)
        if self.left <= 0:
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        print("budget", self.left, self.best[0])


model.compile(keras.optimizers.SGD(0.0), loss_of)
print("epochs", len(model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=[Budget(168)]).epoch))


class Heat:
    def __init__(self, steps):
        self.at, self.steps = 0, steps

    @property
    def value(self):
        return min(1.0, self.at / self.steps)


heat, remaining, spent = Heat(30), 18, []
for epoch in range(2):
    for bx, by in ds:
        with tf.GradientTape() as tape:
            loss = (1.0 + heat.value) * loss_of(by, model(bx))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        heat.at += 1
        remaining -= 1
        if remaining == 0:
            spent.append(epoch)
    print("heat", heat.value, "remaining", remaining, spent)

chance = 1.0
for epoch in range(2):
    for bx, by in ds:
        weighed(bx, by)
        chance = chance - 0.02
    print("chance", round(chance, 4))
