"""Scripts that write files, ported, on 3 ranks that sleep before they touch one: nothing races."""

import os
import sys
from pathlib import Path

import pytest
from jittered import left_by, races

from dlrun.port.files import read_and_port

WRITING = Path(__file__).with_name("writing")
QUICK = Path(__file__).with_name("quick")


@pytest.mark.parametrize("name", ["history", "vocabulary", "mapped", "folds", "paths", "prepared", "temporary"])
def test_ranks_that_touch_files_at_any_time_leave_those_of_the_serial_script(name, tmp_path):
    assert races(WRITING / f"{name}.py", tmp_path, seeds=(1,)) == []


def test_a_folder_that_a_function_lists_is_listed_after_rank_0_has_written():
    text = read_and_port(WRITING / "history.py").text
    assert "found = sorted(p for p in dl.rank0_first(os.listdir)(folder) if" in text


def test_ranks_sleep_before_they_look_or_open_and_after(tmp_path):
    text = """import os, time
slept = []
time.sleep = slept.append
os.path.exists("a.txt")
open("a.txt", "w").close()
os.listdir("/usr")
os.path.exists("/usr")
print(len(slept))
"""
    assert left_by(text, tmp_path / "a", JITTER="1") == ["a.txt"]
    assert left_by(text.replace("print(len(slept))", "assert len(slept) == 3"), tmp_path / "b", JITTER="1") == ["a.txt"]
    assert left_by(text.replace("print(len(slept))", "assert not slept"), tmp_path / "c") == ["a.txt"]


def test_other_ranks_and_other_seeds_sleep_otherwise(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(QUICK), *sys.path])
    from jitter import Jitter

    def of(seed, rank):
        monkeypatch.setitem(os.environ, "PMI_RANK", rank)
        return Jitter(seed).chance.random()

    assert of("1", "0") == of("1", "0")
    assert len({of("1", "0"), of("1", "1"), of("2", "0")}) == 3
