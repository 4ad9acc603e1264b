"""Whoever waits is told what for: one line that changes on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import re
import time

from dlrun.progress import QUIET, Progress, span, working


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_sees_one_line_that_changes_and_goes() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress(4, stream, clock=clock)
    progress.at(0, "first")
    clock.now = 10
    progress.at(1, "second")
    progress.clear()
    assert stream.getvalue() == "\r\033[K  0 %  first\r\033[K 25 %  second, about 30 s left\r\033[K"
    progress.clear()
    assert stream.getvalue().endswith("left\r\033[K")


def test_an_error_begins_a_line_of_its_own() -> None:
    stream = Terminal()
    with contextlib.suppress(ValueError), Progress(4, stream) as progress:
        progress.at(0, "first")
        raise ValueError
    assert stream.getvalue().endswith("first\r\033[K")


def test_a_narrow_terminal_sees_one_line_too(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    Progress(4, stream).at(0, "an allreduce of 256 MB")
    assert stream.getvalue() == "\r\033[K  0 %  an allred..."


def test_elsewhere_plain_lines_come_after_two_seconds_and_not_too_often() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(100, stream, pace=10, clock=clock)
    for second in range(30):
        clock.now = second
        progress.at(second, f"step {second}")
    progress.clear()
    lines = stream.getvalue().splitlines()
    assert lines == [
        "dlrun: 2 %  step 2, about 1 min 38 s left",
        "dlrun: 12 %  step 12, about 1 min 28 s left",
        "dlrun: 22 %  step 22, about 1 min 18 s left",
    ]


def test_what_is_quick_is_done_without_a_word_and_what_is_not_says_so() -> None:
    stream = io.StringIO()
    with working("reading", stream):
        pass
    assert stream.getvalue() == ""
    with working("reading", stream):
        deadline = time.monotonic() + 10 * QUIET
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert re.match(r"dlrun: reading, \d+ s so far", stream.getvalue())


def test_spans_are_minutes_and_seconds() -> None:
    assert [span(s) for s in (0.4, 59.6, 75)] == ["0 s", "1 min 0 s", "1 min 15 s"]
