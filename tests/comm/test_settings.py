"""The DL_COMM_* variables: all in one table, bad values refused by name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from dl_comm import settings
from dl_comm.errors import CommError

COMM = Path(__file__).resolve().parents[2] / "comm"
# What dl_comm itself leaves in the environment for the processes that a rank starts.
OWN = {"DL_COMM_RANK_PROCESS", "DL_COMM_PARENT"}


def test_every_variable_that_the_source_reads_is_in_the_readme_s_table_and_no_other():
    sources = [file for ending in ("py", "cc", "h") for file in COMM.rglob(f"*.{ending}")]
    read = {name for file in sources for name in re.findall(r'"(DL_COMM_[A-Z_]+)"', file.read_text())}
    table = set(re.findall(r"^\| `(DL_COMM_[A-Z_]+)` \|", (COMM / "README.md").read_text(), re.MULTILINE))
    assert read - OWN == table


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan", "1.5"])
def test_a_number_that_cannot_be_is_refused_by_the_name_of_its_variable(text):
    with pytest.raises(CommError, match=f"DL_COMM_PROBE is '{text}'"):
        settings.number({"DL_COMM_PROBE": text}, "DL_COMM_PROBE", 3, whole=True)


def test_numbers_flags_and_windows_are_read_as_they_are_written():
    environment = {"A": "2.5", "B": "1", "C": "0", "D": "100:120", "E": ":7"}
    assert settings.number(environment, "A", 1) == 2.5 and settings.number(environment, "none", 16) == 16
    assert settings.flag(environment, "B") and not settings.flag(environment, "C")
    assert settings.window(environment, "D") == (100, 120) and settings.window(environment, "E") == (0, 7)
    for read, name in ((settings.flag, "A"), (settings.window, "A")):
        with pytest.raises(CommError, match=r"A is '2\.5'"):
            read(environment, name)


@pytest.mark.parametrize(("variable", "value"), [("DL_COMM_PROBE", "many"), ("DL_COMM_TIMELINE_STEPS", "ten")])
def test_importing_dl_comm_refuses_a_bad_value(tmp_path, variable, value):
    env = {"PATH": "/usr/bin", "DL_COMM_TIMELINE": str(tmp_path), variable: value}
    command = [sys.executable, "-c", "import dl_comm"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert f"{variable} is '{value}'" in ended.stderr and ended.returncode != 0
