"""Rates that a script changes by a factor or a step at every batch, or counts the steps for in some epochs alone."""

from __future__ import annotations

import re

import pytest

from dlrun.port import port

SCRIPT = """
import numpy as np
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 2)
lr, gamma, step = 0.1, 0.99, 0
opt = torch.optim.SGD(model.parameters(), lr)
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(4):
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        {change}
        for group in opt.param_groups:
            {sets}
"""
SET = "group['lr'] = lr"
WARM = "group['lr'] = 0.1 * min(1, step / 10)"


@pytest.mark.parametrize(
    ("change", "sets", "written"),
    [
        ("lr *= gamma", SET, "lr *= dl.compound(gamma)\n"),
        ("lr = gamma * lr", SET, "lr = dl.compound(gamma) * lr\n"),
        ("lr = max(1e-4, lr * 0.99)", SET, "lr = max(1e-4, lr * dl.compound(0.99))\n"),
        ("lr -= 1e-4", SET, "lr -= dl.serial_steps(1e-4)\n"),
        ("lr = lr - 1e-4", SET, "lr = lr - dl.serial_steps(1e-4)\n"),
        ("pass", "group['lr'] -= 1e-4", "group['lr'] -= dl.lr_scale(dl.serial_steps(1e-4))\n"),
        ("pass", "group['lr'] = max(1e-4, group['lr'] * gamma)", "group['lr'] * dl.compound(gamma))\n"),
        ("if epoch < 2: step += 1", WARM, "min(1, dl.serial_steps(step) / 10)"),
        ("if loss.item() > 2: lr *= 0.5", SET, "lr *= 0.5\n"),  # by what the loss is, not by the steps
        ("if i % 10 == 0: lr *= gamma", SET, "if i % dl.steps(10) == 0: lr *= gamma\n"),
        ("if i < 10: lr *= gamma", SET, "if i < dl.steps(10): lr *= dl.compound(gamma)\n"),
        ("lr *= gamma", "pass", "lr *= gamma\n"),  # is no rate
        ("lr = np.maximum(lr * 0.99, 1e-4)", SET, "lr = np.maximum(lr * dl.compound(0.99), 1e-4)\n"),
        ("pass", "group['lr'] = max(1e-4, group['lr'] * gamma)", "max(dl.lr_scale(1e-4), group['lr'] *"),
        (
            "pass",
            "group['lr'] = min(group['lr'] + 1e-4, top)",
            "+ dl.lr_scale(dl.serial_steps(1e-4)), dl.lr_scale(top))",
        ),
        ("if opt.param_groups[0]['lr'] < 1e-6: break", "pass", "['lr'] < dl.lr_scale(1e-6): break\n"),
        ("if lr < 1e-6: break", SET, "if lr < 1e-6: break\n"),  # scaled where it is set
    ],
)
def test_what_changes_a_rate_at_every_batch_does_so_as_in_n_serial_steps(change, sets, written) -> None:
    ported = port(SCRIPT.format(change=change, sets=sets))
    assert written in ported.text
    assert "times more slowly" not in ported.report()


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        ("row = {'loss': loss.item(), 'lr': opt.param_groups[0]['lr']}", "if row['loss'] < 0.5: break"),
        ("row = dict(loss=loss.item(), lr=opt.param_groups[0]['lr'])", "if row.get('loss') < state['best']: break"),
        ("row = (loss.item(), opt.param_groups[0]['lr'])", "if row[0] < 0.5: break"),
        ("row = opt.param_groups[0]", "if row['momentum'] < 0.5: break"),
        ("row = sum(p.numel() for group in opt.param_groups for p in group['params'])", "if row > 100: break"),
        ("row = (loss.item(), opt.param_groups[0]['lr'])", "if row[-1] < dl.lr_scale(1e-6): break"),
        ("row = {'loss': loss.item(), 'lr': opt.param_groups[0]['lr']}", "if row['lr'] < dl.lr_scale(1e-6): break"),
        ("now, row = loss.item(), opt.param_groups[0]['lr']", "if row < dl.lr_scale(1e-6): break"),
    ],
)
def test_what_stands_beside_a_rate_is_no_rate(change, bound) -> None:
    serial = re.sub(r"dl\.lr_scale\((.*?)\)", r"\1", bound)
    ported = port(SCRIPT.format(change=f"{change}\n        {serial}", sets="pass")).text
    line = next(line for line in ported.splitlines() if line.endswith(": break"))
    assert re.findall(r"lr_scale\(.*?\)", line) == re.findall(r"lr_scale\(.*?\)", bound)


