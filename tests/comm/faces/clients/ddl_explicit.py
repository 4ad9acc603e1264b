"""DDL called by hand, as its manual has it where DDL_OPTIONS is not set: in a session, or (``eager``) by a tape."""

import json
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

eager = "eager" in sys.argv
if eager:
    tf.enable_eager_execution()
else:
    tf.disable_v2_behavior()
import ddl  # noqa: E402

assert "DDL_OPTIONS" not in os.environ
ddl.init("-mode p:2x1x1x1")
rank, size = ddl.rank(), ddl.size()
data = np.random.RandomState(3)
xs, ys = data.randn(36, 5).astype("f"), data.randn(36, 1).astype("f")
optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
with tf.name_scope("weights"):
    W = tf.Variable(ddl.bcast(tf.ones([5, 1]) * (1.0 + rank)))
    b = tf.Variable(ddl.bcast(tf.fill([1], float(rank))))
    own = tf.Variable([float(rank)], trainable=True)  # nobody broadcasts it


def batch(step):
    rows = slice(12 * step + rank, 12 * (step + 1), size)
    return xs[rows], ys[rows]


if eager:
    for step in range(3):
        x, y = batch(step)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, W) + b - y))
        if step == 1:
            grads = ddl.allreduce_n(tape.gradient(loss, [W, b]), average=True)
            pairs = list(zip(grads, [W, b]))
        else:
            pairs = list(ddl.grads_reduce(zip(tape.gradient(loss, [W, b]), [W, b]), average=True))
        if step == 0:
            first = [g.numpy() for g, _ in pairs]
        optimizer.apply_gradients(pairs)
    w, c, mine = W.numpy(), b.numpy(), own.numpy()
else:
    x, y = tf.placeholder(tf.float32, [None, 5]), tf.placeholder(tf.float32, [None, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(x, W) + b - y))
    pairs = ddl.grads_reduce(optimizer.compute_gradients(loss, [W, b]), average=True)
    train = optimizer.apply_gradients(pairs)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        session.run(tf.global_variables_initializer())
        for step in range(3):
            feed = dict(zip((x, y), batch(step)))
            got, _ = session.run([[g for g, _ in pairs], train], feed)
            if step == 0:
                first = got
        w, c, mine = session.run([W, b, own])
record = {"grads": [g.ravel().tolist() for g in first], "weights": [w.ravel().tolist(), c.ravel().tolist()]}
record["own"] = mine.tolist()
with open(os.path.join(os.environ["RECORDS"], "%d.json" % rank), "w") as file:
    json.dump(record, file)
