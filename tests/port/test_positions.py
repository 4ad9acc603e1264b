"""Batches that a loop picks by position: each is taken by one rank, and all ranks count the same steps."""

import re

import pytest
import torch
from running import ran
from small import UPDATE

from dlrun.errors import DlrunError
from dlrun.port import Options, port

HEAD = f"""import numpy as np
import torch
x, y = torch.tensor(np.load("x.npy")), torch.tensor(np.load("y.npy"))
x, y = x[:1500], y[:1500]
n, size = len(x), 30
model = torch.nn.Linear(64, 10)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
{UPDATE}"""


@pytest.mark.parametrize(
    ("loop", "lines"),
    [
        (
            "for k in range(1, 201):\n    o = k * size % (n - size)\n    loss = update(x[o:o + size], y[o:o + size])\n"
            "    if k % 50 == 0:\n        print(k, loss)\n",
            ["for k, own_k in dl.turns(range(1, 201)):", "o = own_k * size % (n - size)", "if k % dl.steps(50) == 0:"],
        ),
        (
            "for i in range(200):\n    loss = update(x[i % n:i % n + 1], y[i % n:i % n + 1])\n    print(i, loss)\n",
            ["for i, own_i in dl.turns(range(200)):", "update(x[own_i % n:own_i % n + 1], y[own_i % n:own_i % n + 1])"],
        ),
        (
            "for step in range(500):\n    i = step * size % len(x)\n    loss = update(x[i:i + size], y[i:i + size])\n"
            "    print(step, loss)\n",
            ["for step, own_step in dl.turns(range(500)):", "i = own_step * size % len(x)", "lr=dl.lr_scale(0.1)"],
        ),
        (
            "for epoch in range(4):\n    for i in range(0, n, size):\n        update(x[i:i + size], y[i:i + size])\n",
            ["for i in dl.shard(range(0, n, size)):"],
        ),
        (
            "for a, b in zip(range(0, n, size), range(size, n + 1, size)):\n    update(x[a:b], y[a:b])\n",
            ["for a, b in dl.shard(zip(range(0, n, size), range(size, n + 1, size))):"],
        ),
        (
            "for epoch in range(2):\n    for a, b in zip(x, y):\n        update(a[None], b[None])\n",
            ["for a, b in dl.shard(zip(x, y)):"],
        ),
        (
            "def batch(number, some):\n    pick = np.random.choice(n, size) if some else np.arange(number * size, "
            "(number + 1) * size)\n    return x[pick], y[pick]\nfor k in range(n // size):\n"
            "    update(*batch(k, n < 9))\n",
            ["for k in dl.shard(range(n // size)):", "update(*batch(k, n < 9))"],
        ),
        (
            "order = np.arange(n)\nfor epoch in range(2):\n    np.random.shuffle(order)\n"
            "    for pick in np.array_split(order, n // size):\n        update(x[pick], y[pick])\n",
            ["order = dl.broadcast(order)", "for pick in dl.shard(np.array_split(order, n // size)):"],
        ),
    ],
)
def test_batches_picked_by_position_are_each_taken_by_one_rank(loop, lines):
    text = port(HEAD + loop).text
    assert [line for line in lines if line not in text] == []
    assert text.count("dl.shard(") + text.count("dl.turns(") == 1


def test_a_position_that_moves_within_arrays_moves_within_each_ranks_share():
    loop = """pos = step = 0
while step < 200:
    loss = update(x[pos:pos + size], y[pos:pos + size])
    pos += size
    if pos >= n:
        pos = 0
    step += 1
"""
    ported = port(HEAD + loop)
    lines = ported.text.splitlines()
    cut = lines.index("x = dl.shard(x)  # this rank's part of every epoch")
    assert lines[cut - 1] == "x, y = x[:1500], y[:1500]"
    assert lines[cut + 1].startswith("y = dl.shard(y)")
    assert lines[cut + 2] == "n, size = len(x), 30"  # counts this rank's share
    assert "while step < dl.steps(200):" in ported.text
    assert "n ranks make a global batch n times as large" in ported.report()


ORDERED = """import torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
at, n = 0, len(x)
order = torch.randperm(len(x))
for step in range(200):
    pick = order[at : at + 8]
    (model(x[pick]) - y[pick]).pow(2).mean().backward()
    opt.step()
    at = at + 8 if at + 8 < {length} else 0
"""


