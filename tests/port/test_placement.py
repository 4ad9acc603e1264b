"""Scripts that add up, keep, show and decide by numbers in many ways show on 2 and 3 ranks what they show alone.

They train at rate 0, so that each number of an epoch is that over all samples, whatever the number of ranks. They
run one after another in the same processes: importing the framework is what takes long.
"""

import re
from pathlib import Path

import libcst as cst
import pytest
from running import started

from dlrun.port import port
from dlrun.port.placement.values import ENTRY, TUPLES, Value, diverged, join

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "placement").glob("*.py"))
pytestmark = pytest.mark.timeout(1200)  # the first test ports and runs all programs
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def _by_name(text):
    parts = re.split(r"^### (\w+)$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What each program prints: serially, on 2 ranks, and on 3."""
    folder = tmp_path_factory.mktemp("ported")
    for program in PROGRAMS:
        text = port(program.read_text()).text
        folder.joinpath(program.name).write_text(text.replace("dl.finalize()", "pass"))  # the next one goes on
    run = str(HERE / "one_by_one.py")
    found = {1: started(folder, [run, str(HERE / "placement")])}
    for ranks in (2, 3):
        texts = started(folder, [run, str(folder)], ranks)
        found[ranks] = texts
    return {ranks: _by_name(text) for ranks, text in found.items()}


def _numbers(line):
    return [float(n) for n in NUMBER.findall(line)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", [p.stem for p in PROGRAMS])
def test_ranks_show_the_serial_numbers(name, ranks, shown) -> None:
    serial, mine = shown[1][name].split("\n"), shown[ranks][name].split("\n")
    assert "FAILED" not in shown[1][name] and len(_numbers(shown[1][name])) > 1
    for one, other in zip(serial, mine, strict=True):
        assert NUMBER.sub("#", one) == NUMBER.sub("#", other)
        assert _numbers(other) == pytest.approx(_numbers(one), rel=1e-4, abs=2e-5)


def test_a_tuple_that_is_written_with_two_or_three_entries_is_as_long_on_all_ranks() -> None:
    two, three = (Value(items=(Value(ENTRY),) * count, name="tuple") for count in (2, 3))
    assert join(two, three).name == join(join(two, three), two).name == TUPLES
    assert join(Value(ENTRY, name="tuple"), two).name != TUPLES  # (*rows, 1): as long as the batch
    assert diverged(two, three, cst.Name("local")).name != TUPLES
