"""Parameters that an optimizer is given while it trains, such as those of layers that thaw, are judged like others."""

from __future__ import annotations

import pytest
from by_hand import averaged, event, note, optimizer, run, step

from dlrun.verify.checks.gradients import mean_gradients
from dlrun.verify.checks.ranks import equal
from dlrun.verify.checks.start import broadcast


def thawed(own: float, after: float, sent: bool = True, start: float = 2.0):
    """One rank's steps: with one parameter, then with two, of which dl.gradients() averages the first alone."""
    facts = {"names": ["layer"], "ids": [1], "broadcast": [sent], "params": [note(start)]}
    both = {"grads": [note(0.5), note(own)], "params": [note(0.8), note(after)]}
    return [
        optimizer(),
        averaged(0.5, 0.5),
        step(1, 0.9),
        event("joined", "train.py:7", optimizer=0, **facts),
        averaged(0.5, 0.5),
        step(2, 0.8, **both),
    ]


def test_a_gradient_of_a_later_parameter_that_is_not_averaged_is_named() -> None:
    ranks = run(thawed(1.0, 1.9), thawed(3.0, 1.7))
    found = mean_gradients(ranks), equal(ranks)
    assert [(check.fault, check.parameter, check.step) for check in found] == [
        ("missing-average", "layer", 2),
        ("ranks-differ", "layer", 2),
    ]


@pytest.mark.parametrize(
    ("sent", "start", "status"), [(True, 2.0, "passed"), (False, 2.0, "failed"), (True, 2.5, "failed")]
)
def test_a_later_parameter_has_to_be_broadcast_too(sent: bool, start: float, status: str) -> None:
    check = broadcast(run(thawed(1.0, 1.9, sent), thawed(1.0, 1.9, sent, start)))
    assert check.status == status, check
    assert status == "passed" or check.parameter == "layer"


SERIAL = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8, shuffle=True)
body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
model = torch.nn.Sequential(body, torch.nn.Tanh(), head)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
trained = list(head.parameters())
for epoch in range(3):
    if epoch == 1:
        optimizer.add_param_group({"params": body.parameters(), "lr": 0.05})
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""
EDITS = (
    ("import torch\n", "import torch\nimport dl_comm.torch as dl\ndl.init()\n"),
    ("lr=0.1)", "lr=dl.lr_scale(0.1))\ndl.broadcast(model)"),
    ("0.05", "dl.lr_scale(0.05)"),
    ("shuffle=True)", "shuffle=True)\nloader = dl.shard(loader)"),
    ("        optimizer.step()", "        dl.gradients(trained)\n        optimizer.step()"),
)


def test_a_list_of_parameters_that_was_made_before_others_joined_is_no_more_whole(prove) -> None:
    port = SERIAL
    for text, replacement in EDITS:
        port = port.replace(text, replacement)
    verdict = prove(port, serial=SERIAL)
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    assert verdict.faults == {"missing-average"}
    assert any(check.parameter == "0.weight" and check.step == 4 for check in verdict.checks)
