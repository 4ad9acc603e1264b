"""The checks alone, on traces written by hand: no script is run."""

from __future__ import annotations

import pytest
from by_hand import averaged, epoch, event, note, optimizer, run, step

from dlrun.verify.checks import gradients, rate, repeat, whole
from dlrun.verify.checks.data import window
from dlrun.verify.checks.held import held
from dlrun.verify.checks.output import close, first_difference, same_line, shown
from dlrun.verify.checks.same import same
from dlrun.verify.compare import compare, ran
from dlrun.verify.trace import Event, Run
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
    assert "dl.steps(count)" in check.todo
    first = same("identity", serial, serial, run([optimizer(), step(1, 0.95, lr=0.2), step(2, 0.75, lr=0.2)]))
    assert "dl.lr_scale()" in first.todo


def test_another_random_stream_is_named_before_the_gradients_it_changes() -> None:
    serial = run([optimizer(), step(1, 0.9)])
    port = run([optimizer(), step(1, 0.7, grad=0.9, states={"torch": "b"})])
    assert same("identity", serial, serial, port).fault == "other-randomness"


def test_a_generator_that_every_run_starts_elsewhere_and_nobody_draws_from_is_no_cause() -> None:
    serial, again = (run([optimizer(), step(1, 0.9, states={"random": state})]) for state in "ab")
    port = run([optimizer(), step(1, 0.7, grad=0.9, states={"random": "c"})])
    assert same("identity", serial, again, port).fault == "other-gradient"


def test_a_step_without_zero_grad_is_a_stale_gradient() -> None:
    made = [event("zero_grad"), event("backward")]
    serial, port = run([optimizer(), *made, step(1, 0.9)]), run([optimizer(), made[1], step(1, 0.7)])
    assert same("identity", serial, serial, port).fault == "stale-gradient"


def test_a_file_that_is_no_longer_written_is_found_and_one_of_another_name_each_time_is_not() -> None:
    def wrote(*names: str) -> list[Event]:
        return [event("file", path=f"/there/{name}", how="write", was="") for name in names]

    serial, again = (run([optimizer(), step(1, 0.9), *wrote("best.pt", log)]) for log in ("log-1", "log-2"))
    right, wrong = (run([optimizer(), step(1, 0.9), *wrote(*names)]) for names in (["best.pt"], ["log-3"]))
    assert same("identity", serial, again, right).status == "passed"
    assert same("identity", serial, again, wrong).fault == "missing-file"
    days = [run([optimizer(), step(1, 0.9), *wrote(f"2026-11-23-{log}.log")]) for log in ("04-51-19", "04-51-31")]
    assert same("identity", days[0], days[0], days[1]).status == "passed"  # both serial runs in one second


@pytest.mark.parametrize(
    ("shuffles", "second", "says"),
    [
        (True, [3, 1, 0, 2], ("order of its own", "dl.shard(loader) in its place")),
        (True, [1, 0, 2, 3], ("set_epoch(), which is not called: each epoch has the same order", "dl.shard(loader)")),
        (False, [3, 1, 0, 2], ("order of its own", "give it shuffle=False, as the serial script does not shuffle")),
    ],
)
def test_the_order_of_a_distributed_sampler_is_told_from_other_samples(shuffles, second, says) -> None:
    def trained(sampler: str, shuffle: bool, after: float, *orders: list[int]) -> Run:
        loader = event("loader", loader=0, sampler=sampler, shuffle=shuffle, custom=sampler != "NoneType")
        passes = [
            e for number, order in enumerate(orders) for e in epoch([order]) if e.facts.update(epoch=number) is None
        ]
        return run([loader, optimizer(), *passes, step(1, after)])

    serial = trained("NoneType", shuffles, 0.9, [0, 1, 2, 3], [0, 1, 2, 3])
    check = same("identity", serial, serial, trained("DistributedSampler", False, 0.8, [1, 0, 2, 3], second))
    assert check.fault == "other-data"
    assert says[0] in check.finding
    assert ("each epoch" in check.finding) == ("each epoch" in says[0])
    assert says[1] in check.todo


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


def test_a_bar_that_a_text_follows_may_be_in_any_state_or_none() -> None:
    text, bars = " loss 1.250", ("", "0%|    | 0/4 [00:00<?, ?it/s]", "epoch:  25%|#   | 1/4 [00:00<00:02,  1.7it/s]")
    assert all(same_line(bars[0] + text, bars[0] + text, bar + text) for bar in bars)
    assert not same_line(bars[1] + text, bars[1] + text, bars[2] + " loss 1.251")
    half, whole = "50%|## | 2/4 [00:00<00:00]", "100%|####| 4/4 [00:00<00:00]"
    assert not same_line(whole, whole, half)


