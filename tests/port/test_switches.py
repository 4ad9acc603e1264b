"""What begins, ends or is taken over at some step: losses and updates, chances, target networks; tapes and Keras."""

import pytest

from dlrun.port import port
from dlrun.port.edits import Doubt

TAPE = """import random
import tensorflow as tf
net = tf.keras.Sequential([tf.keras.layers.Dense(4)])
target = tf.keras.models.clone_model(net)
opt = tf.keras.optimizers.SGD(0.1)
def update(x, part):
    with tf.GradientTape() as tape:
        out = net(x)
        if CHANCE:
            out = out + 1.0
        loss = tf.reduce_mean(out ** 2) + part * tf.reduce_mean(out)
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
def take_over():
    for new, old in zip(net.trainable_variables, target.trainable_variables):
        old.assign(new)
done = 0
for x in tf.data.Dataset.from_tensor_slices(rows).batch(8):
    part = PART
    update(x, part)
    done += 1
    LINE
"""
FALLS = "max(0.5, 1.0 - done / 10000.0)"


def tape(part: str, chance: str = "False", line: str = "pass") -> str:
    """Return a loop over a tape whose loss is made by these."""
    return TAPE.replace("PART", part).replace("CHANCE", chance).replace("LINE", line)


def doubts(source: str) -> list[Doubt]:
    """Return the doubts about steps at which something changes."""
    return [d for d in port(source).doubts if "at this step" in d.why]


@pytest.mark.parametrize(
    "chance", ["tf.random.uniform(()) < part", "tf.less(tf.random.uniform(()), part)", "random.random() < part"]
)
def test_a_chance_that_falls_with_the_steps_falls_as_fast_in_epochs_whoever_draws_it(chance) -> None:
    source = tape(FALLS, chance).replace(" + part * tf.reduce_mean(out)", "")
    assert FALLS.replace("done", "dl.serial_steps(done)") in port(source).text


@pytest.mark.parametrize(
    ("part", "line", "written"),
    [
        ("1.0 if done < 1000 else 0.5", "pass", "done < dl.steps(1000)"),
        ("0.5", "if done > 5000: update(x, 2.0)", "done > dl.steps(5000)"),
        ("1.0 if epoch < 10 else 0.5", "pass", "epoch < 10"),
        ("0.5", "if done > 5000: print('late')", "done > dl.steps(5000)"),
    ],
)
def test_a_loss_or_an_update_of_a_tape_changes_at_the_step_that_stands_for_the_serial_one(part, line, written) -> None:
    assert written in port(tape(part, line=line)).text and not doubts(tape(part, line=line))


def test_so_does_what_a_session_is_fed_or_runs_from_some_step_on() -> None:
    source = """import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
x = tf.placeholder(tf.float32, [None, 4])
part = tf.placeholder(tf.float32, ())
out = tf.layers.dense(x, 8)
first = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(out ** 2) + part * tf.reduce_mean(out))
second = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(tf.abs(out)))
rows = np.load("rows.npy")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(10000):
        batch = rows[np.random.choice(len(rows), 32)]
        session.run(first, {x: batch, part: 0.0 if step < 1000 else 1.0})
        if step > 5000:
            session.run(second, {x: batch})
"""
    text = port(source).text
    assert "0.0 if step < dl.steps(1000) else 1.0" in text and "if step > dl.steps(5000):" in text
    assert not doubts(source)


@pytest.mark.parametrize("line", ["take_over()", "target.set_weights(net.get_weights())"])
def test_a_target_network_takes_the_weights_over_as_often_an_epoch(line) -> None:
    text = port(tape("0.5", line=f"if done % 500 == 0: {line}")).text
    assert f"if done % dl.steps(500) == 0: {line}" in text
    shown = port(tape("0.5", line="if done % 500 == 0: print(done)")).text
    assert "if done % dl.steps(500) == 0: print(dl.serial_steps(done))" in shown


