"""Generators that train: a loop that draws their losses makes the turns of the loop that yields them."""

import pytest
from running import ran

from dlrun.port import port

MADE = """import torch
from itertools import islice
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(256, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)

def updates(model, loader):
    done = 0
    while True:
        for a, b in loader:
            opt.zero_grad()
            loss = (model(a) - b).pow(2).mean()
            loss.backward()
            opt.step()
            done += 1
            yield {given}

def epochs(count):
    for epoch in range(count):
        total = 0.0
        for a, b in loader:
            opt.zero_grad()
            loss = (model(a) - b).pow(2).mean()
            loss.backward()
            opt.step()
            total += loss.item()
        yield epoch, total / len(loader)

"""


EPOCH = """        total = dl.total(total)  # sums over all ranks' samples
        yield epoch, total / dl.serial_steps(len(loader))"""


def ported(loop: str, given: str = "loss.item()") -> str:
    return port(MADE.format(given=given) + loop).text


LOCAL = pytest.mark.xfail(strict=True, reason="a loss that a training generator yields in a dict is rank 0's: told")


def test_a_loop_that_draws_updates_counts_them_and_shows_means() -> None:
    loop = (
        "kept = []\nfor i, loss in enumerate(updates(model, loader)):\n    kept.append(loss)\n"
        "    if i % 50 == 0:\n        print(i, loss)\n    if i >= 200:\n        break\ntorch.save(kept, 'kept.pt')\n"
    )
    text = ported(loop)
    assert "if i % dl.steps(50) == 0:" in text and "print(dl.serial_steps(i), dl.average(loss))" in text
    assert "if i >= dl.steps(200):" in text


def test_losses_that_are_drawn_and_kept_are_of_all_ranks() -> None:
    loop = "kept = []\nfor loss in islice(updates(model, loader), 9):\n    kept.append(loss)\n"
    loop += "torch.save(kept, 'kept.pt')\n"
    assert "dl.gather(kept" in ported(loop)


def test_a_loop_that_draws_epochs_keeps_their_number_and_decides_by_those_of_all_ranks() -> None:
    text = ported("for epoch, loss in epochs(9):\n    print(epoch, loss)\n    if loss < 0.1:\n        break\n")
    assert "in epochs(9):" in text
    assert EPOCH in text and "print(epoch, loss)" in text and "    if loss < 0.1:" in text


@pytest.mark.parametrize(
    ("head", "divided"),
    [
        ("for loss in islice(made, 100):", "islice(made, dl.steps(100))"),
        ("for turn, loss in zip(range(100), made):", "zip(range(dl.steps(100)), made)"),
        ("for turn in range(100):\n    loss = next(made)", "range(dl.steps(100))"),
    ],
)
def test_updates_that_are_drawn_by_number_are_as_many_as_a_rank_makes(head: str, divided: str) -> None:
    text = ported(f"made = updates(model, loader)\n{head}\n    print(loss)\n")
    assert divided in text
    assert "print(dl.average(loss))" in text


@LOCAL
def test_parts_of_what_is_yielded_are_told_apart() -> None:
    loop = "for step, told in islice(updates(model, loader), 100):\n    if step % 10 == 0:\n"
    text = ported(f"{loop}        print(step, told['loss'])\n", "done, {'loss': loss.item()}")
    assert "dl.average(told['loss'])" in text


def test_what_another_generator_hands_on_is_drawn_too() -> None:
    handed = "def twice():\n    yield from updates(model, loader)\n\nfor i, loss in enumerate(twice()):\n"
    text = ported(handed + "    print(i, loss)\n    if i == 100:\n        break\n")
    assert "print(i, dl.average(loss))" in text
    assert "if i == dl.steps(100):" in text


def test_losses_that_are_drawn_from_an_evaluation_stay_as_they_are() -> None:
    loop = (
        "def run(batches, trains):\n    for a, b in batches:\n        loss = (model(a) - b).pow(2).mean()\n"
        "        if trains:\n            opt.zero_grad()\n            loss.backward()\n            opt.step()\n"
        "        yield loss.item()\n\nheld = DataLoader(TensorDataset(x, x), batch_size=8)\nfor epoch in range(9):\n"
        "    for loss in run(loader, True):\n        print(loss)\n"
        "    for i, other in enumerate(run(held, False)):\n        print(other)\n"
        "        if i == 20:\n            break\n"
    )
    text = port(MADE.partition("def updates")[0] + loop).text
    assert "        print(dl.average(loss))" in text
    assert "if i == 20:" in text


def test_epochs_that_are_asked_for_with_next_are_no_steps() -> None:
    text = ported("made = epochs(9)\nfor turn in range(9):\n    epoch, loss = next(made)\n    print(turn, loss)\n")
    assert "for turn in range(9):" in text
    assert EPOCH in text and "print(turn, loss)" in text


def test_batches_that_a_generator_makes_are_sharded_as_before() -> None:
    loop = (
        "def batches():\n    while True:\n        yield from loader\n\nfor i, (a, b) in enumerate(batches()):\n"
        "    opt.zero_grad()\n    loss = (model(a) - b).pow(2).mean()\n    loss.backward()\n    opt.step()\n"
        "    print(i, loss.item())\n    if i == 100:\n        break\n"
    )
    text = port(MADE.partition("def updates")[0] + loop).text
    assert "dl.shard(DataLoader(" in text
    assert "if i == dl.steps(100):" in text
    assert "print(i, dl.average(loss.item()))" in text


def test_two_ranks_draw_half_as_many_updates_and_show_the_means_of_their_losses(tmp_path) -> None:
    script = MADE.format(given="loss.item()").replace("shuffle=True", "shuffle=False").replace("lr=0.01", "lr=0.0")
    script += "for loss in islice(updates(model, loader), 16):\n    print(loss)\ntorch.save(0, 'last.pt')\n"
    (tmp_path / "serial.py").write_text(script)
    (tmp_path / "ported.py").write_text(port(script).text)
    alone, _ = ran(tmp_path / "serial.py", tmp_path / "alone")
    shared, _ = ran(tmp_path / "ported.py", tmp_path / "shared", 2)
    losses, means = [float(line) for line in alone.split()], [float(line) for line in shared.split()]
    assert len(losses) == 16
    assert means == pytest.approx([(a + b) / 2 for a, b in zip(losses[::2], losses[1::2], strict=True)], rel=1e-5)


def test_a_count_that_a_training_generator_keeps_over_epochs_is_told() -> None:
    made = MADE.format(given="loss.item()").replace("            done += 1\n", "            kept.append(1)\n")
    script = made.replace("    while True:\n        for a, b", "    for _ in range(1):\n        for a, b")
    script = "count = {'n': 0}\n" + script.replace("kept.append(1)", "count['n'] += 1")
    loop = "for epoch in range(3):\n    for loss in updates(model, loader):\n        pass\nprint(count['n'])\n"
    (doubt,) = [d for d in port(script + loop).doubts if "count['n']" in d.why]
    assert doubt.name == "unknown-placement" and "a generator changes it" in doubt.why
