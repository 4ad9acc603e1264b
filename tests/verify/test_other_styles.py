"""Right ports of other styles are proved, and what is wrong with them is found, on two real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import APART, BACKWARD, SHARD, STEP, Fault, mutated

from dlrun.port import port

SCRIPTS = Path(__file__).parent / "scripts"

AUGMENTED = (  # in workers, beside TorchScript; a schedule that steps with every batch; a weight decay
    (
        "train_loader = DataLoader(train_set, batch_size=8, shuffle=True)\n",
        "class Noisy(TensorDataset):\n    def __getitem__(self, i):\n        x, y = super().__getitem__(i)\n"
        "        return x + 0.01 * torch.randn(8), y\n\n\n"
        "@torch.jit.interface\nclass Layer(nn.Module):\n"
        "    def forward(self, x: torch.Tensor) -> torch.Tensor:\n        pass\n\n\n"
        "train_loader = DataLoader(Noisy(*train_set.tensors), batch_size=8, shuffle=True, num_workers=1, "
        "persistent_workers=True)\n",
    ),
    (
        "momentum=0.9)",
        "momentum=0.9, weight_decay=1e-3)\n"
        "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20 * len(train_loader))",
    ),
    (STEP, STEP + "        schedule.step()\n"),
)
RECIPE = [
    Fault("schedule-too-long", (("20 * len(train_loader)", "20 * 12"),), "learning rate", where="schedule.step()"),
    Fault("other-options", (("weight_decay=1e-3", "weight_decay=dl.lr_scale(1e-3)"),), "options", where="optimizer."),
    Fault("equal-seeds", (("dl.reseed()\n", ""),), "own random numbers", where="in train_loader"),
    Fault("uneven-steps", (("range(20)", "range(20 - dl.get_rank())"),), "same steps", where="for epoch in"),
]


@pytest.mark.parametrize("faults", [[], RECIPE], ids=["right", "wrong"])
def test_schedules_options_workers_and_counts_of_epochs_are_those_of_the_serial_script(faults, prove, port) -> None:
    serial = mutated((SCRIPTS / "train.py").read_text(), Fault("", AUGMENTED, ""))
    text = right = mutated(port, Fault("", AUGMENTED, ""))
    for fault in faults:
        text = mutated(text, fault)
    verdict = prove(text, serial=serial, alike=right)
    failed = {check.name: check for check in verdict.checks if check.status == "failed"}
    print(*failed.values(), sep="\n")
    assert {name: check.fault for name, check in failed.items()} == {fault.check: fault.name for fault in faults}
    for fault in faults:
        assert fault.where in text.splitlines()[int(failed[fault.check].where.rpartition(":")[2]) - 1]
    if not faults:
        (drawn,) = (check for check in verdict.checks if check.name == "own random numbers")
        assert "torch in the DataLoader's workers" in drawn.finding
        assert "as they are read" in verdict.checks[-1].finding


SMOOTH = (  # a number that the loop carries on, made of losses
    ("best, bad = float", "smooth = 1.0\nbest, bad = float"),
    (STEP, STEP + "        smooth = 0.9 * smooth + {}\n"),
    (BACKWARD, "        (loss / smooth).backward()\n"),
)
COUNTED = (
    ("args.samples + 31", "args.samples + 32"),
    ("    model.train()\n", "    model.train()\n    seen = right = 0\n"),
    (
        "        optimizer.step()\n",
        "        optimizer.step()\n        seen += len(targets)\n        right += loss.item() * len(targets)\n",
    ),
)
SUMMED = (
    ("test_loader = DataLoader(test_set, batch_size=10)", "test_loader = dl.shard(DataLoader(test_set, batch_size=8))"),
    ("total / len(test_set)", "dl.total(total) / len(test_set)"),
    ("correct / len(test_set)", "dl.total(correct) / len(test_set)"),
)


def counting(text: str, total: str, loss: str, steps: str, *more: tuple[str, str]) -> str:
    """Return a script that carries a number on, counts while it trains, and shows that after the evaluation.

    So it does the number of batches that it trains on.
    """
    show = f"    print({total.format('right')} / {total.format('seen')}, {steps.format('len(train_loader)')})\n"
    edits = (
        *((a, b.format(loss)) for a, b in SMOOTH),
        *COUNTED,
        ("    if val_loss < best:\n", f"{show}    if val_loss < best:\n"),
    )
    return mutated(text, Fault("", (*edits, *more), ""))


@pytest.mark.parametrize("shares", [True, False], ids=["shared", "repeated"])
@pytest.mark.wide("repeated")
def test_what_is_carried_on_is_averaged_and_sums_over_ranks_are_of_evaluations_that_they_share(
    shares, prove, port
) -> None:
    serial = counting((SCRIPTS / "train.py").read_text(), "{}", "loss.item()", "{}")
    steps = "dl.serial_steps({})"
    loss = "dl.average(loss.item())" if shares else "loss.item()"
    verdict = prove(counting(port, "dl.total({})", loss, steps, *SUMMED[0 if shares else 1 :]), serial=serial)
    failed = [check for check in verdict.checks if check.fault]
    print(*failed, sep="\n")
    right = [("state-differs", "smooth"), ("metric-counted-by-all", "")]
    assert [(check.fault, check.parameter) for check in failed] == ([] if shares else right)


def test_ranks_of_an_unseeded_script_start_apart_without_a_broadcast_and_make_data_of_their_own(prove, port) -> None:
    serial = (SCRIPTS / "train.py").read_text().replace("torch.manual_seed(0)\n", "")
    text = port.replace("torch.manual_seed(0)\n", "").replace("dl.broadcast(model, optimizer)\n", "")
    verdict = prove(text.replace("dl.init()", "dl.init(alike=False)"), serial=serial, seed=1)
    failed = {check.name: check for check in verdict.checks if check.status == "failed"}
    print(*failed.values(), sep="\n")
    assert verdict.faults == {"missing-broadcast", "data-differs"}
    assert set(failed) == {"broadcast", "shards", *APART} - {"state and copies"}  # momentum is made of means
    assert "start from different weights" in failed["broadcast"].finding


RANKS = "range(dl.get_rank(), len(train_set), dl.get_nranks())"
SCALED = ("dl.lr_scale(args.lr)", "args.lr * dl.get_nranks()")
OF_ITS_OWN = (
    SCALED,
    (
        SHARD,
        f"train_set = torch.utils.data.Subset(train_set, {RANKS})\n"
        "train_loader = DataLoader(train_set, batch_size=8, shuffle=True)\n",
    ),
)


@pytest.mark.parametrize(("loss", "faults"), [("loss", set()), ("(loss * (1.0 / dl.get_nranks()))", {"no-mean"})])
def test_a_port_that_shares_its_data_by_the_ranks_numbers_is_told_that_it_is_alone(loss, faults, prove, port) -> None:
    edits = (*OF_ITS_OWN, (BACKWARD, f"        {loss}.backward()\n"))
    verdict = prove(mutated(port, Fault("", edits, "")))
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    assert verdict.faults == faults
    assert verdict.proved == (not faults)


SLICED = (
    ("dl.lr_scale(args.lr)", "args.lr"),
    (SHARD, ""),
    ("dl.reseed()\n", ""),
    (
        "for inputs, targets in train_loader:\n",
        "for inputs, targets in train_loader:\n"
        "        inputs, targets = (each[dl.get_rank() :: dl.get_nranks()] for each in (inputs, targets))\n",
    ),
)


@pytest.mark.parametrize(
    ("edits", "faults"),
    [(SLICED, set()), (SLICED[2:], {"lost-samples"}), ((SCALED, *SLICED[1:]), {"scaled-rate"})],
    ids=["right", "sliced-twice", "scaled"],
)
@pytest.mark.wide("sliced-twice")
def test_a_batch_that_each_rank_cuts_for_itself_is_the_serial_one(edits, faults, prove, port) -> None:
    verdict = prove(mutated(port, Fault("", edits, "")))
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    assert verdict.faults == faults
    assert faults or "2 ranks with their shares" in verdict.checks[-1].finding or "x 4" in verdict.checks[-1].finding


STYLE = (  # the sqrt rule, a warm-up, an optimizer that averages itself
    ("dl.lr_scale(args.lr)", 'dl.lr_scale(args.lr, "sqrt")'),
    ("dl.reseed()\n", "dl.warmup(optimizer, dl.steps(lambda step: step + 4)(0))\ndl.reseed()\n"),
    ("dl.broadcast(model, optimizer)\n", "optimizer = dl.DistributedOptimizer(optimizer)\n"),
)


def test_a_right_port_in_another_style_is_proved(prove, port) -> None:
    verdict = prove(mutated(port, Fault("", STYLE, "")))
    assert [(c.name, c.finding) for c in verdict.checks if c.status == "failed"] == []
    assert verdict.proved


TWO = (  # a second loader goes along with the first
    (BACKWARD, "        loss = loss + 0.1 * model(unlabelled).square().mean()\n" + BACKWARD),
    ("for inputs, targets in train_loader:", "for (inputs, targets), (unlabelled, _) in zip(train_loader, others):"),
    (
        "test_loader = DataLoader(test_set, batch_size=10)\n",
        "test_loader = DataLoader(test_set, batch_size=10)\n"
        "others = DataLoader(TensorDataset(x[: args.samples] + 1, y[: args.samples]), batch_size=8, shuffle=True)\n",
    ),
)


@pytest.mark.parametrize("forgotten", ["", SHARD, "others = dl.shard(others)\n"])
def test_every_loader_that_trains_has_to_be_shared(forgotten, prove, port) -> None:
    serial = mutated((SCRIPTS / "train.py").read_text(), Fault("", TWO, ""))
    text = mutated(port, Fault("", (*TWO, ("model = nn.", "others = dl.shard(others)\nmodel = nn.")), ""))
    verdict = prove(text.replace(forgotten, ""), serial=serial, alike=text)
    failed = [check for check in verdict.checks if check.status == "failed"]
    print(*failed, sep="\n")
    assert [check.fault for check in failed] == (["unsharded-loader"] if forgotten else [])
    if forgotten:
        assert forgotten.split()[0] in text.replace(forgotten, "").splitlines()[int(failed[0].where.split(":")[1]) - 1]


DRAWN = """import numpy as np
import torch

