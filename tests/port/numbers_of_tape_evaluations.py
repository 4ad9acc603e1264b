"""What loops that evaluate beside a tape leave and show; at rate 0 each number is that of all batches, on any ranks."""

# ruff: noqa

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
x, y = np.random.rand(96, 4).astype("float32"), np.random.randint(0, 3, 96).astype("int32")
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
test = tf.data.Dataset.from_tensor_slices((x[:83], y[:83])).batch(8).prefetch(2)
model = keras.Sequential(
    [
        keras.layers.Input((4,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(3),
    ]
)
opt = keras.optimizers.SGD(0.0)
lossf = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
test_loss = keras.metrics.Mean()
test_acc = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(bx, by):
    with tf.GradientTape() as tape:
        loss = lossf(by, model(bx, training=True))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))


@tf.function
def test_step(bx, by):
    logits = model(bx, training=False)
    test_loss(lossf(by, logits))
    test_acc(by, logits)


def accuracy(data):
    right, seen, losses, guesses = 0, 0, [], []
    worst = 0.0
    for bx, by in data:
        logits = model(bx)
        found = tf.argmax(logits, 1, output_type=tf.int32)
        right += int(tf.reduce_sum(tf.cast(found == by, tf.int32)))
        seen += len(by)
        loss = float(lossf(by, logits))
        losses.append(loss)
        worst = max(worst, loss)
        guesses.extend(found.numpy().tolist())
    return right / seen, np.mean(losses), worst, seen, guesses


best, waited = 1e9, 0
for epoch in range(4):
    test_loss.reset_state()
    test_acc.reset_state()
    for bx, by in train:
        train_step(bx, by)
    for bx, by in test:
        test_step(bx, by)
    print(epoch, "loss", float(test_loss.result()), "accuracy", float(test_acc.result()))
    total, batches = 0.0, 0
    for bx, by in test:
        total += float(lossf(by, model(bx, training=False)))
        batches += 1
    print("mean", total / batches, batches)
    share, mean, worst, seen, guesses = accuracy(test)
    print("share", share, mean, worst, seen, len(guesses), guesses[:20], sum(guesses))
    if mean < best - 1e-9:
        best, waited = mean, 0
    else:
        waited += 1
    if waited > 1:
        print("stops at", epoch)
        break
confusion = np.zeros((3, 3), dtype=int)
for bx, by in test:
    for guess, label in zip(np.argmax(model(bx), 1), by.numpy()):
        confusion[label, guess] += 1
print(confusion.tolist(), confusion.sum())
