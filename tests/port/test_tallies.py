"""Counts that a training loop keeps under tests of a rank's own samples."""

from __future__ import annotations

import pytest

from dlrun.port import port

LOOP = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data, batch_size=1, shuffle=True)
for epoch in range(9):
    count = 0
    for i, (x, y) in enumerate(loader):
        out = model(x)
        torch.nn.functional.cross_entropy(out, y).backward()
        opt.step()
        if {test}:
            count += 1
    {after}
"""
RIGHT = "out.argmax() == y[0]"


@pytest.mark.parametrize(
    ("test", "after", "doubted"),
    [
        (RIGHT, "print(count / len(data))", True),
        (RIGHT, "if count == len(data): break", True),
        (RIGHT, "pass", False),
        ("i % 2 == 0", "print(count / len(data))", False),
    ],
)
def test_a_count_of_a_ranks_own_samples_that_is_read_as_one_of_all_is_doubted(test, after, doubted) -> None:
    ported = port(LOOP.format(test=test, after=after))
    assert ("dl.total(count) there" in ported.report()) == doubted
    assert "dl.steps(" not in ported.text  # it counts what is right, no steps


def test_a_count_of_a_sessions_own_samples_is_doubted_too() -> None:
    ported = port("""
import numpy as np
import tensorflow.compat.v1 as tf
x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.int64, [None])
logits = tf.layers.dense(x, 2)
train_op = tf.train.AdamOptimizer(1e-3).minimize(tf.losses.sparse_softmax_cross_entropy(y, logits))
predicted, rows, labels = tf.argmax(logits, 1), np.load("rows.npy"), np.load("labels.npy")
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(9):
        correct = 0
        for i in range(len(rows)):
            _, p = sess.run([train_op, predicted], feed_dict={x: rows[i : i + 1], y: labels[i : i + 1]})
            if p[0] == labels[i]:
                correct += 1
        if correct == len(rows):
            break
""")
    assert "if correct == len(rows):" in ported.text
    assert "dl.total(correct) there" in ported.report()
