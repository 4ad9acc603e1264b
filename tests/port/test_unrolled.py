"""Loops within a training step that compute parts of its loss: over the times of a series, the steps of an episode."""

import pytest

from dlrun.port import port
from dlrun.port.placement.interpret.machine import Machine

SERIES = """import torch
from torch.utils.data import DataLoader
cell, head = torch.nn.GRUCell(4, 8), torch.nn.Linear(8, 3)
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
loader, held = DataLoader(data, batch_size=8, shuffle=True), DataLoader(other, batch_size=8)
criterion = torch.nn.CrossEntropyLoss()
for epoch in range(3):
    right, seen, fine = 0, 0, 0
    for x, y in loader:
        h, loss, each = torch.zeros(len(x), 8), 0, []
        for t in range(7):
            h = cell(x[:, t], h)
            out = head(h)
            loss = loss + criterion(out, y[:, t])
            each.append(criterion(out, y[:, t]).item())
            right += (out.argmax(1) == y[:, t]).sum().item()
            seen += len(x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    for x, y in held:
        h = torch.zeros(len(x), 8)
        for t in range(7):
            h = cell(x[:, t], h)
            fine += (head(h).argmax(1) == y[:, t]).sum().item()
    print(SHOWN)
"""
EPISODES = """import gymnasium as gym
import torch
from torch.distributions import Categorical
env = gym.make("CartPole-v1")
policy = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(policy.parameters(), lr=0.1)
returns = []
for episode in range(300):
    (state, _), logs, rewards, done = env.reset(), [], [], False
    PLAY
        chances = Categorical(logits=policy(torch.from_numpy(state)))
        action = chances.sample()
        logs.append(chances.log_prob(action))
        state, reward, done, _, _ = env.step(action.item())
        rewards.append(reward)
        print("reward", reward)
        if done: break
    loss = -(torch.stack(logs) * sum(rewards)).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    returns.append(sum(rewards))
    print(f"{returns[-1]:.1f} {sum(returns) / len(returns):.2f}")
    if sum(returns[-9:]) / 9 > 195: break
"""


@pytest.mark.parametrize(
    ("shown", "written"),
    [
        ("right / seen", "    right, seen = dl.total(right, seen)"),
        ("sum(each) / len(each)", "    print(dl.average(sum(each) / len(each)))"),  # of the last batch
        ("fine / len(other)", "    print(fine / len(other))"),  # of all held-out samples
    ],
)
def test_what_the_steps_of_a_series_add_up_is_of_all_ranks(shown, written) -> None:
    assert written in port(SERIES.replace("SHOWN", shown)).text


@pytest.mark.parametrize("play", ["while not done:", "for t in range(500):"])
def test_returns_of_episodes_are_means_over_the_ranks_and_no_rank_waits_within_one(play) -> None:
    text = port(EPISODES.replace("PLAY", play)).text
    assert 'print(f"{dl.average(returns[-1]):.1f} {dl.average(sum(returns) / len(returns)):.2f}")' in text
    assert '        print("reward", reward)\n        if done: break' in text
    assert "if dl.average(sum(returns[-9:]) / 9) > 195: break" in text


ACTION = """        chances = Categorical(logits=policy(torch.from_numpy(state)))
        action = chances.sample()
        logs.append(chances.log_prob(action))
        state, reward, done, _, _ = env.step(action.item())
"""


@pytest.mark.parametrize("within", ["CHOOSE", "LINES"])
def test_a_return_that_is_added_up_is_a_mean_wherever_the_action_is_chosen(within) -> None:
    source = EPISODES.replace("PLAY", "for t in range(500):").replace("sum(rewards)", "gain")
    source = source.replace("rewards, done = env.reset(), [], [], False", "gain, done = env.reset(), [], 0, False")
    source = source.replace("rewards.append(reward)", "gain += reward")
    if within == "CHOOSE":
        chosen = "\n    ".join(line[8:] for line in ACTION.splitlines()[:3])
        function = f"def choose(state):\n    {chosen}\n    return action.item()\nlogs = []\n"
        source = source.replace(ACTION, "        state, reward, done, _, _ = env.step(choose(state))\n")
        source = source.replace("returns = []\n", f"returns = []\n{function}").replace(
            "logs, gain, done = env.reset(), [], ", "gain, done = env.reset(), "
        )
    text = port(source).text
    assert 'print(f"{dl.average(returns[-1]):.1f} {dl.average(sum(returns) / len(returns)):.2f}")' in text


