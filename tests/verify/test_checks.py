"""The checks alone, on traces written by hand: no script is run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import averaged, epoch, event, note, optimizer, run, step

from dlrun.verify.checks import data, gradients, ranks, rate, repeat, whole
from dlrun.verify.checks.held import held
from dlrun.verify.checks.output import close, first_difference, same_line, shown
from dlrun.verify.checks.same import same
from dlrun.verify.compare import compare
from dlrun.verify.trace import Event
from dlrun.verify.verdict import Check, Verdict, distance


def test_runs_that_leave_the_same_bits_are_the_same() -> None:
    serial = run([optimizer(), step(1, 0.9), event("print", text="loss 0.5")])
    assert same("identity", serial, serial, serial).status == "passed"


def test_a_difference_names_step_parameter_and_size() -> None:
    serial = run([optimizer(), step(1, 0.9), step(2, 0.8)])
    port = run([optimizer(), step(1, 0.9), step(2, 0.75, lr=0.2)])
    check = same("identity", serial, serial, port)
    assert (check.fault, check.step, check.parameter) == ("other-rate", 2, "weight")
    assert check.size == pytest.approx(0.05)
    assert "0.2" in check.finding


def test_another_random_stream_is_named_before_the_gradients_it_changes() -> None:
    serial = run([optimizer(), step(1, 0.9)])
    port = run([optimizer(), step(1, 0.7, grad=0.9, states={"torch": "b"})])
    assert same("identity", serial, serial, port).fault == "other-randomness"


def test_a_step_without_zero_grad_is_a_stale_gradient() -> None:
    made = [event("zero_grad"), event("backward")]
    serial, port = run([optimizer(), *made, step(1, 0.9)]), run([optimizer(), made[1], step(1, 0.7)])
    assert same("identity", serial, serial, port).fault == "stale-gradient"


def test_a_missing_step_is_found() -> None:
    serial, port = run([optimizer(), step(1, 0.9), step(2, 0.8)]), run([optimizer(), step(1, 0.9)])
    assert same("identity", serial, serial, port).fault == "other-steps"


def test_another_line_of_output_is_found_and_a_time_is_not() -> None:
    def printed(*lines: str) -> list[Event]:
        return [event("print", f"train.py:{i}", text=line) for i, line in enumerate(lines, 1)]

    serial, again = printed("epoch 1, 3.1 s", "loss 0.51", "id 1"), printed("epoch 1, 2.9 s", "loss 0.51", "id 2")
    assert first_difference(serial, again, printed("epoch 1, 2.2 s", "loss 0.51", "id 3")) is None
    found = first_difference(serial, again, printed("epoch 1, 2.2 s", "loss 0.52", "id 3"))
    assert found is not None
    assert (found.at, found.printed) == ("train.py:2", "loss 0.52")
    assert first_difference(serial, again, printed("epoch 1, 1 s", "loss 0.51")) is not None


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [("0.9321", "0.9322", True), ("0.9321", "0.9341", False), ("12", "13", False), ("nan", "nan", True)],
)
def test_numbers_are_equal_up_to_a_unit_of_their_last_digit(a: str, b: str, equal: bool) -> None:
    assert close(a, b) is equal


def test_a_progress_bar_is_compared_by_its_last_state_without_its_durations() -> None:
    def bar(speed: str, loss: str) -> str:
        first = "\x1b[1m1/2\x1b[0m \x1b[37m━━\x1b[0m \x1b[1m2s\x1b[0m 2s/step - loss: 2.4100"
        last = f"\x1b[1m2/2\x1b[0m \x1b[32m━━\x1b[0m \x1b[1m0s\x1b[0m {speed} - loss: {loss}"
        return f"{first}{chr(8) * len(speed) * 9}\r{last}"

    one = bar("742ms/step", "2.3095")
    assert same_line(one, one, bar("1s/step", "2.3095"))
    assert not same_line(one, one, bar("742ms/step", "2.3096"))
    assert shown(one) == "2/2 ━━ 0s 742ms/step - loss: 2.3095"


def test_a_count_is_compared_exactly() -> None:
    assert not same_line("epoch 1: 31/31", "epoch 1: 31/31", "epoch 1: 30/31", exact=False)


def test_the_mean_of_the_ranks_gradients_passes() -> None:
    both = [[optimizer(), event("backward"), averaged(own, 0.5), step(1, 0.9)] for own in (0.2, 0.8)]
    assert gradients.mean_gradients(run(*both)).status == "passed"


def test_a_sum_in_place_of_the_mean_is_named_by_its_factor() -> None:
    both = [[optimizer(), event("backward"), averaged(own, 1.0), step(1, 0.9, grad=1.0)] for own in (0.2, 0.8)]
    check = gradients.mean_gradients(run(*both))
    assert check.fault == "no-mean"
    assert "2 times" in check.finding


def test_rounding_is_measured_by_the_ranks_gradients_where_their_mean_cancels() -> None:
    both = [[optimizer(), event("backward"), averaged(g, 1e-8), step(1, 0.9, grad=1e-8)] for g in (0.3, -0.3)]
    assert gradients.mean_gradients(run(*both)).status == "passed"


def test_a_gradient_that_changes_on_one_rank_after_averaging_is_found() -> None:
    own_and_used = ((0.2, 0.5), (0.8, 0.4))
    both = [[optimizer(), event("backward"), averaged(g, 0.5), step(1, 0.9, grad=used)] for g, used in own_and_used]
    assert gradients.mean_gradients(run(*both)).fault == "gradient-changed"


def test_averaging_again_what_was_averaged_and_clipped_changes_nothing() -> None:
    def made(own: float, clipped: float) -> list[Event]:
        clip = event("clip", function="clip_grad_norm_")
        return [optimizer(), event("backward"), clip, averaged(own, 0.3), step(1, 0.9, grad=clipped)]

    assert gradients.mean_gradients(run(made(0.3, 0.3), made(0.3, 0.3))).status == "passed"
    assert gradients.mean_gradients(run(made(0.2, 0.3), made(0.4, 0.3))).fault == "average-after-clip"


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (((0.1, 0.2), (0.4, -0.1)), ""),  # half of it
        (((0.3, 0.5), (0.9, -0.1)), ""),  # a decay of 0.1 added to it
        (((0.2, 0.3), (0.3, -0.2)), "average-after-clip"),  # no larger than 0.3
    ],
)
def test_what_each_rank_makes_of_its_gradient_by_hand_is_told_from_what_all_make_of_it(changed, fault) -> None:
    made = ((0.2, 0.4), (0.8, -0.2))
    mean = note(*(sum(pair) / 2 for pair in zip(*changed, strict=True)))
    traces = []
    for raw, own in zip(made, changed, strict=True):
        called = event("return", fn="gradients", ids=[0], made=[note(*raw)], before=[note(*own)], after=[mean])
        update = step(1, 0.9)
        update.facts["grads"] = [mean]
        traces.append([optimizer(), event("backward"), called, update])
    assert gradients.mean_gradients(run(*traces)).fault == fault
    added = [[*trace[:1], event("backward"), *trace[1:]] for trace in traces]  # what it adds up itself is not seen
    assert gradients.mean_gradients(run(*added)).status == "passed"


def test_one_parameter_left_out_of_the_averaging_is_found() -> None:
    both = [[optimizer(), event("backward"), step(1, 0.9, grad=g)] for g in (0.2, 0.8)]
    check = gradients.mean_gradients(run(*both))
    assert (check.fault, check.parameter) == ("missing-average", "weight")


def test_disjoint_shards_that_cover_the_data_pass() -> None:
    serial = run(epoch([[0, 1]], [[2, 3]]))
    assert data.shards(serial, run(epoch([[0, 2]]), epoch([[1, 3]]))).status == "passed"


def test_padding_to_equal_lengths_is_allowed() -> None:
    serial = run(epoch([[0, 1, 2]]))
    check = data.shards(serial, run(epoch([[0, 2]]), epoch([[1, 0]])))
    assert check.status == "passed"
    assert check.finding == "2 shards of 2, 2 cover the 3 samples; 1 of them are read twice, for shares of equal length"


@pytest.mark.parametrize(
    ("shards", "fault"),
    [
        (([[0, 1], [2, 3]], [[0, 1], [2, 3]]), "unsharded-loader"),
        (([[3, 1], [2, 0]], [[0, 1], [2, 3]]), "unsharded-loader"),
        (([[0, 2], [1]], [[3]]), "uneven-steps"),
        (([[0]], [[1]]), "lost-samples"),
    ],
)
def test_wrong_shards_are_named(shards: tuple[list[list[int]], ...], fault: str) -> None:
    serial = run(epoch([[0, 1], [2, 3]]))
    assert data.shards(serial, run(*(epoch(s) for s in shards))).fault == fault


def test_contiguous_stretches_in_whole_batches_cover_a_stream_and_others_lose_samples() -> None:
    serial = run(epoch([[0, 1], [2, 3], [4, 5], [6, 7], [8]]))
    stretches = run(epoch([[0, 1], [2, 3]]), epoch([[4, 5], [6, 7]]))
    assert data.shards(serial, stretches).status == "passed"
    dealt = run(epoch([[0, 2], [4, 6]]), epoch([[1, 3], [5, 7]]))
    assert data.shards(serial, dealt).fault == "lost-samples"


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


@pytest.mark.parametrize(("factor", "status"), [(2, "passed"), (1, "failed"), (4, "failed")])
def test_a_rate_that_the_script_computes_from_its_steps_is_that_of_every_nth_serial_one(factor, status) -> None:
    calls = [event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear"), event("return", fn="serial_steps")]
    for first in (0, 1):
        serial = run([*epoch([[0, 1]]), *(step(k, 0.9, lr=0.1 * (k + 1)) for k in range(8))])
        steps = [step(k, 0.9, lr=factor * serial.root.steps[2 * k + first].lr[0]) for k in range(4)]
        check = rate.learning_rate(serial, run([*calls, *epoch([[0, 1]]), *steps], [*epoch([[2, 3]])]))
        assert check.status == status


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


def test_a_warm_up_starts_at_the_serial_rate() -> None:
    serial = run([*epoch([[0, 1]]), step(1, 0.9)])
    scaled = event("return", fn="lr_scale", lr=0.1, result=0.2, rule="linear")
    calls = [scaled, event("return", fn="warmup", lr=[0.2])]
    check = rate.learning_rate(serial, run([*calls, *epoch([[0, 1]]), step(1, 0.9, lr=0.1)], epoch([[2, 3]])))
    assert check.status == "passed"
    assert "warm-up" in check.finding


def test_weights_that_agree_by_their_seeds_alone_are_no_broadcast() -> None:
    check = ranks.broadcast(run([optimizer(broadcast=False)], [optimizer(broadcast=False)]))
    assert check.fault == "missing-broadcast"
    assert "equal seeds" in check.finding


def test_weights_that_one_rank_sets_after_the_broadcast_are_found() -> None:
    check = ranks.broadcast(run([optimizer(1.0)], [optimizer(2.0)]))
    assert check.fault == "missing-broadcast"
    assert "weight was broadcast, and differs between the ranks at the first step" in check.finding


def test_a_condition_that_differs_between_ranks_is_found_before_anyone_leaves() -> None:
    both = [[event("decision", "t.py:5", what="bad > 3", values={"bad": bad}), step(1, 0.9)] for bad in (1.0, 2.0)]
    check = ranks.steps(run(*both))
    assert (check.fault, check.where) == ("rank-dependent-exit", "t.py:5")


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


def test_an_unseeded_generator_is_blamed_instead_of_the_port() -> None:
    one = run([event("seed", generator="torch", fixed=True), step(1, 0.9, states={"torch": "a", "numpy": "x"})])
    two = run([event("seed", generator="torch", fixed=True), step(1, 0.8, states={"torch": "a", "numpy": "y"})])
    check = repeat.repeats(one, two)
    assert check.fault == "unseeded"
    assert "numpy.random.seed(0)" in check.todo


def test_what_the_script_drew_from_is_blamed_and_a_generator_that_it_never_used_is_not() -> None:
    def made(numpy: str, unused: str) -> list[Event]:
        states = {"random": unused, "numpy": numpy, "graph": numpy, "random ops": numpy}
        return [event("begin", states={"random": unused, "numpy": "x"}), step(1, len(numpy), states=states)]

    check = repeat.repeats(run(made("a", "u")), run(made("bb", "v")))
    assert "come from numpy and the random ops of the graph, which are not seeded" in check.finding
    assert "add numpy.random.seed(0) and tf.compat.v1.set_random_seed(0)" in check.todo


def test_the_order_of_a_set_is_told_from_other_causes() -> None:
    one, two = run([step(1, 0.9)]), run([step(1, 0.8)])
    assert repeat.repeats(one, two, one).fault == "hash-order"
    assert repeat.repeats(one, two, two).fault == "not-repeatable"


def test_keeping_the_global_batch_needs_batches_that_divide() -> None:
    assert "do not divide by 2" in whole.reason_against(run(epoch([[0, 1, 2]])), 2)
    noisy = event("forward", hash="h", noise=True, norm=False, drew=["torch"])
    assert "random numbers" in whole.reason_against(run([*epoch([[0, 1]]), noisy]), 2)
    assert whole.reason_against(run(epoch([[0, 1]])), 2) == ""


def test_rounding_passes_and_another_loss_does_not() -> None:
    serial = run([optimizer(1.0), step(1, 0.9)])
    rounded = run([event("autocast", type="bfloat16"), *serial.root.events])
    assert whole.reproduces(rounded, run([optimizer(1.0), step(1, 0.901)], [])).status == "passed"
    assert whole.reproduces(serial, run([optimizer(1.0), step(1, 0.901)], [])).fault == "other-gradient"
    assert whole.reproduces(serial, run([optimizer(1.0), step(1, 0.9 + 1e-7)], [])).status == "passed"
    assert whole.reproduces(serial, run([optimizer(1.0), step(1, 0.95)], [])).fault == "other-gradient"


def test_what_follows_from_a_fault_carries_none_of_its_own() -> None:
    face, end = event("face"), event("end")
    serial = run([optimizer(), *epoch([[0, 1]]), event("backward"), step(1, 0.9), end])
    alone = run([face, *serial.root.events])
    share = [
        [face, optimizer(), *epoch([[i]]), event("backward"), step(1, 0.9 - i / 10, grad=i + 1), end] for i in (0, 1)
    ]
    checks = compare(serial, serial, alone, run(alone.root.events, alone.root.events), run(*share))
    assert {c.fault for c in checks if c.name in ("identity", "replicate")} == {""}
    bad = {c.name: c.fault for c in checks if c.status == "failed"}
    assert bad == {"mean gradient": "missing-average", "same parameters": ""}


def test_nothing_is_proved_by_nothing() -> None:
    assert not Verdict(()).proved
    assert not Verdict((Check("a", "n/a", ""),)).proved
    assert Verdict((Check("a", "passed", ""), Check("b", "n/a", ""))).proved


def test_the_distance_of_tensors_is_their_largest_difference() -> None:
    assert distance(note(1, 2), note(1, 2.5)) == pytest.approx(0.5)
    assert distance(note(1, 2), note(1)) == float("inf")


def holding(value: float, kind: str, saved: float | None = None) -> list[Event]:
    events = [step(1, 0.9), event("held", tensors={"model.x": {"kind": kind, "note": note(value)}})]
    return events + ([event("saved", tensors={"x": {"kind": "saved", "note": note(saved)}})] if saved else [])


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("copy", "copies-differ"), ("slot", "slots-differ"), ("buffer", "buffers-differ"), ("statistics", "")],
)
def test_copies_slots_and_buffers_must_agree_and_statistics_are_each_ranks_own(kind: str, fault: str) -> None:
    check = held(run(holding(1.0, kind), holding(1.5, kind)))
    assert check.fault == fault
    assert "model.x" in check.finding
    assert "5.0e-01" in check.finding


def test_statistics_that_are_averaged_before_they_are_saved_are_told_from_rank_0s_own() -> None:
    own = held(run(holding(1.0, "statistics", 1.0), holding(1.5, "statistics", 1.5)))
    averaged_first = held(run(holding(1.0, "statistics", 1.25), holding(1.5, "statistics", 1.25)))
    assert own.finding.endswith("saved are rank 0's")
    assert averaged_first.finding.endswith("the same on all ranks where they are saved")
