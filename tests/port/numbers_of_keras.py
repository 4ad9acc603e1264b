"""Numbers of an epoch as fit(), its callbacks and loops around train_on_batch() come by them; a rate of 0."""

# ruff: noqa

import json
import keras
import numpy as np

keras.utils.set_random_seed(0)
xs, ys = np.random.randn(96, 4).astype("float32"), np.random.randint(0, 3, 96)
held, labels = np.random.randn(24, 4).astype("float32"), np.random.randint(0, 3, 24)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, activation="softmax")])
SIZE = 8


class Moments(keras.metrics.Metric):
    """A metric of two numbers."""

    def __init__(self):
        super().__init__(name="moments")
        self.linear = self.add_weight(name="sum", initializer="zeros")
        self.square = self.add_weight(name="squares", initializer="zeros")

    def update_state(self, labels, predicted, sample_weight=None):
        self.linear.assign_add(keras.ops.sum(predicted[:, 0]))
        self.square.assign_add(keras.ops.sum(predicted[:, 0] ** 2))

    def result(self):
        return {"first": self.linear * 1.0, "second": self.square * 1.0}


model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", metrics=["accuracy", Moments()])
moments = model.fit(xs, ys, batch_size=8, epochs=2, verbose=0, validation_data=(held, labels)).history
print("moments", [float(v) for name in ("first", "second", "val_first", "val_second") for v in moments[name]])
model.compile(optimizer=keras.optimizers.SGD(0.0), loss="sparse_categorical_crossentropy", metrics=["accuracy"])


class Log(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rows, self.best = [], 1e9

    def on_epoch_begin(self, epoch, logs=None):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append({"epoch": epoch, **{k: float(v) for k, v in logs.items()}})
        print("epoch", epoch, logs["loss"], logs["accuracy"], logs["val_loss"], float(self.losses[-1]))
        right = (self.model.predict(xs, verbose=0).argmax(1) == ys).sum()
        print("predicted", right, right / len(xs), self.model.evaluate(xs, ys, verbose=0)[1])
        if logs["loss"] < self.best:
            self.best = logs["loss"]


log = Log()
history = model.fit(
    xs,
    ys,
    batch_size=8,
    epochs=2,
    validation_data=(held, labels),
    verbose=0,
    callbacks=[log, keras.callbacks.CSVLogger("log.csv")],
)
print("fitted", {k: [float(v) for v in vs] for k, vs in history.history.items()}, log.best)
print(json.dumps(log.rows))
print(open("log.csv").read().replace(",", " "))
means, accuracies = [], []
for epoch in range(2):
    total, hits, right, seen, losses = 0.0, 0.0, 0, 0, []
    sums = {"loss": 0.0, "accuracy": 0.0}
    for start in range(0, len(xs), SIZE):
        x, y = xs[start : start + SIZE], ys[start : start + SIZE]
        loss, accuracy = model.train_on_batch(x, y)
        model.reset_metrics()
        predicted = model.predict_on_batch(x).argmax(1)
        total += loss
        hits += accuracy * len(x)
        right += (predicted == y).sum()
        seen += SIZE
        losses.append(loss)
        sums["loss"] += loss
        sums["accuracy"] += accuracy
    print("sums", float(total), float(hits), right, seen, float(sum(losses)), float(np.sum(losses)))
    print(
        "means", total / (len(xs) // SIZE), total / 12, np.mean(losses), total / len(losses), sum(losses) / len(losses)
    )
    print("shares", hits / len(xs), right / len(xs), right / seen, hits / seen)
    print("extremes", float(max(losses)), float(min(losses)), float(np.std(losses)))
    print("table", json.dumps({k: float(v) for k, v in sums.items()}), sums["accuracy"] / 12)
    means.append(float(np.mean(losses)))
    accuracies.append(float(hits / len(xs)))
    total /= 12
    print("mean", total)
print(means, accuracies)
for epoch in range(2):
    for i in range(12):
        model.train_on_batch(xs[i * 8 : i * 8 + 8], ys[i * 8 : i * 8 + 8])
    order, total = np.random.permutation(12), 0.0
    for n, b in enumerate(order):
        total += model.train_on_batch(xs[b * 8 : b * 8 + 8], ys[b * 8 : b * 8 + 8], return_dict=True)["loss"] * 0 + 1
    for j, s in enumerate(range(0, len(xs), 8)):
        model.train_on_batch(xs[s : s + 8], ys[s : s + 8])
    print("behind", i, n + 1, total, j + 1, s)
