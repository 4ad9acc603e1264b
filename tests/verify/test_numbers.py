"""What is asked of numbers that decide, are saved or summed, on traces written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import averaged, epoch, event, note, optimizer, run, step

from dlrun.verify.checks.choices import choices
from dlrun.verify.checks.metrics import metrics
from dlrun.verify.checks.numbers import NAME as EVERY
from dlrun.verify.checks.numbers import in_line
from dlrun.verify.checks.rate import learning_rate
from dlrun.verify.checks.same import ALONE
from dlrun.verify.checks.scaled import scaled
from dlrun.verify.checks.sums import divided, doubted, sums
from dlrun.verify.compare import compare
from dlrun.verify.trace import Event, Run
from dlrun.verify.verdict import passed, unjudged


def total(local: float, evaluates: bool = False, sum: float = 0.0, at: str = "t.py:7") -> Event:
    return event("return", at, fn="total", local=local, evaluates=evaluates, sum=sum)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([[1.5], [1.5]], "total-of-shared"),
        ([[1.5], [1.25]], ""),
        ([[24], [24]], ""),  # each has counted 24 of its own
        ([[4], [4]], "total-of-shared"),  # the length of all the data
        ([[1.5, 4], [1.25, 4]], "total-of-shared"),
        ([[1.5, 4], [1.5, 4]], ""),  # n times in numerator and denominator
    ],
)
def test_a_sum_of_what_all_ranks_have_alike_counts_n_times(given, fault) -> None:
    serial = run(epoch([[0, 1], [2, 3]]))
    ranks = [
        [*epoch([[0, 1]]), *(e for _ in range(2) for e in [*map(total, numbers), step(1, 0.9)])] for numbers in given
    ]
    check = sums(serial, run(*ranks))
    assert (check.fault if check else "") == fault


def test_a_sum_of_what_all_ranks_have_alike_is_right_where_every_number_is_and_no_loss_is_made_of_it() -> None:
    serial, shown = run(epoch([[0, 1], [2, 3]])), passed(EVERY, "")
    ranks = [[*epoch([[0, 1]]), *(e for _ in range(2) for e in [total(1.5), step(1, 0.9)])] for _ in range(2)]
    found = sums(serial, run(*ranks))
    assert found is not None
    assert [doubted(found, [each], run(*ranks)).status for each in (shown, unjudged(EVERY, ""))] == ["passed", "failed"]
    weighs = [event("batch", epoch=0, indices=[0], hash=""), total(1.5), event("weight", values=[]), step(1, 0.9)]
    assert doubted(found, [shown], run(weighs, weighs)).status == "failed"


def test_a_sum_of_as_many_samples_as_were_read_of_the_last_epoch_is_one_of_parts() -> None:
    last = [
        event("epoch", epoch=1, loader=0, data=0, size=100),
        event("trains", epoch=1),
        event("batch", epoch=1, indices=[0, 1], hash=""),
    ]
    serial = run([*epoch([[0, 1], [2, 3]]), *last])
    ranks = [[*epoch([[own, own + 1]]), total(2), step(1, 0.9)] for own in (0, 2)]
    assert sums(serial, run(*ranks)) is None


def test_sums_of_evaluations_are_left_to_the_run_that_shares_them() -> None:
    assert sums(run(epoch([[0, 1]])), run([total(1.5, evaluates=True)], [total(1.5, evaluates=True)])) is None


def chosen(*values: float, what: str = "loss < best", statistics: str = "") -> list[Event]:
    return [event("choice", "t.py:9", what=what, values={"loss": value}, statistics=statistics) for value in values]


@pytest.mark.parametrize(
    ("one", "two", "again", "fault"),
    [
        ([1.0, 0.5], [1.0, 0.5], [1.0, 0.5], ""),
        ([1.0, 0.5], [1.5, 0.7], [1.0, 0.5], "rank-dependent-choice"),
        ([0.0, 0.0], [1.0, 1.0], [1.0, 0.5], ""),  # a rank's number
        ([1.0, 0.5], [1.5, 0.7], [1.1, 0.6], ""),  # a time: another one in each serial run
    ],
)
def test_what_is_saved_is_chosen_by_what_all_ranks_share(one, two, again, fault) -> None:
    check = choices(run(chosen(1.0, 0.5)), run(chosen(*again)), run(chosen(*one), chosen(*two)))
    assert (check.fault if check else "") == fault


def test_the_number_that_differs_first_is_named_and_not_the_best_one_so_far() -> None:
    def made(*pairs: tuple[float, float]) -> list[Event]:
        values = [{"best": best, "now": now} for best, now in pairs]
        return [event("choice", "t.py:9", what="now > best", values=v, statistics="") for v in values]

    alone = run(made((0.0, 0.5), (0.5, 0.6)))
    check = choices(alone, alone, run(made((0.0, 0.5), (0.5, 0.6)), made((0.0, 0.7), (0.7, 0.8))))
    assert check is not None
    assert "now in `now > best` at t.py:9 is 0.5 on rank 0 and 0.7 on rank 1" in check.finding
    assert "dl.average(now)" in check.todo


def test_what_all_ranks_have_alike_with_the_same_random_numbers_is_chosen_by_them_alone() -> None:
    alone, apart = run(chosen(1.0, 0.5)), run(chosen(1.0, 0.5), chosen(1.5, 0.7))
    assert choices(alone, alone, apart, [run(chosen(2.0, 2.0), chosen(2.0, 2.0))]) is None
    check = choices(alone, alone, apart, [run(chosen(2.0, 2.0), chosen(2.0, 2.1))])
    assert check is not None
    assert check.fault == "rank-dependent-choice"


def test_a_choice_with_each_ranks_own_statistics_of_batch_norm_is_remarked_on() -> None:
    ranks = [chosen(1.0, 0.5, statistics="a"), chosen(1.5, 0.7, statistics="b")]
    check = choices(run(chosen(1.0, 0.5)), run(chosen(1.0, 0.5)), run(*ranks))
    assert check is not None
    assert check.status == "n/a"


def evaluated(*events: Event, texts: str = "") -> Run:
    return run([*epoch([[0, 1]]), *events], texts={"log.csv": texts} if texts else {})


@pytest.mark.parametrize(
    ("serial", "again", "sharded"),
    [
        (chosen(0.5), chosen(0.5), chosen(1.0)),
        ([event("stored", values={"['accuracy']": 0.5})],) * 2 + ([event("stored", values={"['accuracy']": 1.0})],),
        ([event("decision", what="ReduceLROnPlateau.step", values={"metric": 0.5})],) * 2
        + ([event("decision", what="ReduceLROnPlateau.step", values={"metric": 1.0})],),
    ],
)
def test_numbers_of_an_evaluation_that_only_decide_or_are_saved_are_compared(serial, again, sharded) -> None:
    one, two, port = (evaluated(*events) for events in (serial, again, sharded))
    assert metrics(one, two, one, port).fault == "metric-of-one-rank"
    assert metrics(one, two, one, one).status == "passed"
    assert metrics(one, port, one, port).status == "passed"  # two serial runs differ


@pytest.mark.parametrize(
    ("found", "again", "status"),
    [("1,0.5", "1,0.5", "passed"), ("1,0.7", "1,0.5", "failed"), ("1,0.7", "1,0.6", "passed"), ("a,0.7", "", "passed")],
)
def test_text_files_that_differ_in_numbers_alone_are_compared(found: str, again: str, status: str) -> None:
    one, two, port = (evaluated(texts=text) for text in ("1,0.5", again, found))
    assert metrics(one, two, one, port).status == status


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ([(0.5, 0.5)], ""),
        ([(0.5, 1.0)], "metric-counted-by-all"),
        ([(0.5, 1.0), (2, 4)], ""),  # n times the sum, and n times the number of samples
    ],
)
def test_a_sum_of_an_evaluation_that_nobody_sees_is_compared_with_that_of_1_rank(calls, fault) -> None:
    tested = [event("epoch", epoch=1, loader=1, data=0, size=9), event("batch", epoch=1, indices=[8, 9], hash="")]
    one, port = (evaluated(*tested, *(total(pair[0], True, pair[i]) for pair in calls)) for i in (0, 1))
    assert metrics(one, one, one, Run("", port.traces * 2)).fault == fault


@pytest.mark.parametrize(("peak", "fault"), [(0.2, ""), (0.19, ""), (0.1, "lost-scaling"), (0.4, "double-scaling")])
def test_the_peak_tells_a_scaled_warm_up_from_one_that_is_only_shorter(peak: float, fault: str) -> None:
    def trained(*steps: float, highest: float | None) -> list[Event]:
        made = [event("optimizer", **optimizer().facts | {"base": [steps[0]]}), *epoch([[0, 1]])]
        later = event("peaks", optimizer=0, rates=[highest])
        return [*made, *(step(i, 1 - i / 10, lr=lr) for i, lr in enumerate(steps, 1)), later]

    call = event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear")
    serial = run(trained(0.001, 0.002, 0.003, 0.004, highest=0.1))
    check = learning_rate(serial, run([call, *trained(0.002, 0.004, highest=peak)], epoch([[2, 3]])))
    assert check.fault == fault


@pytest.mark.parametrize(
    ("serial", "rates", "warms", "fault", "says"),
    [
        ((0.1, 0.1, 0.1), (0.1, 0.15, 0.2), True, "", ""),
        ((0.1, 0.1, 0.1), (0.1, 0.075, 0.1), True, "lost-scaling", "0.075 on 2 ranks and 0.1 on 1"),
        ((0.1, 0.2, 0.3), (0.1, 0.2, 0.3), False, "", "still rises"),  # and is set by the script itself
        ((0.1, 0.2, 0.2), (0.1, 0.2, 0.2), False, "", ""),
    ],
)
def test_rates_are_followed_through_a_warm_up_and_those_that_rise_on_are_named(
    serial, rates, warms, fault, says
) -> None:
    def steps(*rates: float) -> list[Event]:
        return [*epoch([[0, 1]]), optimizer(), *(step(k, 0.9, lr=rate) for k, rate in enumerate(rates, 1))]

    calls = [event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear"), event("return", fn="warmup", lr=[0.2])]
    check = learning_rate(run(steps(*serial)), run([*(calls if warms else []), *steps(*rates)], epoch([[2, 3]])))
    assert check.fault == fault
    assert says in check.finding
    assert says or "rises" not in check.finding


def weighing(weight: float, own: float = 0.5, used: float = 0.5, n: int = 2) -> Run:
    """Two steps of ranks whose losses count so much, and what they give to the mean and use of it."""
    weights = [event("weight", made="t.py:6", weight=0.25), event("weight", made="t.py:7", weight=weight)]
    mean = averaged(own, own)
    mean.facts["made"] = [None if own == 0.5 else note(0.5)]
    steps = [[*epoch([[0, 1]]), event("backward"), *weights, mean, step(k, 0.9, used)] for k in (1, 2)]
    return run(*[[optimizer(), *steps[0], *steps[1]]] * n)


@pytest.mark.parametrize(
    ("weight", "own", "used", "finding"),
    [
        (1.0, 0.5, 0.5, ""),
        (0.5, 0.5, 0.5, "what the loss is made of counts 1/2 as much on 2 ranks as on 1"),
        (2.0, 0.5, 0.5, ""),  # a sum over a rank's samples, divided by their number
        (1.0, 0.25, 0.25, "divided by 2, the number of ranks, before they are averaged"),
        (1.0, 0.5, 0.25, "divided by 2, the number of ranks, after they were averaged"),
        (1.0, 0.5, 0.2, ""),  # clipped
    ],
)
def test_losses_and_gradients_that_are_divided_by_the_number_of_ranks_are_found(weight, own, used, finding) -> None:
    check = scaled(weighing(1.0, n=1), weighing(1.0), weighing(weight, own, used))
    assert (check.fault if check else "") == ("no-mean" if finding else "")
    assert finding in (check.finding if check else "")


@pytest.mark.parametrize(
    ("weight", "finding"),
    [
        (1.0, ""),
        (2.0, "the gradients that are added up are multiplied by 2, the number of ranks"),
        (0.5, "the gradients that are added up are divided by 2, the number of ranks"),
        (0.7, ""),
        (None, ""),
    ],
)
def test_gradients_that_a_script_adds_up_count_as_much_on_all_ranks_together_as_on_1(weight, finding) -> None:
    def ranks(weight: float | None, n: int) -> Run:
        mean = averaged(0.5, 0.5)
        mean.facts["weights"] = [None, weight]
        return run(*[[optimizer(), *epoch([[0, 1]]), mean, step(1, 0.9)]] * n)

    check = scaled(ranks(1.0, 1), ranks(1.0, 2), ranks(weight, 2))
    assert (check.finding if check else "") == finding


@pytest.mark.parametrize("after", [True, False], ids=["of the batch", "of the epoch before"])
def test_a_loss_is_divided_by_a_total_that_is_made_after_its_batch(after) -> None:
    def trained(weight: float, *sums: Event) -> list[Event]:
        batch, loss = epoch([[0, 1]]), event("weight", made="t.py:6", weight=weight)
        made = [*batch, *sums] if after else [*sums, *batch]
        return [*batch, loss, step(1, 0.9), *made, loss, step(2, 0.8)]

    check = divided(run(trained(1.0)), run(*[trained(0.5, total(3.0, sum=6.0))] * 2))
    assert (check.fault if check else "") == ("no-mean" if after else "")


@pytest.mark.parametrize(("numbers", "fault"), [([], "schedule-too-long"), ([event("ranks in a loss", many=True)], "")])
def test_parts_of_a_loss_that_is_divided_by_the_ranks_weigh_less_as_a_consequence(numbers, fault) -> None:
    losses = [[event("weight", made="t.py:6", weight=0.1 * k), averaged(0.5, 0.5), step(k, 0.9)] for k in (1, 2, 3)]
    trained = [event("face"), optimizer(), *epoch([[0, 1]]), *(e for loss in losses for e in loss), event("end")]
    fewer = event("return", fn="steps", count=4, result=2, again=False)
    alone, sharded = run(trained, trained), run(*[[fewer, *numbers, *trained]] * 2)
    checks = compare(run(trained), run(trained), run(trained), replace(alone, name=ALONE), sharded)
    (weights,) = (check for check in checks if check.name == "weights in the loss")
    assert (weights.status, weights.fault) == ("failed", fault)


def test_a_port_by_numbers_that_fails_before_its_first_step_is_judged_by_that() -> None:
    trained = [event("face"), optimizer(), *epoch([[0, 1]]), averaged(0.5, 0.5), step(1, 0.9), event("end")]
    error = event("error", type="ValueError", message="no", line="t.py:3")
    alone = replace(run(trained, trained), name=ALONE)
    checks = compare(
        run(trained), run(trained), run(trained), alone, run([event("face"), error], [event("face"), error])
    )
    assert [check.fault for check in checks if check.status == "failed"] == ["fails"]


def test_a_total_of_what_equal_seeds_make_alike_is_a_consequence() -> None:
    drawn = [optimizer(), *epoch([[0, 1]]), averaged(0.5, 0.5), step(1, 0.9, drew=["torch"]), total(1.5), event("end")]
    alone = [event("face"), *drawn]
    checks = compare(run(drawn), run(drawn), run(alone), run(alone, alone), run(alone, alone))
    (sum_of_shared,) = (check for check in checks if check.name == "sums over ranks")
    assert (sum_of_shared.status, sum_of_shared.fault) == ("failed", "")
    assert sum_of_shared.todo.startswith("see ")


@pytest.mark.parametrize(
    ("loss", "total", "fault"),
    [
        ("0.5126", (2.09, 4.1008), "metric-weighted-otherwise"),  # 8 batches of 2 ranks, in place of 7
        ("0.5126", (3.5882, 7.3), "metric-of-one-rank"),  # what rank 0 has of its own
        ("0.5126", (None, None), "metric-of-one-rank"),
    ],
)
def test_a_mean_over_all_ranks_batches_that_weighs_otherwise_is_not_called_one_ranks(loss, total, fault) -> None:
    def shows(number: str, *before: Event) -> Run:
        return run(*[[*epoch([[0, 1]]), *before, event("print", "t.py:9", text=f"val loss {number}")]] * 2)

    added = event("return", "t.py:8", fn="total", evaluates=True, local=total[0], sum=total[1])
    serial, ranks = shows("0.5217"), shows(loss, added)
    check = metrics(serial, serial, serial, ranks)
    assert check.fault == fault, check


@pytest.mark.parametrize(
    ("line", "compared"),
    [("acc 0:0.12 13:0.5", ["0", "0.12", "13", "0.5"]), ("at 12:34.5", []), ("5:07 left, loss 0.3", ["0.3"])],
)
def test_a_number_behind_a_colon_is_one_of_a_clock_where_it_has_two_digits_before_its_point(line, compared) -> None:
    assert [digits for _, _, digits, _ in in_line(line)] == compared
