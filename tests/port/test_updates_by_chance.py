"""Where chance decides whether, or how often, an update is made, rank 0 draws for all: none waits for another."""

import torch
from running import started

from dlrun.port import port

UPDATES = """import random
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); np.random.seed(0); random.seed(0)
X = torch.randn(200, 6)
model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), 1e-9)
loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 20, shuffle=True)
def step(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
for epoch in range(2):
    times = random.randint(1, 4)
    twice = np.random.rand() < 0.5
    for x, y in loader:
        for _ in range(times):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(); loss.backward(); opt.step()
        more = random.randint(1, 3) + 1
        for _ in range(more):
            step(x, y)
        if twice:
            step(x, y)
        if random.choice([True, False]):
            step(x, y)
        if not np.random.randint(2):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(); loss.backward(); opt.step()
        p = torch.rand(1).item()
        if p > 0.5:
            step(x, y)
        if torch.rand(1) > 0.5:
            step(x, y)
    print("epoch", epoch)
"""


def test_all_ranks_make_the_updates_that_chance_asks_for(tmp_path):
    ported = port(UPDATES)
    assert not ported.doubts
    assert "times = dl.broadcast(random.randint(1, 4))\n" in ported.text
    (tmp_path / "dist.py").write_text(ported.text)
    assert started(tmp_path, ["dist.py"], ranks=3) == "epoch 0\nepoch 1\n"


TAPE = """import random
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
opt = tf.keras.optimizers.SGD(0.1)
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
for epoch in range(2):
    times = random.randint(1, 4)
    for x in tf.data.Dataset.from_tensor_slices(rows).batch(20):
        for _ in range(times):
            step(x)
        if random.random() < 0.5:
            step(x)
"""


def test_so_they_do_with_a_tape():
    ported = port(TAPE)
    assert "    times = dl.broadcast(random.randint(1, 4))\n" in ported.text
    assert "        if dl.broadcast(random.random()) < 0.5:\n" in ported.text
    assert not [doubt for doubt in ported.doubts if doubt.name == "may-hang"]


EVALUATED = """import random, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X = torch.randn(230, 6)
Y = (X.sum(1) > 0).long()
model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), 1e-9)
train, test = DataLoader(TensorDataset(X[:160], Y[:160]), 20), DataLoader(TensorDataset(X[160:], Y[160:]), 16)
begin = time.time()
for epoch in range(4):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(); loss.backward(); opt.step()
        if torch.rand(1).item() < 0.1:
            torch.save(model.state_dict(), "model.pt")
    if epoch == 3 or random.choice([0, 1]):
        right = 0
        with torch.no_grad():
            for x, y in test:
                right += (model(x).argmax(1) == y).sum().item()
    if time.time() - begin > 0.01:
        begin, total = time.time(), 0.0
        with torch.no_grad():
            for x, y in test:
                total += nn.functional.cross_entropy(model(x), y, reduction="sum").item()
print(right, round(total, 3))
"""


def test_all_ranks_evaluate_and_save_together_where_chance_or_the_clock_says_when(tmp_path):
    ported = port(EVALUATED)
    assert not ported.doubts and ported.text.count('whole="batches"') == 2
    assert "if dl.agree(torch.rand(1).item() < 0.1):\n" in ported.text  # the mean of what ranks draw is no draw
    (tmp_path / "train.py").write_text(EVALUATED)
    (tmp_path / "dist.py").write_text(ported.text)
    assert started(tmp_path, ["dist.py"], ranks=3) == started(tmp_path, ["train.py"])


KERAS = """import random
import keras
import numpy as np
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
for step in range(20):
    rows = np.random.randint(0, 160, 16)
    model.train_on_batch(x[rows], y[rows])
    if np.random.rand() < 0.3:
        model.train_on_batch(x[rows], 1 - y[rows])
    for _ in range(random.randint(1, 3)):
        model.train_on_batch(x[rows], y[rows])
"""


def test_so_they_do_with_batches_of_keras():
    text = port(KERAS).text
    assert "    if dl.broadcast(np.random.rand()) < 0.3:\n" in text
    assert "    for _ in range(dl.broadcast(random.randint(1, 3))):\n" in text
    assert "    rows = np.random.randint(0, 160, 16)\n" in text  # other samples on each rank


SESSION = """import random
import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [None, 6])
w = tf.get_variable("w", [6, 2])
train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((x @ w) ** 2))
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(20):
        rows = np.random.randint(0, 160, 16)
        sess.run(train, {x: data[rows]})
        if np.random.rand() < 0.3:
            sess.run(train, {x: data[rows]})
"""


