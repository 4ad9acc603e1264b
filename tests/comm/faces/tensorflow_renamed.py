"""Scripts that put tensorflow.compat.v1 in TensorFlow's place before they import the plugin."""

import sys

import tensorflow.compat.v1 as tf

sys.modules["tensorflow"] = tf
tf.disable_v2_behavior()
tf.enable_resource_variables()

import ml_comm as mc  # noqa: E402


def resource_variables_are_broadcast_and_their_gradients_averaged():
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.get_variable("v", initializer=tf.fill([3], float(mc.get_rank())))
        assert type(v).__name__ == "ResourceVariable"
        loss = tf.reduce_sum(v * float(mc.get_rank()))
        optimizer = tf.train.GradientDescentOptimizer(1.0)
        pairs = optimizer.compute_gradients(loss)
        means = mc.gradients([g for g, _ in pairs], 0)
        step = optimizer.apply_gradients([(g, w) for g, (_, w) in zip(means, pairs, strict=True)])
        start = [tf.assign(w, value) for w, value in zip([v], mc.broadcast([v], 1), strict=True)]
        session.run(tf.global_variables_initializer())
        session.run(start)
        session.run(step)
        assert session.run(v).tolist() == [1 - (mc.get_nranks() - 1) / 2] * 3


def functions_are_traced():
    traced = tf.function(lambda g: mc.gradients([g], 0))
    with tf.Graph().as_default(), tf.Session() as session:
        mean = traced(tf.fill([2], float(mc.get_rank())))
        assert session.run(mean)[0].tolist() == [(mc.get_nranks() - 1) / 2] * 2
