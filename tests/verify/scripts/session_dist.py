"""A small classifier trained in a session, ported: dropout, clipping, a checkpoint."""

import dl_comm.tensorflow as dl
import numpy as np
import tensorflow.compat.v1 as tf

dl.init()
print = dl.print

tf.disable_v2_behavior()
tf.set_random_seed(None)  # as an Estimator does that is given no seed
rows = np.random.RandomState(0).randn(48, 8).astype("float32")
labels = (rows.sum(1) > 0).astype("int64")
x, y = tf.placeholder(tf.float32, [None, 8]), tf.placeholder(tf.int64, [None])
hidden = tf.nn.dropout(tf.layers.dense(x, 16, tf.nn.tanh), rate=0.2)
loss = tf.losses.sparse_softmax_cross_entropy(y, tf.layers.dense(hidden, 2))
optimizer = tf.train.MomentumOptimizer(dl.lr_scale(0.1), 0.9)
grads, variables = zip(*optimizer.compute_gradients(loss), strict=True)
grads = dl.gradients(grads)
grads, _ = tf.clip_by_global_norm(grads, 0.1)
train_op = optimizer.apply_gradients(zip(grads, variables, strict=True))
saver = tf.train.Saver()
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(dl.broadcast_variables())
    dl.reseed()
    for epoch in range(20):
        for i in dl.shard(range(0, 48, 8)):
            _, value = sess.run([train_op, loss], {x: rows[i : i + 8], y: labels[i : i + 8]})
        print(f"epoch {epoch}: loss {dl.average(float(value)):.5f}")
        dl.rank0(saver.save)(sess, "./session")
dl.finalize()
