"""Lists of a rank's own numbers, whose entries are added up: their sum is that of all ranks, or divided as such."""

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


def ported(line: str, term: str = "loss.item() * len(x)", batch: str = "local") -> str:
    return port(LOOP.format(term=term, line=line), Options(batch=batch)).text


@pytest.mark.parametrize(
    "total",
    ["sum(losses)", "np.sum(losses)", "math.fsum(losses)", "np.array(losses).sum()", "torch.tensor(losses).sum()",
     "torch.tensor(losses).sum().item()", "sum(each for each in losses)", "sum([float(each) for each in losses])"],
)  # fmt: skip
def test_the_sum_of_a_list_over_all_samples_is_that_of_all_ranks(total) -> None:
    text = ported(f"print(epoch, {total} / len(data))")
    assert f"print(epoch, dl.total({total}) / len(data))" in text


def test_so_is_one_that_has_a_name() -> None:
    text = ported("added = sum(losses)\n    print(epoch, added / len(loader.dataset))")
    assert "print(epoch, dl.total(added) / len(loader.dataset))" in text


def test_so_is_one_that_is_shown_as_it_is() -> None:
    assert "print(epoch, dl.total(sum(losses)))" in ported("print(epoch, sum(losses))")


def test_a_mean_of_a_list_is_the_mean_over_the_ranks() -> None:
    for mean in ("sum(losses) / len(losses)", "sum(losses) / len(loader)", "np.mean(losses)"):
        assert f"print(epoch, dl.average({mean}))" in ported(f"print(epoch, {mean})", term="loss.item()")


def test_a_list_that_the_loop_fills_has_a_ranks_own_length() -> None:
    text = ported("print(epoch, total / len(losses))", term="loss.item()")
    assert "print(epoch, dl.average(total / len(losses)))" in text


def test_parts_of_a_mean_are_not_added_up_over_the_ranks() -> None:
    text = ported("print(epoch, sum(losses))", term="loss.item() / len(loader)")
    assert "print(epoch, dl.average(sum(losses)))" in text


def test_ranks_that_share_each_batch_average_its_losses() -> None:
    text = ported("print(epoch, sum(losses))", term="loss.item()", batch="global")
    assert "print(epoch, dl.average(sum(losses)))" in text


def test_a_list_that_a_function_fills_and_adds_up_is_summed_where_it_is_divided() -> None:
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
    assert "return dl.total(sum(losses)) / len(loader.dataset), sum(right)" in text
    assert "{dl.total(right)}/{len(data)}" in text
