"""Counts of the samples so far, which rates, weights of losses and tests follow, are of all ranks."""

import pytest
from small import HEAD

from dlrun.port import port

LOOP = (
    HEAD
    + """opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, shuffle=True)
seen = 0
for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        seen += len(x)
"""
)
BEFORE = "        opt.zero_grad()\n"


def ported(lines, after="", size="len(x)", **options):
    return port(LOOP.replace(BEFORE, lines + BEFORE).replace("+= len(x)", f"+= {size}") + after)


RATE = "        for g in opt.param_groups:\n            g['lr'] = 0.1 * (1 - seen / 60000)\n"


SERIAL = ("dl.total(", "dl.get_nranks() * ", "dl.serial_steps(")


@pytest.mark.parametrize(
    "size", ["len(x)", "x.size(0)", "x.shape[0]", "x.numel()", "(y >= 0).sum()", "len(x) * 16", "y.ne(0).sum().item()"]
)
def test_the_samples_that_a_rate_follows_are_those_of_all_ranks(size):
    assert any(word in ported(RATE, size=size).text for word in SERIAL)


@pytest.mark.parametrize("added", ["size", "size * 16", "16"])
def test_a_number_that_is_added_at_every_batch_counts_once_for_each_rank(added):
    source = LOOP.replace(BEFORE, RATE + BEFORE).replace("batch_size=8", "batch_size=size")
    text = port("size = 8\n" + source.replace("len(x)", added)).text
    assert any(word in text for word in SERIAL)


def test_a_share_of_samples_that_decides_is_that_of_all_ranks():
    after = "        right += (y == 1).sum().item()\n    if right / seen > 0.9:\n        break\n"
    made_ = port(LOOP.replace("    for x, y", "    right, seen = 0, 0\n    for x, y") + after)
    assert "seen += len(x)\n" in made_.text
    assert "    seen, right = dl.total(seen, right)  #" in made_.text and "if right / seen > 0.9:" in made_.text
    assert not [doubt for doubt in made_.doubts if doubt.danger != "low"]


def test_hits_for_each_sample_that_are_only_shown_weigh_no_loss():
    after = "        right += (y == 1).sum()\n        print(right / seen)\n"
    made = port(LOOP.replace("    for x, y", "    right, seen = 0, 0\n    for x, y") + after)
    assert "seen += len(x)\n" in made.text
    assert "print(dl.total(right) / dl.total(seen))" in made.text
    assert not [doubt for doubt in made.doubts if doubt.danger != "low"]


def test_a_loop_that_ends_at_some_samples_ends_at_those_of_all_ranks():
    loop = """it, seen = iter(loader), 0
while seen < 6400:
    x, y = next(it)
    (model(x) - y).pow(2).mean().backward()
    opt.step()
    seen += len(x)
"""
    made = "opt = torch.optim.SGD(model.parameters(), lr=0.1)\nloader = DataLoader(data, batch_size=8, shuffle=True)\n"
    text = port(HEAD + made + loop).text
    assert "while dl.total(seen) < 6400:" in text and "    seen += len(x)\n" in text


@pytest.mark.parametrize(
    "lines",
    [
        "        if seen > 5000:\n            torch.save(model.state_dict(), 'm.pt')\n",
        "        if seen > 5000:\n            break\n",
    ],
)
def test_the_samples_that_a_test_follows_are_those_of_all_ranks(lines):
    assert "dl.total(seen" in ported(lines).text


def test_a_weight_of_a_loss_that_follows_local_samples_is_told():
    weighed = LOOP.replace("(model(x) - y).pow(2).mean()", "min(1.0, seen / 5000) * (model(x) - y).pow(2).mean()")
    found = [d.why for d in port(weighed).doubts if d.name == "unknown-placement"]
    assert len(found) == 1 and found[0].startswith("the loss is computed from what this rank alone has added up")


def test_samples_that_are_only_shown_are_added_up_where_they_are_shown():
    text = ported("", after="        print(seen)\n").text
    assert "seen += len(x)\n" in text
    assert "print(dl.total(seen, since=seen_before))" in text


def test_samples_that_a_rate_follows_and_a_sum_is_divided_by_are_doubted():
    after = "        total += loss.item()\n        print(total / seen)\n"
    doubts = ported(RATE, after=after).doubts
    assert any(doubt.name == "unknown-placement" for doubt in doubts)


def test_a_test_for_a_multiple_of_some_samples_is_doubted_as_n_batches_may_pass_it_by():
    found = ported("", after="        if seen % 6400 == 0:\n            torch.save(model.state_dict(), 'm.pt')\n")
    assert "dl.total(seen, since=seen_before) % 6400 == 0" in found.text
    assert any("may miss what it is compared with" in doubt.why for doubt in found.doubts)


def test_steps_of_an_environment_that_each_rank_plays_for_itself_stay_its_own():
    text = port("""import random, torch
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
env, frames = make(), 0
state = env.reset()
for it in range(1000):
    chance = max(0.05, 1 - frames / 4000)
    action = random.randrange(2) if random.random() < chance else model(state).argmax().item()
    state, reward, done, _ = env.step(action)
    frames += 4
    opt.zero_grad()
    (model(state)[action] - reward).pow(2).backward()
    opt.step()
    state = env.reset() if done else state
""").text
    assert "    frames += 4\n" in text
