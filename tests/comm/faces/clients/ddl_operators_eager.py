"""DDL's operators in eager code and in functions, as a script of TensorFlow 2 calls them."""

import json
import os
import sys

import numpy as np
import tensorflow as tf

ddl = tf.load_op_library("ddl_MDR.so")
placed = ddl.init(0, mode="-mode p:2", pci=True)
rank, size = int(placed.rank), int(placed.size)

data = np.random.RandomState(3)
xs, ys = data.randn(36, 5).astype("f"), data.randn(36, 1).astype("f")
W = tf.Variable(ddl.bcast(tf.ones([5, 1]) * (1 + float(rank))))
b = tf.Variable(ddl.bcast(tf.random.normal([1]) * float(rank)))
speeds = [tf.Variable(tf.zeros_like(v)) for v in (W, b)]


def gradients(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, W) + b - y))
    return ddl.all_reduce_n(tape.gradient(loss, [W, b]), op="avg")


if "function" in sys.argv:
    gradients = tf.function(gradients)
for step in range(3):
    rows = slice(12 * step + rank, 12 * (step + 1), size)
    grads = gradients(tf.constant(xs[rows]), tf.constant(ys[rows]))
    if step == 0:
        first = [g.numpy() for g in grads]
    for v, speed, g in zip((W, b), speeds, grads):
        speed.assign(0.9 * speed + g)
        v.assign_sub(0.1 * speed)
record = {"place": [int(p) for p in placed], "grads": [g.ravel().tolist() for g in first]}
record["weights"] = [W.numpy().ravel().tolist(), b.numpy().ravel().tolist()]
with open(os.path.join(os.environ["RECORDS"], "%d.json" % rank), "w") as file:
    json.dump(record, file)
