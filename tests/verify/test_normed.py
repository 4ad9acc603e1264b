"""Statistics of batch norm that each rank has moved by its own samples are a fault where a model is used with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from by_hand import event, note, run, step

from dlrun.port import port
from dlrun.verify.checks.normed import moved, normed
from dlrun.verify.trace import Event


def rank(own: str, *used: Event) -> list[Event]:
    """A rank that has made one step, with its own statistics, and uses them."""
    return [event("forward", statistics=own), step(1, 0.9), *used]


def evaluated(statistics: str, moved: bool = False) -> Event:
    return event("evaluated", "t.py:7", statistics=statistics, moved=moved)


def saved(value: float, name: str = "net.bn.running_mean") -> Event:
    return event("saved", "t.py:8", tensors={name: {"kind": "saved", "note": note(value)}})


@pytest.mark.parametrize(
    ("mine", "theirs", "fault"),
    [
        ([evaluated("a")], [evaluated("b")], "statistics-differ"),
        ([evaluated("m")], [evaluated("m")], ""),
        ([evaluated("m")], [event("return", fn="average", statistics="m")], ""),  # rank 0 alone evaluates
        ([evaluated("a")], [], "statistics-differ"),
        ([saved(1.0)], [saved(1.5)], "statistics-differ"),
        ([saved(1.0)], [saved(1.0)], ""),
        ([saved(1.0, "net.memory")], [saved(1.5, "net.memory")], ""),
        ([event("plain save", "t.py:8", statistics="a", holds=True)], [], "statistics-differ"),
        ([event("plain save", "t.py:8", statistics="a", holds=False)], [], ""),
    ],
)
def test_what_is_evaluated_or_saved_has_the_statistics_of_all_ranks(
    mine: list[Event], theirs: list[Event], fault: str
) -> None:
    check = normed(run(rank("a", *mine), rank("b", *theirs)))
    assert (check.fault if check else "") == fault
    assert normed(run(rank("a", *mine), rank("a", *theirs))) is None  # as with sync_batchnorm()


@pytest.mark.parametrize(("own", "apart"), [(True, True), (False, True), (True, False)])
def test_in_runs_that_go_on_what_was_averaged_is_told_by_the_calls(own: bool, apart: bool) -> None:
    few, further = run(rank("a"), rank("b" if apart else "a")), run(rank("", evaluated("x", own)), rank(""))
    check = moved(few, further)
    assert (check.fault if check else "") == ("statistics-differ" if own and apart else "")


SERIAL = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(48, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""


def test_statistics_that_are_saved_behind_all_steps_are_found_and_the_port_is_right(
    prove: Callable,
) -> None:
    right = port(SERIAL).text
    assert "dl.average(model)" in right
    wrong = "\n".join(line for line in right.splitlines() if "dl.average(model)" not in line)
    assert prove(wrong, serial=SERIAL, shows=True).faults == {"statistics-differ"}


AVERAGED = SERIAL.replace(
    'torch.save(model.state_dict(), "model.pt")',
    """    swa.update_parameters(model)
update_bn(loader, swa)
swa.eval()
print(f"{nn.functional.mse_loss(swa(x), x.sum(1, keepdim=True)).item():.4f}")""",
).replace("optimizer = ", "swa = AveragedModel(model)\noptimizer = ")
AVERAGED = AVERAGED.replace(
    "from torch import nn\n", "from torch import nn\nfrom torch.optim.swa_utils import AveragedModel, update_bn\n"
)


@pytest.mark.parametrize(("loader", "fault"), [("loader", set()), ("dl.shard(loader)", {"statistics-differ"})])
def test_statistics_that_an_average_of_models_is_given_of_a_shard_are_found(
    loader: str, fault: set[str], prove: Callable
) -> None:
    text = port(AVERAGED).text
    assert "dl.average(swa)" in text
    if fault:
        text = "\n".join(line for line in text.splitlines() if "dl.average(swa" not in line)
    assert prove(text.replace("update_bn(loader", f"update_bn({loader}"), serial=AVERAGED, shows=True).faults == fault