def test_what_follows_the_end_of_an_episode_is_each_ranks_own() -> None:
    source = """import gymnasium as gym
import torch
env = gym.make("CartPole-v1")
policy = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(policy.parameters(), lr=0.1)
state, gain, gains = env.reset()[0], 0, []
for step in range(300):
    chances = policy(torch.from_numpy(state)).softmax(0)
    state, reward, over, cut, _ = env.step(chances.argmax().item())
    gain += reward
    done = over or cut
    if END:
        print("gain", gain)
        gains.append(gain)
        gain, state = 0, env.reset()[0]
    loss = -chances.max() * reward
    opt.zero_grad()
    loss.backward()
    opt.step()
torch.save(gains, "gains.pt")
"""
    for end in ("done", "over or cut", "over | cut"):
        text = port(source.replace("END", end)).text
        assert 'print("gain", gain)' in text and 'dl.save(gains, "gains.pt")' in text


def test_sums_of_sums_over_a_share_are_added_up_over_the_ranks() -> None:
    shown = "-(right + wrong), right - 2 * wrong"
    counted = "right += (out.argmax(1) == y[:, t]).sum().item()\n            wrong += out.pow(2).sum().item()"
    source = SERIES.replace("right += (out.argmax(1) == y[:, t]).sum().item()", counted).replace("SHOWN", shown)
    text = port(source.replace("right, seen, fine = 0, 0, 0", "right = wrong = fine = seen = 0")).text
    assert "    right, wrong = dl.total(right, wrong)" in text


ROLLOUT = """import gymnasium as gym
import torch
env = gym.make("CartPole-v1")
policy = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(policy.parameters(), lr=0.1)
state, gains = env.reset()[0], []
for update in range(300):
    batch, gain, done = [], 0, False
    PLAY
        with torch.no_grad():
            action = policy(torch.from_numpy(state)).argmax().item()
        state, reward, done, _, _ = env.step(action)
        batch.append(torch.from_numpy(state))
        gain += reward
        print(gain)
    gains.append(gain)
    for _ in range(4):
        loss = policy(torch.stack(batch)).softmax(1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(update, sum(gains[-9:]) / 9)
"""


@pytest.mark.parametrize("play", ["for t in range(128):", "while not done:"])
def test_what_is_played_before_the_updates_is_averaged_where_all_ranks_come_to_it(play) -> None:
    text = port(ROLLOUT.replace("PLAY", play)).text
    assert "        print(gain)\n" in text and "print(update, dl.average(sum(gains[-9:]) / 9))" in text


FORECAST = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=8, shuffle=True):
    loss = 0.0
STEPS
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
FORECAST_STEP = """    next{0} = model(x)
    x = torch.cat((x[..., 1:], next{0}[..., :1]), dim=-1)
    loss = loss + (next{0} - y).pow(2).mean()
"""


def test_the_work_of_following_a_forecast_grows_as_its_number_of_steps_and_not_as_its_square(monkeypatch) -> None:
    looked = []
    fields = Machine.fields
    monkeypatch.setattr(Machine, "fields", lambda self, owner: looked.append(owner) or fields(self, owner))
    asked = []
    for steps in (10, 40):
        looked.clear()
        port(FORECAST.replace("STEPS", "".join(FORECAST_STEP.format(k) for k in range(steps))))
        asked.append(len(looked))
    assert asked[1] < 5 * asked[0] + 100, asked
