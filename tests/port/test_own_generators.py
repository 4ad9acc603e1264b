"""Batches that a loop's functions draw from generators of the script's own, which have one seed on all ranks."""

from __future__ import annotations

import pytest

from dlrun.port import port

BATCHES = """
import numpy as np
rng = {made}
x = rng.normal(size=(640, 10)).astype("float32")
def batch(n):
    return x[rng.{draw}]
"""
BY_STEPS = """
import torch
model = torch.nn.Linear(10, 1)
opt = torch.optim.SGD(model.parameters(), 0.01)
for step in range(100):
    loss = (model(torch.from_numpy(batch(32))) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
BY_KERAS = """
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.SGD(0.01), "mse")
for step in range(100):
    a = batch(32)
    model.train_on_batch(a, a[:, :1])
"""
BY_TAPE = """
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.01)
for step in range(100):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch(32)) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""
DRAWS = [
    ("np.random.default_rng(0)", "integers(0, 640, n)"),
    ("np.random.RandomState(0)", "choice(640, n)"),
]


@pytest.mark.parametrize(("made", "draw"), DRAWS)
@pytest.mark.parametrize("loop", [BY_STEPS, BY_TAPE])
def test_draws_of_functions_that_the_loop_calls_are_doubted(made: str, draw: str, loop: str) -> None:
    found = [d for d in port(BATCHES.format(made=made, draw=draw) + loop).doubts if d.danger == "high"]
    assert [d.write.split(" before")[0] for d in found] == ["dl.reseed(rng)"]


@pytest.mark.parametrize(("made", "draw"), DRAWS)
def test_batches_for_train_on_batch_are_each_ranks_own(made: str, draw: str) -> None:
    ported = port(BATCHES.format(made=made, draw=draw) + BY_KERAS)
    assert "dl.reseed(rng)  # a generator of its own on each rank\n" in ported.text
    assert "for step in range(dl.steps(100)):" in ported.text
    assert not [d for d in ported.doubts if d.danger == "high"]


HELD = """
import numpy as np
class Data:
    def __init__(self):
        self.rng = np.random.default_rng(1)
        self.x = np.ones((640, 10))
    def batch(self, n):
        return self.x[self.rng.integers(0, 640, n)]
data = Data()
batch = data.batch
"""


def test_generators_out_of_reach_of_the_loop_are_doubted() -> None:
    ported = port(HELD + BY_KERAS.replace("batch(32)", "data.batch(32)"))
    assert [d.write.split(" before")[0] for d in ported.doubts if d.danger == "high"] == ["dl.reseed(self.rng)"]


LOGGED = """import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,))), batch_size=4)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def logged(batches, every):
    i = 0
    for batch in batches:
        yield batch
        if i % every == 0 or i == len(batches) - 1:
            print(i, len(batches))
        i += 1
def train():
    for x, y in logged(loader, 4):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
def test():
    worst = []
    for x, y in logged(loader, 100):
        worst = sorted(worst + [x.max().item()])[-2:]
    print(worst)
for epoch in range(2):
    train()
    test()
"""


def test_the_number_of_a_batch_that_is_one_of_a_share_at_times_says_of_which_loader() -> None:
    text = port(LOGGED).text
    assert "print(dl.serial_steps(i, over=batches), dl.serial_steps(len(batches), over=batches))" in text
