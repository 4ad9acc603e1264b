"""Ports that share all data by the ranks' numbers: what they show of an evaluation is what 1 rank would."""

from __future__ import annotations

import pytest
from by_hand import event, note, run, step
from mutants import SHARD, Fault, mutated

from dlrun.verify.checks.metrics import NAME
from dlrun.verify.checks.replayed import replayed
from dlrun.verify.trace import Event, Run

SHARE = "[dl.get_rank() : {} : dl.get_nranks()]"
SUMS = "total, correct, count = (dl.total(value) for value in (total, correct, len(test_set)))"
SUMMED, OWN = "correct / count", "correct / len(test_set)"
BY_NUMBERS = (
    (SHARD, ""),
    ("dl.lr_scale(args.lr)", "args.lr * dl.get_nranks()"),
    ("x[: args.samples], y[: args.samples]", f"x{SHARE.format('args.samples')}, y{SHARE.format('args.samples')}"),
    (
        "x[args.samples :], y[args.samples :]",
        "x[args.samples + dl.get_rank() :: dl.get_nranks()], y[args.samples + dl.get_rank() :: dl.get_nranks()]",
    ),
    ("    val_loss = total", f"    {SUMS}\n    val_loss = total"),
    ("total / len(test_set)", "total / count"),
    (OWN, SUMMED),
)
KEPT = (("batch_size=8", "batch_size=8 // dl.get_nranks()"), ("args.lr * dl.get_nranks()", "args.lr"))


@pytest.mark.parametrize(
    ("edits", "fault"),
    [
        ((), ""),
        (((SUMMED, OWN),), "metric-counted-by-all"),
        (((SUMS, "total, count = dl.total(total), dl.total(len(test_set))"), (SUMMED, OWN)), "metric-of-one-rank"),
        ((*KEPT, (SUMMED, OWN)), "metric-counted-by-all"),
    ],
    ids=["right", "summed-once", "own", "summed-once-of-the-global-batch"],
)
@pytest.mark.wide("own", "global-batch")
def test_an_evaluation_that_ranks_share_by_their_numbers_is_that_of_1_rank(edits, fault, prove, port) -> None:
    verdict = prove(mutated(port, Fault("", (*BY_NUMBERS, *edits), "")), "--dropout", "0.1")
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    (check,) = (check for check in verdict.checks if check.name == NAME)
    assert (check.fault, check.status) == (fault, "failed" if fault else "passed")
    assert fault or "numbers of evaluations" in check.finding
    assert verdict.proved == (not fault)


def test_samples_that_make_shares_of_an_evaluation_equal_are_told_to_be_counted_twice() -> None:
    def evaluated(shown: str, *samples: int) -> list[Event]:
        epoch = [event("epoch", epoch=0, loader=1, data=1, size=3), event("batch", epoch=0, indices=samples, hash="a")]
        total = event("return", fn="total", local=1.0, sum=2.0, evaluates=True)
        return [step(1, 0.9), *epoch, event("over", epoch=0), total, event("print", "train.py:20", text=shown)]

    alone, other = (run(evaluated(text, 0, 1, 2)) for text in ("acc 0.50", "acc 0.75"))
    check = replayed(run(evaluated("acc 0.52", 0, 2), evaluated("acc 0.52", 1, 0)), alone, alone, other)
    assert check.fault == "metric-counts-twice"
    assert "rank 0 counts 2, rank 1 counts 2, 1 of them twice" in check.finding


def showing(*lines: str) -> Run:
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        events += [step(number, 0.9, lr=0.25), event("print", "train.py:20", text=line)]
    return run(events)


@pytest.mark.parametrize(
    ("found", "alone", "shaken", "other", "fault"),
    [
        ("loss 3 acc 0.50 of 10", "loss 1 acc 0.50 of 20", "loss 2 acc 0.50 of 20", "loss 5 acc 0.75 of 20", ""),
        (
            "loss 3 acc 0.25 of 10",
            "loss 1 acc 0.50 of 20",
            "loss 2 acc 0.50 of 20",
            "loss 5 acc 0.75 of 20",
            "metric-divided-by-whole",
        ),
        ("acc 0.40", "acc 0.50", "acc 0.50", "acc 0.75", "metric-of-one-rank"),
        ("acc 1.00", "acc 0.50", "acc 0.50", "acc 0.75", "metric-counted-by-all"),
        ("rate 0.25", "rate 0.25", "rate 0.25", "rate 0.125", None),  # one that falls by an evaluation
        ("of 10", "of 20", "of 20", "of 20", None),  # of no model
        ("loss 3", "loss 1", "loss 2", "loss 5", None),  # of the training
    ],
)
def test_numbers_that_follow_the_parameters_and_not_the_training_are_compared(
    found, alone, shaken, other, fault
) -> None:
    check = replayed(*map(showing, (found, alone, shaken, other)))
    two = replayed(run(*(2 * [showing(found).root.events])), *map(showing, (alone, shaken, other)))
    assert two.fault == (fault or "")
    assert check.status == ("n/a" if fault is None else check.status)


def test_what_is_evaluated_with_an_average_of_the_ranks_own_steps_is_not_compared() -> None:
    def averaging(line: str, weight: float) -> Run:
        held = {"ema.weight": {"kind": "copy", "note": note(weight)}}
        return run([*showing(line).root.events, event("held", tensors=held)])

    others = showing("acc 0.50"), showing("acc 0.75")
    check = replayed(averaging("acc 0.40", 0.5), averaging("acc 0.50", 0.75), *others)
    assert check.status == "n/a"
    assert "ema.weight is made of each run's own training" in check.finding
    assert replayed(averaging("acc 0.40", 0.5), averaging("acc 0.50", 0.5), *others).status == "failed"


def test_steps_of_other_parameters_are_not_compared() -> None:
    lost = run([*showing("acc 0.50").root.events, event("astray")])
    assert replayed(showing("acc 0.40"), lost, showing("acc 0.50"), showing("acc 0.75")).status == "n/a"