def test_so_they_do_in_sessions():
    assert "        if dl.broadcast(np.random.rand()) < 0.3:\n" in port(f"import numpy as np\n{SESSION}").text


CHANGED = """import random
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); random.seed(0); np.random.seed(0)
X = torch.randn(96, 6)
loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 12, shuffle=True)
model, other = nn.Linear(6, 2), nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
for epoch in range(3):
    for group in opt.param_groups:
        group["lr"] *= random.uniform(0.5, 1.5)
    opt.param_groups[0]["weight_decay"] = 10 ** np.random.uniform(-5, -2)
    most = random.uniform(0.5, 2)
    if np.random.rand() < 0.5:
        nn.init.xavier_uniform_(other.weight)
    with torch.no_grad():
        model.weight[random.randrange(2)] = 0
    for x, y in loader:
        opt.param_groups[0]["momentum"] = random.uniform(0.1, 0.9)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(); loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), most)
        for p in model.parameters():
            if random.random() < 0.2: p.grad.zero_()
        opt.step()
        if random.random() < 0.2:
            model.load_state_dict(other.state_dict())
        if random.random() < 0.1: model.reset_parameters()
        model.weight.data[:, torch.randperm(6)[:2]] *= 0.5
    opt = torch.optim.SGD(model.parameters(), lr=10 ** random.uniform(-3, -1), momentum=0.5)
torch.save(model.state_dict(), "model.pt")
"""


def test_what_chance_does_to_rates_gradients_and_weights_is_alike_on_all_ranks(tmp_path):
    ported = port(CHANGED)
    assert not ported.doubts
    mine = 'torch.save(model.state_dict(), f"{dl.get_rank()}.pt")'  # each rank's
    (tmp_path / "dist.py").write_text(ported.text.replace('dl.save(model.state_dict(), "model.pt")', mine))
    started(tmp_path, ["dist.py"], ranks=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)


CHANGED_BY_TENSORFLOW = """import random
import numpy as np
import tensorflow as tf
random.seed(0); np.random.seed(0)
X = np.random.randn(96, 6).astype("float32")
net = tf.keras.Sequential([tf.keras.layers.Input((6,)), tf.keras.layers.Dense(2)])
opt = tf.keras.optimizers.SGD(0.1)
for epoch in range(2):
    opt.learning_rate = np.random.uniform(0.01, 0.1)
    for x in tf.data.Dataset.from_tensor_slices(X).shuffle(96).batch(12):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net(x) ** 2)
        grads = tape.gradient(loss, net.trainable_variables)
        grads = [g + 0.01 * tf.random.normal(g.shape) for g in grads]
        grads, _ = tf.clip_by_global_norm(grads, random.uniform(0.5, 1.5))
        opt.apply_gradients(zip(grads, net.trainable_variables))
        if random.random() < 0.3:
            net.set_weights([w * 0.9 for w in net.get_weights()])
        for v in net.trainable_variables: v.assign_add(0.01 * tf.random.normal(v.shape))
"""
ALIKE = "dl.reseed(alike=True)  # what follows all ranks draw alike, from rank 0's random numbers"


def test_with_tensorflow_rank_0_sends_what_it_draws_for_all():
    ported = port(CHANGED_BY_TENSORFLOW)
    assert not ported.doubts
    assert f"    {ALIKE}\n    opt.learning_rate = dl.lr_scale(np.random.uniform(0.01, 0.1))\n" in ported.text
    assert "grads = [g + 0.01 * dl.broadcast(tf.random.normal(g.shape)) for g in grads]\n" in ported.text
    assert (
        f"        {ALIKE}\n        grads, _ = tf.clip_by_global_norm(grads, random.uniform(0.5, 1.5))\n" in ported.text
    )
    assert "        if dl.broadcast(random.random()) < 0.3:\n" in ported.text
    assert "v.assign_add(0.01 * dl.broadcast(tf.random.normal(v.shape)))\n" in ported.text
    graph = CHANGED_BY_TENSORFLOW.replace(
        "for epoch",
        "@tf.function\ndef noise():\n    for v in net.variables:\n        "
        "v.assign_add(tf.random.normal(v.shape))\nfor epoch",
        1,
    ).replace("        if random.random()", "        noise()\n        if random.random()")
    assert [(d.name, d.danger) for d in port(graph).doubts] == [("ranks-diverge", "high")]
