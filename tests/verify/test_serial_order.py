"""A DistributedSampler of the port's own: a right port is proved, and one that draws its order once for all is not."""

from __future__ import annotations

import pytest
from by_hand import epoch, event, run
from mutants import SHARD, Fault, mutated

from dlrun.verify.checks import loaders
from dlrun.verify.checks.data import training
from dlrun.verify.checks.orders import one_order
from dlrun.verify.tracer.recorder import EVALUATED, SHUFFLED

SAMPLER = "DistributedSampler({}, dl.get_nranks(), dl.get_rank())"
OWN = (
    ("import DataLoader,", "import DataLoader, DistributedSampler,"),
    ("dl.lr_scale(args.lr)", "args.lr * dl.get_nranks()"),
    (SHARD, ""),
    (
        "train_loader = DataLoader(train_set, batch_size=8, shuffle=True)\n",
        f"sampler = {SAMPLER.format('train_set')}\n"
        f"train_loader = DataLoader(train_set, batch_size=8, sampler=sampler)\n",
    ),
    ("for epoch in range(20):\n", "for epoch in range(20):\n    sampler.set_epoch(epoch)\n"),
)
TESTED = (
    (
        "DataLoader(test_set, batch_size=10)",
        f"DataLoader(test_set, batch_size=10, sampler={SAMPLER.format('test_set')})",
    ),
)


@pytest.mark.parametrize(
    ("edits", "faults"),
    [
        ((), set()),
        ((("    sampler.set_epoch(epoch)\n", ""),), {"same-order"}),
        (((SAMPLER.format("train_set"), SAMPLER.format("train_set")[:-1] + ", shuffle=False)"),), {"other-data"}),
        (TESTED, {"rank-dependent-exit", "shown-by-one-rank"}),
    ],
    ids=["right", "one-order", "in-order", "evaluated"],
)
@pytest.mark.wide("one-order", "evaluated")
def test_a_sampler_that_shards_by_ranks_reads_in_the_serial_order_on_1_rank(edits, faults, prove, port) -> None:
    verdict = prove(mutated(port, Fault("", (*OWN, *edits), "")), "--dropout", "0.1")
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    assert verdict.faults == faults
    assert verdict.proved == (not faults)


def test_an_order_that_the_serial_script_does_not_change_either_is_no_fault() -> None:
    changing, still = ([*epoch([[0, 1]]), *(_later(e) for e in epoch([again]))] for again in ([1, 0], [0, 1]))
    for expected, found, fault in ((changing, still, "same-order"), (still, still, ""), (changing, changing, "")):
        before, now = (training(run(each).root) for each in (expected, found))
        check = one_order(before, now, "shards")
        assert (check.fault if check else "") == fault


def _later(e):
    return event(e.kind, e.at, **e.facts | {"epoch": 1})


def test_what_the_serial_script_does_with_its_loaders() -> None:
    made = [event("loader", loader=k, made=k, shuffle=shuffle) for k, shuffle in enumerate((True, False, False))]
    trained = [event(e.kind, e.at, **e.facts | ({"loader": 1} if "loader" in e.facts else {})) for e in epoch([[0]])]
    assert loaders.uses(run([*made, *trained]).root) == (SHUFFLED, "", EVALUATED)
