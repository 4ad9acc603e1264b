"""The README is a promise: its commands are the ones that continuous integration types."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "dlrun/README.md",
    "comm/README.md",
    "examples/README.md",
    "tests/port/README.md",
)


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its headings, in lower case, words joined by dashes."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!http)([^)\s]+)\)", (ROOT / page).read_text())
    for link in links:
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_contributing_names_files_that_are_there() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Where is it done?")[1].split("\n## ")[0]
    rows = [row.split(" | ")[1] for row in table.splitlines() if row.startswith("| ") and "`" in row]
    assert len(rows) >= 10
    for row in rows:
        first, *others = re.findall(r"`([\w/.]+)`", row.rpartition(" | ")[2])
        assert (ROOT / first).exists(), first
        for name in others:  # beside the first one, or below its folder
            folder = (ROOT / first).parent
            assert (folder / name).exists() or (folder.parent / name).exists(), name
