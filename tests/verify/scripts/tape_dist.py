"""A small classifier trained with a tape, ported: dropout, clipping, an evaluation, a checkpoint."""

import dl_comm.tensorflow as dl
import numpy as np
import tensorflow as tf

dl.init()
print = dl.print

tf.keras.utils.set_random_seed(0)
rows = np.random.RandomState(0).randn(60, 8).astype("float32")
labels = (rows.sum(1) > 0).astype("int64")
train = tf.data.Dataset.from_tensor_slices((rows[:48], labels[:48])).shuffle(48).batch(8)
test = tf.data.Dataset.from_tensor_slices((rows[48:], labels[48:])).batch(5)

model = tf.keras.Sequential(
    [
        tf.keras.Input((8,)),
        tf.keras.layers.Dense(16, activation="tanh"),
        tf.keras.layers.Dropout(0.2),
        tf.keras.layers.Dense(2),
    ]
)
optimizer = tf.keras.optimizers.SGD(dl.lr_scale(0.1), momentum=0.9)
cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = cross_entropy(y, model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    grads = dl.gradients(grads)
    grads, _ = tf.clip_by_global_norm(grads, 0.1)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))


dl.broadcast_variables(model, optimizer)
dl.reseed()
for epoch in range(20):
    for x, y in dl.shard(train):
        train_step(x, y)
    losses = [float(cross_entropy(y, model(x))) * len(y) for x, y in test]
    print(f"epoch {epoch}: loss {sum(losses) / 12:.5f}")
    dl.rank0(model.save_weights)("tape.weights.h5")
dl.finalize()