def test_a_count_is_compared_exactly() -> None:
    assert not same_line("epoch 1: 31/31", "epoch 1: 31/31", "epoch 1: 30/31", exact=False)


def test_an_integer_tensor_s_mean_over_ranks_that_repeat_the_serial_run_is_that_integer() -> None:
    assert same_line("(3/8)", "(3/8)", "(3.0/8)")
    assert not any(same_line("(3/8)", "(3/8)", other) for other in ("(30/8)", "(3.5/8)", "(3.00001/8)"))


def test_the_mean_of_the_ranks_gradients_passes() -> None:
    both = [[optimizer(), event("backward"), averaged(own, 0.5), step(1, 0.9)] for own in (0.2, 0.8)]
    assert gradients.mean_gradients(run(*both)).status == "passed"


def test_a_sum_in_place_of_the_mean_is_named_by_its_factor() -> None:
    both = [[optimizer(), event("backward"), averaged(own, 1.0), step(1, 0.9, grad=1.0)] for own in (0.2, 0.8)]
    check = gradients.mean_gradients(run(*both))
    assert check.fault == "no-mean"
    assert "2 times" in check.finding


@pytest.mark.parametrize(
    ("alone", "used", "fault"), [(0.5, 0.5, ""), (0.5, 1.0, "no-mean"), (0.25, 1.0, "no-mean"), (0.75, 1.0, "")]
)
def test_a_mean_that_is_multiplied_by_the_ranks_is_told_from_one_that_is_clipped(alone, used, fault) -> None:
    def made(own: float, grad: float) -> list[Event]:
        return [optimizer(), event("backward"), averaged(own, 0.5), step(1, 0.9, grad=grad)]

    check = gradients.mean_gradients(run(made(0.2, used), made(0.8, used)), run(made(0.5, alone)))
    assert check.fault == fault
    assert not fault or "takes 2 times the mean of 2 ranks' gradients" in check.finding


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
    between = run([event("forward", hash="h", noise=False, norm=False, drew=[]), step(1, 0.9, drew=["torch"])])
    assert "random numbers" in whole.reason_against(between, 2, divided=True)
    assert whole.reason_against(between, 2, divided=True, alike=True) == ""
    listed = event("loader", loader=0, sampler="NoneType", custom=True)
    assert "sharded whole" in whole.reason_against(run([listed, *epoch([[0, 1]])]), 2)


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


@pytest.mark.parametrize(
    ("attached", "says"), [(True, "dl.average() at train.py:8 gives back has no gradient"), (False, "")]
)
def test_a_loss_that_is_averaged_before_backward_is_told_what_to_average(attached: bool, says: str) -> None:
    message = "element 0 of tensors does not require grad and does not have a grad_fn"
    called = event(
        "return", "train.py:8", fn="average", local=1.0, mean=1.0, **({"attached": True} if attached else {})
    )
    error = event("error", type="RuntimeError", message=message, line="train.py:9")
    check = ran(run([event("face"), called, error], [], code=1), "replicate")
    assert check is not None
    assert (check.fault, says in check.todo) == ("fails", True)
    assert attached == ("dl.gradients(optimizer)" in check.todo)


def test_a_ramp_that_is_divided_twice_is_not_scaled_twice() -> None:
    face, end, loop = event("face"), event("end"), epoch([[0, 1]])
    serial = run([optimizer(), *loop, *(step(k, 1 - k / 10, lr=k / 10) for k in (1, 2, 3)), end])
    again = event("return", "train.py:3", fn="steps", count=4, result=2, again=True)
    scaled = event("return", "train.py:4", fn="lr_scale", rule="linear", lr=0.1, result=0.2)
    fast = [step(k, 1 - k / 10, lr=k * 0.4) for k in (1, 2, 3)]
    ranks = [[face, again, scaled, optimizer(), *epoch([[i]]), *fast, end] for i in (0, 1)]
    found = {c.name: c for c in compare(serial, serial, serial, serial, run(*ranks))}
    assert found["length of training"].fault == "too-few-steps"
    assert (found["learning rate"].fault, found["learning rate"].todo) == ("", "see length of training")


@pytest.mark.parametrize(("lr", "fault"), [(0.1, "other-gradient"), (0.05, "other-rate")])
def test_another_rate_with_the_serial_global_batch_is_named_before_the_loss(lr: float, fault: str) -> None:
    serial = run([optimizer(1.0), step(1, 0.9, lr=0.1)])
    check = whole.reproduces(serial, run([optimizer(1.0), step(1, 0.95, lr=lr)], []))
    assert (check.fault, "is 0.05, not 0.1" in check.finding) == (fault, fault == "other-rate")


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
    [
        ("copy", "copies-differ"),
        ("slot", "slots-differ"),
        ("buffer", "buffers-differ"),
        ("statistics", ""),
        ("memory", ""),
    ],
)
def test_copies_slots_and_buffers_must_agree_and_statistics_and_memories_are_each_ranks_own(
    kind: str, fault: str
) -> None:
    check = held(run(holding(1.0, kind), holding(1.5, kind)))
    assert check.fault == fault
    assert "model.x" in check.finding
    assert "5.0e-01" in check.finding


