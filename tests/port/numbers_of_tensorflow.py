"""Numbers of an epoch as TensorFlow's loops with a tape come by them; a rate of 0."""

# ruff: noqa

import csv
import json
import tensorflow as tf
import numpy as np
from collections import Counter, defaultdict

tf.keras.utils.set_random_seed(0)
xs = np.random.randn(96, 4).astype("float32")
ys = np.random.randint(0, 3, 96)
held, labels = np.random.randn(24, 4).astype("float32"), np.random.randint(0, 3, 24)
train = tf.data.Dataset.from_tensor_slices((xs, ys)).shuffle(96).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3)])
opt = tf.keras.optimizers.SGD(0.0)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
mean, accuracy, added = tf.keras.metrics.Mean(), tf.keras.metrics.SparseCategoricalAccuracy(), tf.keras.metrics.Sum()
N = len(xs)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        out = model(x, training=True)
        loss = loss_of(y, out)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    mean.update_state(loss)
    accuracy(y, out)
    added.update_state(loss)
    return {"loss": loss, "right": tf.reduce_sum(tf.cast(tf.equal(tf.argmax(out, 1), y), tf.float32))}


class Trainer:
    def __init__(self):
        self.history = {"loss": [], "right": []}
        self.rows = []

    def epoch(self):
        total, right, seen = 0.0, 0, 0
        for x, y in train:
            logs = step(x, y)
            total += logs["loss"]
            right += int(logs["right"])
            seen += x.shape[0]
        print("trainer", float(total), total.numpy() / 12, right, seen)
        return float(total) / 12, right

    def run(self, epochs):
        best = None
        for epoch in range(epochs):
            loss, right = self.epoch()
            self.history["loss"].append(loss)
            self.history["right"].append(right)
            self.rows.append([epoch, loss, right])
            if best is None or right > best:
                best = right
                print("best", best)


history = []
lowest = 1e9
for epoch in range(2):
    mean.reset_state()
    accuracy.reset_state()
    added.reset_state()
    total, n, losses = 0.0, 0, []
    got = {}
    sums, counter, tally = defaultdict(float), Counter(), {"loss": 0.0, "right": 0.0}
    for x, y in train:
        logs = step(x, y)
        total += logs["loss"]
        n += 1
        losses.append(logs["loss"])
        for k, v in logs.items():
            sums[k] += float(v)
            got[k] = got.get(k, 0.0) + float(v)
        for k in tally:
            tally[k] += float(logs[k])
        counter["right"] += int(logs["right"])
        counter["seen"] += len(x)
    print(
        "total",
        float(total),
        total.numpy(),
        round(float(total), 4),
        float(total) / n,
        float(total / n),
        float(total) / 12,
    )
    print("losses", np.mean(losses), np.sum(losses), float(tf.reduce_mean(tf.stack(losses))))
    print("stacked", tf.reduce_sum(tf.stack(losses)).numpy(), float(tf.reduce_sum(losses)), tf.add_n(losses).numpy())
    print("metrics", float(mean.result()), accuracy.result().numpy(), f"{accuracy.result() * 100:.3f}")
    print("added", float(added.result()), added.result().numpy() / n)
    print("sums", {k: v for k, v in sums.items()}, {k: v / n for k, v in sums.items()})
    print("sums", sums["loss"] / n, sums["right"], sums["right"] / N, dict(sums))
    print("got", {k: v / n for k, v in got.items()}, got, got["right"] / N, {k: round(v, 3) for k, v in got.items()})
    print("text", " ".join(f"{k} {v / n:.4f}" for k, v in sums.items()))
    print("tally", tally, tally["right"] / N, tally["loss"] / len(train), {k: v / n for k, v in tally.items()})
    print("counter", counter["right"], counter["seen"], counter["right"] / counter["seen"], dict(counter))
    for k, v in sums.items():
        print(k, v, v / n)
    for k, v in tally.items():
        print(k, v, v / N)
    history.append({k: v / n for k, v in sums.items()})
    if float(total) < lowest:
        lowest = float(total)
    if counter["right"] > 30:
        print("many right")
print("lowest", lowest)
trainer = Trainer()
trainer.run(2)
with open("history.json", "w") as f:
    json.dump([history, trainer.history], f)
with open("rows.csv", "w") as f:
    csv.writer(f).writerows(trainer.rows)
print(open("history.json").read())
print(open("rows.csv").read().replace(",", " "))
print("held", float(loss_of(labels, model(held))))
