"""The serial global batch on real ranks: with noise that is drawn for samples, and a loss that is a sum over them."""

from __future__ import annotations

import pytest

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


FULL = """
import torch
import dl_comm.torch as dl

dl.init()
torch.manual_seed(0)
x, y = torch.randn(96, 4), torch.rand(96)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.{optimizer}
dl.broadcast(model, optimizer)
x, y = dl.shard((x, y), batch="global")


def closure():
    optimizer.zero_grad()
    loss = {loss}
    loss.backward()
    dl.gradients(optimizer)
    return dl.average(loss.detach())


for epoch in range(6):
    optimizer.step(closure)
"""
SGD, ADAM = "SGD(model.parameters(), lr=0.1)", "Adam(model.parameters(), lr=0.01)"
LBFGS = 'LBFGS(model.parameters(), line_search_fn="strong_wolfe")'
MEAN = "(model(x)[:, 0] - y).pow(2).mean()"
RISK = "-(model(x)[:, 0] - model(x)[:, 0].logcumsumexp(0)).mean()"  # of a sample among all that come before it


@pytest.mark.parametrize(
    ("optimizer", "loss", "status", "said"),
    [
        (ADAM, MEAN, "passed", "2 ranks with their shares reproduce the serial parameters"),
        (LBFGS, MEAN, "n/a or passed", ""),  # its line searches make much of rounding
        (SGD, f"{MEAN}.sqrt()", "failed", "of what it moved"),
        (ADAM, RISK, "failed", "of what it moved"),
    ],
    ids=["mean", "line-search", "root", "rank-order"],
)
def test_a_full_batch_that_is_cut_leaves_the_serial_parameters_where_the_loss_is_a_mean(
    prove, optimizer: str, loss: str, status: str, said: str
) -> None:
    port = FULL.format(optimizer=optimizer, loss=loss)
    serial = port.replace("import dl_comm.torch as dl\n", "").replace("dl.init()\n", "")
    for text in (
        "dl.broadcast(model, optimizer)\n",
        'x, y = dl.shard((x, y), batch="global")\n',
        "    dl.gradients(optimizer)\n",
    ):
        serial = serial.replace(text, "")
    verdict = prove(port, serial=serial.replace("dl.average(loss.detach())", "loss.detach()"))
    found = next(check for check in verdict.checks if check.name == "same global batch")
    assert found.status in status and said in found.finding, found.finding
    assert verdict.faults == ({"other-gradient"} if status == "failed" else set())
