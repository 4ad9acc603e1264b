"""Numbers that functions are given, keep or return: as ``**numbers``, in rows of tables, from a step of its own."""

import pytest

from dlrun.port import port

MADE = """import csv
import pandas as pd
import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(256, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)

def show(step, **numbers):
    print(step, " ".join(f"{name}={value:.4f}" for name, value in numbers.items()))

def tell(**numbers):
    print(numbers["loss"])

class Log:
    def __init__(self):
        self.rows = {"epoch": [], "loss": []}

    def add(self, **numbers):
        for name, value in numbers.items():
            self.rows[name].append(value)

    def save(self, path):
        with open(path, "w") as file:
            writer = csv.writer(file)
            writer.writerow(self.rows.keys())
            writer.writerows(zip(*self.rows.values()))

log, records, losses = Log(), [], []
for epoch in range(3):
    for step, (a, b) in enumerate(loader):
        opt.zero_grad()
        loss = (model(a) - b).pow(2).mean()
        loss.backward()
        opt.step()
        EACH
AFTER
"""


def ported(each: str, after: str = "") -> str:
    return port(MADE.replace("EACH", each).replace("AFTER", after)).text


def test_numbers_that_a_function_is_given_by_name_are_averaged_where_it_shows_them() -> None:
    text = ported("show(step, loss=loss.item(), rate=0.01)\n        tell(loss=loss.item())")
    assert 'f"{name}={dl.average(value):.4f}" for name, value in numbers.items()' in text
    assert 'print(dl.average(numbers["loss"]))' in text


def test_columns_that_a_method_is_given_by_name_hold_the_entries_of_all_ranks() -> None:
    text = ported("log.add(epoch=epoch, loss=loss.item())", 'log.save("log.csv")')
    names = 'log.rows["epoch"], log.rows["loss"]'
    assert f"    {names} = dl.gather({names}, since=epoch_before, over=loader)" in text
    assert "writer.writerows(zip(*self.rows.values()))" in text


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        ("pd.DataFrame(records).to_csv('log.csv')", "records"),
        ("frame = pd.DataFrame(records)\nprint(frame.groupby('epoch').mean())", "records"),
        ("pd.DataFrame(zip(losses, losses)).to_csv('log.csv')", "losses"),
    ],
)
def test_rows_of_every_batch_are_those_of_all_ranks_where_a_data_frame_takes_them(after: str, kept: str) -> None:
    each = "records.append({'epoch': epoch, 'name': 'sgd', 'loss': loss.item()})\n        losses.append(loss.item())"
    text = ported(each, after)
    assert f"    {kept} = dl.gather({kept}, since={kept}_before, over=loader)" in text
    assert "dl.average(" not in text


def test_rows_of_what_may_be_anything_stay_as_they_are() -> None:
    each = "records.append({'out': model(a), 'loss': loss.item()})"
    assert "pd.DataFrame(records)" in ported(each, "pd.DataFrame(records).to_csv('log.csv')")


PARTS = """import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(256, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
held = DataLoader(TensorDataset(x, x), batch_size=8)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []

def losses(a, b):
    out = model(a)
    loss = (out - b).pow(2).mean()
    kept.append(loss.item())
    return loss, {"mae": (out - b).abs().mean().item()}

def tell(step, loss, parts):
    print(step, f"{loss.item():.3f} {parts['mae']:.3f}")

for epoch in range(3):
    for step, (a, b) in enumerate(loader):
        loss, parts = losses(a, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        tell(step, loss, parts)
    HELD
torch.save(kept, "kept.pt")
"""


def test_what_a_function_makes_of_training_batches_alone_is_of_all_ranks_wherever_it_is_shown_or_kept() -> None:
    text = port(PARTS.replace("    HELD\n", "")).text
    assert "{dl.average(loss.item()):.3f} {dl.average(parts['mae']):.3f}" in text
    assert "    kept = dl.gather(kept, since=kept_before, over=loader)" in text


def test_so_are_losses_that_an_object_keeps_up_to_the_end_of_the_epoch() -> None:
    module = """class Task:
    def __init__(self):
        self.outputs = []

    def step(self, a, b):
        loss = (model(a) - b).pow(2).mean()
        self.outputs.append(loss.detach())
        return loss

    def end(self):
        print(torch.stack(self.outputs).mean().item())
        self.outputs.clear()

task = Task()
"""
    source = PARTS[: PARTS.index("def losses")] + module + PARTS[PARTS.index("for epoch") :]
    source = source.replace("loss, parts = losses(a, b)", "loss = task.step(a, b)").replace("HELD", "task.end()")
    text = port(source.replace("        tell(step, loss, parts)\n", "")).text
    assert "    task.outputs = dl.gather(task.outputs, over=loader)" in text
    assert "print(torch.stack(self.outputs).mean().item())" in text