np.random.seed(0)
torch.manual_seed(0)
x = np.random.rand(96, 8)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step, best = 0, 9.0
for epoch in range(4):
    order = np.random.permutation(len(x))
    for i in range(0, len(x), 8):
        step += 1
        noise = np.random.normal(size=(8, 8))
        output = model(torch.tensor(x[order[i : i + 8]] + noise, dtype=torch.float32))
        scores = {"loss": (output - 1).square().mean()}
        loss = scores["loss"] + min(1.0, step / 40) * output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scores["loss"] < best:
            best = scores["loss"].item()
            torch.save(model.state_dict(), "model.pt")
"""
DEALT = (
    ("import numpy", "import dl_comm.torch as dl\nimport numpy"),
    ("\n\nnp.random.seed(0)", "\n\ndl.init()\nnp.random.seed(0)"),
    ("lr=0.1", "lr=dl.lr_scale(0.1)"),
    ("step, best", "dl.broadcast(model, optimizer)\ndl.reseed()\nstep, best"),
    ("order = np.random.permutation(len(x))", "order = dl.broadcast(np.random.permutation(len(x)))"),
    ("in range(0, len(x), 8)", "in dl.shard(range(0, len(x), 8))"),
    ("step / 40", "dl.serial_steps(step) / 40"),
    ("        loss.backward()\n", "        loss.backward()\n        dl.gradients(optimizer)\n"),
    ('        if scores["loss"]', '        scores["loss"] = dl.average(scores["loss"])\n        if scores["loss"]'),
    ("torch.save", "dl.save"),
)
WRONG = {
    "overlapping-shards": (("dl.broadcast(np.random.permutation(len(x)))", "np.random.permutation(len(x))"),),
    "schedule-too-long": (("dl.serial_steps(step)", "step"),),
    "rank-dependent-choice": (('        scores["loss"] = dl.average(scores["loss"])\n', ""),),
    "equal-seeds": (("dl.reseed()\n", ""),),
}


@pytest.mark.parametrize(
    "faults",
    [
        (),
        ("overlapping-shards", "schedule-too-long", "rank-dependent-choice"),
        ("equal-seeds",),
    ],
)
@pytest.mark.wide("faults2")
def test_what_a_script_draws_orders_and_weighs_itself_is_followed(faults, prove) -> None:
    text = mutated(DRAWN, Fault("", DEALT, ""))
    for fault in faults:
        text = mutated(text, Fault("", WRONG[fault], ""))
    verdict = prove(text, serial=DRAWN)
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    assert verdict.faults == set(faults)
    assert verdict.proved == (not faults)


BESIDE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=36)
step = 0
for epoch in range(3):
    for x, y in loader:
        beta = min(1.0, step / 30)
        out = model(x)
        loss = (out - y).square().mean() + beta * out.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
"""


