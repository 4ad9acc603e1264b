"""Tests by which one rank may update, or leave the training, without the others are told, with what to write."""

import pytest

from dlrun.port import port

DQN = """import collections, random
import gymnasium as gym
import torch
env = gym.make("CartPole-v1")
q = torch.nn.Linear(4, 2)
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
memory, played = collections.deque(maxlen=5000), 0
def learn():
    EARLY
    batch = random.sample(memory, 32)
    loss = q(torch.tensor([b[0] for b in batch])).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
for episode in range(40):
    s, _ = env.reset()
    done = False
    while not done:
        s2, r, done, cut, _ = env.step(random.randrange(2))
        memory.append((s, r))
        s, played = s2, played + 1
    WHEN
"""


def _hangs(script: str) -> list[str]:
    return [d.why for d in port(script).doubts if d.name == "may-hang"]


@pytest.mark.parametrize(
    ("early", "when", "test"),
    [
        ("pass", "if len(memory) > 300:\n        learn()", "len(memory) > 300"),
        ("if len(memory) < 300:\n        return", "learn()", "len(memory) < 300"),
        ("pass", "if len(memory) < 300:\n        continue\n    learn()", "len(memory) < 300"),
    ],
)
def test_an_update_that_waits_for_what_was_played_is_doubted(early, when, test):
    (why,) = _hangs(DQN.replace("EARLY", early).replace("WHEN", when))
    assert why.startswith(f"{test}: each rank's episodes come to this at another time")


@pytest.mark.parametrize("when", ["learn()", "if episode > 3:\n        learn()"])
def test_an_update_after_each_episode_is_not(when):
    assert not _hangs(DQN.replace("EARLY", "pass").replace("WHEN", when))


CLOCK = """import time
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
start = time.time()
def over(start, most):
    now = time.time()
    flag = 0
    if now - start > most:
        flag = 1
    return flag
def long_enough(step):
    print(time.time())
    return 1 if step > 9 else 0
for step, (x, y) in enumerate(DataLoader(data, shuffle=True)):
    opt.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    opt.step()
    if TEST:
        break
"""


def test_of_a_function_that_looks_at_the_clock_rank_0_ends_the_training():
    assert "    if dl.agree(over(start, 3)):\n" in port(CLOCK.replace("TEST", "over(start, 3)")).text
    assert "    if long_enough(step):\n" in port(CLOCK.replace("TEST", "long_enough(step)")).text


MEMORY = """import random
from collections import deque
import torch
memory, model = deque(maxlen=200), torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    memory.append(torch.randn(4))
    {}
        model(torch.stack(random.sample(memory, 16))).mean().backward()
        opt.step()
        opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("test", "ported"),
    [
        ("if len(memory) >= 16:", "if dl.all_ranks(len(memory) >= 16):"),
        ("if len(memory) < 16: continue\n    if True:", "if dl.any_rank(len(memory) < 16): continue"),
    ],
)
def test_a_memory_that_batches_are_drawn_from_is_full_enough_on_each_rank(test, ported):
    assert ported in port(MEMORY.format(test)).text
