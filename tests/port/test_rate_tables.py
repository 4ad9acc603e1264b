"""Weights and rates that the number of steps so far picks from a table, or that lie between entries of one."""

import pytest
from running import ran

from dlrun.port import port

SCRIPT = """import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
table = {table}
step = 0
for epoch in range(3):
    for x, in loader:
        {before}
        loss = {loss}
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
torch.save(model.state_dict(), "last.pt")
"""
LOSS = "model(x).pow(2).mean()"
LAST = "table[min(dl.serial_steps(step), len(table) - 1)]"


def made(loss, before="pass", table="np.linspace(0, 1, 15)"):
    return port(SCRIPT.format(loss=loss, before=before, table=table)).text


@pytest.mark.parametrize(
    ("loss", "before", "written"),
    [
        (f"table[step] * {LOSS}", "pass", f"{LAST} * {LOSS}"),
        (f"w * {LOSS}", "w = table[step]", f"w = {LAST}"),
        (f"w * {LOSS}", "w = table[min(step, 14)]", "w = table[min(dl.serial_steps(step), 14)]"),
        (f"w * {LOSS}", "w = table[step // 5]", "table[min(dl.serial_steps(step) // 5, len(table) - 1)]"),
        (f"w * {LOSS}", "w = np.interp(step, [0, 9], [0, 1])", "np.interp(dl.serial_steps(step), [0, 9], [0, 1])"),
        ("(model(x) / table[step]).pow(2).mean()", "pass", f"model(x) / {LAST}"),
        (LOSS, "opt.param_groups[0]['lr'] = table[step]", f"= dl.lr_scale({LAST})"),
        (f"{LOSS}\n        loss *= table[step]", "pass", f"loss *= {LAST}"),
    ],
)
def test_the_entry_is_that_of_the_serial_steps_and_there_is_one(loss, before, written):
    assert written in made(loss, before)


@pytest.mark.parametrize(
    ("loss", "table"),
    [
        (f"table[step % 3] * {LOSS}", "[0.1, 0.2, 0.3]"),  # in turn
        (f"table[epoch] * {LOSS}", "[0.1, 0.2, 0.3]"),
        (f"table[step] * {LOSS}", "np.linspace(0, 1, 3 * len(loader))"),  # local steps
    ],
)
def test_what_follows_turns_epochs_or_a_ranks_own_steps_is_left(loss, table):
    assert "serial_steps" not in made(loss, table=table)


def test_what_a_divisor_of_the_loss_follows_is_the_serial_steps():
    assert "(1 + dl.serial_steps(step) / 9)" in made("(model(x) / (1 + step / 9)).pow(2).mean()")


def test_a_margin_that_grows_with_the_steps_grows_as_in_the_serial_run():
    hinge = "torch.relu(model(x).abs().mean() + margin)"
    assert "margin = 0.1 + dl.serial_steps(step) / 9" in made(hinge, "margin = 0.1 + step / 9")
    assert "shift = step" in made("(model(x) + shift).pow(2).mean()", "shift = step")  # a count, nothing gradual


def test_the_last_step_of_ranks_that_take_more_than_the_serial_run_finds_an_entry(tmp_path):
    script = tmp_path / "train_dist.py"
    script.write_text(made(f"table[step] * {LOSS}"))
    ran(script, tmp_path / "run", 2)  # 3 batches of each rank in an epoch, of 5: 18 serial steps
