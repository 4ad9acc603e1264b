"""With the global batch kept, losses that are added up: over heads, over named terms, or over samples."""

import pytest
from running import rounded, started

from dlrun.port import Options, port

HEADS = """import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, y=None):
        if y is None:
            return [self.one(x), self.two(x)]
        return {"one": F.mse_loss(self.one(x), y), "two": F.l1_loss(self.two(x), y)}

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(48, 4), torch.randn(48, 4)), 8, shuffle=True)

def trained(model, loss_of):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for x, y in loader:
        loss = loss_of(model, x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print(total / len(loader), sum(p.abs().sum().item() for p in model.parameters()))

"""
BY_HEAD = """def terms(model, x, y):
    return sum(loss for loss in model(x, y).values())

def every_head(model, x, y):
    loss = torch.zeros(())
    for out in model(x):
        loss += F.mse_loss(out, y)
    return loss

trained(Heads(), terms)
trained(Heads(), every_head)
"""
BY_SAMPLE = """def pairs(model, x, y):
    return sum(F.mse_loss(out, t) for out, t in zip(model(x), y))

def rows(model, x, y):
    return sum((model(x) - y).pow(2).mean(1))

trained(nn.Linear(4, 4), pairs)
trained(nn.Linear(4, 4), rows)
"""


@pytest.mark.parametrize("programs", [BY_HEAD, BY_SAMPLE], ids=["heads", "samples"])
def test_losses_of_heads_are_terms_and_losses_of_samples_are_a_sum_over_the_batch(programs, tmp_path) -> None:
    program = HEADS + programs
    (tmp_path / "train.py").write_text(program)
    ported = port(program, Options(batch="global"))
    (tmp_path / "dist.py").write_text(ported.text)
    assert ("loss = dl.partial_sum(loss_of(model, x, y))" in ported.text) == (programs is BY_SAMPLE)
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert [rounded(line) for line in mine.splitlines()] == [rounded(line) for line in serial.splitlines()]


def test_a_sum_over_what_may_be_samples_or_heads_is_told() -> None:
    program = BY_SAMPLE.replace("zip(model(x), y)", "zip(heads.of(model(x)), heads.of(y))").replace(
        ", rows)", ", pairs)"
    )
    program = "import heads\n" + HEADS + program
    assert "this adds up one loss for each of many" in port(program, Options(batch="global")).report()


DICE = """import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(72, 6), torch.rand(72, 6)), 6, shuffle=True)
model = torch.nn.Linear(6, 6)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for x, y in loader:
    out = model(x)
    shared = (out.sigmoid() * y).sum(1)
    dice = 1 - ((2 * shared + 1) / (out.sigmoid().sum(1) + y.sum(1) + 1)).mean()
    loss = 0.5 * F.binary_cross_entropy_with_logits(out, y) + 0.5 * dice
    opt.zero_grad()
    loss.backward()
    opt.step()
    total += loss.data.numpy() * len(x)
print(total)
"""


def test_the_cross_entropy_of_logits_beside_another_mean_is_a_mean() -> None:
    made = port(DICE, Options(batch="global"))
    assert "total = dl.total(total)" in made.text and not made.doubts
