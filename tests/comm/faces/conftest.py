"""Real ranks for the framework faces: one launch per number of ranks runs every check of the files asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from on_ranks import HERE, launch


@pytest.fixture(scope="session")
def assert_passed() -> Callable[..., None]:
    """``assert_passed(check, n, files, VARIABLE=...)``: the check passed where n ranks ran all checks of the files."""

    @cache
    def run(n: int, files: tuple[str, ...], **variables: str) -> str:
        done = launch(n, HERE / "run_checks.py", *(HERE / file for file in files), **variables)
        return done.stdout + done.stderr[-6000:]

    def look(check: str, n: int, files: tuple[str, ...], **variables: str) -> None:
        output = run(n, files, **variables)
        for line in output.splitlines():
            if line.startswith(f"skipped {check}: "):
                pytest.skip(line.split(": ", 1)[1])
        assert f"passed {check}" in output.splitlines(), output[-8000:]

    return look