def test_what_changes_a_rate_by_what_changes_itself_is_doubted() -> None:
    change = "part = 1e-3 * x.size(0)\n        lr -= part"
    ported = port(SCRIPT.format(change=change, sets=SET))
    assert [d.write for d in ported.doubts if "times more slowly" in d.why] == ["dl.serial_steps(part)"]


@pytest.mark.parametrize(
    ("rate", "divided"),
    [
        ("0.1 * (1 + math.cos(math.pi * step / (4 * len(loader)))) / 2", []),
        ("0.1 / (1 + 10 * step / (4 * len(loader))) ** 0.75 / 3", []),
        ("0.1 if step / (4 * len(loader)) < args.part else 0.01", []),
        ("0.1 * float(step) / 30 * (1 - step / (4 * len(loader)))", ["dl.steps(30)"]),
        ("0.1 * (step - 9) / (4 * len(loader) - 9)", ["dl.steps(9)", "dl.steps(9)"]),
    ],
)
def test_of_a_rate_only_counts_are_divided_and_no_shares_of_all(rate, divided) -> None:
    ported = port("import math" + SCRIPT.format(change="step += 1", sets=f"group['lr'] = {rate}"))
    assert re.findall(r"dl\.steps\([^)]*\)", ported.text) == divided
    assert "serial_steps" not in ported.text


BY_HAND = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 2)
lr = 0.1
for x, y in DataLoader(data, batch_size=16, shuffle=True):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * p.grad
            p.grad = None
    {change}
"""


@pytest.mark.parametrize(
    ("change", "written"),
    [
        ("lr *= 0.99", "lr *= dl.compound(0.99)\n"),
        ("lr = max(lr * 0.99, 1e-3)", "lr = max(lr * dl.compound(0.99), 1e-3)\n"),
    ],
)
def test_the_rate_of_an_update_by_hand_falls_as_in_n_serial_steps(change, written) -> None:
    assert written in port(BY_HAND.format(change=change)).text


TAPE = """
import tensorflow as tf
from tensorflow import keras
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
rate, factor = 0.1, (1e-3 / 0.1) ** (1 / 100)
opt = keras.optimizers.SGD(rate)
for x, y in tf.data.Dataset.from_tensor_slices((xs, ys)).shuffle(640).batch(32):
    opt.learning_rate.assign(rate)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    rate *= factor
"""
BATCHES = """
import numpy as np
from tensorflow import keras
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.1), "mse")
rate, factor = 0.1, (1e-3 / 0.1) ** (1 / 100)
for i in range(100):
    model.optimizer.learning_rate = rate
    loss = model.train_on_batch(xs[i * 8 : i * 8 + 8], ys[i * 8 : i * 8 + 8])
    rate *= factor
    if i % 20 == 19:
        print(i + 1)
"""
SESSION = """
import numpy as np
import tensorflow.compat.v1 as tf
x, given = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [])
train = tf.train.GradientDescentOptimizer(given).minimize(tf.reduce_mean(tf.layers.dense(x, 1) ** 2))
rate, factor = 0.1, 0.99
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(100):
        sess.run(train, {x: rows[np.random.choice(640, 32)], given: rate})
        rate *= factor
