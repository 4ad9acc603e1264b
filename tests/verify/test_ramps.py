"""Rates that rise by the script's own hand: seen to their end where steps are quick, and told where they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from by_hand import epoch, event, optimizer, run, step

from dlrun.verify import Job
from dlrun.verify.checks import ramps, rate
from dlrun.verify.checks.iterations import turns
from dlrun.verify.checks.lengths import other_length
from dlrun.verify.checks.plateaus import plateaus
from dlrun.verify.longer import STEPS, to_the_end
from dlrun.verify.trace import Event, Run
from dlrun.verify.tracer.conditions import TURNS
from dlrun.verify.verdict import failed


def trained(rates: Sequence[float]) -> list[Event]:
    steps = (step(k, 0.9, lr=x) for k, x in enumerate(rates, 1))
    return [*epoch([[0, 1]]), optimizer(), *steps]


@pytest.mark.parametrize(
    ("serial", "ported", "fault"),
    [
        ([0.1] * 4, [0.105, 0.11, 0.115, 0.12], ""),  # Goyal's, from the serial rate on
        ([0.1] * 4, [0.12, 0.115, 0.11, 0.105], "other-rate"),
        ([0.1] * 4, [0.15, 0.2, 0.25, 0.3], "other-rate"),  # beyond what is scaled
        ([0.1] * 4, [0.08, 0.09, 0.1, 0.12], "other-rate"),
        ([0.4, 0.3, 0.2, 0.1], [0.42, 0.43, 0.44, 0.45], "other-rate"),  # the serial one falls
    ],
)
def test_a_rate_that_rises_from_the_serial_to_the_scaled_one_is_a_warm_up(serial, ported, fault) -> None:
    check = rate.learning_rate(run(trained(serial)), run(*[trained(ported)] * 2))
    assert check.fault == fault
    assert fault or "rises from 0.105 to 0.12 in 4 steps, set by the script itself" in check.finding


RISING, ENDED = [0.01, 0.02, 0.03], [0.01, 0.02, 0.03, 0.03]


@pytest.mark.parametrize(
    ("serial", "ported", "status"),
    [
        (ENDED, [0.04, 0.06, 0.06, 0.06], "passed"),
        (ENDED, [0.04, 0.08, 0.12, 0.12], "failed"),
        (ENDED, [0.04, 0.06, 0.08, 0.1], None),  # it rises on
        (RISING, [0.04, 0.06, 0.06], None),
    ],
)
def test_the_end_of_a_ramp_tells_a_fast_one_from_one_that_is_scaled_twice(serial, ported, status) -> None:
    check = ramps.at_end(run(trained(serial)), run(*[trained(ported)] * 2), 1.0, True, rate.NAME)
    assert (check.status if check else None) == status
    assert check is None or check.fault == ("double-scaling" if status == "failed" else "")


@pytest.mark.parametrize(
    ("ported", "fewer", "fault"),
    [
        ([0.04, 0.08, 0.08, 0.08], True, ""),
        ([0.02, 0.04, 0.06, 0.08, 0.08], True, "schedule-too-long"),
        ([0.02, 0.04, 0.06, 0.08, 0.08], False, ""),  # nothing tells that the ranks make fewer steps
        ([0.02, 0.04, 0.04, 0.04], True, "lost-scaling"),
        ([0.02, 0.04, 0.06, 0.06], True, ""),  # more than the serial one, by a rule that is not known
    ],
)
def test_the_end_of_a_ramp_tells_what_lost_its_scaling_and_what_is_too_long(ported, fewer, fault) -> None:
    serial = [0.01, 0.02, 0.03, 0.04, 0.04]
    check = ramps.at_end(run(trained(serial)), run(*[trained(ported)] * 2), 2.0, fewer, rate.NAME)
    assert check is not None
    assert check.fault == fault


@pytest.mark.parametrize(("made", "by_hand"), [(0, True), (1, True), (3, False)], ids=["none", "epochs", "steps"])
def test_a_ramp_is_the_script_s_own_beside_a_schedule_of_epochs(made: int, by_hand: bool) -> None:
    peaks = [event("peaks", optimizer=0, made=made, rates=[0.1], ahead=[0.1])] if made else []
    assert ramps.are_by_hand(run([*trained(RISING), *peaks]).root) == by_hand


@pytest.mark.parametrize(("rate_then", "fault"), [(0.1, ""), (0.05, "lost-scaling"), (0.2, "double-scaling")])
def test_the_rate_that_a_later_averaging_of_weights_goes_to_is_scaled(rate_then: float, fault: str) -> None:
    def made(lr: float, later: float) -> list[Event]:
        return [*trained([lr] * 3), event("goes to", optimizer=0, rates=[later], where="train.py:5")]

    scaled = event("return", "train.py:3", fn="lr_scale", rule="linear", lr=0.1, result=0.2)
    check = rate.learning_rate(run(made(0.1, 0.05)), run(*[[scaled, *made(0.2, rate_then)]] * 2))
    assert check.fault == fault
    assert check.where == ("train.py:5" if fault else "")


@dataclass(frozen=True)
class Quick:
    """Stands for ``Runs``: runs in which the ramps come to their end."""

    made: Callable[[Sequence[float]], list[Event]]
    job: Job = field(default_factory=lambda: Job(Path("a.py"), Path("b.py")))
    cuts: tuple[int, ...] = ()

    def both(self, one: Callable[[], Run], two: Callable[[], Run]) -> tuple[Run, Run]:
        assert self.job.steps == STEPS
        return one(), two()

    def longer(self) -> Run:
        return run(self.made(ENDED))

    def sharded(self, name: str) -> Run:
        return run(*[self.made([0.04, 0.06, 0.06, 0.06])] * 2)


@pytest.mark.parametrize(("clock", "status"), [(0.01, "passed"), (10.0, "failed")])
def test_more_steps_are_made_where_they_are_quick(clock: float, status: str) -> None:
    def made(rates: Sequence[float]) -> list[Event]:
        return [Event(e.kind, e.at, clock * k, e.facts) for k, e in enumerate(trained(rates))]

    check = failed(rate.NAME, "4 times", f"{ramps.END}; or ...", "double-scaling")
    serial, sharded = run(made(RISING)), run(*[made([0.04, 0.08, 0.12])] * 2)
    found = to_the_end(Quick(made), serial, sharded, [check])  # type: ignore[arg-type]
    assert [each.status for each in found] == [status]


@pytest.mark.parametrize(
    ("single", "now", "told"),
    [(True, 24, True), (True, 12, False), (False, 24, False)],  # a loop through epochs has as many
)
def test_a_loop_that_counts_steps_and_is_not_divided_is_told(single: bool, now: int, told: bool) -> None:
    def made(count: int) -> list[Event]:
        facts = {"single": True} if single else {}
        loop = event("decision", "train.py:7", what=f"range({count})", values={TURNS: float(count)}, **facts)
        return [loop, *epoch([[0, 1]]), optimizer(), step(1, 0.9), step(2, 0.8)]

    check = turns(run(made(24)), run(*[made(now)] * 2))
    assert (check is not None) == told
    if check is not None:
        assert check.fault == "too-many-steps"
        assert check.finding.startswith("range(24) at train.py:7 makes 24 steps on 2 ranks as on 1, each with 2 times")


@pytest.mark.parametrize("ends", [False, True], ids=["how often it evaluates", "when it ends"])
def test_a_loop_is_told_though_something_else_than_its_end_is_counted_by_fewer_steps(ends: bool) -> None:
    def made(*calls: Event) -> list[Event]:
        loop = event("decision", "train.py:7", what="range(24)", values={TURNS: 24.0}, single=True)
        counted = [
            event("decision", "train.py:9", what="k == last", values={"k": float(k)}, leaves=True) for k in (0, 1)
        ]
        asked = counted if ends else [event("print", "train.py:9", text="")] * 2
        return [*calls, loop, *epoch([[0, 1]]), optimizer(), step(1, 0.9), asked[0], step(2, 0.8), asked[1]]

    fewer = event("return", "train.py:8", fn="steps", count=4, result=2)
    assert (turns(run(made()), run(*[made(fewer)] * 2)) is None) == ends


@pytest.mark.parametrize(
    ("serially", "on_ranks", "fault"),
    [
        ("k >= last", "k >= last", "too-many-steps"),
        ("k == 36", "k == 36", "too-many-steps"),
        ("k >= last", "k >= dl.steps(last)", ""),
    ],
)
def test_a_condition_that_ends_the_training_after_as_many_steps_is_a_fault(
    serially: str, on_ranks: str, fault: str
) -> None:
    def made(what: str) -> list[Event]:
        def asked(k: int) -> Event:
            return event("decision", "train.py:9", what=what, values={"k": float(k), "last": 36.0}, leaves=True)

        return [*epoch([[0, 1]]), optimizer(), step(1, 0.9), asked(1), step(2, 0.8), asked(2)]

    check = turns(run(made(serially)), run(*[made(on_ranks)] * 2))
    assert (check.fault if check else "") == fault


@pytest.mark.parametrize(
    ("rates", "fault"),
    [
        ([0.2] * 10 + [0.02] * 10, ""),
        ([0.2] * 20 + [0.02] * 20, "schedule-too-long"),
        ([0.2] * 5 + [0.02] * 15, "schedule-too-short"),
    ],
)
def test_a_schedule_of_steps_is_the_serial_one_of_which_n_steps_are_gone_through_at_once(
    rates: list[float], fault: str
) -> None:
    def made(rates: Sequence[float], n: int) -> Run:
        peaks = event("peaks", optimizer=0, rates=[max(rates)], made=2, where="t.py:9", told=False, ahead=rates[2:])
        steps = [step(k + 1, 0.9, lr=rates[k]) for k in range(2)]
        divided = [event("return", "t.py:8", fn="steps", count=40, result=20)] if n > 1 else []
        return run(*[[*divided, *epoch([[0, 1]] * 2), optimizer(), *steps, peaks]] * n)

    serial, ported = made([0.1] * 20 + [0.01] * 20, 1), made(rates, 2)
    check = other_length(serial, ported, 2.0, rate.NAME)
    assert (check.fault if check else "") == fault


def drops(*rates: tuple[float, int], size: int = 100) -> list[Event]:
    """Steps at each of these rates, so many, in epochs of so many."""
    every = [lr for lr, count in rates for _ in range(count)]
    begins = [event("epoch", epoch=i, loader=0, data=0, size=100) for i in range(0, len(every), size)]
    events = [event("optimizer", optimizer=0, type="SGD", names=["w"], ids=[0]), event("trains", epoch=0)]
    for i, lr in enumerate(every):
        events += [begins[i // size], event("trains", epoch=i)] if i % size == 0 else []
        events.append(step(i + 1, 1.0, lr=lr))
    return events


@pytest.mark.parametrize(
    ("port", "fault"),
    [
        (drops((0.2, 8), (0.02, 4)), ""),
        (drops((0.2, 10), (0.02, 2)), ""),  # within what is spared
        (drops((0.2, 12)), "schedule-too-long"),
        (drops((0.2, 4), (0.02, 8)), "schedule-too-short"),
        (drops((0.2, 5)), ""),  # it has ended before
        (drops((0.2, 3), (0.1, 9)), ""),  # another rate: not judged here
        (drops((0.2, 12), size=4), ""),  # two epochs, each of which may have a step more
    ],
)
def test_a_rate_that_drops_drops_after_as_many_samples(port, fault) -> None:
    found = plateaus(run(drops((0.1, 16), (0.01, 8))), run(port, port), 2)
    assert (found.fault if found else "") == fault


@pytest.mark.parametrize(
    ("port", "fault"),
    [
        ([0.2, 0.18, 0.162, 0.1458], ""),
        ([0.2, 0.162, 0.1312, 0.1063], "other-rate"),  # the factor of an epoch raised to the number of ranks
        ([0.2, 0.17, 0.152, 0.1358], ""),  # a part that is not scaled: 0.01
        ([0.2, 0.18, 0.162, 0.0729], ""),  # the serial script's least rate, not scaled
        ([0.2, 0.15, 0.14, 0.05], "other-rate"),
    ],
)
def test_a_rate_that_changes_with_each_epoch_changes_by_the_serial_factor(port: list[float], fault: str) -> None:
    serial = [0.1, 0.09, 0.081, 0.0729]
    serial = serial if port[1] != 0.17 else [0.1, 0.085, 0.076, 0.0679]
    one, two = drops(*((rate, 6) for rate in serial)), drops(*((rate, 3) for rate in port))
    found = plateaus(run(one), run(two, two), 2)
    assert (found.fault if found else "") == fault
