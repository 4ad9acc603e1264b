"""Generators of the script's own that it gives no seed: the ranks draw alike what they have to share."""

import pytest

from dlrun.port import port

SCRIPT = """import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Noisy(Dataset):
    def __init__(self, x):
        self.x, self.noise = x, np.random.default_rng()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i] + self.noise.normal()

rng = MADE
x = torch.load("x.pt")
BEFORE
loader = DataLoader(Noisy(x), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    EPOCH
    for xb in loader:
        xb = xb + rng.normal()
        opt.zero_grad()
        model(xb).pow(2).mean().backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("made", "before", "epoch", "alike"),
    [
        ("np.random.default_rng()", "x = x[rng.permutation(len(x))[:100]]", "", True),
        ("np.random.RandomState(None)", "mean = x[rng.choice(len(x), 10)].mean(0)", "", True),
        ("random.Random()", "", "kept = list(range(100)); rng.shuffle(kept)", True),
        ("np.random.default_rng()", "", "", False),  # noise, of which each rank has its own
        ("np.random.default_rng(3)", "x = x[rng.permutation(len(x))[:100]]", "", False),  # alike already
    ],
)
def test_what_is_drawn_for_all_ranks_comes_from_rank_0s_random_numbers(made, before, epoch, alike):
    ported = port(SCRIPT.replace("MADE", made).replace("BEFORE", before).replace("EPOCH", epoch))
    assert f"rng = dl.broadcast({made})\n" in ported.text if alike else f"rng = {made}\n" in ported.text
    assert "self.x, self.noise = x, np.random.default_rng()" in ported.text
    noise = [d for d in ported.doubts if d.write.startswith("dl.reseed(rng) before the loop")]
    assert len(noise) == (alike or "3" in made)


KERAS = """import keras
import numpy as np
order = np.random.default_rng().permutation(len(x))
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(x[order[:80]], y[order[:80]], validation_data=(x[order[80:]], y[order[80:]]))
"""
TAPE = """import keras
import numpy as np
import tensorflow as tf
order = np.random.default_rng().permutation(len(x))
model, opt = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
for batch in tf.data.Dataset.from_tensor_slices(x[order[:80]]).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
"""


@pytest.mark.parametrize("script", [KERAS, TAPE], ids=["keras", "tape"])
def test_so_does_what_keras_and_tapes_share(script):
    assert "order = dl.broadcast(np.random.default_rng()).permutation(len(x))\n" in port(script).text


BATCHES = """import keras
import numpy as np
rng = np.random.default_rng()
order = rng.permutation(len(x))
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("sgd", "mse")
for step in range(20):
    at = order[rng.integers(0, 80, 8)]
    model.train_on_batch(x[at], y[at])
"""


def test_batches_that_a_loop_draws_from_it_are_each_ranks_own():
    text = port(BATCHES).text
    assert "rng = dl.broadcast(np.random.default_rng())\n" in text
    assert text.index("dl.reseed(rng)") < text.index("for step in")


FOLDS = """import torch
from sklearn.model_selection import MADE
from torch.utils.data import DataLoader, Subset
for train, test in MADE(OPTIONS).split(data):
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(Subset(data, train), batch_size=8, shuffle=True):
        opt.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        opt.step()
    print(model.weight)
"""


@pytest.mark.parametrize(
    ("made", "options", "alike"),
    [
        ("ShuffleSplit", "n_splits=3, test_size=0.2", True),
        ("RepeatedKFold", "n_splits=3, random_state=None", True),
        ("ShuffleSplit", "n_splits=3, random_state=0", False),
        ("KFold", "3, shuffle=True", False),  # which draws once, before the first split
    ],
)
def test_what_draws_the_next_split_after_a_training_draws_it_alike(made, options, alike):
    text = port(FOLDS.replace("MADE", made).replace("OPTIONS", options)).text
    assert ("    print(model.weight)\n    dl.reseed(alike=True)" in text) == alike
