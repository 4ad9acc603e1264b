"""Runs in a scratch folder: the user's files survive; and the command's face."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import event, run, step
from click.testing import CliRunner

from dlrun.cli.verify import command
from dlrun.verify import runs
from dlrun.verify.job import Job, Runs
from dlrun.verify.runs import Task, _are_stuck, execute, orders
from dlrun.verify.trace import Run

TRAIN = """
import torch
{seed}
x = torch.randn(16, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.save(model.state_dict(), "model.pt")
print("saved in", __import__("os").getcwd())  # which differs from run to run
open("log.txt", "a").write("again")
open(".cache/state", "w").write("again")
{loop}
"""
LOOP = """
for i in range(4):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path(".cache").mkdir()
    Path(".cache/state").write_text("mine")
    return tmp_path


def script(name: str, seed: str = "torch.manual_seed(0)", loop: str = LOOP, head: str = "") -> str:
    Path(name).write_text(head + TRAIN.format(seed=seed, loop=loop))
    return name


def verify(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, list(words))
    return done.exit_code, done.output + str(done.exception or "")


@pytest.mark.parametrize(
    ("log", "times"), [("MPID_Init(549): MPIDI_UCX_init_worker(86): No such device", 2), ("ValueError: no", 1)]
)
def test_a_run_whose_mpi_does_not_come_up_is_made_once_more(log, times, tmp_path, monkeypatch) -> None:
    made: list[Task] = []

    def once(task: Task) -> Run:
        task.folder.mkdir()
        made.append(task)
        return replace(run([]), code=143, log=log)

    monkeypatch.setattr(runs, "_executed", once)
    execute(Task("port", Path("train.py"), (), 2, tmp_path / "port", {}, {}, 30.0))
    assert len(made) == times


@pytest.mark.parametrize(
    ("events", "stuck"),
    [
        (("end", "call gradients"), True),
        (("call finalize", "call Session.run"), True),
        (("end", "call save"), False),  # it may write for long
        (("call gradients", "call average"), False),  # one may have come back
        (("end", "step"), False),
        (("end", "end"), False),
    ],
)
def test_ranks_are_stuck_where_some_are_done_and_the_others_need_them(
    tmp_path: Path, events: tuple[str, ...], stuck: bool
) -> None:
    files = [tmp_path / f"rank{rank}.jsonl" for rank in range(len(events))]
    for file, last in zip(files, events, strict=True):
        kind, _, function = last.partition(" ")
        file.write_text(json.dumps({"kind": kind, "at": "a.py:1", **({"fn": function} if function else {})}) + "\n")
    assert _are_stuck(files) is stuck


def test_runs_that_nobody_waits_for_any_more_are_ended(folder: Path) -> None:
    Path("a.py").write_text("import time\ntime.sleep(3600)\n")
    task = Task("serial", Path("a.py"), (), 1, folder / "runs" / "serial", orders(2, 1), {}, 3600.0)
    task.unwanted.set()
    assert execute(task).hung


def test_files_that_a_script_writes_over_stay_as_they_are(folder: Path, tmp_path_factory: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    Path("model.pt").write_text("three weeks of training")
    Path("log.txt").write_text("mine")
    there = tmp_path_factory.mktemp("elsewhere")  # where absolute paths lead
    for name in ("best.txt", "old.txt", "last.txt"):
        (there / name).write_text("four weeks")
    far = f"""
import contextlib, os
open({str(there / "best.txt")!r}, "w").write("again")
with contextlib.suppress(FileNotFoundError):  # two runs do it at a time
    os.remove({str(there / "old.txt")!r})
    os.rename({str(there / "best.txt")!r}, {str(there / "last.txt")!r})
"""
    port = script("b.py", head=f"import dl_comm.torch as dl\ndl.init()\n{far}", loop="raise ValueError('planted')")
    code, said = verify(script("a.py", head=far), port)
    assert code == 1
    assert "the port fails on rank 0 of 1: ValueError: planted" in said
    assert "at b.py:" in said
    assert {path.name: path.read_text() for path in there.iterdir()} == dict.fromkeys(
        ("best.txt", "old.txt", "last.txt"), "four weeks"
    )
    assert Path("model.pt").read_text() == "three weeks of training"
    assert Path("log.txt").read_text() == "mine"
    assert Path(".cache/state").read_text() == "mine"
    assert sorted(p.name for p in folder.iterdir()) == [".cache", "a.py", "b.py", "log.txt", "model.pt"]


def test_a_checkpoint_that_is_there_already_is_neither_replaced_nor_missed(folder: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    Path("model.pt").write_text("three weeks of training")
    port = Path(script("b.py", head="import dl_comm.torch as dl\ndl.init()\n"))
    beside = "import os\nHERE = os.path.dirname(os.path.realpath(__file__))\n"
    port.write_text(
        beside
        + port.read_text().replace(
            'torch.save(model.state_dict(), "model.pt")',
            """
dl.save(model.state_dict(), "model.pt")
dl.save(model.state_dict(), os.path.join(HERE, "beside.pt"))""",
        )
    )
    Path("beside.pt").write_text("four weeks")
    _, said = verify(script("a.py"), str(port))
    assert Path("beside.pt").read_text() == "four weeks"
    assert "\u2713 identity" in said, said
    assert Path("model.pt").read_text() == "three weeks of training"


ABOVE = """
import sys
sys.path.append("..")
from shared.sizes import WIDTH
assert open("../data/x.csv").read() == "1,2"
open("../data/x.csv", "w").write("again")
open("../new.csv", "w").write("again")
"""


def test_unseeded_random_numbers_are_named_instead_of_the_port_whose_project_begins_above(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    for name, text in (("shared/sizes.py", "WIDTH = 4"), ("data/x.csv", "1,2"), ("here/.cache/state", "mine")):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder / "here")
    port = script("b.py", seed="", head="import dl_comm.torch\n")
    code, said = verify(script("a.py", seed="", head=ABOVE), port, "--json", "--html", "page.html")
    assert "repeats itself" in Path("page.html").read_text()
    assert (folder / "data/x.csv").read_text() == "1,2"
    assert not (folder / "new.csv").exists()
    verdict = json.loads(said.removesuffix("1"))
    assert code == 1
    assert verdict["faults"] == ["unseeded"]
    assert [check["name"] for check in verdict["checks"]] == ["repeats itself"]
    assert "torch.manual_seed(0)" in verdict["checks"][0]["todo"]


def test_a_serial_script_that_fails_is_the_users_to_repair(folder: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    code, said = verify(script("a.py", loop="1 / 0"), script("b.py", head="import dl_comm.torch\n"))
    assert code == 2
    assert "a.py fails: ZeroDivisionError: division by zero (a.py:11)" in said


def test_an_epoch_is_cut_later_where_the_script_names_what_its_first_steps_do_not_set(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    asked = []

    def act(task: Task) -> Run:
        asked.append((task.name, task.orders["epoch_steps"]))
        error = [event("cut"), event("error", type="NameError", message="", line="a.py:1")]
        return run([*([] if task.orders["epoch_steps"] > 3 else error), step(1, 0.9), event("end")])

    runs = Runs(Job(tmp_path / "a.py", tmp_path / "b.py"), tmp_path, act)
    (tmp_path / "b.py").write_text("import torch")
    runs.serial()
    assert sorted(asked) == [("again", 3), ("later", 6), ("later-again", 6), ("serial", 3)]


def test_scripts_that_are_given_the_wrong_way_round_or_alone_are_said_to_be(folder: Path) -> None:
    assert "dlrun verify a.py a_dist.py" in verify(script("a.py"))[1]
    code, said = verify(script("b.py", head="import dl_comm.torch\n"), script("a.py"))
    assert code == 2
    assert "a.py does not import dl_comm\n  the port comes second: dlrun verify a.py b.py\n" in said


@pytest.mark.parametrize("framework", ["jax", "paddle"])
def test_other_frameworks_are_refused_in_one_line(folder: Path, framework: str) -> None:
    Path("a.py").write_text(f"import {framework}\n")
    Path("b.py").write_text(f"import {framework}\nimport dl_comm\n")
    code, said = verify("a.py", "b.py")
    assert code == 2
    assert "dlrun verify covers PyTorch, TensorFlow and Keras" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a.py", "gone.py"], "there is no script gone.py"),
        (["a.py", "a.py"], "a.py does not import dl_comm"),
        (["a.py", "a.py", "-n", "1"], "-n 1: a port is proved on 2 ranks or more"),
        (["broken.py", "a.py"], "broken.py:1: invalid syntax"),
    ],
)
def test_what_cannot_be_verified_is_refused(folder: Path, words: list[str], expected: str) -> None:
    script("a.py")
    Path("broken.py").write_text("x ==\n")
    code, said = verify(*words)
    assert code == 2
    assert expected in said
    code, said = verify(*words, "--json")
    verdict = json.loads(said[: said.index("}") + 1])
    assert (code, verdict["proved"]) == (2, False)
    assert expected in verdict["error"]
