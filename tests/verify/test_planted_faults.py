"""Each fault is planted in a right port and reported as itself, on two real ranks."""

from __future__ import annotations

import pytest
from mutants import APART, BACKWARD, SHARD, STEP, Fault, mutated

GRADIENTS = "        dl.gradients(optimizer)\n"
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
BY_HAND = (
    "train_set = torch.utils.data.Subset(train_set, range(dl.get_rank(), len(train_set), dl.get_nranks()))\n"
    "train_loader = DataLoader(train_set, batch_size=8, shuffle=True)\n"
)

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
    Fault(  # the one that nobody notices but by the clock: rank 1 is gone, rank 0 waits
        "uneven-steps",
        (("    model.train()\n", "    if epoch and dl.get_rank():\n        raise SystemExit\n    model.train()\n"),),
        "same steps",
        where="if epoch and",
        follow=("sharded run",),
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
            (
                STEP,
                STEP + "        if loss < lowest:\n            lowest = loss.item()\n            "
                'dl.save(lowest, "low.pt")\n',
            ),
        ),
        "choices",
        where="if loss < lowest",
    ),
]
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


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.name}:{f.check}".replace(" ", "-"))
@pytest.mark.wide("stale-gradient", "average-after-clip")
def test_a_planted_fault_is_reported_as_itself(fault, prove, port) -> None:
    text = mutated(port, fault)
    verdict = prove(text, alike=port if fault.name != "uneven-steps" else "")
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
@pytest.mark.wide("early")
def test_faults_that_have_nothing_to_do_with_each_other_are_reported_together(faults, args, prove, port) -> None:
    text = port
    for fault in faults:
        text = mutated(text, fault)
    verdict = prove(text, *args, alike=port if faults is LATER else "")
    failed = {check.name: check for check in verdict.checks if check.status == "failed"}
    print(*failed.values(), sep="\n")
    assert {name: check.fault for name, check in failed.items()} == {fault.check: fault.name for fault in faults}
    for fault in faults:
        found = failed[fault.check]
        assert found.todo
        assert fault.where in text.splitlines()[int(found.where.rpartition(":")[2]) - 1]


def test_the_right_port_is_proved(prove, port) -> None:
    verdict = prove(port, alike=port)
    assert [(c.name, c.finding) for c in verdict.checks if c.status == "failed"] == []
    assert verdict.proved
    assert {c.name for c in verdict.checks if c.status == "n/a"} == {"metrics", "own random numbers"}
