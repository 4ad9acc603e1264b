"""What is asked of ranks that share the data, on traces written by hand: shares, rates, decisions, noise, files."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from by_hand import averaged, epoch, event, optimizer, run, step

from dlrun.verify.checks import data, ranks, rate, start
from dlrun.verify.checks.weights import classes
from dlrun.verify.compare import ran
from dlrun.verify.trace import Event


def test_disjoint_shards_that_cover_the_data_pass() -> None:
    serial = run(epoch([[0, 1]], [[2, 3]]))
    assert data.shards(serial, run(epoch([[0, 2]]), epoch([[1, 3]]))).status == "passed"


def test_padding_to_equal_lengths_is_allowed() -> None:
    serial = run(epoch([[0, 1, 2]]))
    check = data.shards(serial, run(epoch([[0, 2]]), epoch([[1, 0]])))
    assert check.status == "passed"
    assert check.finding == "2 shards of 2, 2 cover the 3 samples; 1 of them are read twice, for shares of equal length"


def test_samples_that_are_drawn_with_replacement_are_read_twice_for_that() -> None:
    serial = run(epoch([[0, 1]], [[2, 0]]))
    check = data.shards(serial, run(epoch([[0, 1]]), epoch([[2, 0]])))
    assert check.finding.endswith("1 of them are read twice, as in the serial run, which draws them with replacement")


@pytest.mark.parametrize(
    ("shards", "fault"),
    [
        (([[0, 1], [2, 3]], [[0, 1], [2, 3]]), "unsharded-loader"),
        (([[3, 1], [2, 0]], [[0, 1], [2, 3]]), "unsharded-loader"),
        (([[0, 2], [1]], [[3]]), "uneven-steps"),
        (([[0]], [[1]]), "lost-samples"),
        (([[0, 1], [2, 3]], [[4, 5], [6, 7]]), "other-samples"),
    ],
)
def test_wrong_shards_are_named(shards: tuple[list[list[int]], ...], fault: str) -> None:
    serial = run(epoch([[0, 1], [2, 3]]))
    assert data.shards(serial, run(*(epoch(s) for s in shards))).fault == fault


def test_ranks_that_each_leave_out_another_last_batch_read_all_samples_each() -> None:
    one, *ranks = ([[i, i + 1] for i in range(0, 14, 2) if i != left] for left in (12, 0, 10))
    check = data.shards(run(epoch(one)), run(*map(epoch, ranks)))
    assert check.fault == "unsharded-loader"
    assert check.finding.startswith("every rank reads 12 samples, as many as 1 rank")


def test_contiguous_stretches_in_whole_batches_cover_a_stream_and_others_lose_samples() -> None:
    serial = run(epoch([[0, 1], [2, 3], [4, 5], [6, 7], [8]]))
    stretches = run(epoch([[0, 1], [2, 3]]), epoch([[4, 5], [6, 7]]))
    assert data.shards(serial, stretches).status == "passed"
    divided = run(epoch([[0, 2], [4, 6]]), epoch([[1, 3], [5, 7]]))
    assert data.shards(serial, divided).fault == "lost-samples"


@pytest.mark.parametrize(
    ("ranks", "fault"),
    [
        ([(6, "all", "a"), (6, "all", "b")], ""),
        ([(6, "all", "a"), (6, "other", "b")], "overlapping-shards"),
        ([(6, "all", "a"), (6, "all", "a")], "unsharded-loader"),
        ([(3, "all", "a"), (3, "all", "b")], "lost-samples"),
    ],
)
def test_a_stream_is_cut_into_equal_stretches(ranks: list[tuple[int, str, str]], fault: str) -> None:
    def cut(part: int, whole: str, mine: str) -> Event:
        return event("return", fn="stretch", length=13, part=part, whole=whole, mine=mine)

    traces = [[optimizer(), cut(*rank), step(1, 0.9, grad=grad)] for rank, grad in zip(ranks, (0.2, 0.8), strict=True)]
    check = data.shards(run([optimizer(), step(1, 0.9)]), run(*traces))
    assert check.fault == fault
    assert fault or check.finding.startswith("2 contiguous stretches of 6 of 13 entries")


def test_draws_with_replacement_prove_no_cover_and_whole_repetitions_do() -> None:
    drawn, repeated = run(epoch([[0, 0], [1, 2]])), run(epoch([[0, 1], [0, 1]]))
    assert data.shards(drawn, run(epoch([[0, 0]]), epoch([[2, 3]]))).status == "n/a"
    assert data.shards(drawn, run(epoch([[0, 1]]), epoch([[0, 2]]))).status == "passed"
    assert data.shards(repeated, run(epoch([[0, 0]]), epoch([[1, 1]]))).status == "passed"


def test_ranks_with_other_splits_overlap() -> None:
    serial = run(epoch([list(range(8))]))
    check = data.shards(serial, run(epoch([[0, 1], [2, 3]]), epoch([[0, 1], [2, 9]])))
    assert check.fault == "overlapping-shards"


def test_testing_on_what_another_rank_trains_on_is_a_leak() -> None:
    def tested(i: int) -> list[Event]:
        begun = event("epoch", epoch=1, loader=1, data=0, size=100)
        return [begun, event("batch", epoch=1, indices=[i], hash="t"), event("over", epoch=1)]

    serial = run([*epoch([[0, 1]], [[2, 3]]), *tested(9)])
    port = run([*epoch([[0, 2]]), *tested(9)], [*epoch([[1, 3]]), *tested(0)])
    assert data.shards(serial, port).fault == "leaking-split"
    known = run([*epoch([[0, 2]]), *tested(0)], [*epoch([[1, 3]]), *tested(0)])  # the serial run never came that far
    assert data.shards(run([*epoch([[0, 1]], [[2, 3]])]), known).fault != "leaking-split"


def test_a_fold_that_the_next_one_tests_on_is_no_leak_whatever_the_numbers_of_its_loaders() -> None:
    def folds(number: int) -> list[Event]:
        later = [epoch_of(number + i, part) for i, part in ((1, [4, 5]), (2, [0, 1]))]
        first = [event(e.kind, **e.facts | ({"loader": number} if "loader" in e.facts else {})) for e in trained]
        return [*first, *(e for events in later for e in events)]

    def epoch_of(number: int, indices: list[int]) -> list[Event]:
        tested = event("batch", epoch=number, indices=indices, hash="")
        return [event("epoch", epoch=number, loader=number, data=0, size=100), tested]

    trained = epoch([[0, 1], [2, 3]])
    serial, (one, two) = run(folds(1)), (folds(7), folds(7))
    shares = [
        [e for e in part if e.kind != "batch" or e["epoch"] or e["indices"] == mine]
        for part, mine in ((one, [0, 1]), (two, [2, 3]))
    ]
    check = data.shards(serial, run(*shares))
    assert check.status == "passed", check


@pytest.mark.parametrize(
    ("lr", "rules", "fault"),
    [
        (0.2, ["linear"], ""),
        (0.4, ["linear", "linear"], "double-scaling"),
        (0.1, ["linear"], "lost-scaling"),
        (0.1 * 2**0.5, ["sqrt"], ""),
        (0.3, ["linear"], "other-rate"),
        (0.1, [], ""),
    ],
)
def test_the_rate_follows_the_rule_that_the_port_names(lr: float, rules: list[str], fault: str) -> None:
    serial = run([*epoch([[0, 1]]), step(1, 0.9)])
    scaled = [event("return", fn="lr_scale", lr=0.1, result=lr, rule=rule) for rule in rules]
    check = rate.learning_rate(serial, run([*scaled, *epoch([[0, 1]]), step(1, 0.9, lr=lr)], [*epoch([[2, 3]])]))
    assert check.fault == fault


@pytest.mark.parametrize(("lr", "says"), [(0.2, "linear scaling"), (0.1, "unscaled")])
def test_a_rate_that_float32_holds_is_told_by_its_rule(lr: float, says: str) -> None:
    stored, serial = float(np.float32(lr)), run([*epoch([[0, 1]]), step(1, 0.9)])
    check = rate.learning_rate(serial, run([*epoch([[0, 1]]), step(1, 0.9, lr=stored)], [*epoch([[2, 3]])]))
    assert stored != lr and says in check.finding


def test_a_rate_that_is_as_high_as_another_and_was_forgotten_is_told_from_one_that_is_set_again() -> None:
    def stepped(*rates: float) -> Event:
        return event("step", "train.py:9", **step(1, 0.9).facts | {"lr": list(rates)})

    serial, scaled = (
        run([*epoch([[0, 1]]), stepped(0.1, 0.1)]),
        event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear"),
    )
    of_graph = event("return", fn="lr_scale", lr=None, result=None, rule="linear")  # a tensor that has no value yet
    checks = [
        rate.learning_rate(serial, run([*calls, *epoch([[0, 1]]), stepped(0.1, 0.2)], epoch([[2, 3]])))
        for calls in ([scaled], [scaled, scaled], [scaled, of_graph])
    ]
    assert [check.fault for check in checks] == ["lost-scaling"] * 3
    assert ["another rate" in check.finding for check in checks] == [True, False, True]


@pytest.mark.parametrize(("factor", "status"), [(2, "passed"), (1, "failed"), (4, "failed")])
def test_a_rate_that_the_script_computes_from_its_steps_is_that_of_every_nth_serial_one(factor, status) -> None:
    calls = [event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear"), event("return", fn="serial_steps")]
    for first in (0, 1):
        serial = run([*epoch([[0, 1]]), *(step(k, 0.9, lr=0.1 * (k + 1)) for k in range(8))])
        steps = [step(k, 0.9, lr=factor * serial.root.steps[2 * k + first].lr[0]) for k in range(4)]
        check = rate.learning_rate(serial, run([*calls, *epoch([[0, 1]]), *steps], [*epoch([[2, 3]])]))
        assert (check.status, check.fault) == (status, {1: "lost-scaling", 2: "", 4: "double-scaling"}[factor])


@pytest.mark.parametrize(("epoch_of", "status"), [(10, "passed"), (20, "failed")])
def test_a_rate_by_the_steps_of_all_epochs_is_that_of_every_nth_serial_one_of_its_epoch(epoch_of, status) -> None:
    def steps(places: list[int], scale: float) -> list[Event]:
        return [step(k, 0.9, lr=scale * 0.1 * (1 - place / 100)) for k, place in enumerate(places)]

    calls = [event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear"), event("return", fn="serial_steps")]
    serial = run([e for at in (0, 10) for e in (*epoch([[0, 1]]), *steps([at, at + 1, at + 2], 1))])
    port = [e for at in (0, epoch_of) for e in (*epoch([[0, 1]]), *steps([at, at + 2, at + 4], 2))]
    assert rate.learning_rate(serial, run([*calls, *port], [*epoch([[2, 3]])])).status == status


@pytest.mark.parametrize(("factor", "status"), [(2, "passed"), (1, "failed"), (4, "failed")])
@pytest.mark.parametrize("scaled", [{"lr": None, "result": None, "faster": True}, {"lr": 0.0, "result": 0.0}])
def test_a_schedule_of_keras_that_is_scaled_rises_n_times_as_high_and_as_fast(scaled, factor, status) -> None:
    calls = [event("return", fn="lr_scale", rule="linear", **scaled)]
    calls += [] if "faster" in scaled else [event("return", fn="steps", count=8, result=4)]
    serial = run([*epoch([[0, 1]]), *(step(k, 0.9, lr=0.1 * (k + 1)) for k in range(8))])
    steps = [step(k, 0.9, lr=factor * serial.root.steps[2 * k].lr[0]) for k in range(4)]
    assert rate.learning_rate(serial, run([*calls, *epoch([[0, 1]]), *steps], [*epoch([[2, 3]])])).status == status


FALLS = [1.0 - k / 40 for k in range(40)]
RISES = [k / 8 for k in range(1, 8)] + FALLS


@pytest.mark.parametrize(
    ("made", "ahead", "counts", "told", "fault"),
    [
        (4, [2 * x for x in FALLS], False, False, "schedule-too-long"),
        (4, [2 * x for x in FALLS[::2]], False, False, ""),
        (4, [2 * x for x in FALLS[4::4]] + [0.0] * 9, False, False, "schedule-too-short"),  # dl.steps() of dl.steps()
        (4, [2 * x for x in FALLS], True, False, ""),
        (2, [2 * x for x in FALLS], False, False, ""),
        (2, [2 * x for x in FALLS[::2]], False, False, "schedule-too-short"),
        (4, [2 * x for x in FALLS], False, True, ""),  # step(epoch + i / len(loader))
        (4, [2 * x for x in FALLS[::2]], False, True, "schedule-too-short"),
        (4, [2 * x for x in RISES[:7] + FALLS[::2]], False, False, "schedule-too-long"),  # but for the warm-up
        (4, [2 * x for x in RISES[1::2]], False, False, ""),
    ],
)
def test_a_schedule_of_steps_is_n_times_as_fast_and_one_of_epochs_is_not(made, ahead, counts, told, fault) -> None:
    def trained(n: int, rate: float, rates: list[float]) -> list[Event]:
        passed = epoch([[k] for k in range(4)], [[k] for k in range(4, 8 // n)])
        passed[0].facts["loops"] = True
        limits = [event("decision", "train.py:8", what="step > 9", values={"step": k}) for k in range(4 * counts)]
        steps = [e for k in range(4) for e in (*limits[k : k + 1], step(k + 1, 0.9, lr=rate))]
        scaled = event("return", fn="lr_scale", rule="linear", lr=1.0, result=2.0)
        peaks = event("peaks", optimizer=0, rates=[max(rates)], made=made, where="train.py:10", ahead=rates, told=told)
        second = [replace(e, facts=e.facts | {"epoch": 1}) for e in passed]
        return [*([scaled] if n > 1 else []), optimizer(), *passed, *second, *steps, peaks]

    before = RISES if ahead[0] < ahead[1] else FALLS
    serial, port = run(trained(1, before[0], before)), run(*[trained(2, 2 * before[0], ahead)] * 2)
    check = rate.learning_rate(serial, port)
    assert check.fault == fault
    assert check.where == ("train.py:10" if fault else "")


@pytest.mark.parametrize(
    ("rates", "ahead", "fault"),
    [
        ([1.0, 1.0], [0.1, 0.1, 0.1, 0.1], ""),
        ([1.0, 0.1], [0.1, 0.1, 0.1, 0.1], "schedule-too-short"),  # its milestone was passed in the epochs made
        ([1.0, 0.5], [0.0, 0.5, 1.0, 0.5], "schedule-too-short"),  # a cosine, which the serial script goes on with
    ],
)
def test_a_schedule_of_epochs_is_compared_from_its_first_one_on(rates, ahead, fault) -> None:
    def trained(n: int, rates: list[float], ahead: list[float]) -> list[Event]:
        made = [event("return", fn="lr_scale", rule="linear", lr=1.0, result=2.0)] if n > 1 else []
        made.append(optimizer())
        for number, rate_now in enumerate(rates):
            passed = epoch([[0]], [[1]] if n == 1 else [])
            made += [replace(e, facts=e.facts | {"epoch": number, "loops": True}) for e in passed]
            made += [step(2 * number + k, 0.9, lr=n * rate_now) for k in (1, 2)]
        ahead = [n * x for x in ahead]
        return [*made, event("peaks", optimizer=0, rates=[n], made=2, where="t.py:9", told=False, ahead=ahead)]

    cosine = [0.5, 0.1464, 0.0, 0.1464, 0.5, 0.8536, 1.0, 0.8536]
    serial = trained(1, [1.0, 0.8536], cosine) if ahead[2] == 1.0 else trained(1, [1.0, 1.0], [0.1] * 8)
    check = rate.learning_rate(run(serial), run(*[trained(2, rates, ahead)] * 2))
    assert (check.fault, check.where) == (fault, "t.py:9" if fault else ""), check


def test_a_cosine_of_steps_that_rises_again_beyond_its_end_is_too_short_where_it_is_divided_twice() -> None:
    def trained(n: int, length: int) -> list[Event]:
        made = [event("return", fn="lr_scale", rule="linear", lr=1.0, result=2.0)] if n > 1 else []
        passed = [replace(e, facts=e.facts | {"loops": True}) for e in epoch([[0]], [[k] for k in range(1, 40 // n)])]
        rates = [n * (1 + math.cos(math.pi * k / length)) / 2 for k in range(400)]
        peaks = event("peaks", optimizer=0, rates=[n], made=4, where="t.py:9", told=False, ahead=rates[4:])
        return [*made, optimizer(), *passed, *(step(k + 1, 0.9, lr=rates[k]) for k in range(4)), peaks]

    for length, fault in ((20, ""), (10, "schedule-too-short")):
        check = rate.learning_rate(run(trained(1, 40)), run(*[trained(2, length)] * 2))
        assert check.fault == fault, (length, check)


@pytest.mark.parametrize("follows", [True, False])
def test_a_rate_set_by_hand_does_not_follow_fewer_steps_as_it_follows_the_serial_ones(follows: bool) -> None:
    made = [event("return", fn="steps", count=40, result=20)]
    serial = run([optimizer(), *(step(k + 1, 0.9, lr=FALLS[k]) for k in range(6))])
    rates = FALLS if follows else FALLS[::2]
    port = run(*[[*made, optimizer(), *(step(k + 1, 0.9, lr=rates[k]) for k in range(6))]] * 2)
    assert rate.learning_rate(serial, port).fault == ("schedule-too-long" if follows else "")


@pytest.mark.parametrize(("later", "fault"), [(0.05, "lost-scaling"), (0.1, "")])
def test_a_rate_that_is_set_between_epochs_stays_scaled(later: float, fault: str) -> None:
    def epochs(*rates: float) -> list[Event]:
        made = [(i, epoch([[0, 1]], complete=False), step(i + 1, 0.9, lr=lr)) for i, lr in enumerate(rates)]
        return [e for i, events, update in made for e in (*(numbered(e, i) for e in events), update)]

    def numbered(e: Event, i: int) -> Event:
        return replace(e, facts={**e.facts, "epoch": i})

    scaled = event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear")
    ported = [[scaled, *epochs(0.2, later)]] * 2
    assert rate.learning_rate(run(epochs(0.1, 0.05)), run(*ported)).fault == fault


@pytest.mark.parametrize(
    ("rates", "base", "status"),
    [
        ([0.1, 0.2], [0.2], "passed"),  # the warm-up of 4 steps has become one of 2
        ([0.1, 0.202], [0.2], "passed"),  # of a count that was rounded: the serial run would pass this a step later
        ([0.2, 0.4], [0.4], "failed"),  # scaled twice
    ],
)
def test_a_warm_up_that_len_of_a_sharded_loader_makes_shorter_is_as_steep_as_a_scaled_one(rates, base, status) -> None:
    def trained(base: list[float], *steps: float) -> list[Event]:
        made = [event("optimizer", **optimizer().facts | {"base": base}), *epoch([[0, 1]])]
        return [*made, *(step(i, 1 - i / 10, lr=lr) for i, lr in enumerate(steps, 1))]

    call = event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear")
    serial = run(trained([0.1], 0.025, 0.05, 0.075, 0.1))
    check = rate.learning_rate(serial, run([call, *trained(base, *rates)], epoch([[2, 3]])))
    assert check.status == status, check


@pytest.mark.parametrize(
    ("first", "later", "status"),
    [
        ((0.03, 0.06, 0.09), 0.2, "passed"),  # (i + 1) / len(loader), from another rate on
        ((0.04, 0.08, 0.12), 0.12, "n/a"),  # or scaled twice: the epoch was cut, and the ramp with it
        ((0.08, 0.16, 0.24), 0.4, "failed"),
    ],
)
def test_a_warm_up_that_counts_the_steps_of_an_epoch_is_judged_within_it(first, later, status) -> None:
    def trained(base: float, later: float, *rates: float) -> list[Event]:
        made = [event("optimizer", **optimizer().facts | {"base": [base]})]
        for number, part in enumerate((rates, [later] * 3)):
            begun = epoch([[0, 1]], complete=False)
            made += [replace(e, facts={**e.facts, "epoch": number}) for e in begun]
            made += [step(3 * number + i, 0.9 - i / 10, lr=lr) for i, lr in enumerate(part)]
        return [*made, event("peaks", optimizer=0, made=1, rates=[later], where="t.py:9")]

    call = event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear")
    serial = trained(0.1, 0.1 if later > 0.12 else 0.03, 0.01, 0.02, 0.03)
    check = rate.learning_rate(run(serial), run(*[[call, *trained(0.2, later, *first)]] * 2))
    assert check.status == status, check


def test_a_warm_up_starts_at_the_serial_rate() -> None:
    serial = run([*epoch([[0, 1]]), step(1, 0.9)])
    scaled = event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear")
    calls = [scaled, event("return", fn="warmup", lr=[0.2])]
    check = rate.learning_rate(serial, run([*calls, *epoch([[0, 1]]), step(1, 0.9, lr=0.1)], epoch([[2, 3]])))
    assert check.status == "passed"
    assert "warm-up" in check.finding


@pytest.mark.parametrize(
    ("one", "other", "fault"), [("aa", "aa", ""), ("aa", "bb", "weights-differ"), ("ab", "cd", ""), ("", "", "")]
)
def test_class_weights_that_each_rank_counted_for_itself_are_told_from_those_of_batches(one, other, fault) -> None:
    ranks = [
        [e for k, made in enumerate(made_of, 1) for e in (event("weighs", "t.py:4", classes=made), step(k, 0.9))]
        for made_of in (one, other)
    ]
    check = classes(run(*ranks))
    assert ((check.fault, check.where) if check else ("", "")) == (fault, "t.py:4" if fault else "")


def test_weights_that_agree_by_their_seeds_alone_are_no_broadcast() -> None:
    check = start.broadcast(run([optimizer(broadcast=False)], [optimizer(broadcast=False)]))
    assert check.fault == "missing-broadcast"
    assert "equal seeds" in check.finding


def test_weights_that_one_rank_sets_after_the_broadcast_are_found() -> None:
    check = start.broadcast(run([optimizer(1.0)], [optimizer(2.0)]))
    assert check.fault == "missing-broadcast"
    assert "weight was broadcast, and differs between the ranks at the first step" in check.finding


def test_what_looks_ahead_with_one_ranks_gradient_is_told_from_weights_that_are_set_again() -> None:
    def made(weight: float, *calls: Event) -> list[Event]:
        return [optimizer(weight), event("backward", "a.py:7"), *calls, event("backward", "a.py:9"), step(1, 0.9)]

    check = start.broadcast(run(made(1.0), made(2.0)))
    assert (check.fault, check.where) == ("missing-average", "a.py:7")
    assert "what backward() at a.py:7 made, one rank's gradient" in check.finding
    averages = averaged(0.5, 0.5)
    assert start.broadcast(run(made(1.0, averages), made(2.0, averages))).fault == "missing-broadcast"


def test_a_condition_that_differs_between_ranks_is_found_before_anyone_leaves() -> None:
    both = [[event("decision", "t.py:5", what="bad > 3", values={"bad": bad}), step(1, 0.9)] for bad in (1.0, 2.0)]
    check = ranks.steps(run(*both))
    assert (check.fault, check.where) == ("rank-dependent-exit", "t.py:5")


def test_ranks_that_call_different_things_before_the_first_step_are_named_with_both_lines() -> None:
    def waits(fn: str, at: str) -> list[Event]:
        return [
            event("face"),
            optimizer(),
            event("call", at, fn=fn),
            event("error", at, type="CommError", message="x", line=at),
        ]

    check = ran(run(waits("gradients", "t.py:4"), waits("total", "t.py:9"), code=1), "sharded run")
    assert check is not None
    assert (check.name, check.fault) == ("sharded run", "uneven-steps")
    assert (
        "rank 0 waits in dl.gradients() at t.py:4 after 0 steps and rank 1 waits in dl.total() at t.py:9"
        in check.finding
    )


def test_a_plateau_on_one_ranks_metric_is_found() -> None:
    both = [[event("decision", what="ReduceLROnPlateau.step", values={"metric": m})] for m in (1.0, 2.0)]
    assert ranks.steps(run(*both)).fault == "rank-dependent-rate"


def test_a_hang_says_where_each_rank_waits() -> None:
    waiting = [step(1, 0.9), event("call", "t.py:7", fn="gradients")]
    check = ranks.steps(run(waiting, [event("end")], hung=True))
    assert check.fault == "uneven-steps"
    assert "dl.gradients() at t.py:7 after 1 steps" in check.finding
    assert "rank 1 ended after 0 steps" in check.finding


def test_equal_noise_is_found_only_where_noise_is_drawn() -> None:
    def made(state: str, drew: list[str]) -> list[Event]:
        return [event("forward", drew=drew, hash="h"), step(1, 0.9, states={"torch": state})]

    assert ranks.own_noise(run(made("a", ["torch"]), made("a", ["torch"]))).fault == "equal-seeds"
    assert ranks.own_noise(run(made("a", ["torch"]), made("b", ["torch"]))).status == "passed"
    assert ranks.own_noise(run(made("a", []), made("a", []))).status == "n/a"


def test_a_file_moved_into_place_by_rank_0_has_one_writer() -> None:
    written = event("file", path="/w/tmp", how="write", was="")
    moved = [written, event("file", path="/w/m.pt", how="write", was="/w/tmp")]
    assert ranks.one_writer(run(moved, [])).status == "passed"
    assert ranks.one_writer(run(moved, moved)).fault == "save-by-every-rank"


@pytest.mark.parametrize(
    ("made", "shares", "fault"),
    [
        (1, ([4, 1], [2, 3]), ""),  # 4 in the place of 0, by parameters that are others by now
        (1, ([4, 1], [1, 4]), "overlapping-shards"),
        (0, ([4, 1], [2, 3]), "lost-samples"),
    ],
)
def test_samples_that_the_model_chooses_after_some_steps_may_be_others_on_n_ranks(made, shares, fault) -> None:
    def chosen(*batches: list[int]) -> list[Event]:
        return [*(step(k, 0.9) for k in range(made)), *epoch(list(batches))]

    check = data.shards(run(chosen([0], [1], [2], [3])), run(*(chosen([a], [b]) for a, b in shares)))
    assert check.fault == fault


def test_batches_of_other_lengths_on_some_rank_are_told() -> None:
    serial = run(epoch([list(range(4)), list(range(4, 8)), [8, 9, 10, 11]]))
    check = data.global_batch(serial, run(epoch([[0, 1, 2, 3], [8, 9, 10, 11]]), epoch([[4, 5, 6, 7], [3]])))
    assert check.status == "passed"
    assert "; batch 2 is of 4 and 1: in the mean over ranks a sample of the smaller one counts 4 ti" in check.finding
    even = data.global_batch(serial, run(epoch([[0, 1, 2, 3], [8, 9]]), epoch([[4, 5, 6, 7], [10, 11]])))
    assert even.finding.endswith("(2 times the serial 4)")


def test_a_schedule_that_one_rank_alone_steps_is_named_with_its_line() -> None:
    def trained(rate: float, made: int) -> list[Event]:
        later = event("peaks", "train.py:12", optimizer=0, rates=[0.2], made=made, where="train.py:12" if made else "")
        return [optimizer(), *epoch([[0, 1]]), step(1, 0.9), step(2, 0.9 - rate, lr=rate), later]

    check = ranks.equal(run(trained(0.2, 1), trained(0.1, 0)))
    assert (check.fault, check.where, check.rank) == ("rank-dependent-rate", "train.py:12", 1)
    assert "0.1 there, 0.2 on rank 0, whose schedule has made 1 steps, and 0 on rank 1" in check.finding
    assert ranks.equal(run(trained(0.1, 1), trained(0.1, 1))).status == "passed"


@pytest.mark.parametrize(
    ("parts", "fault"),
    [(([0, 1], [4, 5]), "lost-samples"), (([0, 1, 2, 3],) * 2, ""), (([0, 1, 2], [0, 1, 2, 3]), "")],
    ids=["cut twice", "once", "windows"],
)
def test_shares_that_are_cut_once_more_lose_samples(parts, fault) -> None:
    def read(size: int, numbers: list[int]) -> list[Event]:
        begun, *events = epoch([numbers])
        begun.facts["size"] = size
        return [begun, *events]

    check = data.shards(run(read(8, list(range(8)))), run(*(read(4, part) for part in parts)))
    assert check.fault == fault
    assert not fault or "hold 4 and 4 samples, of which an epoch reads 2 and 2, and 1 rank reads 8" in check.finding