@pytest.mark.parametrize("own", [False, True])
def test_a_hidden_state_is_each_rank_s_own_and_what_losses_are_made_of_else_is_not(own: bool) -> None:
    def made(value: float) -> list[Event]:
        state = {"kind": "accumulated", "note": note(value), "at": "t.py:8", "own": own}
        return [event("carried", tensors={"state": state}, noise=[]), step(1, 0.9), event("held", tensors={})]

    assert held(run(made(1.0), made(1.5))).fault == ("" if own else "state-differs")


@pytest.mark.parametrize("loader", [0, 1])
def test_a_seed_that_the_port_sets_once_more_is_named_and_a_sampler_that_does_not_train_is_not(loader: int) -> None:
    def read(sample: int, *seeds: Event) -> Run:
        made = event("loader", loader=loader, made=0, sampler="DistributedSampler", custom=True)
        return run(
            [
                event("seed", "a.py:3", generator="torch", fixed=True),
                *seeds,
                made,
                optimizer(),
                *epoch([[sample]]),
                step(1, 0.9 + sample),
            ]
        )

    check = same("identity", read(0), read(0), read(1, event("seed", "a.py:8", generator="torch", fixed=True)))
    said = "torch is seeded at a.py:8, where the serial script goes on" if loader else "DistributedSampler has an order"
    assert said in check.finding


def test_statistics_that_are_averaged_before_they_are_saved_are_told_from_rank_0s_own() -> None:
    own = held(run(holding(1.0, "statistics", 1.0), holding(1.5, "statistics", 1.5)))
    averaged_first = held(run(holding(1.0, "statistics", 1.25), holding(1.5, "statistics", 1.25)))
    assert own.finding.endswith("saved are rank 0's")
    assert averaged_first.finding.endswith("the same on all ranks where they are saved")


@pytest.mark.parametrize(
    ("mean", "says"), [("b", "averaged before t.py:9 saves them"), ("a", "rank 0's are saved at t.py:9")]
)
def test_statistics_that_a_plain_save_writes_on_rank_0_are_told(mean: str, says: str) -> None:
    averaged = [event("return", fn="average", statistics=mean)]
    save = event("plain save", "t.py:9", statistics="b")
    check = held(run([*averaged, save, *holding(1.0, "statistics")], [*averaged, *holding(1.5, "statistics")]))
    assert check.status == "passed"
    assert says in check.finding


@pytest.mark.parametrize(
    ("kind", "rate", "status"), [("AdamW", 0.1, "n/a"), ("AdamW", 0.2, "failed"), ("SGD", 0.1, "failed")]
)
def test_where_gradients_agree_an_adams_first_step_is_no_fault(kind: str, rate: float, status: str) -> None:
    made = event("optimizer", **optimizer().facts | {"type": kind})
    one, other = (run([made, step(1, after, lr=lr)], []) for after, lr in ((0.9, 0.1), (0.95, rate)))
    check = whole.reproduces(one, other, grown=True)
    assert check.status == status
    assert "the gradients agree to 0e+00, and AdamW" in check.finding or status == "failed"


@pytest.mark.parametrize(("grad", "status"), [(0.49, "n/a"), (0.25, "failed")])
def test_gradients_under_autocast_agree_as_far_as_its_numbers_go(grad: float, status: str) -> None:
    made = [event("autocast", type="bfloat16"), event("optimizer", **optimizer().facts | {"type": "AdamW"})]
    one, other = (run([*made, step(1, x, grad=g)], []) for x, g in ((0.9, 0.5), (0.95, grad)))
    check = whole.reproduces(one, other, grown=True)
    assert check.status == status
    assert "the gradients agree to" in check.finding or status == "failed"


