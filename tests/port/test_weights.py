"""What weighs a part of the loss by the number of batches counts those of all ranks."""

import pytest
import torch
from running import ran
from small import HEAD

from dlrun.port import port

LINE = """
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(3)
x = torch.rand(48, 2)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
model = torch.nn.Linear(2, 1, bias=False)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""

BAYES = (
    LINE
    + """
def elbo(out, y, prior, weight):
    return torch.nn.functional.mse_loss(out, y) + prior * weight

def prior(kind, part, n):
    if kind == "flat":
        return 1 / n
    return part / n

count = len(loader)
for epoch in range(2):
    total = 0
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        size = model.weight.pow(2).sum()
        loss = elbo(model(x), y, size, 1.0 / count) + size / len(loader)
        loss = loss + prior("flat", i, count) * size
        loss = loss + (i + 1) / len(loader) * size
        loss.backward()
        opt.step()
        total += loss.item()
    print(total / count)
"""
)


def test_what_counts_once_an_epoch_counts_once_with_n_ranks_too(tmp_path):
    ported = port(HEAD + BAYES).text
    kept = ported.replace("dl.finalize()", "dl.save(model.weight, 'last.pt')\ndl.finalize()")
    (tmp_path / "train.py").write_text(kept)
    _, weight = ran(tmp_path / "train.py", tmp_path / "2", 2)
    torch.manual_seed(3)
    torch.nn.Linear(2, 1)
    torch.manual_seed(3)
    x = torch.rand(48, 2)
    model = torch.nn.Linear(2, 1, bias=False)
    for _ in range(2):
        for i in range(3):  # 16 samples at a time, at twice the rate; each prior still weighs 1 / 6
            batch = x[16 * i : 16 * i + 16]
            size = model.weight.pow(2).sum()
            loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean() + size * (3 / 6 + (i + 1) / 3)
            (gradient,) = torch.autograd.grad(loss, [model.weight])
            model.weight.data -= 0.2 * gradient
    assert torch.allclose(weight, model.weight, atol=1e-6)


def test_weights_that_fall_to_1_over_an_epoch_are_told_with_the_number_of_ranks():
    falling = BAYES.replace("part / n", "2 ** (n - part - 1) / (2 ** n - 1)").replace('"flat"', "kind")
    told = [d for d in port(HEAD + falling).doubts if "add up to 1" in d.why]
    assert [d.write for d in told] == ["divide by dl.get_nranks()"]


LAST = "        if (i + 1) % 4 == 0 or i + 1 == len(loader):\n            opt.step()"


def test_a_weight_counts_as_many_batches_with_updates_every_few():
    some = BAYES.replace("        opt.step()", LAST)
    assert port(HEAD + some).text.count("serial_steps") == port(HEAD + BAYES).text.count("serial_steps")


@pytest.mark.xfail(strict=True, reason="a mean that is shown divides by the serial count; the prior's weight is local")
def test_the_number_of_batches_that_one_update_takes_is_a_ranks_own():
    some = BAYES.replace("        opt.step()", LAST)
    whole = some.replace("        loss.backward()", "        loss = loss / len(loader)\n        loss.backward()")
    assert port(HEAD + whole.replace("% 4 ==", "% len(loader) ==")).text.count("serial_steps") == 0


BALANCED = (
    LINE
    + """seen, weight, history = 1.0, 1.0, []
for epoch in range(3):
    total = 0.0
    if epoch > 1:
        weight = history[-1] / history[-2]
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        error = (model(x) - y).pow(2).mean()
        size = model.weight.pow(2).mean()
        part = error.item() / size.item()
        seen = 0.9 * seen + 0.1 * error.item()
        loss = error / seen + weight * size + part * size
        loss.backward()
        opt.step()
        total += error.item()
    history.append(total / len(loader))
"""
)


def test_numbers_of_earlier_steps_weigh_the_losses_of_all_ranks_alike(tmp_path):
    ported = port(HEAD + BALANCED).text
    kept = ported.replace("dl.finalize()", "dl.save(torch.tensor([seen, weight]), 'last.pt')\ndl.finalize()")
    (tmp_path / "train.py").write_text(kept)
    assert "total += error.item()" in ported and "part = error.item()" in ported  # averaged once, or of this step alone
    _, (seen, weight) = ran(tmp_path / "train.py", tmp_path / "2", 2)
    torch.manual_seed(3)
    torch.nn.Linear(2, 1)
    torch.manual_seed(3)
    x = torch.rand(48, 2)
    model = torch.nn.Linear(2, 1, bias=False)
    mean, by, totals = 1.0, 1.0, []
    for epoch in range(3):
        by = totals[-1] / totals[-2] if epoch > 1 else 1.0
        totals.append(0.0)
        for i in range(3):
            size, losses, errors = model.weight.pow(2).mean(), [], []
            for batch in (x[16 * i : 16 * i + 8], x[16 * i + 8 : 16 * i + 16]):
                errors.append((model(batch) - batch.sum(1, keepdim=True)).pow(2).mean())
            mean = 0.81 * mean + 0.19 * sum(e.item() for e in errors) / 2  # each step stands for two
            losses = [e / mean + by * size + e.item() / size.item() * size for e in errors]
            (gradient,) = torch.autograd.grad(sum(losses) / 2, [model.weight])
            model.weight.data -= 0.2 * gradient
            totals[-1] += sum(e.item() for e in errors) / 2 / 3
    assert abs(seen - mean) < 1e-6 and abs(weight - by) < 1e-6


ANNEALED = """    if epoch % 2 == 0:
        some, of = next(iter(loader))
        first = torch.autograd.grad((model(some) - of).pow(2).mean(), list(model.parameters()))
        by = max(g.abs().max().item() for g in first)
    for i, ("""


def test_balances_of_gradients_are_averaged_once_and_nothing_is_doubted():
    script = BALANCED.replace("    for i, (", ANNEALED).replace("weight * size", "by * size")
    ported = port(HEAD + script.replace("seen, weight, history = ", "by, seen, weight, history = 1.0, "))
    assert "by = dl.average(max(" in ported.text and "first = torch.autograd.grad((" in ported.text
    assert not [d for d in ported.doubts if "weighs later" in d.why]


PLAYED = """import gymnasium as gym
import torch
env = gym.make("CartPole-v1")
model = torch.nn.Linear(4, 2)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
kept = []
seen, _ = env.reset()
for step in range(900):
    action = model(torch.tensor(seen)).argmax().item()
    after, reward, done, _, _ = env.step(action)
    kept.append((seen, action, reward, after))
    seen = after
    loss = sum((model(torch.tensor(s))[a] - r) ** 2 for s, a, r, _ in kept[-32:])
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_what_a_ranks_own_environment_is_in_is_no_weight_of_a_loss():
    assert not [d for d in port(PLAYED).doubts if "weighs later" in d.why]


def test_a_weight_that_a_function_returns_beside_the_loss_follows_the_serial_steps():
    made = "def warm(step, last):\n    return min(1, step / last)\n"
    made += "def parts(out, y, step, last):\n    return (out - y).pow(2).mean(), warm(step, last)\n"
    loop = "step = 0\nfor x, y in loader:\n    loss, weight = parts(model(x), y, step, 10)\n    opt.zero_grad()\n"
    loop += "    (loss + weight * model(x).pow(2).mean()).backward()\n    opt.step()\n    step += 1\n"
    text = port(f"{HEAD}{LINE}{made}{loop}").text
    assert "    loss, weight = parts(model(x), y, dl.serial_steps(step), 10)\n" in text
