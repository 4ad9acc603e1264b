"""Updates without an optimizer: the number that takes a gradient off the weights is the rate."""

import pytest

from dlrun.port import Options, port

TORCH = """
import torch
from torch.utils.data import DataLoader
model, lr = torch.nn.Linear(3, 1), 0.1
loader = DataLoader(data, batch_size=8, shuffle=True)
for x, y in loader:
    model.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    for p in model.parameters():
        {}
"""
TAPE = """
import tensorflow as tf
w, v, lr = tf.Variable(tf.zeros((3, 1))), tf.Variable(tf.zeros((3, 1))), 0.1
for x, y in tf.data.Dataset.from_tensor_slices((a, b)).shuffle(99).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - y) ** 2)
    g = tape.gradient(loss, w)
    {}
"""


@pytest.mark.parametrize(
    ("update", "scaled"),
    [
        ("p.data -= lr * p.grad", "p.data -= dl.lr_scale(lr) * p.grad"),
        ("p.data.sub_(lr * p.grad.data)", "p.data.sub_(dl.lr_scale(lr) * p.grad.data)"),
        ("p.data.add_(p.grad, alpha=-lr)", "p.data.add_(p.grad, alpha=-dl.lr_scale(lr))"),
        ("p.data.add_(-lr, p.grad.data)", "p.data.add_(-dl.lr_scale(lr), p.grad.data)"),
        (
            "p.data = p.data - 0.5 * lr * (p.grad + 1e-4 * p.data)",
            "p.data = p.data - 0.5 * dl.lr_scale(lr) * (p.grad + 1e-4 * p.data)",
        ),
        ("p.data += -1e-2 * p.grad / 4", "p.data += -dl.lr_scale(1e-2) * p.grad / 4"),
    ],
)
def test_the_factor_of_a_gradient_that_is_taken_off_is_scaled(update, scaled):
    ported = port(TORCH.format(update))
    assert scaled in ported.text
    assert "by hand is not scaled" not in ported.report()
    assert "lr_scale" not in port(TORCH.format(update), Options(batch="global")).text


def test_weights_in_a_list_begin_alike_and_their_rate_follows_the_serial_steps():
    made = "import torch\ng = torch.Generator()\n"
    made += "w, b = torch.randn(3, 1, generator=g), torch.zeros(1)\nweights = [w, b]\n"
    made += "for p in weights:\n    p.requires_grad = True\n"
    ported = port(f"""{made}for i in range(400):
    rows = torch.randint(0, len(x), (32,), generator=g)
    loss = (x[rows] @ w + b - y[rows]).pow(2).mean()
    loss.backward()
    lr = 0.1 if i < 300 else 0.01
    for p in weights:
        p.data += -lr * p.grad
        p.grad = None
""")
    assert "dl.broadcast(weights)" in ported.text
    assert "0.1 if dl.serial_steps(i) < 300 else 0.01" in ported.text
    assert "g has one seed on all ranks" in ported.report()


@pytest.mark.parametrize(
    ("update", "scaled"),
    [
        ("w.assign_sub(lr * g)", "w.assign_sub(dl.lr_scale(lr) * g)"),
        ("w.assign(w - lr * g)", "w.assign(w - dl.lr_scale(lr) * g)"),
        ("w.assign_add(-(lr * g))", "w.assign_add(-(dl.lr_scale(lr) * g))"),
    ],
)
def test_likewise_what_a_tape_computed(update, scaled):
    assert scaled in port(TAPE.format(update)).text


def test_what_is_added_up_is_no_update_and_where_no_rate_is_seen_the_port_says_so():
    mean = port(TAPE.format("v.assign(0.9 * v + 0.1 * g); w.assign_sub(lr * v)"))
    assert "lr_scale" not in mean.text
    assert "the rate of this update by hand is not scaled" in mean.report()
    assert "the rate of this update by hand is not scaled" in port(TORCH.format("p.data -= p.grad")).report()


PLATEAU = """import keras
from keras import backend as K
rate = 0.01
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(rate), loss="mse")
def reduced(losses, rate):
    if len(losses) > 3:
        return 1e-5
    return rate / 2 if losses[-1] > min(losses) else rate
class Own(keras.callbacks.Callback):
    def __init__(self, schedule, args):
        self.schedule, self.args = schedule, args
    def on_epoch_begin(self, epoch, logs=None):
        rate = float(self.model.optimizer.learning_rate)
        self.model.optimizer.learning_rate = self.schedule(epoch, rate)
    def on_train_end(self, logs=None):
        self.model.optimizer.lr = self.args.lr * 0.1
def kept(epoch, rate):
    return rate if epoch else 0.2
for epoch in range(5):
    losses = model.fit(x, y, callbacks=[Own(kept, args)])
    rate = K.get_value(model.optimizer.lr)
    new = rate * 0.5
    K.set_value(model.optimizer.lr, new)
    now = model.optimizer.learning_rate.numpy()
    model.optimizer.learning_rate.assign(reduced(losses, now))
"""


def test_a_rate_made_of_the_one_that_is_held_is_scaled_already_wherever_that_was_read() -> None:
    text = port(PLATEAU).text
    assert "Adam(dl.lr_scale(rate))" in text and "return dl.lr_scale(1e-5)" in text
    assert "return rate if epoch else dl.lr_scale(0.2)" in text and "= dl.lr_scale(self.args.lr * 0.1)" in text
    assert text.count("dl.lr_scale(") == 4


def test_a_rate_that_each_iteration_lowers_by_a_fraction_is_made_serial_once() -> None:
    source = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
lr = 0.1
for epoch in range(3):
    for x in DataLoader(data, 8):
        lr -= 0.001
        opt.param_groups[0]["lr"] = lr
        opt.zero_grad()
        model(x).pow(2).mean().backward()
        opt.step()
    print(lr)
"""
    text = port(source).text
    assert "lr -= dl.serial_steps(0.001)" in text and 'opt.param_groups[0]["lr"] = dl.lr_scale(lr)' in text
    assert "print(lr)" in text
