"""Means, efficiencies, time to accuracy, and a model whose error is told."""

from __future__ import annotations

import pytest

from dlrun.scale.predict import Model, errors, fit
from dlrun.scale.reading import Point, Reading
from dlrun.scale.report import measured, predicted
from dlrun.scale.result import Run, Study, common_target, rows, time_to


def run(ranks: int, rates: tuple[float, ...], accuracies: tuple[float, ...] = (), mode: str = "weak") -> Run:
    points = tuple(Point(10.0 * (i + 1) / ranks, a, None) for i, a in enumerate(accuracies))
    return Run(mode, ranks, 0, 30.0 / ranks, Reading((1.0, *rates), points))


RUNS = (run(1, (90, 110), (0.8, 0.95)), run(2, (180,), (0.7, 0.9)), run(4, (320,), (0.9, 0.92)))
STUDY = Study("train.py", 8, "1", RUNS)


def test_rates_are_means_without_the_first_and_deviations() -> None:
    one, two, four = rows(STUDY, None)
    assert (one.mean, two.mean, four.mean) == (100, 180, 320)
    assert one.deviation == pytest.approx(14.142, abs=1e-3)
    assert two.deviation == 0
    assert (one.samples, two.samples) == (2, 1)


def test_efficiency_is_against_the_fewest_ranks() -> None:
    assert [(r.speedup, r.efficiency) for r in rows(STUDY, None)] == [(1, 1), (1.8, 0.9), (3.2, 0.8)]
    without_one = Study("train.py", 8, "1", STUDY.runs[1:])
    assert [r.efficiency for r in rows(without_one, None)] == [1, pytest.approx(320 / 180 / 2)]


def test_time_to_accuracy_is_the_first_time_it_was_reached() -> None:
    assert common_target(STUDY) == 0.9
    assert [r.to_target for r in rows(STUDY, 0.9)] == [20, 10, 2.5]
    assert [r.to_target for r in rows(STUDY, 0.93)] == [20, None, None]
    assert time_to(STUDY.runs[:1], None) is None


def test_weak_and_strong_runs_are_kept_apart() -> None:
    study = Study("train.py", 8, "1", (*STUDY.runs, run(1, (100,), mode="strong"), run(2, (150,), mode="strong")))
    assert study.modes() == ["weak", "strong"]
    assert [r.efficiency for r in rows(study, None) if r.mode == "strong"] == [1, 0.75]


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_the_fit_finds_the_model_that_made_the_rates(mode: str) -> None:
    truth = Model(mode, 4, 1e-3, 2e-4, 3e-5)
    rates = {n: truth.rate(n) for n in (1, 2, 4, 8, 16)}
    model = fit(mode, rates, 4)
    assert (model.bandwidth, model.latency) == (pytest.approx(2e-4), pytest.approx(3e-5))
    assert model.rate(64) == pytest.approx(truth.rate(64))
    assert all(abs(e) < 1e-9 for e in errors(mode, rates, 4).values())


def test_no_cost_is_ever_negative_even_where_more_ranks_are_faster_than_ideal() -> None:
    model = fit("weak", {1: 100, 2: 220, 4: 450, 8: 900}, 8)
    assert model.bandwidth >= 0
    assert model.latency >= 0
    assert model.rate(16, shared=False) == pytest.approx(1600)


def test_the_error_of_a_point_comes_from_a_fit_without_it() -> None:
    rates = {1: 100.0, 2: 180.0, 4: 100.0}
    found = errors("weak", rates, 8)
    alone = fit("weak", {1: 100.0, 2: 180.0}, 8)
    assert set(found) == {2, 4}
    assert found[4] == pytest.approx(alone.rate(4) / 100 - 1)
    assert found[4] > 1
    assert errors("weak", {1: 100.0, 2: 180.0}, 8) == {}


def test_ranks_that_share_cores_are_told_from_ranks_that_communicate() -> None:
    model = fit("weak", {1: 100, 2: 200, 4: 200}, 2)
    assert model.bandwidth == pytest.approx(0)
    assert model.rate(4, shared=True) == pytest.approx(200)
    assert model.rate(4, shared=False) == pytest.approx(400)


def test_the_model_says_what_its_times_are_of() -> None:
    def note(unit: str) -> str:
        runs = tuple(Run("weak", n, 0, 9.0, Reading((0.5 * n,), (), unit)) for n in (1, 2, 4))
        return predicted(Study("train.py", 8, "1", runs))[0].note

    assert note("epochs/s").startswith("per epoch and rank: 2.00 s of computing, ")
    assert note("samples/s").startswith("per sample and rank: 2.00 s of computing, ")


def test_two_numbers_of_ranks_give_no_model_and_what_no_run_printed_no_column() -> None:
    def study(*counts: int) -> Study:
        runs = tuple(Run("weak", n, 0, 9.0, Reading((0.5 * n,), ())) for n in counts)
        return Study("train.py", 8, "1", runs)

    assert predicted(study(1, 2)) == []
    table = measured(study(1, 2), None)
    assert table.head == ("mode", "ranks", "samples/s", "deviation", "values", "speed-up", "efficiency", "job")
    assert {len(row) for row in table.rows} == {len(table.head)}
    assert table.note.endswith("a model of more ranks takes a third number of them")
    assert len(predicted(study(1, 2, 4))) == 1 and "third number" not in measured(study(1, 2, 4), None).note
