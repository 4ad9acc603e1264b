"""The serial global batch on real ranks: with noise that is drawn for samples, and a loss that is a sum over them."""

from __future__ import annotations

SERIAL = """
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
evaluated = DataLoader(TensorDataset(torch.zeros(12, 4)), batch_size=8)  # the last batch is as long as a rank's share
encoder, decoder = torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(2, 4))
model = torch.nn.ModuleList([encoder, decoder])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(4):
    for (x,) in loader:
        mean, spread = encoder(x + np.random.normal(0, 0.1, (len(x), 4)).astype("f")).chunk(2, dim=1)
        latent = mean + torch.randn_like(spread) * torch.exp(spread)
        loss = torch.nn.functional.mse_loss(decoder(latent), x, reduction="sum") + mean.pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for (x,) in evaluated:
        torch.randn(len(x), 2)
"""
EDITS = (
    ("import torch\n", "import torch\nimport dl_comm.torch as dl\ndl.init()\n"),
    ("model.parameters(), lr=1e-3)", "model.parameters(), lr=dl.lr_scale(1e-3))\ndl.broadcast(model)\ndl.reseed()"),
    ("shuffle=True)", "shuffle=True)\nloader = dl.shard(loader)"),
    ("        optimizer.step()", "        dl.gradients(optimizer)\n        optimizer.step()"),
)


def test_ranks_reproduce_a_training_with_noise_and_a_loss_that_is_a_sum(prove) -> None:
    port = SERIAL
    for text, replacement in EDITS:
        port = port.replace(text, replacement)
    verdict = prove(port, serial=SERIAL)
    assert [(check.name, check.finding) for check in verdict.checks if check.status == "failed"] == []
    found = next(check for check in verdict.checks if check.name == "same global batch")
    assert found.status == "passed"
    assert "with dropout off, each with its samples' part of the noise" in found.finding
    assert "the parts of a loss that is a sum added up" in found.finding