def test_so_does_one_of_pytorch_and_one_that_a_session_copies() -> None:
    source = """import copy
import torch
net = torch.nn.Linear(2, 1)
target = copy.deepcopy(net)
opt = torch.optim.SGD(net.parameters(), 0.1)
done = 0
for x, y in torch.utils.data.DataLoader(data, shuffle=True):
    (net(x) - y + target(x)).pow(2).mean().backward()
    opt.step()
    done += 1
    if done % 500 == 0:
        LINE
"""
    for line in (
        "target.load_state_dict(net.state_dict())",
        "target = copy.deepcopy(net)",
        "for a, b in zip(target.parameters(), net.parameters()): a.data.copy_(b.data)",
    ):
        assert "done % dl.steps(500) == 0" in port(source.replace("LINE", line)).text
    graph = """import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
x = tf.placeholder(tf.float32, [None, 4])
loss = tf.reduce_mean(tf.layers.dense(x, 8, name="net") - tf.layers.dense(x, 8, name="target"))
news, olds = tf.trainable_variables("net"), tf.trainable_variables("target")
copied = [tf.assign(old, new) for old, new in zip(olds, news)]
train = tf.train.AdamOptimizer(1e-3).minimize(loss, var_list=news)
rows = np.load("rows.npy")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(10000):
        session.run(train, {x: rows[np.random.choice(len(rows), 32)]})
        if step % 500 == 0:
            session.run(copied)
"""
    assert "step % dl.steps(500) == 0" in port(graph).text


KERAS = """import numpy as np
import tensorflow as tf
class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = tf.keras.layers.Dense(4)
        self.part = tf.Variable(0.0, trainable=False)
        self.seen = tf.Variable(0.0, trainable=False)
    def train_step(self, data):
        x, y = data
        self.seen.assign_add(1.0)
        with tf.GradientTape() as tape:
            out = self.layer(x)
            loss = tf.reduce_mean((out - y) ** 2) + self.part * tf.reduce_mean(out)
            LINE
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"loss": loss}
class Later(tf.keras.callbacks.Callback):
    seen = 0
    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if TEST:
            BODY
net = Net()
net.compile("adam")
net.fit(np.load("x.npy"), np.load("y.npy"), callbacks=[Later()])
"""


def keras(line: str = "pass", test: str = "False", body: str = "pass") -> str:
    """Return the port of a model whose train_step() has this line, and of a callback."""
    return port(KERAS.replace("LINE", line).replace("TEST", test).replace("BODY", body)).text


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("if self.seen > 2000: loss += tf.reduce_mean(out)", "if self.seen > dl.steps(2000): loss"),
        ("loss += tf.cond(tf.greater(self.seen, 2000), lambda: self.part, lambda: 0.0)", "(self.seen, dl.steps(2000))"),
        ("if self.optimizer.iterations == 500: loss += 1", "if self.optimizer.iterations == dl.steps(500)"),
        ("if self.seen % 5 == 0: loss += tf.reduce_mean(out)", "if self.seen % 5 == 0: loss"),
        (
            "loss *= tf.where(self.seen < 500, self.seen / 500, 1.0) * self.part",
            "tf.where(dl.serial_steps(self.seen) < 500, dl.serial_steps(self.seen) / 500, 1.0)",
        ),
        (
            "p = 1.0 - self.seen / 900; loss += tf.where(tf.random.uniform(()) < p, 1.0, self.part)",
            "p = 1.0 - dl.serial_steps(self.seen) / 900",
        ),
    ],
)
def test_a_train_step_that_changes_its_loss_at_some_step_does_so_as_early_in_epochs(line, written) -> None:
    assert written in keras(line)


@pytest.mark.parametrize(
    ("test", "body", "written"),
    [
        ("self.seen == 1000", "self.model.part.assign(1.0)", "self.seen == dl.steps(1000)"),
        ("self.model.optimizer.iterations >= 500", "self.model.layer.trainable = False", ">= dl.steps(500)"),
        ("self.seen == 1000", "print('late')", "self.seen == dl.steps(1000)"),
    ],
)
def test_a_callback_that_changes_the_model_at_some_batch_does_so_as_early_in_epochs(test, body, written) -> None:
    assert written in keras(test=test, body=body)
