"""Gradients that something else than dl_comm.torch averages are judged by their values."""

from __future__ import annotations

import pytest
from by_hand import event, note, run

from dlrun.verify.checks.gradients import mean_gradients, otherwise
from dlrun.verify.checks.start import broadcast

MADE = ([1.0, 3.0], [3.0, -1.0])  # of two ranks: their mean is [2, 1]


def rank(made: list[float], used: list[float], start: float = 1.0):
    facts = {"names": ["weight"], "ids": [0], "broadcast": [False], "params": [note(start)]}
    given = {"lr": [0.1], "states": {}, "drew": [], "params": [note(0.5)], "grads": [note(*used)]}
    made_of = {"made": [note(*made)]} if made != used else {}
    steps = event("step", "train.py:9", step=1, optimizer=0, **given, **made_of)
    return [event("optimizer", optimizer=0, type="SGD", **facts), event("backward"), steps]


@pytest.mark.parametrize(
    ("used", "fault"),
    [
        ([2.0, 1.0], ""),
        ([1.0, 0.5], "no-mean"),  # divided twice
        ([1.6, 0.8], ""),  # clipped then
        ([4.0, 2.0], "no-mean"),  # a sum
        ([1.3, 0.9], "average-after-clip"),
        (None, "missing-average"),
    ],
)
def test_what_a_step_uses_is_compared_with_the_mean_of_what_backward_made(used, fault) -> None:
    ranks = run(*(rank(made, used or made) for made in MADE))
    check = mean_gradients(ranks)
    assert check.fault == fault, check
    assert bool(otherwise(ranks)) == (used is not None)


@pytest.mark.parametrize(("starts", "status"), [((1.0, 1.0), "n/a"), ((1.0, 2.0), "failed")])
def test_parameters_that_something_else_has_sent_have_to_be_alike(starts, status) -> None:
    ranks = run(*(rank(made, [2.0, 1.0], start) for made, start in zip(MADE, starts, strict=True)))
    assert broadcast(ranks, True).status == status
    assert broadcast(ranks).status == "failed"


SERIAL = """
import torch

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randn(64, 1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.nn.init.normal_(model.weight)
for epoch in range(4):
    for i in range(0, len(x), 8):
        optimizer.zero_grad()
        (model(x[i : i + 8] + 0.1 * torch.randn(8, 4)) - y[i : i + 8]).square().mean().backward()
        optimizer.step()
    print(epoch)
"""
OF_ARRAYS = (
    (
        "import torch\n",
        "import torch\nimport ml_comm as mc\n\nmc.init_mpi()\nrank, size = mc.get_rank(), mc.get_nranks()\n",
    ),
    ("lr=0.1", "lr=0.1 * size"),
    (
        "for epoch",
        "mc.broadcast([p.data.numpy() for p in model.parameters()], 0)\n"
        "x, y = x[rank::size], y[rank::size]\ntorch.manual_seed(7 + rank)\nfor epoch",
    ),
    (
        "        optimizer.step()\n",
        "        means = mc.gradients([p.grad for p in model.parameters()], 0)\n"
        "        for p, mean in zip(model.parameters(), means):\n            p.grad = mean\n        optimizer.step()\n",
    ),
    ("    print(epoch)", "    if rank == 0:\n        print(epoch)"),
)
ONE = (
    "mc.gradients([p.grad for p in model.parameters()], 0)",
    "[*mc.gradients([model.weight.grad], 0), model.bias.grad]",
)


@pytest.mark.parametrize(
    ("wrong", "faults"),
    [
        ((), set()),
        (ONE, {"missing-average"}),
        (("manual_seed(7 + rank)", "manual_seed(7 + 0 * rank)"), {"equal-seeds"}),
    ],
    ids=["right", "one-gradient", "equal-seeds"],
)
@pytest.mark.wide("equal-seeds")
def test_a_port_with_the_plugin_s_names_for_arrays_and_seeds_by_rank(wrong, faults, prove) -> None:
    port = SERIAL
    for text, replacement in OF_ARRAYS:
        assert text in port
        port = port.replace(text, replacement)
    verdict = prove(port.replace(*wrong) if wrong else port, serial=SERIAL)
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    assert verdict.faults == faults
    assert verdict.proved == (not faults)
