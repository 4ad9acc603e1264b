"""Progress bars where nothing can be overwritten, and plain text as it comes."""

from __future__ import annotations

import pytest

from dlrun.launch.console import Folded


def shown(chunks: list[tuple[float, bytes]], whole_lines: bool = False) -> list[bytes]:
    """What is shown of chunks of text, each with the second at which it comes; states of bars 10 seconds apart."""
    stream = Folded(10.0, whole_lines)
    lines = [line for now, data in chunks for line in stream.feed(data, now)]
    return [*lines, rest] if (rest := stream.unfinished()) else lines


def test_plain_text_passes_as_it_comes():
    assert shown([(0, b"load"), (0, b"ing\nready\n"), (1, b"...")]) == [b"load", b"ing\n", b"ready\n", b"..."]


def test_a_line_that_does_not_end_is_shown_in_pieces():
    piece = 65536 * b"x"
    told = shown([(0, piece)] * 40 + [(0, b"\nready\n")], whole_lines=True)
    assert b"".join(told).replace(b"\n", b"") == 40 * piece + b"ready" and told[-1] == b"ready\n"
    assert all(line.endswith(b"\n") and len(line) < 2**20 + 2**17 for line in told)


def test_of_several_ranks_whole_lines_pass():
    assert shown([(0, b"load"), (0, b"ing\nready\n..")], whole_lines=True) == [b"loading\n", b"ready\n", b".."]


@pytest.mark.parametrize("whole_lines", [False, True])
def test_of_a_bar_the_first_state_passes_then_one_every_ten_seconds_and_the_last(whole_lines):
    chunks = [(float(i), b"\r%3d%%" % i) for i in range(0, 25)]
    told = shown([*chunks, (25.0, b"\r100%\n"), (26.0, b"next\n")], whole_lines)
    assert told == [b"  0%\n", b" 10%\n", b" 20%\n", b"100%\n", b"next\n"]


def test_a_bar_that_ends_as_it_was_last_shown_is_not_shown_twice():
    assert shown([(0, b"\r100%"), (1, b"\n"), (1, b"\n")]) == [b"100%\n", b"\n"]


def test_a_bar_after_the_beginning_of_a_line_begins_a_line_of_its_own():
    assert shown([(0, b"epoch 1: "), (0, b"\r 50%"), (0, b"\r 60%")]) == [b"epoch 1: ", b"\n", b" 50%\n", b" 60%"]


def test_bars_that_end_with_the_carriage_return_and_bars_that_are_wiped_out():
    assert shown([(0, b" 10%\r"), (1, b" 20%\r"), (2, b"    \r"), (3, b"done\n")]) == [b" 10%\n", b"done\n"]


def test_windows_lines_are_no_bars():
    assert shown([(0, b"one\r\ntwo\r\n")]) == [b"one\n", b"two\n"]


@pytest.mark.parametrize("text", ["def f(:\n", "import argparse\nargparse.ArgumentParser().parse_args()\n"])
def test_what_all_ranks_say_alike_is_shown_once(dlrun, mpiexec, tmp_path, text):
    (tmp_path / "wrong.py").write_text(text)
    done = dlrun("-n", "2", "--mpiexec", mpiexec, "wrong.py", "--no-such")
    said = "SyntaxError: invalid syntax\n" if "def" in text else "unrecognized arguments: --no-such\n"
    assert done.stderr.count(said) == 1, done.stderr
    assert done.stderr.count("dlrun: rank ") == 1
