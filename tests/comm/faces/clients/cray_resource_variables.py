"""The script of Cray's manual where compat.v1 stands for TensorFlow and variables are resources."""

import json
import os
import sys

import tensorflow.compat.v1 as tf

sys.modules["tensorflow"] = tf
tf.disable_v2_behavior()
tf.enable_resource_variables()
import ml_comm as mc  # noqa: E402
import numpy as np  # noqa: E402

mc.init_mpi()
rank, size = mc.get_rank(), mc.get_nranks()
data = np.random.RandomState(3)
xs, ys = data.randn(36, 5).astype("f"), data.randn(36, 1).astype("f")


class BcastTensors(tf.train.SessionRunHook):
    def __init__(self):
        self.bcast = None

    def begin(self):
        if not self.bcast:
            new_vals = mc.broadcast(tf.trainable_variables(), 0)
            if "assign" in sys.argv:
                self.bcast = [tf.assign(v, new_vals[k]) for k, v in enumerate(tf.trainable_variables())]
            else:
                self.bcast = tf.group(*[v.assign(new) for v, new in zip(tf.trainable_variables(), new_vals)])

    def after_create_session(self, session, coord):
        session.run(self.bcast)


x, y = tf.placeholder(tf.float32, [None, 5]), tf.placeholder(tf.float32, [None, 1])
with tf.variable_scope("dense"):
    w = tf.get_variable("kernel", [5, 1], initializer=tf.constant_initializer(1.0 + rank))
b = tf.Variable(tf.zeros([1]) + float(rank), name="bias")
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
total = sum(int(np.prod([int(d) for d in v.shape])) for v in tf.trainable_variables())
mc.init(1, 1, total, "tensorflow")
mc.config_team(0, 0, 3, 3, 0, 10)
optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
pairs = optimizer.compute_gradients(loss)
grads = mc.gradients([g for g, _ in pairs], 0)
step = tf.train.get_or_create_global_step()
train = optimizer.apply_gradients([(g, v) for g, (_, v) in zip(grads, pairs)], global_step=step)
first, k = None, -1
with tf.train.MonitoredTrainingSession(hooks=[BcastTensors(), tf.train.StopAtStepHook(last_step=3)]) as session:
    while not session.should_stop():
        k += 1
        rows = slice(12 * k + rank, 12 * (k + 1), size)
        got, _ = session.run([grads, train], {x: xs[rows], y: ys[rows]})
        first = first or [g.ravel().tolist() for g in got]
        weights = session.run_step_fn(lambda step_context: step_context.session.run([w, b]))
assert mc.check_buffers_match(weights, 1) == 0
with open(os.path.join(os.environ["RECORDS"], "%d.json" % rank), "w") as file:
    json.dump({"grads": first, "weights": [v.ravel().tolist() for v in weights]}, file)
mc.finalize()
mc.finalize()
