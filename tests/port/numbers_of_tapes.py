"""Sums, extremes and arrays that loops with tapes keep
at rate 0 each number is that of all samples."""

import itertools

import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
x = np.random.randn(96, 4).astype("float32")
y = np.random.randint(0, 3, 96)

ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
opt = keras.optimizers.SGD(0.0)
lossf = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
for epoch in range(2):
    allp = tf.zeros((0, 3))
    ally = tf.zeros((0,), tf.int64)
    for bx, by in ds:
        with tf.GradientTape() as tape:
            out = model(bx, training=True)
            loss = lossf(by, out)
        g = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(g, model.trainable_variables))
        allp = tf.concat([allp, out], 0)
        ally = tf.concat([ally, by], axis=0)
    acc = tf.reduce_mean(tf.cast(tf.argmax(allp, 1) == ally, tf.float32))
    print(f"= {epoch} {acc.numpy():.5f} {allp.shape[0]} {float(lossf(ally, allp)):.5f}")

w = tf.Variable(tf.ones((4, 3)))
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
tot = 0.0
for epoch in range(2):
    tot = 0.0
    mx = -1.0
    for bx, by in ds:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(by, bx @ w))
        g = tape.gradient(loss, w)
        w.assign_sub(0.0 * g)
        tot += loss.numpy()
        mx = max(mx, float(tf.reduce_max(bx)))
    print(f"= {epoch} {tot / len(ds):.5f} {mx:.5f} {tf.norm(w).numpy():.5f}")

ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
opt = keras.optimizers.SGD(0.0)
lossf = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
cls_sum = tf.Variable(tf.zeros(3))
cls_n = tf.Variable(tf.zeros(3))
worst = tf.Variable(-1.0)
for epoch in range(2):
    cls_sum.assign(tf.zeros(3))
    cls_n.assign(tf.zeros(3))
    for bx, by in ds:
        with tf.GradientTape() as tape:
            l = lossf(by, model(bx, training=True))
            loss = tf.reduce_mean(l)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        oh = tf.one_hot(by, 3)
        cls_sum.assign_add(tf.reduce_sum(oh * l[:, None], 0))
        cls_n.assign_add(tf.reduce_sum(oh, axis=0))
        worst.assign(tf.maximum(worst, tf.reduce_max(l)))
    per = cls_sum / cls_n
    print(
        "=",
        [f"{v:.5f}" for v in per.numpy()],
        f"{tf.reduce_mean(per).numpy():.5f} {worst.numpy():.5f} {int(tf.reduce_sum(cls_n))}",
    )


class F1(keras.metrics.Metric):
    def __init__(self, n=3, name="f1", **kw):
        super().__init__(name=name, **kw)
        self.tp = self.add_weight(name="tp", shape=(n,), initializer="zeros")
        self.fp = self.add_weight(name="fp", shape=(n,), initializer="zeros")
        self.fn = self.add_weight(name="fn", shape=(n,), initializer="zeros")
        self.n = n

    def update_state(self, t, p, sample_weight=None):
        p = tf.one_hot(tf.argmax(p, 1), self.n)
        t = tf.one_hot(tf.cast(tf.reshape(t, [-1]), tf.int32), self.n)
        self.tp.assign_add(tf.reduce_sum(t * p, 0))
        self.fp.assign_add(tf.reduce_sum((1 - t) * p, 0))
        self.fn.assign_add(tf.reduce_sum(t * (1 - p), 0))

    def result(self):
        return tf.reduce_mean(2 * self.tp / (2 * self.tp + self.fp + self.fn + 1e-7))

    def reset_state(self):
        for v in (self.tp, self.fp, self.fn):
            v.assign(tf.zeros(self.n))


ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
opt = keras.optimizers.SGD(0.0)
f1 = F1()
lossf = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
for epoch in range(2):
    f1.reset_state()
    for bx, by in ds:
        with tf.GradientTape() as tape:
            out = model(bx, training=True)
            loss = lossf(by, out)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        f1.update_state(by, out)
    print(f"= {epoch} {float(f1.result()):.5f}")

ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
opt = keras.optimizers.SGD(0.0)
lossf = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
m = keras.metrics.Mean()
hist = []
step = tf.Variable(0, dtype=tf.int64)
for epoch in range(2):
    for i, (bx, by) in enumerate(ds):
        with tf.GradientTape() as tape:
            out = model(bx, training=True)
            loss = lossf(by, out)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        m(loss)
        step.assign_add(1)
        if (i + 1) % 6 == 0:
            print(f"= {epoch} {i + 1} {m.result().numpy():.5f}")
    hist.append(m.result().numpy())
    m.reset_state()
    print(f"= end {epoch} {hist[-1]:.5f} {int(step)}")

ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
opt = keras.optimizers.SGD(0.0)
lossf = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
for epoch in range(2):
    cm = tf.zeros((3, 3), tf.int32)
    sq = 0.0
    cnt = tf.constant(0)
    for k, (bx, by) in enumerate(ds):
        with tf.GradientTape() as tape:
            out = model(bx, training=True)
            loss = lossf(by, out)
        g = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(g, model.trainable_variables))
        cm = cm + tf.math.confusion_matrix(by, tf.argmax(out, 1), 3)
        sq = sq + loss**2
        cnt += tf.shape(by)[0]
    print(
        "=",
        cm.numpy().tolist(),
        f"{(tf.linalg.trace(cm) / tf.reduce_sum(cm)).numpy():.5f}",
        f"{tf.sqrt(sq / (k + 1)).numpy():.5f}",
        cnt.numpy(),
    )

