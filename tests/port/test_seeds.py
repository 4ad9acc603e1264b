"""Seeds that each process takes from its clock, its number or its system are those of rank 0 on all ranks."""

import pytest
from running import started

from dlrun.port import port

DRAWS = """import os, random, time
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
SEED = int(time.time() * 1000) % 100000
def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
seed_all(SEED)
n = 100
x = torch.arange(n).float().reshape(-1, 1)
drawn = [np.random.permutation(n)[:80], random.sample(range(n), 80)]
torch.manual_seed(os.getpid())
drawn.append(torch.randperm(n)[:80])
np.random.seed()
drawn.append(np.random.permutation(n)[:80])
torch.seed()
drawn.append(torch.randperm(n)[:80])
random.seed()
drawn.append(random.sample(range(n), 80))
generator = torch.Generator()
generator.seed()
drawn.append(torch.randperm(n, generator=generator)[:80])
drawn.append(np.random.default_rng(int(time.time() * 1000)).permutation(n)[:80])
model = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters(), 1e-9)
for chosen in drawn:
    chosen = torch.as_tensor(np.asarray(chosen))
    total = 0.0
    for (a,) in DataLoader(TensorDataset(x[chosen]), 8, shuffle=True):
        loss = model(a).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += a.sum().item()
    print(total == chosen.sum().item())
"""


def test_ranks_share_one_set_of_samples_whatever_seeds_its_choice(tmp_path):
    ported = port(DRAWS)
    assert not ported.doubts
    (tmp_path / "dist.py").write_text(ported.text)
    assert started(tmp_path, ["dist.py"], ranks=2).split() == 8 * ["True"]


@pytest.mark.parametrize("seed", ["0", "SEED", "args.seed", "len(data)", "torch.initial_seed() % 2**32"])
def test_a_seed_that_is_one_in_all_processes_is_left_alone(seed):
    line = f"np.random.seed({seed})\n"
    text = DRAWS.replace("int(time.time() * 1000) % 100000", "7").replace("seed_all(SEED)\n", line)
    assert f"\n{line}" in port(text).text


def test_seeds_of_workers_and_those_drawn_while_training_stay():
    noise = DRAWS.replace(
        "        loss = model(a)", "        np.random.seed(int(time.time()))\n        loss = model(a)"
    )
    assert "\n        np.random.seed(int(time.time()))\n" in port(noise).text
    begins = "    np.random.seed(int(time.time()) + number)\n"  # by a worker's process, which no rank waits for
    workers = DRAWS.replace("n = 100", f"def begin(number):\n{begins}n = 100")
    workers = workers.replace("shuffle=True)", "shuffle=True, num_workers=1, worker_init_fn=begin)")
    assert begins in port(workers).text


KERAS = """import time
import keras
import numpy as np
keras.utils.set_random_seed(int(time.time()))
x = np.random.permutation(100)[:80].reshape(-1, 1)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x)
"""


def test_of_keras_too():
    assert "keras.utils.set_random_seed(dl.broadcast(int(time.time())))\n" in port(KERAS).text
