"""Loaders of a script's own that go on for several epochs: a counter that is set back at the last batch of each
tells the epochs, and what is kept of one is shown there. At rate 0 each number is that of all samples."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)


def shuffled(data, size, epochs):
    epoch = 0
    while epochs is None or epoch < epochs:
        epoch += 1
        np.random.shuffle(data)
        for begin in range(0, len(data), size):
            yield data[begin : begin + size]


class Loader:
    def __init__(self, data, size, epochs=None):
        self.data, self.size, self.epochs = data, size, epochs
        self._batches = self.batches()

    def __iter__(self):
        return self

    def __next__(self):
        return self.collate(self._batches.__next__())

    def batches(self):
        return shuffled(self.data, self.size, self.epochs)

    def collate(self, rows):
        return rows[:, :-1].astype("float32"), rows[:, -1].astype("int32")

    @property
    def steps_per_epoch(self):
        return int(np.ceil(len(self.data) / self.size))


rows = np.random.rand(240, 5)
rows[:, -1] = np.random.randint(0, 3, 240)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, activation="softmax")])
opt = keras.optimizers.Adam(0.0)
lossf = keras.losses.SparseCategoricalCrossentropy()


@tf.function
def train_step(inputs, target):
    with tf.GradientTape() as tape:
        pred = model(inputs, training=True)
        loss = lossf(target, pred)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
    return loss, tf.reduce_mean(keras.metrics.sparse_categorical_accuracy(target, pred))


def evaluate(loader):
    step, output = 0, []
    while step < loader.steps_per_epoch:
        step += 1
        inputs, target = loader.__next__()
        pred = model(inputs, training=False)
        output.append((lossf(target, pred), len(target)))
    output = np.array(output)
    return np.average(output[:, :-1], 0, weights=output[:, -1])[0]


def run(train, valid, patience=3):
    best, left = np.inf, patience
    step = epoch = 0
    results = []
    for inputs, target in train:
        step += 1
        loss, acc = train_step(inputs, target)
        results.append((loss, acc, len(target)))
        if step == train.steps_per_epoch:
            step = 0
            epoch += 1
            lost = evaluate(valid)
            results = np.array(results)
            means = np.average(results[:, :-1], 0, weights=results[:, -1])
            print("epoch {} loss {:.5f} acc {:.5f} valid {:.5f}".format(epoch, *means, lost))
            if round(lost, 4) < best:
                best, left = round(lost, 4), patience
                print(f"best {best:.4f}")
            else:
                left -= 1
                if left == 0:
                    print("stopped in", epoch)
                    break
            results = []


run(Loader(rows[:192].copy(), 8, 6), Loader(rows[192:].copy(), 8))

step, seen, lost = 0, [], []
train = Loader(rows.copy(), 10, 3)
for batch in train:
    step += 1
    loss, acc = train_step(*batch)
    lost.append(float(loss))
    if step == train.steps_per_epoch:
        step = 0
        seen.append(np.mean(lost))
        print(f"loss {np.mean(lost):.5f}", len(seen))
        lost = []
print("done", np.round(np.mean(seen), 5))


class Slices:
    def __init__(self):
        self.at = 0

    def fetch(self):
        if self.at >= len(rows):
            self.at = 0
        chosen = slice(self.at, self.at + 8)
        self.at += 8
        return rows[chosen, :-1].astype("float32"), rows[chosen, -1].astype("int32")


class Ranges:
    def __init__(self):
        self.at = 0

    def fetch(self):
        if self.at >= len(rows):
            self.at = 0
        chosen = np.arange(self.at, self.at + 8)
        self.at += 8
        return rows[chosen, :-1].astype("float32"), rows[chosen, -1].astype("int32")


slices, ranges = Slices(), Ranges()
lost, step = 0.0, 0
while step < 60:
    step += 1
    inputs, target = slices.fetch()
    lost += float(train_step(inputs, target)[0])
    if step % 30 == 0:
        print(f"slices {lost / 30:.4f}")
        lost = 0.0
for step in range(60):
    inputs, target = ranges.fetch()
    lost += float(train_step(inputs, target)[0])
    if (step + 1) % 30 == 0:
        print(f"ranges {lost / 30:.4f}")
        lost = 0.0
