"""A script of TensorFlow 1 with such a module beside it."""

import json
import os

import ddl
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
rank, size = ddl.rank(), ddl.size()
data = np.random.RandomState(3)
xs, ys = data.randn(36, 5).astype("f"), data.randn(36, 1).astype("f")
x = tf.placeholder(tf.float32, [None, 5])
y = tf.placeholder(tf.float32, [None, 1])
with tf.variable_scope("dense"):
    W = tf.get_variable("kernel", [5, 1], initializer=tf.constant_initializer(1.0 + rank))
b = tf.Variable(tf.random_normal([1]) * float(rank), name="bias")
loss = tf.reduce_mean(tf.square(tf.matmul(x, W) + b - y))
step = tf.train.get_or_create_global_step()
train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
with tf.train.MonitoredTrainingSession() as sess:
    for k in range(3):
        rows = slice(12 * k + rank, 12 * (k + 1), size)
        sess.run(train, {x: xs[rows], y: ys[rows]})
    w, b, k = sess.run([W, b, step])
record = {"place": [rank, size], "steps": int(k)}
record["weights"] = [w.ravel().tolist(), b.ravel().tolist()]
with open(os.path.join(os.environ["RECORDS"], "%d.json" % rank), "w") as file:
    json.dump(record, file)
