"""The table is sorted by gain with the default marked, and the sentence claims what the judge found, no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlrun.errors import DlrunError
from dlrun.tune.report import Measure, draw, sentence, tables
from dlrun.tune.search import FINAL, GRID, Goal, Outcome, Trial
from dlrun.tune.space import Axis, Settings, Space, axis_from_text, plugin_axes
from dlrun.tune.trial import Metric

SPACE = Space((Axis("STAGE", ("64", "512")),))
GOAL = Goal(100.0)
TIME = Measure()
FAST: Settings = (("STAGE", "64"),)
SLOW: Settings = (("STAGE", "512"),)


def outcomes(pairs: int, gain: float = 0.2) -> list[Outcome]:
    """The grid once, then final pairs in which STAGE=64 is faster by `gain`, give or take a little."""
    found = [
        Outcome(Trial(SPACE.default, GRID, 0), 1e-3, 1.0, facts=(("bus_bandwidth", 2e9),)),
        Outcome(Trial(FAST, GRID, 1), 1e-3 * (1 - gain), 1.0, facts=(("bus_bandwidth", 3e9),)),
        Outcome(Trial(SLOW, GRID, 2), 2e-3, 1.0),
    ]
    for pair in range(pairs):
        jitter = 1 + 0.01 * (pair % 3)
        found.append(Outcome(Trial(SPACE.default, FINAL, 2 * pair), 1e-3, 1.0))
        found.append(Outcome(Trial(FAST, FINAL, 2 * pair + 1), 1e-3 * (1 - gain * jitter), 1.0))
    return found


def test_the_table_is_sorted_by_gain_and_marks_the_default() -> None:
    lines = tables(SPACE, outcomes(10), GOAL, TIME).splitlines()[2:-1]
    assert [line.split()[0] for line in lines] == ["STAGE=64", "default", "STAGE=512"]
    assert lines[0].endswith("gain")
    assert lines[1].endswith("default")
    assert "+20." in lines[0]
    assert "-100.0 %" in lines[2]
    assert "2.50" not in lines[0]
    assert "3.00" in lines[0]


def test_averaging_alone_and_whole_steps_are_never_mixed() -> None:
    measure = Measure("", "averaging", "a step of train.py")
    search, final = tables(SPACE, outcomes(10), GOAL, measure).split("\n\n")
    assert search.splitlines()[0] == "averaging"
    assert final.splitlines()[0] == "a step of train.py"
    assert [line.split()[0] for line in search.splitlines()[3:]] == ["STAGE=64", "default", "STAGE=512"]
    assert [line.split()[0] for line in final.splitlines()[3:5]] == ["STAGE=64", "default"]
    assert "challenger" in search
    assert "gain" in final.splitlines()[3].split()[-1]


def test_settings_that_fail_are_listed_with_their_error() -> None:
    failed = [*outcomes(0)[:2], Outcome(Trial(SLOW, GRID, 2), None, 1.0, error="rank 1 died")]
    last = tables(SPACE, failed, GOAL, TIME).splitlines()[-2]
    assert "STAGE=512" in last
    assert "rank 1 died" in last


def test_the_sentence_says_how_sure_a_gain_is() -> None:
    said = sentence(SPACE, outcomes(10), GOAL)
    assert said.startswith("STAGE=64 is better than the default by 20")
    assert "10 pairs" in said


def test_a_search_cut_short_claims_nothing() -> None:
    assert "time ran out after 4 pairs" in sentence(SPACE, outcomes(4), GOAL)
    assert sentence(SPACE, outcomes(10, gain=0.0), GOAL).startswith("no gain")
    alone = [o for o in outcomes(4) if o.trial.settings == SPACE.default]
    assert sentence(SPACE, alone, GOAL).startswith("only the default was measured: the budget of ")


def test_the_plot_is_written_as_svg_and_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    svg, png = draw(SPACE, outcomes(10), GOAL, tmp_path / "tune.jsonl", TIME)
    assert "<svg" in svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_metric_is_read_where_the_pattern_says() -> None:
    lines = ["90 samples/s, accuracy 0.5", "110 samples/s, accuracy 0.9", "120 samples/s, accuracy 0.8"]
    assert Metric().value(Metric().read(lines)) == 115
    last = Metric(r"accuracy ([\d.]+)", "last")
    assert last.value(last.read(lines)) == 0.8
    best = Metric(r"accuracy ([\d.]+)", "best")
    assert best.value(best.read(lines)) == 0.9
    with pytest.raises(DlrunError, match="holds nothing like"):
        last.read(["hello"])
    with pytest.raises(DlrunError, match="finds 'none yet' in 'accuracy none yet', and that is no number"):
        Metric("accuracy (.*)").read(["accuracy none yet"])


def test_only_settings_that_dl_comm_reads_are_swept() -> None:
    source = "".join(
        path.read_text()
        for folder in ("src", "dl_comm")
        for path in (Path(__file__).parents[2] / "comm" / folder).rglob("*")
        if path.suffix in (".cc", ".h", ".py")
    )
    for axis in (*plugin_axes(nodes=2, overlaps=True, gpu=True), *plugin_axes(nodes=1, overlaps=False)):
        assert f'"{axis.name}"' in source, f"{axis.name} is swept, and nothing reads it"


def test_a_way_between_nodes_is_tried_where_there_are_several() -> None:
    paths = [{axis.name: axis.values for axis in plugin_axes(n, False, gpu=True)}["DL_COMM_GPU_PATH"] for n in (1, 2)]
    assert paths == [("staged", "nccl", "ipc"), ("staged", "nccl", "ipc", "mpi")]


def test_axes_are_chosen_by_name_or_with_values() -> None:
    assert plugin_axes(1, False, ("DL_COMM_STAGE_KB=8,16",)) == (Axis("DL_COMM_STAGE_KB", ("8", "16")),)
    assert axis_from_text("--lr=0.1, 0.2", "option") == Axis("lr", ("0.1", "0.2"), "option")
    with pytest.raises(DlrunError, match="no setting DL_COMM_MAGIC"):
        plugin_axes(1, False, ("DL_COMM_MAGIC=1",))
    with pytest.raises(DlrunError, match="'lr' is no axis"):
        axis_from_text("lr", "option")
