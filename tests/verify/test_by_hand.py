"""Updates that a script makes without an optimizer are steps; what an optimizer changes is not taken for one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import torch
from by_hand import averaged, event, note, run, step

from dlrun.verify.checks.rate import learning_rate
from dlrun.verify.runs import Task, execute, orders
from dlrun.verify.trace import Event
from dlrun.verify.tracer.by_hand import ByHand, rate
from dlrun.verify.tracer.recorder import Orders
from dlrun.verify.tracer.tensors import leaves, tensor_note


class Journal:
    """What the updates are noted in."""

    def __init__(self) -> None:
        self.steps, self.events, self.orders = 0, [], Orders("", "", "", "", 6, 3)

    def note(self, kind: str, **facts: Any) -> None:
        self.events.append((kind, facts))


def backward(by_hand: ByHand, weight: Any) -> None:
    by_hand.settle(dict)
    weight.grad = None
    loss = (2 * weight).sum()
    reached = list(leaves(loss))
    loss.backward()
    by_hand.reached(reached)


def test_a_change_between_two_backwards_is_a_step_with_the_gradients_before_it() -> None:
    journal, weight = Journal(), torch.ones(3, requires_grad=True)
    by_hand = ByHand(journal, lambda parameters: {"params": [tensor_note(p) for p in parameters]})  # type: ignore[arg-type]
    for _ in range(2):
        backward(by_hand, weight)
        weight.data.sub_(0.1 * weight.grad)
    by_hand.settle(dict)
    by_hand.settle(dict)
    assert [kind for kind, _ in journal.events] == ["optimizer", "step", "step"]
    params = [facts["params"][0]["norm"] for _, facts in journal.events]
    assert params == pytest.approx([3**0.5, 0.8 * 3**0.5, 0.6 * 3**0.5])
    assert journal.events[1][1]["grads"][0]["norm"] == pytest.approx(12**0.5)


@pytest.mark.parametrize(
    ("serial", "ranks", "averages", "fault"),
    [
        ([0.1], [0.2], True, ""),
        ([0.1], [], True, "lost-scaling"),  # of one parameter the rate is scaled, and of another it is not
        ([0.1], [], False, ""),  # averaged by another library: the mean is not seen
        ([], [], True, ""),  # momentum by hand
    ],
)
def test_all_parameters_move_by_one_rate_where_they_do_so_on_1_rank(serial, ranks, averages, fault) -> None:
    def made(rates: list[float]) -> list[Event]:
        facts = {"names": ["w"], "ids": [0], "broadcast": [True], "params": [note(1.0)]}
        begun = [event("optimizer", optimizer=0, type="by hand", **facts), *[averaged(0.5, 0.5)] * averages]
        steps = [step(k, 1 - k / 10) for k in (1, 2)]
        return [*begun, *(replace(each, facts=each.facts | {"lr": rates}) for each in steps)]

    assert learning_rate(run(made(serial)), run(made(ranks), made(ranks))).fault == fault


def test_what_an_optimizer_changes_is_no_step_by_hand() -> None:
    journal, weight = Journal(), torch.ones(3, requires_grad=True)
    by_hand = ByHand(journal, lambda parameters: {})  # type: ignore[arg-type]
    backward(by_hand, weight)
    by_hand.wanted = False  # an optimizer is about to step
    weight.data.sub_(1)
    by_hand.settle(dict)
    assert journal.steps == 0


def test_what_an_optimizer_holds_is_no_step_by_hand_where_it_looks_ahead_before_its_first_step() -> None:
    journal, weight = Journal(), torch.ones(3, requires_grad=True)
    by_hand = ByHand(journal, lambda parameters: {})  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([weight], lr=0.1)
    by_hand.optimizers.add(optimizer)
    backward(by_hand, weight)
    weight.data.add_(0.05 * weight.grad)  # as SAM does
    backward(by_hand, weight)
    assert journal.steps == 0


SCRIPT = """import dl_comm.torch as dl
import torch
dl.init()
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.ones(3, 2))
    opt.zero_grad()
    torch.nn.functional.mse_loss(y.float(), torch.tensor([[1.0], [2.0], [1.0]])).backward()
    model.weight.grad.clamp_(-0.1, 0.1)
    dl.gradients(opt)
    opt.step()
"""


def test_targets_autocast_and_gradients_that_are_changed_by_hand_are_noted(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    given = orders(2, 2, lineage=True)
    done = execute(Task("run", tmp_path / "train.py", (), 1, tmp_path / "runs" / "run", given, {}, 60.0))
    assert done.whole, done.log
    one, two, three = done.root.first("loss")["rows"]["target"]
    assert one == three != two
    assert done.root.first("autocast")["type"] == "bfloat16"
    weight, bias = next(done.root.returns("gradients"))["made"]
    assert weight["norm"] > 0.2
    assert bias is None


@pytest.mark.parametrize(("momentum", "rates"), [(0.0, [0.25]), (0.9, [])])
def test_the_rate_of_an_update_by_hand_is_seen_where_it_takes_a_multiple_of_the_gradient(momentum, rates) -> None:
    before, gradient = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, -1.0, 2.0])
    after = before - 0.25 * gradient - momentum * torch.tensor([1.0, 0.0, 0.0])
    notes = ([tensor_note(t), None] for t in (before, after, gradient))
    found = rate(*notes)
    assert found == pytest.approx(rates)
