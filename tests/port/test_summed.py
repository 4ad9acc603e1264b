"""Lists of local numbers, whose entries are added up: behind the loop they are those of all ranks."""

import pytest

from dlrun.port import Options, port

LOOP = """import math
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    losses, total = [], 0.0
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append({term})
        total += loss.item()
    {line}
"""


GATHERED = "    losses = dl.gather(losses, over=loader)"


def ported(line: str, term: str = "loss.item() * len(x)", batch: str = "local") -> str:
    return port(LOOP.format(term=term, line=line), Options(batch=batch)).text


@pytest.mark.parametrize(
    "total",
    [
        "sum(losses)",
        "np.sum(losses)",
        "math.fsum(losses)",
        "np.array(losses).sum()",
        "torch.tensor(losses).sum()",
        "torch.tensor(losses).sum().item()",
        "sum(each for each in losses)",
        "sum([float(each) for each in losses])",
    ],
)
def test_the_sum_of_a_list_over_all_samples_is_that_of_all_ranks(total) -> None:
    text = ported(f"print(epoch, {total} / len(data))")
    assert GATHERED in text
    assert f"print(epoch, {total} / len(data))" in text


def test_so_is_one_that_has_a_name_or_is_shown_as_it_is() -> None:
    text = ported("added = sum(losses)\n    print(epoch, added / len(loader.dataset), sum(losses))")
    assert GATHERED in text
    assert "print(epoch, added / len(loader.dataset), sum(losses))" in text


def test_a_mean_of_a_list_is_that_of_all_ranks_entries() -> None:
    for mean in ("sum(losses) / len(losses)", "np.mean(losses)", "total / len(losses)"):
        text = ported(f"print(epoch, {mean})", term="loss.item()")
        assert GATHERED in text
        assert f"print(epoch, {mean})" in text
    text = ported("print(epoch, sum(losses) / len(loader))", term="loss.item()")
    assert "print(epoch, sum(losses) / dl.serial_steps(len(loader)))" in text


def test_parts_of_a_mean_are_parts_of_the_mean_over_all_batches() -> None:
    text = ported("print(epoch, sum(losses))", term="loss.item() / len(loader)")
    assert "losses.append(loss.item() / dl.serial_steps(len(loader)))" in text
    assert GATHERED in text


def test_ranks_that_share_each_batch_average_its_losses() -> None:
    text = ported("print(epoch, sum(losses))", term="loss.item()", batch="global")
    assert "    losses = dl.average(losses)  # means over the ranks\n    print(epoch, sum(losses))" in text


def test_lists_that_a_function_fills_and_adds_up_are_those_of_all_ranks() -> None:
    source = """import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
def train():
    losses, right = [], []
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item() * x.size(0))
        right.append((model(x).round() == y).sum().item())
    return sum(losses) / len(loader.dataset), sum(right)
for epoch in range(3):
    loss, right = train()
    print(f"{epoch}: {loss:.3f} {right}/{len(data)}")
"""
    text = port(source).text
    assert "    losses, right = dl.gather(losses, right, over=loader)" in text
    assert "return sum(losses) / len(loader.dataset), sum(right)" in text
