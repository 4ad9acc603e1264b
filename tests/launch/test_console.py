"""Progress bars where nothing can be overwritten, and plain text as it comes."""

from __future__ import annotations

import re
import time

import pytest

from dlrun.launch.alike import Alike
from dlrun.launch.console import Folded, complain


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


def test_of_much_that_a_launcher_says_the_first_lines_are_shown_and_the_last(capsys):
    complain("it ended", "", b"ssh: no such host\n" + b"\n".join(b"line %d" % number for number in range(40)))
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["dlrun: it ended", "  | ssh: no such host"]
    assert said[4:7] == ["  | line 2", "  | ...", "  | line 25"] and said[-1] == "  | line 39"


def told(*said: tuple[int, bytes], ranks: int = 3, wait: float = 0.0) -> list[bytes]:
    """What is shown of lines that ranks say, one after the other, and then of what waits for ``wait`` seconds."""
    shown: list[bytes] = []
    alike = Alike(tuple(range(ranks)), lambda kind, line: shown.append(line))
    for rank, line in said:
        alike.take(rank, b"O", line)
    time.sleep(wait)
    alike.pass_on()
    return shown


def test_a_line_of_all_ranks_is_shown_once_in_the_order_of_each():
    one, two = ([(rank, line) for rank in range(3)] for line in (b"one", b"two"))
    assert told(*one, *two) == [b"[all] one", b"[all] two"]
    assert told((0, b"one"), (0, b"two"), (1, b"one"), (1, b"two"), (2, b"one")) == [b"[all] one"]


def test_a_line_that_some_ranks_say_is_shown_with_these_where_the_others_have_said_another_or_nothing_for_a_moment():
    assert told((0, b"one"), (1, b"mine"), (1, b"one"), (2, b"one")) == [b"[1] mine", b"[all] one"]
    assert told((0, b"one"), (2, b"one")) == []
    assert told((0, b"one"), (2, b"one"), wait=0.35) == [b"[0,2] one"]


def test_lines_of_a_rank_that_says_much_do_not_wait_for_ever_nor_change_their_order():
    many = [(0, b"%d" % number) for number in range(5000)]
    shown = told(*many, ranks=2)
    assert shown == [b"[0] %d" % number for number in range(len(shown))] and len(shown) >= 3999


ALIKE = """
import os, sys, time
print("loading", flush=True)
if os.environ["DLRUN_RANK"] == "1": print("only one", flush=True)
time.sleep(0.1)
print("epoch 1", flush=True)
sys.stdout.write("the end")
"""


def test_with_show_all_what_all_ranks_say_is_shown_and_copied_once_and_every_log_holds_it(dlrun, mpiexec, tmp_path):
    (tmp_path / "alike.py").write_text(ALIKE)
    done = dlrun("-n", "3", "--mpiexec", mpiexec, "--show", "all", "--tee", "copy", "alike.py")
    lines = done.stdout.splitlines()
    assert lines.count("[1] only one") == 1, done.stdout
    for text in ("loading", "epoch 1", "the end"):
        said = [line for line in lines if line.endswith(text)]
        ranks = [rank for line in said for rank in re.findall(r"\d", "012" if "[all]" in line else line.split()[0])]
        assert sorted(ranks) == ["0", "1", "2"], done.stdout  # of a busy machine's ranks one may come late
    assert (tmp_path / "copy").read_text() == done.stdout
    logs = [(tmp_path / f"dlrun-runs/latest/rank-{rank}.log").read_text() for rank in range(3)]
    mine = ["", "only one\n", ""]
    assert logs == [f"loading\n{own}epoch 1\nthe end" for own in mine]
