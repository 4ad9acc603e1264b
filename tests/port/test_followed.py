"""Counts that a model keeps of its passes, and what a script keeps of its loss, smoothed, over all batches."""

import pytest

from dlrun.port import port

HEAD = """import json, torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(48, 2)
data = TensorDataset(x, x.sum(1, keepdim=True))
"""
ANNEALED = (
    HEAD
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(2, 1), 0
    def forward(self, x):
        {counts}
        return self.layer(x) * max(0.1, 1.0 - self.seen / 200)

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    net.train()
    for x, y in DataLoader(data, 4, shuffle=True):
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        print(sum((net(x) - y).pow(2).sum() for x, y in DataLoader(data, 4)))
"""
)
SMOOTHED = (
    HEAD
    + """
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
mean, kept = {first}, []
for x, y in DataLoader(data, 4, shuffle=True):
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    {smooths}
    kept.append(mean)
json.dump(kept, open("kept.json", "w"))
"""
)


def test_a_count_of_passes_that_evaluations_add_to_is_doubted_until_it_counts_the_training_alone():
    ported = port(ANNEALED.format(counts="self.seen += 1"))
    told = [d for d in ported.doubts if d.danger == "high"]
    assert [d.write for d in told] == ["if self.training: self.seen += 1, and port again"]
    assert "1.0 - self.seen / 200" in ported.text
    as_told = port(ANNEALED.format(counts="if self.training: self.seen += 1"))
    assert "1.0 - dl.serial_steps(self.seen) / 200" in as_told.text
    assert not as_told.doubts


def test_a_count_of_passes_that_nothing_follows_is_not_spoken_of():
    source = ANNEALED.format(counts="self.seen += 1").replace(" * max(0.1, 1.0 - self.seen / 200)", "")
    assert not port(source).doubts


@pytest.mark.parametrize(
    ("first", "smooths"),
    [
        ("0.0", "mean = 0.9 * mean + 0.1 * loss.item()"),
        ("None", "mean = loss.item() if mean is None else 0.9 * mean + 0.1 * loss.item()"),
        (
            "None",
            "if mean is None:\n        mean = loss.item()\n    else:\n        mean = 0.9 * mean + 0.1 * loss.item()",
        ),
        ("torch.zeros(())", "mean = 0.9 * mean + 0.1 * loss.detach()"),
        ("torch.tensor(0.0)", "mean = 0.9 * mean + 0.1 * loss.detach()"),
    ],
)
def test_a_smoothed_loss_that_is_saved_for_every_batch_is_the_mean_over_the_ranks(first, smooths):
    text = port(SMOOTHED.format(first=first, smooths=smooths)).text
    assert 'dl.rank0(json.dump)(dl.average(kept), dl.rank0(open)("kept.json", "w"))' in text


def test_the_number_of_a_loops_turn_is_no_count_of_passes():
    """It follows the training alone: what reads it goes by the serial steps, and nothing is doubted."""
    loop = """net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(300):
    rows = torch.randint(48, (4,))
    loss = (net(x[rows]) * max(0.1, 1.0 - i / 200)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    ported = port(HEAD + loop)
    assert "max(0.1, 1.0 - dl.serial_steps(i) / 200)" in ported.text
    assert not ported.doubts