def test_an_order_of_samples_is_sharded_and_not_the_samples_that_it_names():
    text = port(ORDERED.format(length="len(order)")).text
    assert text.count("dl.shard(") == 1
    assert "order = dl.shard(order)" in text


@pytest.mark.parametrize("length", ["len(x)", "n", "x.shape[0]"])
def test_positions_that_would_run_over_the_end_of_a_share_are_refused(length):
    with pytest.raises(DlrunError, match=f"moves on up to {re.escape(length)}, which is not the length"):
        port(ORDERED.format(length=length))


def test_a_keras_loop_that_counts_its_batches_counts_them_alike_on_all_ranks():
    text = port("""import keras
model = keras.Sequential()
model.compile("adam", "mse")
for epoch in range(3):
    for i in range(len(x) // 32):
        loss = model.train_on_batch(x[i * 32 : i * 32 + 32], y[i * 32 : i * 32 + 32])
        if i % 10 == 0:
            print(i, loss)
""").text
    assert "for i, own_i in dl.turns(range(len(x) // 32)):" in text
    assert "train_on_batch(x[own_i * 32 : own_i * 32 + 32], y[own_i * 32 : own_i * 32 + 32])" in text
    assert "if i % dl.steps(10) == 0:\n            print(dl.serial_steps(i), dl.average(loss))" in text


def test_a_keras_loop_counts_the_batches_of_epochs_before_as_all_ranks_make_them():
    text = port("""import keras
model = keras.Sequential()
model.compile("adam", "mse")
batches = len(x) // 32
for epoch in range(3):
    for i in range(batches):
        loss = model.train_on_batch(x[i * 32 : i * 32 + 32], y[i * 32 : i * 32 + 32])
        done = epoch * batches + i
        if done >= 100:
            break
        if (done + 1) % 10 == 0:
            print(done, loss)
""").text
    assert "done = epoch * dl.steps(batches) + i\n        if done >= dl.steps(100):" in text
    assert "if (done + 1) % dl.steps(10) == 0:\n            print(dl.serial_steps(done + 1) - 1, " in text


def test_a_number_that_counts_steps_in_one_loop_may_be_a_position_in_the_next():
    text = port("""import numpy as np, tensorflow as tf
x = tf.placeholder(tf.float32, [None, 2])
loss = tf.reduce_mean(tf.layers.dense(x, 1))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
rows = np.ones((64, 2))
batches = len(rows) / 8
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(int(batches)):
        begin = i * 8
        _, value = sess.run([train, loss], {x: rows[begin : begin + 8]})
        if i % 2 == 0:
            print(i, value)
    for i in range(int(batches)):
        begin = i * 8
        part = rows[begin : begin + 8]
        sess.run(train, {x: part})
""").text
    assert "for i, own_i in dl.turns(range(int(batches))):\n        begin = own_i * 8" in text
    assert "for i in dl.shard(range(int(batches))):\n        begin = i * 8" in text


def test_a_state_that_a_session_feeds_back_under_another_name_is_carried():
    text = """import numpy as np, tensorflow as tf
x, h = tf.placeholder(tf.float32, [1, None, 2]), tf.placeholder(tf.float32, [1, 4])
out, last = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(4), x, initial_state=h)
loss = tf.reduce_mean(out)
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
rows = np.ones((64, 2))
sess = tf.Session()
state = np.zeros((1, 4))
for at in range(0, rows.shape[0], 8):
    _, new = sess.run([train, last], {x: rows[None, at : at + 8], h: state})
    state = new
"""
    assert "rows = dl.stretch(rows)  # a stream" in port(text).text
    assert "dl.shard(range(0, rows.shape[0], 8))" in port(text.replace("    state = new\n", "")).text


