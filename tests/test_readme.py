"""The README is a promise: its commands are the ones that continuous integration types."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commands() -> list[str]:
    """The command lines of the README's fenced blocks."""
    blocks = re.findall(r"```(?:bash|console|sh)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    last = (ROOT / ".ci" / "run").read_text().rstrip().splitlines()[-1]
    assert last in commands()


def test_every_verb_that_the_readme_names_exists() -> None:
    from dlrun.cli import VERBS

    named = {m.group(1) for line in commands() for m in re.finditer(r"\bdlrun ([a-z]+)", line)}
    assert named
    assert named <= set(VERBS)
