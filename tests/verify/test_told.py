"""Numbers that rank 0 prints and that are its own alone are wrong."""

from __future__ import annotations

import pytest
from by_hand import event, optimizer, run, step

from dlrun.verify.checks.shown import numbers_shown


def test_a_number_of_one_rank_is_named_and_what_all_share_or_the_clock_says_is_not() -> None:
    def rank(loss: float, seconds: float):
        shown = (f"loss {loss}", "train.py:9"), (f"accuracy 0.5 took {seconds} s", "train.py:10")
        return [*(event("shown", at, text=text) for text, at in shown), event("end")]

    found = numbers_shown(run(rank(2.5, 1.0), rank(2.25, 1.5)))
    assert found is not None
    assert found.fault == "shown-by-one-rank"
    assert found.finding.startswith("local to rank 0 at train.py:9: 'loss 2.5', where another rank has 'loss 2.25'")
    assert found.todo == "dl.average() of a mean, dl.total() of a sum, shows those of all"
    assert numbers_shown(run(rank(2.5, 1.0), rank(2.5, 1.5))) is None
    found = numbers_shown(run(*([event("shown", "a.py:3", text=text), event("end")] for text in ("a cat", "4 dogs"))))
    assert found is not None
    assert found.finding.endswith("'4 dogs': each rank has words of its own, and one rank's are shown")


def test_what_ranks_show_alike_with_the_same_random_numbers_is_of_those_they_draw_alone() -> None:
    def rank(*losses: float):
        return [*(event("shown", f"t.py:{i}", text=f"loss {loss}") for i, loss in enumerate(losses)), event("end")]

    apart = run(rank(2.5, 1.0), rank(2.25, 1.0))
    found = numbers_shown(apart, [run(rank(2.0, 1.0), rank(2.0, 1.5))])
    assert found is not None
    assert found.status == "n/a"
    assert found.finding == "rank 0's at t.py:0: each rank draws random numbers of its own there"
    found = numbers_shown(apart, [run(rank(2.0), rank(2.1)), run(rank(), rank())])
    assert found is not None
    assert found.fault == "shown-by-one-rank"


@pytest.mark.parametrize(
    ("local", "text", "told"),
    [
        (2.2, "loss 4.4000", True),  # of the steps of an epoch
        (2.0, "loss 4.0", False),  # a count, perhaps
        (6.6, "loss 13.2", False),  # a sum of losses
        (2.2, "loss 2.2", False),  # divided by something
    ],
)
def test_a_sum_over_ranks_of_what_is_a_mean_on_each_is_told(local: float, text: str, told: bool) -> None:
    total = event("return", "t.py:8", fn="total", local=local, sum=2 * local, evaluates=False)
    losses = [event("backward", loss=loss) for loss in (2.5, 1.9)]
    rank = [*losses, event("cut"), total, event("shown", "t.py:9", text=text), event("end")]
    found = numbers_shown(run(rank, rank))
    assert (found is not None) == told
    assert found is None or found.finding.startswith("t.py:9 shows dl.total() of t.py:8, 4.4, ")


def test_lines_that_every_rank_prints_are_named() -> None:
    found = numbers_shown(run([event("print", text="epoch 1")], [event("print", "train.py:7", text="epoch 1")]))
    assert found is not None
    assert found.finding.startswith("rank 1 prints, too, at train.py:7: 'epoch 1'; print = dl.print")


@pytest.mark.parametrize(
    ("drew", "start", "fault"),
    [
        (["numpy"], 1.0, ""),
        ([], 1.0, "shown-by-one-rank"),  # no random number is drawn
        (["numpy"], 0.0, "shown-by-one-rank"),  # the model makes the same of all samples
    ],
)
def test_what_parameters_that_stay_make_alike_is_not_of_random_numbers(drew, start, fault) -> None:
    def rank(loss: float):
        steps = [optimizer(start), step(1, start), event("shown", "t.py:9", text=f"loss {loss}"), event("cut")]
        return [*steps, step(2, start, drew=drew), event("end")]

    found = numbers_shown(run(rank(2.5), rank(2.25)), [run(rank(2.0), rank(2.0))])
    assert found is not None
    assert found.fault == fault
