"""The drivers that the tests of arrays on GPUs run with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gpus import HERE, compiled, real_driver


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return fake("WITHOUT_MEMORY_OPERATIONS"): the path of a fake driver that lacks something."""
    folder, made = tmp_path_factory.mktemp("fake"), {}

    def make(*defines: str) -> str:
        if defines not in made:
            made[defines] = str(compiled(folder, *defines))
        return made[defines]

    return make


@pytest.fixture(params=["fake", "real"])
def driver(request: pytest.FixtureRequest, fake: Callable[..., str]) -> str:
    """The fake driver, and the machine's own where it has a GPU."""
    return fake() if request.param == "fake" else real_driver()


@pytest.fixture
def programs() -> dict[str, str]:
    """The environment in which programs on the ranks find ``gpus``."""
    return {"PYTHONPATH": str(Path(HERE))}