rates, ones = keras.metrics.Mean(), keras.metrics.Sum()
losses, right = keras.metrics.Sum(), keras.metrics.TruePositives()
for epoch in range(2):
    for metric in (rates, ones, losses, right, m):
        metric.reset_state()
    for k, (bx, by) in enumerate(ds):
        with tf.GradientTape() as tape:
            out = model(bx, training=True)
            loss = lossf(by, out)
        g = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(g, model.trainable_variables))
        rates.update_state(0.25)
        ones.update_state(1.0)
        losses.update_state(loss)
        right.update_state(by > 0, tf.argmax(out, 1) > 0)
        m(loss)
        if k % 6 == 5:
            print("=", float(rates.result()), int(ones.result()), m.result().numpy(), float(m.count))
    print("=", float(losses.result()), float(right.result()), float(losses.total), float(m.count), float(m.total))

right, seen = tf.Variable(0, dtype=tf.int64), tf.Variable(0)


@tf.function
def whole_epoch(batches):
    most = tf.constant(-1.0)
    for bx, by in batches:
        with tf.GradientTape() as tape:
            out = model(bx, training=True)
            loss = lossf(by, out)
        g = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(g, model.trainable_variables))
        right.assign_add(tf.math.count_nonzero(tf.argmax(out, 1) == by))
        seen.assign_add(tf.shape(by)[0])
        m.update_state(loss)
        most = tf.maximum(most, tf.reduce_max(tf.abs(bx)))
    return most


for epoch in range(2):
    right.assign(0)
    seen.assign(0)
    m.reset_state()
    most = whole_epoch(ds)
    print("=", float(m.result()), float(m.count), int(right), int(seen), float(most))

stream = iter(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).repeat().batch(8))


@tf.function
def several(stream, steps):
    added = tf.constant(0.0)
    for _ in tf.range(steps):
        bx, by = next(stream)
        with tf.GradientTape() as tape:
            loss = lossf(by, model(bx, training=True))
        g = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(g, model.trainable_variables))
        added += loss
    return added / tf.cast(steps, tf.float32)


for epoch in range(2):
    print("=", float(several(stream, tf.constant(12))))

means = {name: keras.metrics.Mean() for name in ("loss", "size")}
for epoch in range(2):
    for bx, by in ds:
        with tf.GradientTape() as tape:
            out = model(bx, training=True)
            loss = lossf(by, out)
        g = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(g, model.trainable_variables))
        for name, part in {"loss": loss, "size": tf.reduce_mean(out)}.items():
            means[name].update_state(part)
    print("=", [f"{name} {float(mean.result()):.4f}" for name, mean in means.items()], float(means["loss"].count))


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


counted, opt = Counted(), keras.optimizers.SGD(0.0)
for epoch in range(2):
    for bx, by in ds:
        with tf.GradientTape() as tape:
            loss = lossf(by, counted(bx, training=True))
        g = tape.gradient(loss, counted.trainable_variables)
        opt.apply_gradients(zip(g, counted.trainable_variables))
    print("=", epoch, float(counted.count.passes))

so_far, apart, opt = keras.metrics.Mean(), keras.metrics.Mean(), keras.optimizers.SGD(0.0)
for step, (bx, by) in enumerate(ds):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(by, model(bx)))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    so_far.update_state(loss)
    apart(loss)
    if (step + 1) % 4 == 0:
        print("perplexity", f"{np.exp(so_far.result()):.4f} {tf.math.log(apart.result()).numpy():.4f}")
        print("squared", round(float(so_far.result()) ** 2, 4), round(1 / apart.result().numpy(), 4))

seen, total = [], 0.0
for step, (bx, by) in enumerate(ds):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(by, model(bx)))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    seen.append(float(loss))
    total += float(loss)
    if step % 4 == 3:
        print("so far " + str(len(seen)) + ", " + str(round(total, 4)))

best = {"loss": np.inf, "step": 0}
batches = iter(ds.repeat())
for step in range(1, 25):
    bx, by = next(batches)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(by, model(bx)))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    if step % 4 == 0:
        found = {"loss": float(tf.reduce_mean(model(x))), "norm": float(tf.norm(model(x)))}
        if found["norm"] > 0:
            best["step"] = step
            best.update(found)
print("best", best["step"])
for key, value in best.items():
    if key != "step":
        print(key, round(float(value), 4))


def update(bx, by):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(by, model(bx)))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return float(loss)


kept = []  # by one name what goes through the batches, and what counts them
bar = enumerate(ds, 1)
for step, (bx, by) in bar:
    kept.append(update(bx, by))
    if step % 4 == 0:
        print("step", step)
print("numbered", len(kept), f"{np.mean(kept):.4f}")
kept = []
bar = itertools.islice(ds, 6)
for bx, by in bar:
    kept.append(update(bx, by))
print("taken", len(kept))
kept = []
bar = zip(range(6), ds)
for step, (bx, by) in bar:
    kept.append(update(bx, by))
print("paired", len(kept))
kept = []
bar = range(12)
for step in bar:
    picked = np.random.choice(len(x), 8)
    kept.append(update(x[picked], y[picked]))
print("counted", len(kept))
kept = []
bar = range(1, 5)
for step in bar:
    picked = np.random.choice(len(x), 8)
    kept.append(update(x[picked], y[picked]))
print("counted again", len(kept))


def traced(rows):
    means = tf.TensorArray(tf.float32, size=3)
    for k in range(3):
        means = means.write(k, tf.reduce_mean(rows) * k)
    return model(rows, training=True), means.stack()


for epoch in range(2):
    last = []
    for bx, by in ds:
        with tf.GradientTape() as tape:
            out, means = traced(bx)
            loss = lossf(by, out)
        g = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(g, model.trainable_variables))
        last.append(means[-1].numpy())
    print(f"= {np.mean(last):.5f} {len(last)}")
