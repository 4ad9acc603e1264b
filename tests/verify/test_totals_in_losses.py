"""Losses that are divided by a sum over ranks: a right one is proved, and one that is divided by n once more is not."""

from __future__ import annotations

import pytest

SERIAL = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
tokens = torch.randint(1, 20, (128, 12))
tokens[torch.arange(12)[None] >= torch.randint(4, 13, (128, 1))] = 0
loader = DataLoader(TensorDataset(tokens), batch_size=8, shuffle=True)
model = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for (t,) in loader:
        scores, target = model(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(scores, target, ignore_index=0, reduction="sum")
        loss = loss / (target > 0).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch)
"""
EDITS = (
    ("import torch\n", "import torch\nimport dl_comm.torch as dl\ndl.init()\nprint = dl.print\n"),
    ("lr=0.1)", "lr=dl.lr_scale(0.1))\ndl.broadcast(model)"),
    ("shuffle=True)", "shuffle=True)\nloader = dl.shard(loader)"),
    ("        optimizer.step()", "        dl.gradients(optimizer)\n        optimizer.step()"),
)


@pytest.mark.parametrize(
    ("loss", "faults"),
    [
        ("loss / dl.average((target > 0).sum())", set()),
        ("loss * dl.get_nranks() / dl.total((target > 0).sum())", set()),
        ("loss / dl.total((target > 0).sum())", {"no-mean"}),
    ],
)
def test_a_mean_over_the_tokens_of_all_ranks_is_divided_once(loss, faults, prove) -> None:
    port = SERIAL.replace("loss / (target > 0).sum()", loss)
    for text, replacement in EDITS:
        port = port.replace(text, replacement)
    verdict = prove(port, serial=SERIAL)
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    assert verdict.faults == faults
    assert verdict.proved == (not faults)
    assert not faults or any("divided by a sum over 2 ranks" in check.finding for check in verdict.checks)
