"""Where an array becomes a rank's share of it, for loops that take slices at a position that they move."""

from __future__ import annotations

import pytest

from dlrun.port import port

TORCH = """
import numpy as np, torch
X = torch.rand(640, 8)
y = X.sum(1)
{between}
w = torch.zeros(8, requires_grad=True)
opt = torch.optim.SGD([w], 0.1)
for epoch in range(3):
    at = 0
    while at < {bound}:
        loss = ((X[at:at + 32] @ w - y[at:at + 32]) ** 2).mean()
        at += 32
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
TENSORFLOW = """
import numpy as np, tensorflow as tf
rng = np.random.default_rng(0)
X = rng.normal(size=(640, 8)).astype("float32"); y = X.sum(1)
order = rng.permutation(640); train = order[:512]
mean = y[train].mean()
w = tf.Variable(tf.zeros((8, 1)))
opt = tf.keras.optimizers.SGD(0.1)
for epoch in range(3):
    rng.shuffle(train)
    at = 0
    while at < len(train):
        pick = train[at:at + 32]
        at += 32
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.squeeze(X[pick] @ w) + mean - y[pick]) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, [w]), [w]))
"""


def lines(text: str) -> list[str]:
    return [line.split("  #")[0] for line in port(text).text.splitlines()]


def test_what_is_made_of_an_array_before_the_loop_is_made_of_all_of_it() -> None:
    text = lines(TORCH.format(between="mean = X.mean(0)", bound="len(X)"))
    assert text.index("X = dl.shard(X)") == text.index("mean = X.mean(0)") + 1
    assert text.index("y = dl.shard(y)") == text.index("y = X.sum(1)") + 1  # of all of X, and cut once


@pytest.mark.parametrize("length", ["len(X)", "X.shape[0]", "X.size(0)"])
def test_a_length_taken_before_the_cut_is_a_ranks_own(length: str) -> None:
    text = lines(TORCH.format(between=f"n = {length}\nmean = X.mean(0)", bound="n"))
    assert f"n = dl.steps({length})" in text and text.index("X = dl.shard(X)") == text.index("mean = X.mean(0)") + 1


def test_a_length_alone_is_that_of_the_share() -> None:
    text = lines(TORCH.format(between="n = len(X)", bound="n").replace("X.sum(1)", "torch.rand(640)"))
    assert "n = len(X)" in text and text.index("X = dl.shard(X)") == text.index("X = torch.rand(640, 8)") + 1


def test_loops_of_tensorflow_go_to_the_end_of_the_share() -> None:
    text = lines(TENSORFLOW)
    assert "    while at < len(train):" in text
    assert text.index("train = dl.shard(train)") == text.index("mean = y[train].mean()") + 1


def test_what_a_function_returns_beside_other_things_is_cut_before_that() -> None:
    source = """
import torch
from torchtext import data
def load():
    train, test = data.splits()
    words = set(train)
    train_iter, test_iter = data.BucketIterator.splits((train, test), batch_size=32, repeat=False)
    return len(words), train_iter, test_iter
size, train_iter, test_iter = load()
net = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
def train(net, train_iter):
    for i, batch in enumerate(train_iter):
        if batch.text.size()[0] != 32:
            continue
        loss = net(batch.text).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if i % 10 == 0: print(i, loss.item())
for epoch in range(3):
    train(net, train_iter)
"""
    text = lines(source)
    assert (
        text.index("    train_iter = dl.shard(train_iter)")
        == text.index("    return len(words), train_iter, test_iter") - 1
    )
    assert "        if dl.total(bool(batch.text.size()[0] != 32)) > 0:" in text
    assert "        if i % dl.steps(10) == 0: print(dl.serial_steps(i), dl.average(loss.item()))" in text


def test_what_branches_make_is_cut_behind_them() -> None:
    drawn = "if shuffle: order = np.random.permutation(640)\n    else: order = np.array(range(640))"
    source = TORCH.replace("    at = 0", f"    {drawn}\n    at = 0", 1).replace("X[at:at + 32]", "X[order[at:at + 32]]")
    source = source.replace("y[at:at + 32]", "y[order[at:at + 32]]").format(between="", bound="640")
    text = lines("shuffle = True" + source)
    assert text.index("    order = dl.shard(order)") == text.index("    at = 0") - 1