@pytest.mark.parametrize(
    "end",
    ["min(len(x), (i + 1) * 8)", "np.min([len(x), (i + 1) * 8])", "min((i + 1) * 8, x.shape[0])", "ends_at(i)"],
)
def test_the_end_of_a_batch_moves_with_its_begin_whatever_computes_it(end):
    text = port(f"""import numpy as np, torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(len(x) // 8 + 1):
    begin = i * 8
    end = {end}
    (model(x[begin:end]) - y[begin:end]).pow(2).mean().backward()
    opt.step()
    print("batch", i)
    if end % 64 == 0:
        print("end", model(x[:1]).item())
    if i % 64 == 0:
        print("turn", model(x[:1]).item())
""").text
    assert 'print("end", model(x[:1]).item())' in text, "not all ranks come here"
    assert 'print("turn", model(x[:1]).item())' in text, "of the first row, by the same weights"
    assert "begin = own_i * 8\n" in text
    assert f"end = {end.replace('i ', 'own_i ').replace('(i)', '(own_i)')}\n" in text
    assert 'print("batch", i)' in text


def test_batches_picked_by_number_are_sharded_beside_other_updates_in_the_same_turn():
    text = port("""import numpy as np, keras
d, g = keras.Sequential([keras.layers.Dense(1)]), keras.Sequential([keras.layers.Dense(1)])
d.compile("adam", "mse")
g.compile("adam", "mse")
for epoch in range(3):
    for i in range(len(x) // 8):
        d.train_on_batch(x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8])
        for _ in range(2):
            g.train_on_batch(np.random.normal(0, 1, (8, 4)), np.ones(8))
""").text
    assert "for i in dl.shard(range(len(x) // 8)):" in text
    assert "for _ in range(2):" in text
    assert "dl.steps" not in text


def test_models_that_are_trained_side_by_side_are_no_samples() -> None:
    text = port("""import torch
from torch.utils.data import DataLoader
one, two = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
nets = [one, two]
opts = [torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(two.parameters(), lr=0.2)]
loader = DataLoader(data, batch_size=8, shuffle=True)
for x, y in loader:
    for net, opt in zip(nets, opts):
        opt.zero_grad()
        (net(x) - y).pow(2).mean().backward()
        opt.step()
""").text
    assert "for net, opt in zip(nets, opts):" in text
    assert "loader = dl.shard(DataLoader(data, batch_size=8, shuffle=True))" in text


def test_what_an_optimizer_trains_is_no_sample() -> None:
    text = port("""import torch
x, y = torch.load("data.pt")
w = x.mean(0).clone().requires_grad_(True)
opt = torch.optim.SGD([w], lr=0.1)
for step in range(9):
    opt.zero_grad()
    loss = (x @ w - y).pow(2).mean()
    loss.backward()
    opt.step()
""").text
    assert 'x, y = dl.shard((x, y), batch="global")' in text


def test_words_and_names_are_no_samples() -> None:
    text = port("""import torch
from sklearn.datasets import load_digits
x, y = load_digits(return_X_y=True)
number = {word: i for i, word in enumerate(words)}
layers = ["conv1", "conv2"]
model = torch.nn.Linear(64, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    opt.zero_grad()
    loss = (model(x) - y).pow(2).mean() + penalty(layers, number)
    loss.backward()
    opt.step()
""").text
    assert 'x, y = dl.shard((x, y), batch="global")' in text
    assert text.count("dl.shard(") == 1


SHORT = """import torch
torch.manual_seed(0)
x, y = torch.randn(41, 4), torch.randn(41, 1)
def batches(size):
    for i in range(0, 41, size):
        yield x[i:i + size], y[i:i + size]
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def update(a, b):
    opt.zero_grad()
    (model(a) - b).pow(2).mean().backward()
    opt.step()
def guarded(a, b):
    if a.shape[0] < 2:
        return
    update(a, b)
for epoch in range(3):
    for FEED:
        TAKE
torch.save(model.state_dict(), "last.pt")
"""
PICKED = "a, b = x[i:i + SIZE], y[i:i + SIZE]\n        "
UPDATED = "opt.zero_grad(); (model(a) - b).pow(2).mean().backward(); opt.step()"


