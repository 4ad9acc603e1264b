"""The two scripts that the tests mutate, and runs that are made once for all tests."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def made() -> dict[tuple[object, ...], object]:
    """Runs of unchanged scripts: (text of the script, arguments, orders, environment) -> Run."""
    return {}


@pytest.fixture(scope="session", autouse=True)
def one_warm_process() -> Iterator[None]:
    """Let the runs of all tests fork from one process that has imported the framework, as those of one job do."""
    from dlrun.verify import job
    from dlrun.verify.warming import Warm

    class Lasting(Warm):
        def __exit__(self, *error: object) -> None:
            """Stay for the next test."""

    lasting = functools.cache(Lasting)
    used: set[str] = set()

    def opened(framework: str) -> Warm:
        used.add(framework)
        return lasting(framework)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "Warm", opened)
        yield
    for framework in used:
        Warm.__exit__(lasting(framework), None, None, None)


@pytest.fixture
def prove(tmp_path: Path, made: dict[tuple[object, ...], object], monkeypatch: pytest.MonkeyPatch) -> Callable:
    """``prove(port, *args, **options)``: the verdict on a port, given as text, of ``train.py`` (or of ``serial=``).

    Serial scripts repeat themselves here: the second run of each is the first one. ``alike=``: the text of a port that
    1 rank, and ranks that repeat the serial run, cannot tell from this one; those runs of it are made once for all.
    """
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    from dlrun.verify import Job, verify
    from dlrun.verify.runs import Task, execute
    from dlrun.verify.trace import Run

    lock, folder = threading.Lock(), tmp_path / "own" / "work"  # each run links what lies two levels above it
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)

    def proved(port: str, *args: str, serial: str = "", alike: str = "", **options: object) -> object:
        def once(task: Task) -> Run:
            if alike and task.name in ("identity", "replicate"):
                task = replace(task, script=scripts / "alike" / "train_dist.py")
            elif task.script.name != "train.py":
                return execute(task)
            text = task.script.read_text()
            name = task.name.replace("again", "serial")
            with lock:
                key = (name, text, task.args, str(task.orders))
                run = made[key] = made.get(key) or execute(replace(task, name=name))
            assert isinstance(run, Run)
            return run

        scripts = tmp_path / "scripts"
        (scripts / "alike").mkdir(parents=True)
        (scripts / "alike" / "train_dist.py").write_text(alike)
        (scripts / "train.py").write_text(serial or (SCRIPTS / "train.py").read_text())
        (scripts / "train_dist.py").write_text(port)
        job = Job(scripts / "train.py", scripts / "train_dist.py", args, stall=30.0, shows=False)  # two runs fewer
        return verify(replace(job, **options), tmp_path / "runs", act=once)  # type: ignore[arg-type]

    return proved


@pytest.fixture(scope="session")
def port() -> str:
    """The text of a right port of ``scripts/train.py``."""
    return (SCRIPTS / "train_dist.py").read_text()
