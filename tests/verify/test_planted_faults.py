"""Each fault is planted in a right port and reported as itself, on two real ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Fault:
    """A mutation of the right port: pairs of (text, replacement), and what is to be reported where."""

    name: str
    edits: tuple[tuple[str, str], ...]
    check: str
    where: str = ""  # text of the line that is blamed
    follow: tuple[str, ...] = ()  # names of checks that fail as a consequence


GRADIENTS = "        dl.gradients(optimizer)\n"
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
BACKWARD = "        loss.backward()\n"
STEP = "        optimizer.step()\n"
SHARD = "train_loader = dl.shard(train_loader)\n"
BY_HAND = (
    "train_set = torch.utils.data.Subset(train_set, range(dl.get_rank(), len(train_set), dl.get_nranks()))\n"
    "train_loader = DataLoader(train_set, batch_size=8, shuffle=True)\n"
)

APART = ("same parameters", "state and copies", "same steps")  # what follows from different parameters

FAULTS = [
    Fault("missing-average", ((GRADIENTS, ""),), "mean gradient", where="optimizer.step()", follow=APART),
    Fault(
        "missing-average",
        ((GRADIENTS, ""), (STEP, STEP + GRADIENTS)),
        "mean gradient",
        where="dl.gradients(optimizer)",
        follow=APART,
    ),
    Fault("average-after-clip", ((GRADIENTS, ""), (CLIP, CLIP + GRADIENTS)), "mean gradient", where="clip_grad_norm_"),
    Fault(
        "stale-gradient",
        ((GRADIENTS, ""), (BACKWARD, GRADIENTS + BACKWARD)),
        "mean gradient",
        where="loss.backward()",
        follow=APART,
    ),
    Fault(
        "uneven-steps",
        (("range(20)", "range(1 if dl.get_rank() else 20)"),),
        "same steps",
        where="for epoch in",
        follow=("replicate", "sharded run"),
    ),
    Fault(  # the one that nobody notices but by the clock: rank 1 is gone, rank 0 waits
        "uneven-steps",
        (("    model.train()\n", "    if epoch and dl.get_rank():\n        raise SystemExit\n    model.train()\n"),),
        "same steps",
        where="if epoch and",
        follow=("replicate", "sharded run"),
    ),
]

LOSS = "loss = nn.functional.cross_entropy(model(inputs), targets)\n"
LATER = [
    Fault(
        "rank-dependent-exit",
        (("if val_loss < best:", "if loss.item() < best:"), ("best, bad = val_loss", "best, bad = loss.item()")),
        "same steps",
        where="if loss.item() < best",
    ),
    Fault(
        "state-differs",
        (
            ("for epoch in", "center = torch.zeros(8)\nfor epoch in"),
            (LOSS, LOSS + "        loss = loss + 0 * (inputs - center).sum()\n"),
            (STEP, STEP + "        center.mul_(0.9).add_(0.1 * inputs.mean(dim=0))\n"),
        ),
        "state and copies",
        where="center.mul_",
    ),
]
UNSEEN = [  # nothing of it is printed
    Fault(
        "metric-counted-by-all",
        (
            ('print(f"epoch {epoch}: loss {val_loss:.5f}', 'print(f"epoch {epoch}: loss {total / len(test_set):.5f}'),
            ("val_loss = total / len(test_set)", "val_loss = dl.total(total) / len(test_set)"),
        ),
        "metrics",
        where="if val_loss < best",
    ),
    Fault(
        "total-of-shared",
        ((STEP, STEP + "        mean = dl.total(loss.item()) / dl.total(len(train_set))\n"),),
        "sums over ranks",
        where="dl.total(len(train_set))",
    ),
    Fault(
        "rank-dependent-choice",
        (
            ("best, bad = float", "lowest, best, bad = 99.0, float"),
            (STEP, STEP + '        if loss < lowest:\n            lowest = loss.item()\n            '
             'dl.save(lowest, "low.pt")\n'),
        ),
        "choices",
        where="if loss < lowest",
    ),
]  # fmt: skip
TOGETHER = [  # each shows in a check of its own
    Fault("double-scaling", (("dl.lr_scale(args.lr)", "dl.lr_scale(dl.lr_scale(args.lr))"),), "learning rate"),
    Fault("unsharded-loader", ((SHARD, ""),), "shards", where="in train_loader"),
    Fault("save-by-every-rank", (("dl.save(", "torch.save("),), "one writer", where="torch.save"),
    Fault("missing-broadcast", (("dl.broadcast(model, optimizer)\n", ""),), "broadcast", where="optimizer.step()"),
    Fault("equal-seeds", (("dl.reseed()\n", ""),), "own random numbers", where="model(inputs)"),
    Fault(
        "metric-mean-of-means",
        (
            ("test_loader = DataLoader(test_set, batch_size=10)", "test_loader = dl.shard(DataLoader(test_set, 10))"),
            ("    total, correct = 0.0, 0\n", "    total, correct, count = 0.0, 0, 0\n"),
            ("output = model(inputs)", "output = model(inputs); count += len(targets)"),
            ("total / len(test_set)", "dl.average(total / count)"),
            ("correct / len(test_set)", "dl.average(correct / count)"),
        ),
        "metrics",
        where="dl.average(",
    ),
]
EARLY = [  # 1 rank differs already
    Fault("stale-gradient", (("        optimizer.zero_grad()\n", ""),), "identity", where="optimizer.step()"),
    Fault("uneven-steps", ((SHARD, BY_HAND),), "shards", where="in train_loader"),
]
GROUPS = {
    "together": (TOGETHER, ("--dropout", "0.5")),
    "early": (EARLY, ("--samples", "97")),
    "later": (LATER, ()),
    "unseen": (UNSEEN, ()),
}


def mutated(port: str, fault: Fault) -> str:
    for text, replacement in fault.edits:
        assert text in port, f"{text!r} is not in the right port"
        port = port.replace(text, replacement)
    return port


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.name}:{f.check}".replace(" ", "-"))
def test_a_planted_fault_is_reported_as_itself(fault, prove, port) -> None:
    text = mutated(port, fault)
    verdict = prove(text)
    failed = {check.name: check for check in verdict.checks if check.status == "failed"}
    print(*failed.values(), sep="\n")
    assert verdict.faults == {fault.name}
    assert not verdict.proved
    assert set(failed) == {fault.check, *fault.follow}
    found = failed[fault.check]
    assert found.todo
    line = text.splitlines()[int(found.where.rpartition(":")[2]) - 1]
    assert fault.where in line


@pytest.mark.parametrize(("faults", "args"), GROUPS.values(), ids=GROUPS)
def test_faults_that_have_nothing_to_do_with_each_other_are_reported_together(faults, args, prove, port) -> None:
    text = port
    for fault in faults:
        text = mutated(text, fault)
    verdict = prove(text, *args)
    failed = {check.name: check for check in verdict.checks if check.status == "failed"}
    print(*failed.values(), sep="\n")
    assert {name: check.fault for name, check in failed.items()} == {fault.check: fault.name for fault in faults}
    for fault in faults:
        found = failed[fault.check]
        assert found.todo
        assert fault.where in text.splitlines()[int(found.where.rpartition(":")[2]) - 1]


def test_the_right_port_is_proved(prove, port) -> None:
    verdict = prove(port)
    assert [(c.name, c.finding) for c in verdict.checks if c.status == "failed"] == []
    assert verdict.proved
    assert {c.name for c in verdict.checks if c.status == "n/a"} == {"metrics", "own random numbers"}


AUGMENTED = (  # in workers; a schedule that steps with every batch; a weight decay
    ("train_loader = DataLoader(train_set, batch_size=8, shuffle=True)\n",
     "class Noisy(TensorDataset):\n    def __getitem__(self, i):\n        x, y = super().__getitem__(i)\n"
     "        return x + 0.01 * torch.randn(8), y\n\n\n"
     "train_loader = DataLoader(Noisy(*train_set.tensors), batch_size=8, shuffle=True, num_workers=1, "
     "persistent_workers=True)\n"),
    ("momentum=0.9)", "momentum=0.9, weight_decay=1e-3)\n"
     "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20 * len(train_loader))"),
    (STEP, STEP + "        schedule.step()\n"),
)  # fmt: skip
RECIPE = [
    Fault("schedule-too-long", (("20 * len(train_loader)", "20 * 12"),), "learning rate", where="schedule.step()"),
    Fault("other-options", (("weight_decay=1e-3", "weight_decay=dl.lr_scale(1e-3)"),), "options", where="optimizer."),
    Fault("equal-seeds", (("dl.reseed()\n", ""),), "own random numbers", where="in train_loader"),
    Fault("uneven-steps", (("range(20)", "range(20 - dl.get_rank())"),), "same steps", where="for epoch in"),
]


@pytest.mark.parametrize("faults", [[], RECIPE], ids=["right", "wrong"])
def test_schedules_options_workers_and_counts_of_epochs_are_those_of_the_serial_script(faults, prove, port) -> None:
    serial = mutated((SCRIPTS / "train.py").read_text(), Fault("", AUGMENTED, ""))
    text = mutated(port, Fault("", AUGMENTED, ""))
    for fault in faults:
        text = mutated(text, fault)
    verdict = prove(text, serial=serial)
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


def counting(text: str, total: str, loss: str, *more: tuple[str, str]) -> str:
    """Return a script that carries a number on, counts while it trains, and shows that after the evaluation."""
    show = f"    print({total.format('right')} / {total.format('seen')})\n"
    edits = (
        *((a, b.format(loss)) for a, b in SMOOTH),
        *COUNTED,
        ("    if val_loss < best:\n", f"{show}    if val_loss < best:\n"),
    )
    return mutated(text, Fault("", (*edits, *more), ""))


@pytest.mark.parametrize("shares", [True, False], ids=["shared", "repeated"])
def test_what_is_carried_on_is_averaged_and_sums_over_ranks_are_of_evaluations_that_they_share(
    shares, prove, port
) -> None:
    serial = counting((SCRIPTS / "train.py").read_text(), "{}", "loss.item()")
    loss = "dl.average(loss.item())" if shares else "loss.item()"
    verdict = prove(counting(port, "dl.total({})", loss, *SUMMED[0 if shares else 1 :]), serial=serial)
    failed = [check for check in verdict.checks if check.fault]
    print(*failed, sep="\n")
    right = [("state-differs", "smooth"), ("metric-counted-by-all", "")]
    assert [(check.fault, check.parameter) for check in failed] == ([] if shares else right)


def test_ranks_of_an_unseeded_script_start_apart_without_a_broadcast(prove, port) -> None:
    serial = (SCRIPTS / "train.py").read_text().replace("torch.manual_seed(0)\n", "")
    text = port.replace("torch.manual_seed(0)\n", "").replace("dl.broadcast(model, optimizer)\n", "")
    verdict = prove(text.replace("dl.init()", "dl.init(alike=False)"), serial=serial, seed=1)
    failed = {check.name: check for check in verdict.checks if check.status == "failed"}
    print(*failed.values(), sep="\n")
    assert verdict.faults == {"missing-broadcast"}
    assert set(failed) == {"broadcast", *APART} - {"state and copies"}  # momentum is made of means, alike on all ranks
    assert "start from different weights" in failed["broadcast"].finding


RANKS = "range(dl.get_rank(), len(train_set), dl.get_nranks())"
OF_ITS_OWN = (
    ("dl.lr_scale(args.lr)", "args.lr * dl.get_nranks()"),
    (SHARD, f"train_set = torch.utils.data.Subset(train_set, {RANKS})\n"
            "train_loader = DataLoader(train_set, batch_size=8, shuffle=True)\n"),
)  # fmt: skip


@pytest.mark.parametrize(("loss", "faults"), [("loss", set()), ("(loss * (1.0 / dl.get_nranks()))", {"no-mean"})])
def test_a_port_that_shares_its_data_by_the_ranks_numbers_is_told_that_it_is_alone(loss, faults, prove, port) -> None:
    edits = (*OF_ITS_OWN, (BACKWARD, f"        {loss}.backward()\n"))
    verdict = prove(mutated(port, Fault("", edits, "")))
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    assert verdict.faults == faults
    assert verdict.proved == (not faults)


STYLE = (  # the sqrt rule, a warm-up, an optimizer that averages itself
    ("dl.lr_scale(args.lr)", 'dl.lr_scale(args.lr, "sqrt")'),
    ("dl.reseed()\n", "dl.warmup(optimizer, dl.steps(lambda step: step + 4)(0))\ndl.reseed()\n"),
    ("dl.broadcast(model, optimizer)\n", "optimizer = dl.DistributedOptimizer(optimizer)\n"),
)


def test_a_right_port_in_another_style_is_proved(prove, port) -> None:
    verdict = prove(mutated(port, Fault("", STYLE, "")))
    assert [(c.name, c.finding) for c in verdict.checks if c.status == "failed"] == []
    assert verdict.proved
