"""Sessions whose pipelines end their loops, by an exception that is caught or that a monitored session swallows."""

# ruff: noqa

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
tf1.disable_eager_execution()
rng = np.random.RandomState(0)
x = rng.randn(96, 4).astype("float32")
y = x.sum(1, keepdims=True)
iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96).batch(8))
inputs, labels = iterator.get_next()
weights = tf1.get_variable("weights", [4, 1], initializer=tf1.zeros_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weights) - labels))
train = tf1.train.GradientDescentOptimizer(0.0).minimize(loss, global_step=tf1.train.get_or_create_global_step())
with tf1.Session() as sess:
    sess.run(tf1.global_variables_initializer())
    for epoch in range(3):
        sess.run(iterator.initializer)
        n, total = 0, 0.0
        try:
            while True:
                _, lost = sess.run([train, loss])
                n += 1
                total += lost
        except tf.errors.OutOfRangeError:
            pass
        print("epoch", epoch, n, total / n)
        sess.run(iterator.initializer)
        n, total = 0, 0.0
        try:
            while 1:
                _, lost = sess.run([train, loss])
                n += 1
                total += lost
        except tf.errors.OutOfRangeError:
            print("caught", n, total / n)
        print("again", epoch, n, total)
        sess.run(iterator.initializer)
        n, total = 0, 0.0
        try:
            with tf.name_scope("inner"):
                while True:
                    _, lost = sess.run([train, loss])
                    n += 1
                    total += lost
        except KeyboardInterrupt:
            print("interrupted")
        except (StopIteration, tf.errors.OutOfRangeError):
            print("out of range", n, total / n)
        finally:
            print("finally", n, total)
done, added = 0, 0.0
scaffold = tf1.train.Scaffold(local_init_op=tf.group(iterator.initializer, tf1.local_variables_initializer()))
with tf1.train.MonitoredTrainingSession(scaffold=scaffold) as sess:
    while not sess.should_stop():
        _, lost = sess.run([train, loss])
        done += 1
        added += lost
print("done", done, added / done)
