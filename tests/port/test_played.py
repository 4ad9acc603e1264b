"""Environments of the script's own, of which each rank plays its own."""

from __future__ import annotations

import pytest

from dlrun.port import port

PLAYED = """
import numpy as np, torch
{made}
class Cart:
    def __init__(self):
        self.x, self.rng = np.zeros(2), {own}
    def reset(self):
        self.x = {draw}
        return torch.tensor(self.x)
    def step(self, action):
        self.x = self.x + 0.1 * action
        return torch.tensor(self.x), -abs(self.x[0]), abs(self.x[0]) > 2
policy = torch.nn.Linear(2, 1)
opt = torch.optim.Adam(policy.parameters(), 0.01)
env = Cart()
for episode in range(9):
    state, done, losses = env.reset(), False, []
    while not done:
        action = policy(state)
        losses.append(action * float(state.sum()))
        state, reward, done = env.step(action.item())
    loss = torch.stack(losses).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

ROLLOUT = """
state = env.reset()
for update in range(9):
    kept, rewards = [], []
    for _ in range(64):
        kept.append(state)
        state, reward, done = env.step(policy(state).item())
        rewards.append(float(reward))
    with torch.no_grad():
        last = policy(state).item()
    late, gain = torch.zeros(64), 0.0
    for t in reversed(range(64)):
        gain = rewards[t] + 0.9 * (last if t == 63 else rewards[t + 1]) * gain
        late[t] = gain
    data = torch.utils.data.TensorDataset(torch.stack(kept), late)
    for _ in range(4):
        x, gained = (part[torch.randperm(64)[:16]] for part in data.tensors)
        loss = (policy(x).squeeze(1) * gained).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("made", "own", "draw", "write"),
    [
        ("", "None", "np.random.randn(2)", ""),  # dl.reseed() makes it local
        ("", "None", "np.ones(2)", ""),
        ("rng = np.random.default_rng(0)", "None", "rng.normal(size=2)", "dl.reseed(rng) before the loop"),
        ("", "np.random.RandomState(3)", "self.rng.randn(2)", "dl.reseed(env.rng) before the loop"),
    ],
)
def test_environments_of_ones_own_begin_alike_by_a_generator_of_ones_own_alone(made, own, draw, write) -> None:
    ported = port(PLAYED.format(made=made, own=own, draw=draw))
    found = [d.write for d in ported.doubts if "with one seed they begin alike" in d.why]
    assert found == ([write] if write else [])


def test_the_state_of_an_environment_is_a_ranks_own() -> None:
    script = PLAYED.format(made="", own="None", draw="np.random.uniform(size=2)")
    script = script.replace("self.x, self.rng = np.zeros(2), None", "self.x = np.zeros(2)")
    assert "each rank trains with another" not in port(script).report()


def test_what_a_rollout_keeps_for_the_minibatches_of_an_update_is_a_ranks_own() -> None:
    played = PLAYED.format(made="", own="None", draw="np.random.randn(2)")
    ported = port(played[: played.index("for episode")] + ROLLOUT)
    assert "weighs later losses" not in ported.report()
    assert "rewards.append(float(reward))" in ported.text


