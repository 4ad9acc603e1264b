"""Numbers of an epoch whose loop stands in a tf.function and picks its batches by number; a rate of 0."""

# ruff: noqa

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(8)
X = tf.constant(np.random.randn(96, 4).astype("float32"))
Y = tf.constant(np.random.randint(0, 3, 96))
model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3)])
opt = tf.keras.optimizers.SGD(0.0)
lossf = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
B = 8


@tf.function
def train_epoch(X, Y):
    total, right = 0.0, 0
    for i in tf.range(96 // B):
        x, y = X[i * B : (i + 1) * B], Y[i * B : (i + 1) * B]
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = lossf(y, out)
        g = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(g, model.trainable_variables))
        total += loss
        right += tf.reduce_sum(tf.cast(tf.argmax(out, 1) == y, tf.int32))
    return total / 12.0, right


for epoch in range(9):
    loss, right = train_epoch(X, Y)
    print(epoch, float(loss), int(right))

data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(B)
seen, worst, errors = tf.Variable(0), tf.Variable(0.0), tf.Variable(tf.zeros(4))


@tf.function
def train_on():
    for x, y in data:
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = lossf(y, out)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        seen.assign_add(tf.shape(x)[0])
        errors.assign_add(tf.cast(tf.histogram_fixed_width(out, [-2.0, 2.0], 4), tf.float32))
        worst.assign(tf.maximum(worst, loss))


for epoch in range(2):
    train_on()
    print("kept", int(seen), errors.numpy(), float(worst))
