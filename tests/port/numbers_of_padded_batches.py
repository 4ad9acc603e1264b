"""Numbers of batches that are padded, or zipped with longer ones, and of metrics that are called
at rate 0 each number is that of all samples."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
texts = [rng.integers(1, 20, 2 + k // 12 + k % 3) for k in range(96)]  # the later, the longer
goals = [int(text.sum() % 3) for text in texts]
spec = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32))
lines = tf.data.Dataset.from_generator(lambda: zip(texts, goals, strict=True), output_signature=spec)
lines = lines.apply(tf.data.experimental.assert_cardinality(96)).padded_batch(12)
images = np.random.randn(192, 4).astype("float32")
kinds = tf.data.Dataset.from_tensor_slices(images).batch(24)


class Hits(keras.metrics.Metric):
    """How often each class is met, and found."""

    def __init__(self):
        super().__init__()
        self.found = self.add_weight(name="found", shape=(3,), initializer="zeros")
        self.seen = self.add_weight(name="seen", shape=(3,), initializer="zeros")

    def update_state(self, y, logits, sample_weight=None):
        right = tf.cast(tf.argmax(logits, -1, output_type=tf.int32) == y, tf.float32)
        self.found.assign_add(tf.reduce_sum(tf.one_hot(y, 3) * right[:, None], 0))
        self.seen.assign_add(tf.reduce_sum(tf.one_hot(y, 3), 0))

    def result(self):
        return self.found / (self.seen + 1e-6)


model = keras.Sequential([keras.layers.Embedding(20, 4), keras.layers.GRU(5), keras.layers.Dense(3)])
model(np.ones((1, 2)))
opt = keras.optimizers.SGD(0.0)
lossf = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function(reduce_retracing=True)
def step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = lossf(y, logits)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
    return loss, logits


hits = Hits()
mean = keras.metrics.Mean()
for epoch in range(2):
    hits.reset_state()
    mean.reset_state()
    longest, cells, high, both = 0, 0, 0, 0
    sums, products, bins = 0.0, 0.0, 0
    for (x, y), image in tf.data.Dataset.zip((lines, kinds)):
        loss, logits = step(x, y)
        hits(y, logits)
        mean.update_state(loss, sample_weight=tf.shape(x)[0])
        longest = max(longest, x.shape[1])
        rows, width = x.shape
        cells += rows * width
        high += int(tf.reduce_sum(tf.cast(image > 1, tf.int32)))
        both += len(image)
        one = tf.cast(image[:, 0] > 0, tf.float32)
        sums += tf.math.unsorted_segment_sum(image[:, 1], tf.cast(one, tf.int32), 2)
        products += float(tf.tensordot(one, image[:, 1], 1)) + float(tf.einsum("i,i->", one, image[:, 2]))
        products += float(tf.nn.l2_loss(image))
        bins += tf.histogram_fixed_width(image, [-2.0, 2.0], 4)
    print("=", epoch, f"{mean.result():.5f}", *(f"{one:.4f}" for one in hits.result()))
    print("=", epoch, longest)
    print("=", epoch, cells)
    print("=", epoch, high, both)
    print("=", epoch, *(f"{one:.4f}" for one in sums), f"{products:.4f}", *(int(one) for one in bins))
    hits.reset_state()
    for x, y in lines:
        hits(y, model(x, training=False))
    print("=", epoch, *(f"{one:.4f}" for one in hits.result()))