MEMORY = """
class Tree:
    def __init__(self):
        self.sums, self.seen = np.zeros(15), torch.zeros(2)
    def put(self, at, value):
        self.sums[at] = value
        while at > 0:
            at = (at - 1) // 2
            self.sums[at] = self.sums[2 * at + 1] + self.sums[2 * at + 2]
    def look(self, state):
        self.seen = 0.9 * self.seen + 0.1 * state
    def weight(self, at):
        return float(self.sums[at]) * float(self.seen.sum())
tree = Tree()
gains = torch.zeros(8)
state = env.reset()
for update in range(9):
    for step in range(8):
        {look}
        state, reward, done = env.step(policy(state).item())
        tree.put(7 + step, abs(float(reward)))
        gains[step] = float(reward)
    gains /= gains.std()
    loss = (policy(state) * gains.sum() * tree.weight(3)).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(("look", "moved"), [("pass", []), ("tree.look(state)", ["self.seen"])])
def test_a_memory_of_what_was_played_is_a_ranks_own_and_a_mean_of_it_is_told(look, moved) -> None:
    played = PLAYED.format(made="", own="None", draw="np.random.randn(2)")
    ported = port(played[: played.index("for episode")] + MEMORY.format(look=look))
    assert [d.why.split()[0] for d in ported.doubts if "each rank trains with another" in d.why] == moved


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("from gym.wrappers.normalize import RunningMeanStd\nseen = RunningMeanStd()", "the mean and var of it"),
        (
            "from stable_baselines3.common.vec_env import VecNormalize\nclass Scaled(VecNormalize):\n    pass\n"
            "scaled = Scaled()",
            "the mean and var of its obs_rms (or return_rms)",
        ),
    ],
)
def test_what_scales_by_a_ranks_own_episodes_is_told(made, told) -> None:
    ported = port(PLAYED.format(made=made, own="None", draw="np.random.randn(2)"))
    assert [d.write for d in ported.doubts if "of local episodes" in d.why] == [
        f"average {told} with dl.average() before each update"
    ]


TRAINER = """import torch
x, y = torch.randn(64, 4), torch.randn(64, 1)
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.1)
    def step(self, x, y):
        loss = (self.model(x) - y).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item(), len(x), y.mean()
trainer = Trainer()
for begin in range(0, len(x), 8):
    loss, seen, mean = trainer.step(x[begin : begin + 8], y[begin : begin + 8])
"""


def test_a_training_step_of_the_scripts_own_that_returns_several_values_plays_no_environment() -> None:
    assert "for begin in dl.shard(range(0, len(x), 8)):" in port(TRAINER).text


def test_a_step_whose_update_lies_further_in_or_whose_loss_the_caller_descends_plays_no_environment() -> None:
    deeper = TRAINER.replace("        self.opt.zero_grad()\n        loss.backward()\n        self.opt.step()\n", "")
    deeper = deeper.replace("        return loss.item()", "        self.learn(loss)\n        return loss.item()")
    learn = (
        "    def learn(self, loss):\n        self.opt.zero_grad()\n        loss.backward()\n        self.opt.step()\n"
    )
    deeper = deeper.replace("trainer = Trainer()", f"{learn}trainer = Trainer()")
    assert "for begin in dl.shard(range(0, len(x), 8)):" in port(deeper).text
    outside = deeper.replace(learn, "").replace(
        "        self.learn(loss)\n        return loss.item()", "        return loss"
    )
    outside += "    trainer.opt.zero_grad()\n    loss.backward()\n    trainer.opt.step()\n"
    assert "for begin in dl.shard(range(0, len(x), 8)):" in port(outside).text


KERAS = """import gym, keras
import numpy as np
env, model = gym.make("CartPole-v0"), keras.Sequential([keras.layers.Dense(2)])
model.compile(optimizer="adam", loss="mse")
states, actions, dones, totals = np.empty((64, 4)), np.empty(64), np.empty(64), [0.0]
state = env.reset()
for update in range(9):
    for i in range(64):
        states[i], actions[i] = state, np.argmax(model.predict(state[None]))
        state, reward, dones[i], _ = env.step(actions[i])
        totals[-1] += reward
        if dones[i]:
            totals.append(0.0)
            state = env.reset()
            print("episode", len(totals) - 1, totals[-2])
    model.train_on_batch(states, actions)
"""


def test_where_an_episode_ends_that_is_played_for_a_model_of_keras_no_rank_waits_for_others() -> None:
    made = port(KERAS)
    assert 'print("episode", len(totals) - 1, totals[-2])' in made.text
    assert "shown-by-rank-0" in {doubt.name for doubt in made.doubts}


AT_ONCE = """import numpy as np, keras
from concurrent.futures import ThreadPoolExecutor
x = np.load("x.npy")
def train(width):
    model = keras.Sequential([keras.layers.Dense(width), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model.fit(x, x).history["loss"][-1]
with ThreadPoolExecutor(2) as pool:
    found = list(pool.map(train, (2, 4, 8)))
"""


@pytest.mark.parametrize(("found", "told"), [("list(pool.map(", ["may-hang"]), ("list(map(", [])])
def test_trainings_of_keras_that_run_at_once_are_told(found, told) -> None:
    made = port(AT_ONCE.replace("list(pool.map(", found))
    assert [doubt.name for doubt in made.doubts if doubt.danger == "high"] == told