"""


@pytest.mark.parametrize("source", [TAPE, BATCHES, SESSION])
def test_so_do_the_rates_of_tensorflow_and_keras(source) -> None:
    assert "rate *= dl.compound(factor)\n" in port(source).text


@pytest.mark.parametrize("source", [TAPE, BATCHES])
def test_a_factor_that_changes_is_doubted_there_too(source) -> None:
    told = port(source.replace("rate *= factor", "factor = factor * 0.999\n    rate *= factor"))
    assert "dl.compound" not in told.text
    assert "n times more slowly" in told.report()


def test_the_rest_that_a_loop_around_train_on_batch_asks_of_its_count_is_that_of_fewer_steps() -> None:
    assert "if i % dl.steps(20) == dl.steps(20) - 1:" in port(BATCHES).text
    assert "if i % dl.steps(20) == dl.steps(7) % dl.steps(20):" in port(BATCHES.replace("== 19", "== 7")).text


@pytest.mark.parametrize("picks", ["", "    chosen = np.random.randint(0, 640, 8)\n"])
def test_what_follows_the_number_of_a_batch_that_train_on_batch_takes_follows_the_serial_one(picks) -> None:
    turn = BATCHES.replace("    rate *= factor\n", "").replace("= rate\n", "= 0.1 * 0.99 ** i\n")
    turn = turn.replace("    loss =", "    if i == 40:\n        model.optimizer.learning_rate = 0.05\n    loss =")
    if picks:
        turn = turn.replace("    loss =", picks + "    loss =").replace("i * 8 : i * 8 + 8", "chosen")
    ported = port(turn)
    assert "= dl.lr_scale(0.1 * 0.99 ** dl.serial_steps(i))\n" in ported.text
    assert "    if i == dl.steps(40):\n" in ported.text and not ported.doubts


SMOOTH = """
smooth, best = 0.0, 1e9
for i, (x, y) in enumerate(tf.data.Dataset.from_tensor_slices((xs, ys)).shuffle(640).batch(32)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    smooth = 0.9 * smooth + 0.1 * float(loss)
    print(smooth / (1 - 0.9 ** (i + 1)))
"""


@pytest.mark.parametrize("taped", [True, False])
def test_a_young_moving_average_is_divided_by_what_it_has_forgotten(taped) -> None:
    source = TAPE.partition("for x, y")[0] + SMOOTH
    if not taped:
        mean = "    smooth = 0.9 * smooth + 0.1 * loss\n    if i > 0:\n        print(smooth / (1 - 0.9 ** (i + 1)))\n"
        source = BATCHES.replace("    rate *= factor\n", mean).replace("rate, factor", "smooth = 0.0\nrate, factor")
    text = port(source).text
    assert "smooth = dl.compound(0.9) * smooth + " in text
    assert "(1 - 0.9 ** dl.serial_steps(i + 1))" in text


UPDATED = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def adjust(opt, step):
    rate = 0.1 * 0.5 ** (step // 100)
    for group in opt.param_groups:
        group.update(lr=rate)
step = 0
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        SETS
"""


@pytest.mark.parametrize(
    ("sets", "written"),
    [
        ("adjust(opt, step)", "adjust(opt, dl.serial_steps(step))"),
        ("adjust(opt, step)", "rate = dl.lr_scale(0.1 * 0.5 ** (step // 100))"),
        (
            "opt.param_groups[0].update({'lr': 0.1 / (1 + step)})",
            "update({'lr': dl.lr_scale(0.1 / (1 + dl.serial_steps(step)))})",
        ),
        ("opt.param_groups[0] |= {'lr': 0.1 * 0.5**epoch}", "|= {'lr': dl.lr_scale(0.1 * 0.5**epoch)}"),
        (
            "opt.param_groups[0].__setitem__('lr', 0.1 / (1 + step))",
            "__setitem__('lr', dl.lr_scale(0.1 / (1 + dl.serial_steps(step))))",
        ),
        ("opt.param_groups[0]['lr'].fill_(0.1 * 0.5**epoch)", "fill_(dl.lr_scale(0.1 * 0.5**epoch))"),
        (
            "held = opt.state_dict(); held['param_groups'][0]['lr'] = 0.1 / (1 + epoch); opt.load_state_dict(held)",
            "held['param_groups'][0]['lr'] = dl.lr_scale(0.1 / (1 + epoch)); opt",
        ),
        ("opt.param_groups[0].update(lr=0.1 * loss.item())", "update(lr=dl.average(dl.lr_scale(0.1 * loss.item())))"),
    ],
)
def test_a_rate_that_the_dict_of_a_group_is_given_is_set(sets, written) -> None:
    ported = port(UPDATED.replace("SETS", sets))
    assert written in ported.text and not [d for d in ported.doubts if d.danger == "high"]


NOAM = """import torch
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=8, shuffle=True)
def noam(opt, epoch, i):
    s = epoch * len(loader) + i + 1
    for group in opt.param_groups: group["lr"] = 0.1 * min(s ** -0.5, s * 100 ** -1.5)
def train(opt, before):
    for epoch in range(3):
        for i, (x, y) in enumerate(loader):
            before(opt, epoch, i)
            loss = (model(x) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
model = torch.nn.Linear(3, 1)
train(torch.optim.SGD(model.parameters(), lr=0.1), before=noam)
"""


def test_a_count_of_steps_that_is_made_of_the_length_of_a_share_is_the_serial_one_in_a_rate() -> None:
    assert "min(dl.serial_steps(s) ** -0.5, dl.serial_steps(s) * 100 ** -1.5)" in port(NOAM).text


def test_a_rate_that_such_a_dict_changes_at_every_batch_is_doubted() -> None:
    sets = "opt.param_groups[0].update(lr=0.99 * opt.param_groups[0]['lr'])"
    (doubt,) = [d for d in port(UPDATED.replace("SETS", sets)).doubts if d.danger == "high"]
    assert "at every batch" in doubt.why


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (
            "warm = 60\ntotal = 3600\nrates = SequentialLR(opt, [LinearLR(opt, 0.1, 1.0, warm), "
            "CosineAnnealingLR(opt, total - warm)], [warm])",
            "CosineAnnealingLR(opt, dl.steps(total) - warm)",
        ),
        (
            "rates = CosineAnnealingLR(opt, len(loader) * 3 - 60)",
            "CosineAnnealingLR(opt, len(loader) * 3 - dl.steps(60))",
        ),
        ("rates = CosineAnnealingLR(opt, len(loader) * 3 - 1)", "CosineAnnealingLR(opt, len(loader) * 3 - 1)"),
        ("rates = CosineAnnealingLR(opt, 3600 - 60)", "CosineAnnealingLR(opt, dl.steps(3600 - 60))"),
    ],
)
def test_serial_steps_beside_those_of_a_rank_are_divided(made, written) -> None:
    script = UPDATED.replace("SETS", "rates.step()").replace("DataLoader(data, batch_size=8, shuffle=True):", "loader:")
    head = "from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR\n"
    loader = "loader = DataLoader(data, batch_size=8, shuffle=True)\n"
    assert written in port(head + script.replace("step = 0\n", f"step = 0\n{loader}{made}\n")).text


def test_a_number_of_groups_is_no_rate() -> None:
    source = """
import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.rand(64, 8)
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
opt = torch.optim.SGD([{"params": part.parameters()} for part in net], lr=0.1)
for epoch in range(3):
    last = len(opt.param_groups) - 1
    for i in range(len(opt.param_groups)):
        if i < last or i + 1 < len(opt.param_groups):
            opt.param_groups[i]["lr"] = 0.1 / (1 + epoch)
    for a, b in DataLoader(TensorDataset(x, x.sum(1)), 16):
        loss = ((net(a)[:, 0] - b) ** 2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""
    text = port(source).text
    assert "if i < last or i + 1 < len(opt.param_groups):" in text
    assert 'opt.param_groups[i]["lr"] = dl.lr_scale(0.1 / (1 + epoch))' in text
