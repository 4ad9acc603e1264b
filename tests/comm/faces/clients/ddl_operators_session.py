"""A script of 2018 that loads DDL's operators itself and trains in a session: nothing of dl_comm's is imported."""

import json
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
ddl = tf.load_op_library(sys.argv[1])
config = tf.ConfigProto(allow_soft_placement=True)

with tf.Session(config=config) as sess:
    with tf.device("/cpu:0"):
        placed = sess.run(ddl.init(4, mode="-mode r:4 -dump_iter 100"))
rank, size = placed[0], placed[1]
gpuid = placed[-1]

data = np.random.RandomState(3)
xs, ys = data.randn(36, 5).astype("f"), data.randn(36, 1).astype("f")
with tf.device("/gpu:%d" % gpuid):
    x = tf.placeholder(tf.float32, [None, 5])
    y = tf.placeholder(tf.float32, [None, 1])
    W = tf.Variable(ddl.bcast(tf.ones([5, 1]) * (1 + float(rank))))
    b = tf.Variable(ddl.bcast(tf.random_normal([1]) * float(rank)))
    loss = tf.reduce_mean(tf.square(tf.matmul(x, W) + b - y))
    opt = tf.train.MomentumOptimizer(0.1, 0.9)
    grads_and_vars = opt.compute_gradients(loss)
    grads, vars = zip(*grads_and_vars)
    averaged = ddl.all_reduce_n(grads, op="avg", mpi="mpi" in sys.argv, check=0.17 if "check" in sys.argv else 0.0)
    train = opt.apply_gradients(zip(averaged, vars))
    each = [ddl.all_reduce(g, op="sum") for g in grads]  # in whatever order the session runs them

with tf.Session(config=config) as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(3):
        rows = slice(12 * step + rank, 12 * (step + 1), size)
        feed = {x: xs[rows], y: ys[rows]}
        summed, mean = sess.run([each, averaged], feed)
        for s, m in zip(summed, mean):
            np.testing.assert_allclose(s / size, m, rtol=1e-5)
        if step == 0:
            first = mean
        sess.run(train, feed)
    w, b = sess.run([W, b])
record = {"place": [int(p) for p in placed], "grads": [g.ravel().tolist() for g in first]}
record["weights"] = [w.ravel().tolist(), b.ravel().tolist()]
with open(os.path.join(os.environ["RECORDS"], "%d.json" % rank), "w") as file:
    json.dump(record, file)