@pytest.mark.parametrize(("right", "wrong"), [("dl.steps(36)", "36"), ("dl.serial_steps(step)", "step")])
@pytest.mark.wide("dl.steps(36)")
def test_a_weight_that_follows_the_serial_steps_hides_no_schedule_nor_one_part_of_a_loss_another(right, wrong, prove):
    text = port(BESIDE).text
    assert right in text
    assert prove(text.replace(right, wrong), serial=BESIDE).faults == {"schedule-too-long"}


BEHIND = """import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
step = 0
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * min(1.0, (step + 1) / 12)
        step += 1
"""


@pytest.mark.parametrize(
    ("count", "faults"), [("dl.serial_steps(step + 1)", set()), ("(step + 1)", {"schedule-too-long"})]
)
def test_a_rate_that_is_set_behind_a_step_is_that_of_the_next(count, faults, prove):
    text = port(BEHIND).text
    assert "dl.lr_scale(0.05 * min(1.0, dl.serial_steps(step + 1) / 12))" in text
    assert prove(text.replace("dl.serial_steps(step + 1)", count), serial=BEHIND).faults == faults


LOGGED = """import logging, os, shutil, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
logging.basicConfig(filename=os.path.basename(__file__) + ".log", level=logging.INFO)
logging.info(f"{sys.argv[0]} of {len(open(__file__).read())} characters")
shutil.copy(__file__, "as_run.txt")
def forever(loader):
    while True:
        yield from loader
for hidden in (4, 8):
    net = torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Linear(hidden, 1))
    loader = DataLoader(data, 8, shuffle=True)
    batches, each = forever(loader), len(loader)
    opt, total = torch.optim.SGD(net.parameters(), lr=0.01), 0.0
    for i in range(2 * each):
        x, y = next(batches)
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print(hidden, total / (2 * each))
"""


def test_a_port_that_logs_its_name_and_trains_two_models_without_an_end_of_epochs_is_proved(prove) -> None:
    verdict = prove(port(LOGGED).text, serial=LOGGED, shows=True, budget=600.0)
    print(*verdict.checks, sep="\n")
    assert verdict.faults == set()
    assert next(check for check in verdict.checks if check.name == "every number").status == "passed"
