"""Batches laid out (time, batch), as recurrent layers take them: a port that cuts the time is no port."""

from __future__ import annotations

import pytest

SERIAL = """
import torch

torch.manual_seed(0)
series = torch.randn(200).cumsum(0)
model = torch.nn.GRU(1, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    begins = torch.randint(180, (4,))
    x = torch.stack([series[i : i + 8] for i in begins], 1).unsqueeze(-1)
    loss = torch.nn.functional.mse_loss(model(x)[0].mean(-1), x.squeeze(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
EDITS = (
    ("import torch\n", "import torch\nimport dl_comm.torch as dl\ndl.init()\n"),
    ("lr=0.1)", "lr=0.1)\ndl.broadcast(model)"),
    ("    optimizer.step()", "    dl.gradients(optimizer)\n    optimizer.step()"),
)
CUT = "unsqueeze(-1)\n    x = "


@pytest.mark.parametrize(
    ("x", "fault"),
    [("dl.shard(x.transpose(0, 1)).transpose(0, 1)", ""), ("dl.shard(x)", "other-gradient")],
    ids=["samples", "time"],
)
def test_shares_of_what_is_drawn_are_cut_along_the_samples(x, fault, prove) -> None:
    port = SERIAL.replace("unsqueeze(-1)", f"{CUT}{x}", 1)
    for text, replacement in EDITS:
        port = port.replace(text, replacement)
    verdict = prove(port, serial=SERIAL)
    (check,) = (check for check in verdict.checks if check.name == "same global batch")
    assert (check.status, check.fault) == ("failed" if fault else "passed", fault)
    assert not fault or "of (time, batch), cut x.transpose(0, 1)" in check.todo
    assert verdict.proved == (not fault)
