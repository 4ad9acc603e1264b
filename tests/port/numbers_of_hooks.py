"""A session whose hooks count steps, and whose loop halves a rate every so many of them; a rate of 0."""

# ruff: noqa

import glob
import shutil

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()
tf1.set_random_seed(0)
rng = np.random.RandomState(0)
x = rng.randn(96, 4).astype("float32")
y = x.sum(1, keepdims=True)
inputs, labels = tf1.placeholder(tf.float32, [None, 4]), tf1.placeholder(tf.float32, [None, 1])
weights = tf1.get_variable("weights", [4, 1], initializer=tf1.zeros_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weights) - labels))
fed = tf1.placeholder(tf.float32, [])
step = tf1.train.get_or_create_global_step()
train = tf1.train.GradientDescentOptimizer(0.0 * fed).minimize(loss, global_step=step)
shutil.rmtree("saved", ignore_errors=True)
hooks = [tf1.train.CheckpointSaverHook("saved", save_steps=6), tf1.train.StopAtStepHook(last_step=24)]
rate, done = 0.4, 0
with tf1.train.MonitoredSession(hooks=hooks) as sess:
    while not sess.should_stop():
        rows = np.arange(done * 4, done * 4 + 4) % 96
        sess.run(train, {inputs: x[rows], labels: y[rows], fed: rate})
        done += 1
        if done % 8 == 0:
            rate *= 0.5
            print("rate", rate)
            print("halved", rate < 0.3)
print("done", done)
print("saved", len(glob.glob("saved/*.index")))
for count in (1, 2, 3):
    print("count", count)
