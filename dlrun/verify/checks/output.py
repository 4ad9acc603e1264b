"""Printed lines of two runs, compared without what differs from run to run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dlrun.verify.trace import Event

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|0x[0-9a-fA-F]+|\bnan\b|\binf\b")
UNIT = re.compile(
    r"\s*(?:s|secs?|seconds?|ms|us|ns|mins?|minutes|h|hours|hrs|[\w.]+/s|it/s|s/\w+)\b|:\d\d(?!\d)|\s*/\s*s"
)
DURATION = re.compile(rf"(?:{NUMBER.pattern})\s*(?:[mun]?s|µs)\b")  # its unit changes with its size
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
OVERWRITTEN = re.compile(r".*[\r\b](?=[^\r\b])", re.DOTALL)
# A progress bar, and one that a text follows: its state is a matter of time there, as is whether it is there at all.
BAR = re.compile(r"(?:^[^|\r\n]{0,60}?)?\b\d{1,3}%\|[^|\r\n]*\|\s*\S+/\S+\s*\[[^\]\r\n]*\]")
PASSED_BAR = re.compile(rf"{BAR.pattern}(?=\s*\S)")
CLOCK = re.compile(
    r"(?:(?:\b|_)(?:time|elapsed|took|eta|speed|throughput|duration|date)"
    r"(?:_(?:s|secs?|seconds|ms|mins?|minutes|taken|spent|elapsed))?\W*)$",
    re.IGNORECASE,
)
OF_CLOCK = re.compile(r"(?<=\d:)\d\d(?:\.\d+)?")  # 12:30.5, not 3:0.25


@dataclass(frozen=True)
class Difference:
    """The first line that differs: what the serial script printed and what the port did, None for nothing."""

    expected: str | None
    printed: str | None
    at: str


def first_difference(
    serial: Sequence[Event], again: Sequence[Event], port: Sequence[Event], exact: bool = True
) -> Difference | None:
    """Return the first difference of printed lines, None where there is none.

    Numbers that two serial runs print differently (``serial``, ``again``), and times, are not compared. ``exact``:
    digit by digit; otherwise numbers are equal up to rounding: a unit of the last digit shown, or 1e-4 of the value.
    """
    for i in range(max(len(serial), len(port))):
        expected = serial[i]["text"] if i < len(serial) else None
        printed = port[i]["text"] if i < len(port) else None
        other = again[i]["text"] if i < len(again) else None
        if expected is None or printed is None or not same_line(expected, other or expected, printed, exact):
            at = (port[i] if i < len(port) else serial[i]).at
            return Difference(expected, printed, at)
    return None


def shown(line: str) -> str:
    """Return what stays of a line on a terminal, without colours: a progress bar's last state."""
    return PASSED_BAR.sub("", OVERWRITTEN.sub("", STYLE.sub("", line)).strip("\r\b"))


def same_line(expected: str, again: str, printed: str, exact: bool = True) -> bool:
    """Whether two lines say the same, durations left aside."""
    expected, again, printed = (DURATION.sub("a while", shown(line)).strip() for line in (expected, again, printed))
    if NUMBER.sub("#", expected) != NUMBER.sub("#", printed):
        return False
    repeats = [m.group() for m in NUMBER.finditer(again)]
    for i, (a, b) in enumerate(zip(NUMBER.finditer(expected), NUMBER.finditer(printed), strict=True)):
        varies = i >= len(repeats) or repeats[i] != a.group()
        mean = b.group() == f"{a.group()}.0"  # of a tensor's integers, which is no integer
        alike = mean or a.group() == b.group() or (not exact and close(a.group(), b.group()))
        if not (varies or alike or is_time(expected, a)):
            return False
    return True


def is_time(line: str, number: re.Match[str]) -> bool:
    """Whether a number of a line is one of seconds, or of something per second."""
    of_clock = OF_CLOCK.fullmatch(line, number.start(), number.end())
    return bool(of_clock or UNIT.match(line, number.end()) or CLOCK.search(line, 0, number.start()))


def close(a: str, b: str) -> bool:
    """Whether two printed numbers are equal up to rounding."""
    try:
        x, y = float(a), float(b)
    except ValueError:
        return False
    mantissa = re.split("[eE]", a)[0]
    digits = len(mantissa.partition(".")[2])
    unit = 10.0**-digits * (10.0 ** float(re.split("[eE]", a)[1]) if "e" in a.lower() else 1.0)
    return x == y or (x != x and y != y) or abs(x - y) <= max(1.01 * unit if digits else 0.0, 1e-4 * abs(x))


def factor(difference: Difference) -> float | None:
    """Return printed / expected of the first pair of numbers that differ, None where there is none."""
    expected, printed = shown(difference.expected or ""), shown(difference.printed or "")
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(printed), strict=False)
    for a, b in pairs:
        try:
            if a != b and float(a) != 0:
                return float(b) / float(a)
        except ValueError:
            continue
    return None