def test_a_loss_that_weighs_samples_or_compares_them_is_no_fault_of_the_port() -> None:
    def stepped(after: float, grad: float, later: float, *events: Event) -> Run:
        return run([optimizer(1.0), *events, step(1, after, grad=grad), step(2, later, grad=grad)], [])

    serial, weighs = stepped(0.9, 0.5, 0.8), event("weighs")
    assert whole.reproduces(stepped(0.9, 0.5, 0.8, weighs), stepped(0.95, 0.25, 0.8)).status == "n/a"
    assert whole.reproduces(serial, stepped(0.95, 0.25, 0.8), loud=serial).fault == "other-gradient"  # half of it
    assert whole.reproduces(serial, stepped(0.9, 0.5, 0.85), loud=serial).fault == "other-gradient"  # carried on
    half = whole.reproduces(serial, stepped(0.95, 0.25, 0.8), grown=True)
    assert whole.of_sums(serial, run(stepped(0.95, 0.25, 0.8).root.events, []), half)
    assert not whole.of_sums(serial, run(stepped(0.95, 0.125, 0.8).root.events, []), half)  # a quarter on 2 ranks
    two = [event("optimizer", **optimizer().facts | {"params": [note(1.0, 1.0)]})]
    one, other = (
        run([*two, step(1, 0.9, grads=[note(*grad)], params=[note(*after)])], [])
        for grad, after in (((0.5, 0.5), (0.9, 0.9)), ((0.5, 0.1), (0.9, 0.98)))
    )
    assert whole.reproduces(one, other, loud=one).status == "n/a"
    assert whole.reproduces(one, other, grown=True).status == "n/a"
    assert whole.reproduces(one, other).fault == "other-gradient"
    one, other = (
        run(
            [*two, step(1, 0.9, grads=[note(*grad)], params=[note(0.9, 0.9)]), step(2, 0.9, params=[note(0.8, after)])],
            [],
        )
        for grad, after in (((0.5, 0.5), 0.8), ((0.5, 0.1), 0.85))
    )
    assert whole.reproduces(one, other, grown=True).status == "n/a"  # whatever its gradients, Adam starts with one step


def test_samples_that_are_read_otherwise_from_time_to_time_are_told_from_those_that_are_other_ones() -> None:
    made = event("optimizer", **optimizer().facts | {"params": [note(1.0, 1.0)]})

    def trained(last: float, *given: list[int]) -> Run:
        fed = [event("forward", rows={"input 1": rows}) for rows in given]
        stepped = [step(i, 0.9, grads=[note(0.5, last)], params=[note(0.9, 1 - 0.2 * last)]) for i in (1, 2)]
        return run([made, *epoch([[0, 1]]), fed[0], stepped[0], *epoch([[0, 1]]), fed[1], stepped[1]], [])

    check = whole.reproduces(trained(0.5, [5, 6], [5, 7]), trained(0.1, [5, 8], [5, 9]))
    assert check.status == "n/a"
    assert "changed at random as they are read" in check.finding
    assert whole.reproduces(trained(0.5, [5, 6], [5, 6]), trained(0.1, [5, 7], [5, 7])).fault == "other-gradient"


@pytest.mark.parametrize(("rates", "says"), [([0.1, 0.1], "scaled twice ("), ([0.1, 0.2], "or once on a ramp 2 times")])
def test_a_rate_that_rises_by_the_script_itself_may_be_on_a_faster_ramp(rates: list[float], says: str) -> None:
    def at(times: float) -> list[Event]:
        return [*epoch([[0, 1]]), optimizer(), *(step(k, 0.9, lr=times * x) for k, x in enumerate(rates, 1))]

    check = rate.learning_rate(run(at(1)), run(at(4), at(4)))
    assert check.fault == "double-scaling"
    assert says in check.finding


@pytest.mark.parametrize(
    ("differs", "carried", "status"), [(2, "centers", "n/a"), (2, "", "failed"), (1, "centers", "failed")]
)
def test_what_losses_take_from_earlier_steps_moves_otherwise_with_parts_of_a_batch(differs, carried, status) -> None:
    def trained(after: float) -> list[Event]:
        steps = (step(k, 0.9 if k < differs else after, grad=0.5 if k < differs else after) for k in (1, 2))
        return [optimizer(1.0), *epoch([[0, 1]]), *steps]

    check = whole.reproduces(run(trained(0.8)), run(trained(0.6)), grown=True, carried=carried)
    assert check.status == status
    assert ("depends on centers" in check.finding) == (differs == 2 and bool(carried))


def test_the_window_of_optimizers_is_that_of_them_all() -> None:
    events, number = [event("epoch", epoch=0, loader=0, data=0, size=100), event("trains", epoch=0)], 0
    for batch in range(4):
        events.append(event("batch", epoch=0, indices=[batch], hash=str(batch)))
        for one_of in (0, *([1] if batch % 2 else [])):
            number += 1
            one = step(number, 0.9)
            events.append(Event("step", one.at, 0.0, one.facts | {"optimizer": one_of}))
    assert window(run(events).root) == (2, 3)


def test_batches_that_only_an_evaluation_reads_belong_to_no_step() -> None:
    events = [optimizer(), step(1, 0.9), event("epoch", epoch=0, loader=0, data=0, size=8), step(2, 0.8)]
    assert window(run([*events, event("batch", epoch=0, indices=[0], hash="")]).root) == (1, 2)