@pytest.mark.parametrize(
    ("feed", "take", "asked"),
    [
        (
            "i in range(0, 41, SIZE)",
            f"{PICKED}if a.size(0) < 2:\n            continue\n        {UPDATED}",
            "if dl.total(bool(a.size(0) < 2)) > 0:",
        ),
        ("a, b in batches(SIZE)", f"if len(a) > 1:\n            {UPDATED}", "if dl.total(not (len(a) > 1)) == 0:"),
        (
            "i in range(0, 41, SIZE)",
            f"{PICKED}many = len(a)\n        if many == 1:\n            pass\n        else:\n            {UPDATED}",
            "if dl.total(bool(many == 1)) > 0:",
        ),
        ("i in range(0, 41, SIZE)", "guarded(x[i:i + SIZE], y[i:i + SIZE])", "if dl.total(bool(a.shape[0] < 2)) > 0:"),
    ],
)
def test_a_batch_that_is_too_short_on_one_rank_is_left_out_by_all(tmp_path, feed, take, asked):
    """41 samples in batches of 8 end with one of a single sample, which is rank 1's alone."""
    source = SHORT.replace("FEED", feed).replace("TAKE", take)
    text = port(source.replace("SIZE", "8"), Options(lr_scaling="none")).text
    assert asked in text
    (tmp_path / "dist.py").write_text(text)
    (tmp_path / "train.py").write_text(source.replace("SIZE", "16").replace("range(0, 41", "range(0, 32"))
    _, shared = ran(tmp_path / "dist.py", tmp_path / "two", 2)
    _, serial = ran(tmp_path / "train.py", tmp_path / "one")
    assert all(torch.allclose(shared[name], serial[name], atol=1e-6) for name in serial)


def test_batches_of_a_loader_are_equally_long_on_all_ranks_but_for_the_last():
    guard = "for a, b in LOADER:\n    if len(a) < 2:\n        continue\n    update(a, b)\n"
    head = HEAD + "from torch.utils.data import DataLoader\n"
    plain = port(head + guard.replace("LOADER", "DataLoader(list(zip(x, y)), 8, drop_last=True)")).text
    assert "    if len(a) < 2:\n" in plain
    last = port(head + guard.replace("LOADER", "DataLoader(list(zip(x, y)), 8, shuffle=True)")).text
    assert "    if dl.total(bool(len(a) < 2)) > 0:\n" in last
    own = port(head + guard.replace("LOADER", "DataLoader(list(zip(x, y)), 8, collate_fn=only_good)")).text
    assert "    if dl.total(bool(len(a) < 2)) > 0:\n" in own


KEPT = """import numpy as np
import torch
x, y = torch.randn(64, 4), torch.randn(64, 1)
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses, self.log = np.zeros(100), {}
    def update(self, step, i):
        loss = (self.model(x[i]) - y[i]).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()
    def kept(self, step):
        self.log[step] = self.update(step, torch.randint(0, 64, (8,)))
    def shown(self, step):
        self.losses[step] = self.update(step, torch.randint(0, 64, (8,)))
        self.log[step] = self.losses[step]
        print(self.log[step])
trainer = Trainer()
losses = np.zeros(100)
for step in range(100):
"""


@pytest.mark.parametrize(
    "turn",
    [
        "trainer.kept(step)",
        "trainer.shown(step)",
        "losses[step] = trainer.update(step, torch.randint(0, 64, (8,)))\n    print(losses[step])",
    ],
)
def test_what_is_kept_under_the_number_of_a_step_picks_no_samples(turn):
    text = port(f"{KEPT}    {turn}\n").text
    assert "for step in range(dl.steps(100)):" in text


def test_what_is_kept_beside_a_sample_under_its_number_leaves_it_a_sample():
    turn = "seen[i] = trainer.update(0, i)\n        print(seen[i])\n"
    loop = f"seen = [0] * 64\nfor epoch in range(3):\n    for i in range(64):\n        {turn}"
    assert "trainer.update(0, own_i)" in port(KEPT.replace("for step in range(100):\n", loop)).text


def test_a_bound_that_counts_raise_begins_at_local_steps():
    text = port("""import torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
best, done, epoch, batches = 9.0, False, 0, 13
patience = 100
while epoch < 20 and not done:
    epoch += 1
    for i in range(batches):
        step = (epoch - 1) * batches + i
        model(x[i * 8 : i * 8 + 8]).mean().backward()
        opt.step()
        if (step + 1) % 13 == 0:
            score = model(x).mean().item()
            if score < best:
                best = score
                patience = max(patience, step * 2)
        if patience <= step:
            done = True
            break
""").text
    assert "patience = dl.steps(100)\n" in text and "if patience <= step:" in text
    assert "patience = max(patience, step * 2)" in text
