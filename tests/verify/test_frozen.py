"""Numbers that ranks show, beside those of the serial script with the same parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from by_hand import epoch, event, optimizer, run, step

from dlrun.port import port
from dlrun.verify.checks.folds import folds
from dlrun.verify.frozen import Frozen
from dlrun.verify.trace import Event

LINE = "epoch {}: loss {:.4f} ({}/64), {:.2f} s, {:.0f} samples/s"


def shown(lines: Sequence[str], every: int = 2, lr: float = 0.1) -> list[Event]:
    """An epoch with as many steps before each line."""
    events = [optimizer(), *epoch([[0, 1], [2, 3]])]
    for k, line in enumerate(lines):
        events += [step(k * every + i, 1.0, lr=lr) for i in range(1, every + 1)] + [event("print", "t.py:7", text=line)]
    return events


def faults(serial: Sequence[str], port: Sequence[str], every: int = 4, lr: float = 0.1) -> tuple[str, str]:
    found = folds(run(shown(serial, every)), run(shown(port, every // 2, lr), shown([], 1)))
    return (found.fault, found.finding) if found else ("", "")


def test_half_of_a_loss_and_of_what_was_right_is_told_with_both_lines() -> None:
    serial, port = (LINE.format(1, loss, right, 3.0, rate) for loss, right, rate in ((1.5, 40, 64), (0.75, 40, 128)))
    fault, finding = faults([serial], [port])
    assert fault == "shown-in-part"
    assert "0.7500 is 1 / 2 of 1.5000" in finding
    fault, finding = faults([LINE.format(1, 1.5, 40, 3.0, 64)], [LINE.format(1, 1.5, 20, 3.0, 64)])
    assert "20 is 1 / 2 of 40" in finding


def test_twice_a_loss_is_told_be_it_shown_less_often() -> None:
    fault, finding = faults(["loss 1.5", "loss 1.4", "loss 1.6", "loss 1.5"], ["loss 3.1", "loss 2.9"])
    assert fault == "shown-n-fold"
    assert "3.1 is 2 times 1.5" in finding


def test_what_ranks_count_of_their_own_is_half_on_average() -> None:
    mine, other = (shown([f"right {n}" for n in own], 4) for own in ((76, 81), (72, 67)))
    other = [event("shown", e.at, **e.facts) if e.kind == "print" else e for e in other]
    found = folds(run(shown(["right 148", "right 148"], 4)), run(mine, other))
    assert found is not None
    assert found.fault == "shown-in-part"
    assert "76 is 1 / 2 of 148" in found.finding
    assert folds(run(shown(["right 148", "right 148"], 4)), run(mine, shown([], 1))) is None  # 4 % more than half


@pytest.mark.parametrize(
    ("serial", "port"),
    [
        (["loss 1.5 took 2.0 s, 640 samples/s"], ["loss 1.5 took 1.0 s, 1280 samples/s"]),
        (["step 4", "step 8", "step 12"], ["step 2", "step 4", "step 6"]),
        (["3: 1.5", "7: 1.5", "11: 1.5"], ["1: 1.5", "3: 1.5", "5: 1.5"]),
        (["[0/100 (0%)]", "[16/100 (16%)]", "[32/100 (32%)]"], ["[0/50 (0%)]", "[8/50 (8%)]", "[16/50 (16%)]"]),
        (["of 2 batches"], ["of 1 batches"]),
        (["lr 0.1000"], ["lr 0.2000"]),
        (["last loss 1.5"], ["last loss 0.9"]),  # other samples
        (["loss 0.9", "loss 2.1", "loss 1.4"], ["loss 1.0", "loss 1.1", "loss 4.0"]),
        (["loss nan"], ["loss nan"]),
        (["> [4, 2, 8]"], ["> [2, 6, 5]"]),  # of a sample that is drawn at the end
    ],
)
def test_what_counts_is_timed_or_follows_other_samples_is_not(serial, port) -> None:
    lr = 0.2 if "lr" in port[0] else 0.1
    assert faults(serial, port, lr=lr) == ("", "")


SCRIPT = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=8, shuffle=True)
for epoch in range(3):
    losses = []
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item() * len(x))
    print(f"epoch {epoch}: loss {sum(losses) / len(data):.4f}")
"""


def test_a_port_that_shows_the_sum_over_the_ranks_is_proved(prove) -> None:
    right = port(SCRIPT).text
    assert "    losses = dl.gather(losses, over=loader)" in right
    verdict = prove(right, serial=SCRIPT, shows=True)
    assert verdict.proved


def test_a_port_that_averages_a_sum_is_not_proved(prove) -> None:
    gathered, shown = "    losses = dl.gather(losses, over=loader)", "{sum(losses) / len(data):.4f}"
    wrong = port(SCRIPT).text.replace(gathered, "    pass").replace(shown, "{dl.average(sum(losses) / len(data)):.4f}")
    verdict = prove(wrong, serial=SCRIPT, shows=True)
    assert verdict.faults == {"shown-in-part"}
    assert next(c for c in verdict.checks if c.fault).where.startswith("train_dist.py:")


@pytest.mark.parametrize(("fit", "most"), [(True, 60.0), (False, 10.0)])
def test_what_comes_behind_fit_may_take_the_budget(fit: bool, most: float) -> None:
    began, *batches = epoch([[0, 1]])
    serial = run([optimizer(), replace(began, facts=began.facts | {"fit": fit}), *batches, step(1, 0.9)])
    runs: Any = SimpleNamespace(job=SimpleNamespace(budget=60.0))
    assert Frozen(runs, serial, serial, serial, 2)._most == most
