"""Scripts that train one model after the other, as folds do: what is wrong in the last one alone is found there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import averaged, event, optimizer, run, step

from dlrun.verify.checks.throughout import throughout
from dlrun.verify.trace import Event

SERIAL = """
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
order = torch.randperm(60).tolist()
for k in range(3):
    held = order[20 * k : 20 * (k + 1)]
    train = DataLoader(Subset(data, [i for i in order if i not in held]), batch_size=4, shuffle=True)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        for x, y in train:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    with torch.no_grad():
        hits = sum(int(model(x).argmax() == y) for x, y in Subset(data, held))
    print(f"fold {k}: {hits / 20:.4f}")
"""
EDITS = (
    ("import torch\n", "import torch\nimport dl_comm.torch as dl\ndl.init()\nprint = dl.print\n"),
    ("lr=0.1)", "lr=dl.lr_scale(0.1))\n    dl.broadcast(model, optimizer)\n    dl.reseed()"),
    ("shuffle=True)", "shuffle=True)\n    train = dl.shard(train)"),
    ("            optimizer.step()", "            dl.gradients(optimizer)\n            optimizer.step()"),
)


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        ("dl.gradients(optimizer)", "k < 2 and dl.gradients(optimizer)", "missing-average"),
        ("dl.lr_scale(0.1)", "(dl.lr_scale(0.1) if k < 2 else 0.1)", "lost-scaling"),
        ("", "", ""),
    ],
)
def test_a_fault_in_the_last_fold_alone_is_named_and_nothing_in_a_right_port(right, wrong, fault, prove) -> None:
    port = SERIAL
    for text, replacement in EDITS:
        port = port.replace(text, replacement)
    verdict = prove(port.replace(right, wrong), serial=SERIAL, shows=True, budget=600.0)
    print(*(check for check in verdict.checks if check.status != "passed"), sep="\n")
    assert verdict.faults == ({fault} if fault else set())
    assert verdict.proved == (not fault)


def fold(number: int, rate: float, *used: Event, broadcast: bool = True) -> list[Event]:
    made = optimizer(broadcast=broadcast).facts | {"base": [rate], "optimizer": number}
    made_step = step(number + 1, 0.9)
    return [event("optimizer", **made), *used, event("step", **made_step.facts | {"optimizer": number})]


def test_what_holds_in_the_first_steps_is_asked_of_all() -> None:
    serial, mean = run([*fold(0, 0.1), *fold(1, 0.1)]), averaged(0.5, 0.5)
    sharded = run(*[fold(0, 0.2, mean)] * 2)

    def found(*last: Event) -> str:
        check = throughout(serial, run(*[[*fold(0, 0.2, mean), *last]] * 2), sharded)
        return check.fault if check else ""

    assert found(*fold(1, 0.2, mean)) == ""
    assert found(*fold(1, 0.1, mean)) == "lost-scaling"
    assert found(*fold(1, 0.2)) == "missing-average"
    assert found(*fold(1, 0.2, mean, broadcast=False)) == "missing-broadcast"


@pytest.mark.parametrize(
    ("rate", "rule", "fault"),
    [(0.2, "", ""), (0.1, "", "lost-scaling"), (0.4, "", "double-scaling"), (0.1, "none", "")],
)
def test_an_optimizer_of_a_later_phase_is_scaled_as_those_before_it(rate: float, rule: str, fault: str) -> None:
    def phases(*rates: float) -> list[Event]:
        told = [event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear")] if rates[0] == 0.2 else []
        told += [event("return", fn="lr_scale", lr=0.1, result=0.1, rule=rule)] if rule else []
        for number, rate in enumerate(rates):
            optimizes, _, stepped = fold(number, rate, averaged(0.5, 0.5))
            told += [
                replace(optimizes, at=f"t.py:{number}"),
                averaged(0.5, 0.5),
                event("step", **stepped.facts | {"lr": [rate]}),
            ]
        return told

    check = throughout(run(phases(0.1, 0.1)), run(*[phases(0.2, rate)] * 2), run(*[phases(0.2)] * 2))
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(("source", "fault"), [("rate = 0.05 * 0.4", "lost-scaling"), ("least = 2e-2", ""), ("", "")])
def test_a_rate_that_is_computed_is_no_least_one(source: str, fault: str) -> None:
    def trained(*rates: float) -> list[Event]:
        told = [event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear")] if rates[0] == 0.2 else []
        told += fold(0, rates[0], averaged(0.5, 0.5))[:1]
        steps = [event("step", **step(i, 0.9).facts | {"lr": [rate]}) for i, rate in enumerate(rates, 1)]
        return told + [e for each in steps for e in (averaged(0.5, 0.5), each)]

    ranks = run(*[trained(0.2, 0.1, 0.02)] * 2)
    check = throughout(run(trained(0.1, 0.05, 0.02)), ranks, run(*[trained(0.2)] * 2), source)
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(
    ("serial", "rates", "fault"),
    [
        ((0.1, 0.02), (0.2, 0.04), ""),
        ((0.1, 0.02), (0.2, 0.02), "lost-scaling"),
        ((0.1, 0.02), (0.2, 0.08), "double-scaling"),
        ((0.1, 0.02), (0.2, 0.03), ""),  # of which other checks tell
        ((0.1, 0.02), (0.2, 0.02, 0.04), ""),  # which go on otherwise than the serial ones
        ((0.1, 0.05, 0.02, 0.01), (0.2, 0.1, 0.02, 0.01), "lost-scaling"),  # behind a warm-up
        ((0.1, 0.05, 0.02, 0.01), (0.2, 0.1, 0.04, 0.01), ""),  # a least one
        ((0.1, 0.05, 0.02, 0.0), (0.2, 0.1, 0.04, 0.0), ""),
    ],
)
def test_a_rate_that_is_set_anew_is_scaled_as_the_one_before_it(serial, rates, fault: str) -> None:
    def phases(*rates: float) -> list[Event]:
        told = [event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear")] if rates[0] == 0.2 else []
        told += fold(0, rates[0], averaged(0.5, 0.5))[:1]
        for number, rate in enumerate(rates, 1):
            stepped = event("step", f"t.py:{number}", **step(number, 0.9).facts | {"lr": [rate]})
            told += [averaged(0.5, 0.5), stepped]
        return told

    check = throughout(run(phases(*serial)), run(*[phases(*rates)] * 2), run(*[phases(0.2)] * 2))
    assert (check.fault if check else "") == fault
    assert not check or check.where == f"t.py:{3 if len(serial) > 2 else 2}"
