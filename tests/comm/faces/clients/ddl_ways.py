"""Scripts of TensorFlow 1 with ``import ddl`` alone: ways to make variables, to initialize them, to train them."""

import contextlib
import json
import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
import ddl  # noqa: E402

rank, size = ddl.rank(), ddl.size()
data = np.random.RandomState(3)
xs, ys = data.randn(36, 5).astype("f"), data.randn(36, 1).astype("f")
record = {}


def first(shape, dtype=tf.float32, partition_info=None):
    return tf.ones(shape, dtype) * (1.0 + rank)


def net(make):
    """Return placeholders, loss and step of a small model whose variables `make` makes."""
    x, y = tf.placeholder(tf.float32, [None, 5]), tf.placeholder(tf.float32, [None, 1])
    w, b = make()
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
    return x, y, loss, (w, b)


def trained(session, train, x, y, wanted):
    for k in range(3):
        rows = slice(12 * k + rank, 12 * (k + 1), size)
        session.run(train, {x: xs[rows], y: ys[rows]})
    return [np.array(v).ravel().tolist() for v in session.run(wanted)]


def plain():
    return tf.get_variable("w", [5, 1], initializer=first), tf.get_variable("b", [1], initializer=first)


def from_numbers():
    return tf.Variable(np.full([5, 1], 1.0 + rank, "f"), name="w"), tf.Variable([1.0 + rank], name="b")


def from_others():
    w = tf.Variable(lambda: first([5, 1]), name="w")
    return w, tf.Variable(tf.reduce_sum(w.initialized_value(), 0) / 5 + rank, name="b")


def partitioned():
    with tf.variable_scope("p", partitioner=tf.fixed_size_partitioner(2)):
        w = tf.get_variable("w", [5, 1], initializer=first)
    return tf.convert_to_tensor(w), tf.get_variable("b", [1], initializer=first)


def resources():
    with tf.variable_scope("r", use_resource=True):
        return plain()


def on_a_device():
    with tf.device("/cpu:0"), tf.name_scope("tower"):
        return plain()


def reused():
    with tf.variable_scope("s", reuse=tf.AUTO_REUSE, initializer=first):
        tf.get_variable("w", [5, 1])
        return tf.get_variable("w", [5, 1]), tf.get_variable("b", [1])


def of_keras():
    layer = tf.keras.layers.Dense(1, kernel_initializer=first, bias_initializer=first)
    layer(tf.placeholder(tf.float32, [None, 5]))
    return layer.kernel, layer.bias


MAKERS = [plain, from_numbers, from_others, partitioned, resources, on_a_device, reused]
if hasattr(tf.keras.backend, "get_session"):
    MAKERS.append(of_keras)
for make in MAKERS:
    with tf.Graph().as_default():
        x, y, loss, found = net(make)
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            record[make.__name__] = trained(session, train, x, y, found)


def scaffold(train, step):
    ready = tf.train.Scaffold(init_op=tf.group(*[v.initializer for v in tf.global_variables()]))
    return tf.train.MonitoredTrainingSession(scaffold=ready)


def singular(train, step):
    return tf.train.SingularMonitoredSession(hooks=[tf.train.StopAtStepHook(100)])


def supervised(train, step):
    return tf.train.Supervisor(logdir=None, init_op=tf.global_variables_initializer()).managed_session()


def one_by_one(train, step):
    session = tf.Session()
    for v in sorted(tf.global_variables(), key=lambda v: v.name, reverse=rank % 2 == 1):
        session.run(v.initializer)
    return session


def interactive(train, step):
    session = tf.InteractiveSession()
    names = set(session.run(tf.report_uninitialized_variables()))
    session.run([v.initializer for v in tf.global_variables() if v.op.name.encode() in names])
    return contextlib.closing(session)


def restored(train, step):
    folder = os.environ.get("TMPDIR", tempfile.gettempdir())
    path = os.path.join(folder, "restored-%d" % rank)
    session = tf.Session()
    session.run(tf.initializers.global_variables())
    path = tf.train.Saver().save(session, path)
    session.close()
    session = tf.Session()
    tf.train.Saver().restore(session, path)
    return session


for start in (scaffold, singular, supervised, one_by_one, interactive, restored):
    with tf.Graph().as_default():
        x, y, loss, found = net(plain)
        step = tf.train.get_or_create_global_step()
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
        session = start(train, step)
        with session as running:
            record[start.__name__] = trained(running, train, x, y, found)


def by_hand(optimizer, loss):
    pairs = [(tf.clip_by_value(g, -9e9, 9e9), v) for g, v in optimizer.compute_gradients(loss)]
    return optimizer.apply_gradients(pairs)


def averaged(optimizer, loss):
    average = tf.train.ExponentialMovingAverage(0.5)
    with tf.control_dependencies([optimizer.minimize(loss)]):
        applied = average.apply(tf.trainable_variables())
    tf.add_to_collection("also", average.average(tf.trainable_variables()[0]))
    return applied


def decayed(optimizer, loss):
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.1, step, 1, 0.5)
    return tf.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)


def accumulated(optimizer, loss):
    pairs = optimizer.compute_gradients(loss)
    sums = [tf.Variable(tf.zeros_like(v.initialized_value()), trainable=False) for _, v in pairs]
    with tf.control_dependencies([tf.assign_add(s, g) for s, (g, _) in zip(sums, pairs)]):
        return optimizer.apply_gradients([(s.read_value() + 0.0, v) for s, (_, v) in zip(sums, pairs)])


def adam(optimizer, loss):
    return tf.train.AdamOptimizer(0.1).minimize(loss)


def in_two_parts(optimizer, loss):
    w, b = tf.trainable_variables()
    first_half = tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[w])
    return tf.group(first_half, tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[b]))


for how in (by_hand, averaged, decayed, accumulated, adam, in_two_parts):
    with tf.Graph().as_default():
        x, y, loss, found = net(plain)
        train = how(tf.train.MomentumOptimizer(0.1, 0.9), loss)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            record[how.__name__] = trained(session, train, x, y, [*found, *tf.get_collection("also")])


def estimated():
    """Train an Estimator twice, the second time from its own checkpoint."""

    def model_fn(features, labels, mode):
        w, b = plain()
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) + b - labels))
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def input_fn():
        mine = [data.reshape(3, 12, -1)[:, rank::size] for data in (xs, ys)]
        return tf.data.Dataset.from_tensor_slices(tuple(mine))

    estimator = tf.estimator.Estimator(model_fn, model_dir=tempfile.mkdtemp())
    for steps in (2, 5):
        estimator.train(input_fn, max_steps=steps)
    return [estimator.get_variable_value(name).ravel().tolist() for name in ("w", "b")]


if hasattr(tf, "estimator"):
    record["estimated"] = estimated()
with open(os.path.join(os.environ["RECORDS"], "%d.json" % rank), "w") as file:
    json.dump({"weights": list(record.values()), **record}, file)
