"""Real ranks for the framework faces: one launch per number of ranks runs every check of the files asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from on_ranks import HERE, launch


@pytest.fixture(scope="session")
def passed() -> Callable[..., tuple[set[str], str]]:
    """``passed(n, files, VARIABLE=...)``: the names of the checks that passed on n ranks, and what was printed."""

    @cache
    def run(n: int, files: tuple[str, ...], **variables: str) -> tuple[set[str], str]:
        done = launch(n, HERE / "run_checks.py", *(HERE / file for file in files), **variables)
        names = {line.removeprefix("passed ") for line in done.stdout.splitlines() if line.startswith("passed ")}
        return names, done.stdout[-3000:] + done.stderr[-6000:]

    return run
