"""The two scripts that the tests mutate, and runs that are made once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def made() -> dict[tuple[object, ...], object]:
    """Runs of unchanged scripts: (text of the script, arguments, orders, environment) -> Run."""
    return {}


@pytest.fixture
def prove(tmp_path: Path, made: dict[tuple[object, ...], object], monkeypatch: pytest.MonkeyPatch) -> Callable:
    """``prove(port, *args, **options)``: the verdict on a port, given as text, of ``train.py`` (or of ``serial=``)."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    from dlrun.verify import Job, verify
    from dlrun.verify.runs import Task, execute
    from dlrun.verify.trace import Run

    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def once(task: Task) -> Run:
        if task.script.name != "train.py":
            return execute(task)
        key = (task.name, task.script.read_text(), task.args, str(task.orders), str(task.env))
        if key not in made:
            made[key] = execute(task)
        run = made[key]
        assert isinstance(run, Run)
        return run

    def proved(port: str, *args: str, serial: str = "", **options: object) -> object:
        scripts = tmp_path / "scripts"
        scripts.mkdir()
        (scripts / "train.py").write_text(serial or (SCRIPTS / "train.py").read_text())
        (scripts / "train_dist.py").write_text(port)
        job = Job(scripts / "train.py", scripts / "train_dist.py", args, stall=30.0)
        return verify(replace(job, **options), tmp_path / "runs", act=once)  # type: ignore[arg-type]

    return proved


@pytest.fixture(scope="session")
def port() -> str:
    """The text of a right port of ``scripts/train.py``."""
    return (SCRIPTS / "train_dist.py").read_text()
