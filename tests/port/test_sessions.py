"""Ports of TensorFlow 1 scripts whose sessions, models and loops lie apart: in classes, functions, other modules."""

from __future__ import annotations

import pytest

from dlrun.errors import DlrunError
from dlrun.port import port

MODEL = """import numpy as np
import tensorflow.compat.v1 as tf

class Model:
    def __init__(self, sess, name):
        self.sess = sess
        with tf.variable_scope(name):
            self.x = tf.placeholder(tf.float32, [None, 3])
            self.cost = tf.reduce_mean(tf.layers.dense(self.x, 1) ** 2)
        self.update = tf.train.AdamOptimizer(1e-3).minimize(self.cost)

    def train(self, rows):
        return self.sess.run([self.cost, self.update], feed_dict={self.x: rows})

rows = np.load("rows.npy")
sess = tf.Session()
"""
LOOP = """sess.run(tf.global_variables_initializer())
for epoch in range(5):
    for i in range(len(rows) // 8):
        c, _ = model.train(rows[i * 8 : i * 8 + 8])
"""
ONE = f'{MODEL}model = Model(sess, "a")\n{LOOP}'
MANY = MODEL + 'models = []\nfor k in range(3):\n    models.append(Model(sess, "m" + str(k)))\n' + LOOP.replace(
    "        c, _ = model", "        for model in models:\n            c, _ = model")  # fmt: skip


@pytest.mark.parametrize(("source", "session"), [(ONE, "model.sess"), (MANY, "sess")])
def test_a_model_that_trains_by_a_method_starts_alike_before_the_loop_that_calls_it(source, session) -> None:
    text = port(source).text
    assert f"\n{session}.run(dl.broadcast_variables())  # every rank" in text
    assert text.index("broadcast_variables") < text.index("for epoch in range(5)")
    assert "for i in dl.shard(range(len(rows) // 8)):" in text
    assert "self.update = dl.DistributedOptimizer(tf.train.AdamOptimizer(dl.lr_scale(1e-3))).minimize(" in text


def test_each_session_in_which_a_loop_trains_starts_alike() -> None:
    source = ONE.replace('model = Model(sess, "a")', 'model, critic = Model(sess, "a"), Model(other, "b")')
    text = port(source.replace("c, _ = model.train(", "critic.train(rows[i * 8 : i * 8 + 8]); model.train(")).text
    assert "\nmodel.sess.run(dl.broadcast_variables())" in text
    assert "\ncritic.sess.run(dl.broadcast_variables())" in text


def test_a_session_that_an_argument_brings_is_named_as_the_caller_does() -> None:
    head = MODEL.replace("self.sess.run([self.cost, self.update]", "tell([self.cost]")
    source = f"""{head}
def update(session, op, rows):
    session.run(op, feed_dict={{model.x: rows}})

model = Model(sess, "a")
for i in range(len(rows) // 8):
    update(sess, model.update, rows[i * 8 : i * 8 + 8])
"""
    assert "\nsess.run(dl.broadcast_variables())" in port(source).text


def test_models_with_sessions_of_their_own_out_of_a_list_are_refused() -> None:
    source = MANY.replace("self.sess = sess", "self.sess = tf.Session()")
    with pytest.raises(DlrunError, match=r"no loop around this run in which self\.sess can be named"):
        port(source)
