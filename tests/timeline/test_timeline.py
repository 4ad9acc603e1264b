"""Timelines merge, tell who waited for whom, and read back from the trace."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dlrun.cli import main
from dlrun.errors import DlrunError
from dlrun.timeline.rings import Event, Track, ahead, between, read_all
from dlrun.timeline.summary import costs, overlap, own_seconds, shares, summary
from dlrun.timeline.together import slowest, split
from dlrun.timeline.trace import from_chrome, lanes, to_chrome, with_gaps


def track(rank: int, compute: float, steps: int = 4) -> Track:
    """Steps of 10 ms: computing for `compute` s, then an allreduce from which both ranks return together."""
    events = [Event("start", "start", -0.9, -0.5), Event("import", "import", -0.5, -0.1)]
    events.append(Event("init", "join", -0.1, 0.0))
    for step in range(steps):
        end = 0.01 * (step + 1)
        events.append(Event("allreduce", "weight", end - 0.01 + compute, end, 4096))
        events.append(Event("mark", "step", end, end, ticket=step))
    return Track(rank, "host", 100 + rank, tuple(events))


FAST, SLOW = track(0, 0.002), track(1, 0.009)


def test_a_step_lies_between_two_borders_and_the_first_has_none() -> None:
    assert FAST.steps() == {n: (pytest.approx(0.01 * n), pytest.approx(0.01 * (n + 1))) for n in (1, 2, 3)}


def test_a_rank_waits_until_the_last_has_come_and_the_rest_is_the_exchange() -> None:
    fast, slow = split([FAST, SLOW])
    assert [round(e.seconds, 6) for e in fast.events if e.kind == "wait"] == [0.007] * 4
    assert {e.name for e in fast.events if e.kind == "wait"} == {"for rank 1"}
    assert [round(e.seconds, 6) for e in fast.events if e.kind == "reduce"] == [0.001] * 4
    assert not [e for e in slow.events if e.kind == "wait"]
    assert shares(fast)["wait"] == pytest.approx(0.7)
    assert shares(fast)["reduce"] == pytest.approx(0.1)
    assert shares(slow)["forward/backward"] == pytest.approx(0.9)
    assert sum(shares(fast).values()) == pytest.approx(1)


def test_the_slowest_rank_of_a_step_is_the_one_that_came_last() -> None:
    assert slowest([FAST, SLOW]) == {n: (1, pytest.approx(0.007)) for n in (1, 2, 3)}
    assert slowest([FAST]) == {}


def test_exchanges_in_another_order_on_another_rank_still_meet() -> None:
    def one(rank: int, names: str) -> Track:
        events = [Event("mark", "step", 0.0, 0.0, ticket=0)]
        events += [Event("allreduce", name, 0.1 * i + 0.01 * rank, 0.1 * i + 0.05) for i, name in enumerate(names, 1)]
        return Track(rank, "h", rank, tuple(events))

    first, second = split([one(0, "ab"), one(1, "ba")])
    assert [e.name for e in first.events if e.kind == "wait"] == ["for rank 1"]
    assert [e.name for e in second.events if e.kind == "wait"] == ["for rank 0"]


def test_overlap_is_what_of_the_reductions_was_not_waited_for() -> None:
    flight = (
        Event("issue", "b", 0.0, 0.001, 8, 7),
        Event("reduce", "b", 0.001, 0.011, 8, 7),
        Event("wait", "b", 0.009, 0.012, 8, 7),
    )
    assert overlap(Track(0, "", 0, flight)) == pytest.approx(0.8)
    assert overlap(FAST) is None


def test_time_is_charged_to_the_innermost_phase() -> None:
    events = [Event("backward", "b", 0.0, 1.0), Event("pack", "w", 0.2, 0.3), Event("pack", "w", 0.4, 0.5)]
    spent = own_seconds(events, (0.0, 2.0))
    assert spent == {("backward", "b"): pytest.approx(0.8), ("pack", "w"): pytest.approx(0.2)}
    assert own_seconds(events, (0.25, 0.45))["backward", "b"] == pytest.approx(0.1)


def test_the_largest_costs_are_named_with_their_seconds_in_a_step() -> None:
    assert costs(split([FAST, SLOW]))[:2] == [
        ("forward/backward", pytest.approx(0.0055)),
        ("wait for rank 1", pytest.approx(0.0035)),
    ]


def test_forward_is_told_from_backward_where_backward_was_recorded() -> None:
    events = (
        Event("init", "join", 0.0, 0.1),
        Event("backward", "b", 0.5, 0.6),
        Event("mark", "step", 0.7, 0.7),
        Event("backward", "b", 0.9, 1.0),
        Event("allreduce", "average", 1.2, 1.3),
    )
    kinds = [e.kind for e in with_gaps(Track(0, "", 0, events))]
    assert kinds == ["init", "set-up", "backward", "forward", "backward", "script", "allreduce"]


def test_before_a_window_of_steps_lies_nothing() -> None:
    border = Event("mark", "step", 9.0, 9.0, ticket=99)
    events = (Event("init", "join", 0.0, 0.1), border, Event("backward", "b", 9.2, 9.5))
    gap = next(e for e in with_gaps(Track(0, "", 0, events)) if e.kind == "forward")
    assert (gap.begin, gap.end) == (9.0, 9.2)


def test_the_summary_names_everything_in_a_few_lines() -> None:
    said = summary([FAST, SLOW])
    assert "steps 1 to 3: median 10.0 ms, longest 10.0 ms" in said
    assert "70.0 %" in said
    assert "3 steps by 7.00 ms" in said
    assert "slowest rank per step: 1: 1, 2: 1, 3: 1" in said
    assert "start 400 ms, import 400 ms, init 100 ms" in said


def test_a_window_of_steps_keeps_those_alone() -> None:
    kept = between(FAST, 1, 3)
    assert [e.ticket for e in kept.events if e.kind == "mark"] == [0, 1, 2]
    assert [round(e.end, 3) for e in kept.events if e.kind == "allreduce"] == [0.02, 0.03]


def test_a_window_without_steps_is_refused_with_the_steps_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(to_chrome([FAST, SLOW])))
    done = CliRunner().invoke(main, ["timeline", str(tmp_path / "t.json"), "--steps", "90:91"])
    told = f"dlrun: --steps 90:91: no such step was recorded\n  {tmp_path / 't.json'} holds steps 1 to 3\n"
    assert (done.exit_code, done.output) == (1, told)


def test_clocks_of_other_nodes_are_aligned_also_when_they_drift() -> None:
    assert ahead([], 5) == 0
    assert [ahead([(100, 10), (200, 20)], t) for t in (50, 100, 150, 200, 900)] == [10, 10, 15, 20, 20]


def test_phases_that_cross_get_lanes_of_their_own() -> None:
    crossing = [Event("reduce", "b", *times) for times in ((0.0, 2.0), (1.0, 3.0), (2.0, 2.5))]
    assert [lane for lane, _ in lanes(crossing)] == [0, 1, 0]
    for lane in (0, 1):
        inside = [e for at, e in lanes(crossing) if at == lane]
        assert all(b.begin >= a.end or b.end <= a.end for a, b in itertools.pairwise(inside))


def test_the_trace_reads_back_into_what_was_recorded() -> None:
    value = json.loads(json.dumps(to_chrome([FAST, SLOW])))
    again = from_chrome(value, "t.json")
    assert [(t.rank, t.host, t.pid) for t in again] == [(0, "host", 100), (1, "host", 101)]
    for before, after in zip((FAST, SLOW), again, strict=True):
        assert [(e.kind, e.name, e.nbytes, e.ticket) for e in after.events] == [
            (e.kind, e.name, e.nbytes, e.ticket) for e in before.events
        ]
        assert [e.begin for e in after.events] == pytest.approx([e.begin for e in before.events], abs=1e-9)
    assert summary(again) == summary([FAST, SLOW])
    for events in ([{"ph": "X", "name": "x"}], []):
        with pytest.raises(DlrunError, match=r"t\.json is no trace"):
            from_chrome({"traceEvents": events}, "t.json")


def test_a_folder_without_rings_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(DlrunError, match="holds no timeline"):
        read_all(tmp_path)
    (tmp_path / "timeline-0.ring").write_text("something else")
    with pytest.raises(DlrunError, match="is no timeline of dl_comm"):
        read_all(tmp_path)
