"""What is concluded of the runs whose updates are taken back, on traces written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import epoch, event, optimizer, run, step

from dlrun.verify.checks.ends import ends_elsewhere, exits
from dlrun.verify.checks.iterations import epochs_of
from dlrun.verify.checks.numbers import same_batches
from dlrun.verify.frozen import BATCHES, epochs_left, frozen, how_far
from dlrun.verify.job import Job
from dlrun.verify.runs import Task, execute, orders
from dlrun.verify.trace import Event, Run
from dlrun.verify.tracer.conditions import TURNS
from dlrun.verify.tracer.recorder import UNCUT

SCRIPTS = Path(__file__).parent / "scripts"


def trained(batches: list[int], *lines: str, shards: bool = True) -> list[Event]:
    events = [event("face"), optimizer(), event("loader", loader=0, made=0, batch_size=2)]
    events += [event("return", fn="shard", loaders=[0], shard=0)] if shards else []
    events += [event("epoch", epoch=0, loader=0, data=0, size=8), event("trains", epoch=0)]
    for number, batch in enumerate(batches, 1):
        indices = [2 * batch, 2 * batch + 1]
        events += [event("batch", epoch=0, indices=indices, hash=str(batch)), event("backward"), step(number, 0.9)]
    shown = [event("print", "t.py:7", text=text) for text in lines]
    return [*events, event("over", epoch=0), *shown, event("end", how="finished")]


@dataclass
class Stand:
    """Stands for the runs of a job: ``serial(turn)`` and ``port`` are what they do."""

    serial: Callable[[int], Run]
    port: Run
    made: list[tuple[int, int | None]]
    own: Run | None = None  # of the port with each rank's own gradients
    job: Job = field(default_factory=lambda: Job(SCRIPTS / "train.py", SCRIPTS / "train_dist.py"))

    def seconds(self, most: float) -> float:
        return most

    def both(self, one: Callable[[], Any], two: Callable[[], Any]) -> tuple[Any, Any]:
        return one(), two()

    def frozen(self, steps: int, few: int, made: tuple[int, ...], turn: int | None = None, **orders: Any) -> Run:
        assert (made, orders.get("turn_steps", 0)) == ((0,), 0)
        self.made.append((few, turn))
        port = self.own if self.own and orders.get("own_gradients") else self.port
        return port if turn is None else self.serial(turn)


def found(
    serial: list[str], port: str, *own: str, turned: str = "", others: bool = False, **more: Any
) -> tuple[str, Stand]:
    """Return the status of the check on a serial script that shows these lines, and on a port that shows one."""
    alone = run(trained([0, 1, 2, 3], *serial, shards=False))
    ranks = [trained([0, 2], port), trained([1, 5 if others else 3])]
    again = run(trained([1, 0, 3, 2], turned, shards=False))
    stand = Stand(lambda turn: again if turn else alone, run(*ranks), [], **more)
    checks, *_ = frozen(stand, alone, alone, run(*ranks))
    return (checks[0].status if checks else ""), stand


@pytest.mark.parametrize(
    ("serial", "port", "turned", "status"),
    [
        ("rows 8", "rows 8", "", "passed"),
        ("rows 8", "rows 5", "rows 8", "failed"),
        ("last 0.500", "last 0.600", "last 0.700", "passed"),
        ("last 0.500", "last 0.500", "last 0.700", "passed"),
        ("last 0.500", "last 0.550", "last 0.700", "open"),
        ("rows 8", "nothing", "", "open"),
    ],
)
def test_numbers_of_the_same_batches_are_judged(serial: str, port: str, turned: str, status: str) -> None:
    assert found([serial], port, turned=turned)[0] == status


def test_runs_are_made_as_far_as_they_are_needed() -> None:
    few, further = [(3, 0), (3, None)], [(UNCUT, 0), (UNCUT, None)]
    assert found(["rows 8"], "rows 8")[1].made == few + further
    assert found(["rows 8"], "rows 5", turned="rows 8")[1].made == [*few, (3, 1), (3, None)]


def test_a_number_of_the_mean_gradient_is_the_serial_one_where_it_is_with_the_gradients_of_each_batch() -> None:
    for norms, status in (("norms 8.5", "passed"), ("norms 4.25", "failed")):
        own = run(trained([0, 2], norms), trained([1, 3]))
        assert found(["norms 8.5"], "norms 5.1", turned="norms 8.5", own=own)[0] == status


def test_no_more_runs_are_made_where_all_that_is_shown_was_come_to(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    _, stand = found(["rows 8"], "rows 8", job=Job(tmp_path / "train.py", tmp_path / "b.py"))
    assert stand.made == [(3, 0), (3, None)]


@pytest.mark.parametrize(
    ("first", "drew", "few"),
    [
        (["numpy"], [], True),  # first weights
        ([], ["numpy"], False),  # noise
    ],
)
def test_numbers_of_fit_whose_batches_ranks_do_not_share_evenly_are_compared_in_few(first, drew, few, tmp_path) -> None:
    def fitted(batches: list[int]) -> list[Event]:
        facts = {"epoch": {"fit": True}, "step": {"drew": drew}}
        events = [replace(each, facts=each.facts | facts.get(each.kind, {})) for each in trained(batches, "rows 8")]
        return [replace(e, facts=e.facts | {"drew": first}) if e.facts.get("step") == 1 else e for e in events]

    (tmp_path / "train.py").write_text("x = 1\n")
    serial, ranks = run(fitted([0, 1, 2])), run(fitted([0, 2]), fitted([1, 3]))
    stand = Stand(lambda turn: serial, ranks, [], job=Job(tmp_path / "train.py", tmp_path / "b.py"))
    assert frozen(stand, serial, serial, ranks)[0][0].status == "open"
    assert stand.made[:2] == [(UNCUT, 0), (UNCUT, None)]
    assert stand.made[2:4] == ([(BATCHES, 0), (BATCHES, None)] if few else [])


def test_what_all_ranks_give_their_models_alike_counts_once_among_batches() -> None:
    def rank(*given: str) -> list[Event]:
        return [optimizer(), *(event("forward", hash=each) for each in given), step(1, 0.9)]

    serial = run(rank("a", "b", "prime"))
    assert same_batches(serial, run(rank("a", "prime"), rank("b", "prime")))
    assert not same_batches(serial, run(rank("a", "prime"), rank("c", "prime")))
    assert not same_batches(serial, run(rank("a", "b", "prime"), rank("a", "b", "prime", "c")))
    assert not same_batches(run(rank("a", "a")), run(rank("a"), rank("a")))  # all ranks do the same work
    bounded = run(rank("a", "edge"), rank("b", "edge"))  # as where the points of a boundary are given for each step
    assert same_batches(run(rank("a", "edge", "b", "edge")), bounded)
    assert not same_batches(run(rank("a", "edge", "c", "edge")), bounded)


def test_without_a_module_batches_are_told_by_their_losses() -> None:
    def rank(*losses: float) -> list[Event]:
        made = [[event("backward", loss=loss), step(k, 0.9)] for k, loss in enumerate(losses, 1)]
        return [optimizer(), *(each for pair in made for each in pair)]

    serial = run(rank(0.5, 0.25, 0.125, 1.0))
    assert same_batches(serial, run(rank(0.5, 0.125), rank(0.25, 1.0)))
    assert not same_batches(serial, run(rank(0.5, 0.125), rank(0.25, 0.75)))


def test_of_other_batches_it_is_said_that_numbers_are_not_compared() -> None:
    assert found(["rows 8"], "rows 8", others=True)[0] == "open"


def test_ranks_that_decide_apart_or_wait_for_each_other_are_not_proved() -> None:
    alone = run(trained([0, 1, 2, 3], "rows 8", shards=False))

    def chosen(value: float) -> Event:
        return event("decision", "t.py:9", what="loss < best", values={"loss": value})

    apart = run([*trained([0, 2], "rows 8"), chosen(0.5)], [*trained([1, 3]), chosen(0.25)])
    waits = run(trained([0, 2], "rows 8"), [*trained([1, 3])[:-1], event("call", fn="total")], hung=True)
    sharded = run(trained([0, 2], "rows 8"), trained([1, 3]))
    for ported in (apart, waits):
        checks, *_ = frozen(Stand(lambda turn: alone, ported, []), alone, alone, sharded)
        assert [check.status for check in checks] == ["failed"]


def ended(epochs: int, goes_on: bool = False, **how: object) -> list[Event]:
    """A script that goes through so many of 12 epochs, or would go on, and comes to its end."""
    events = [event("decision", "t.py:3", what="range(12)", values={TURNS: 12.0})]
    for number in range(epochs):
        events += [event("epoch", epoch=number, loader=0, data=0, size=8), event("trains", epoch=number)]
        events += [step(number + 1, 0.9), event("over", epoch=number)]
    events += [event("ended", "t.py:3", renews=False, turns=epochs)] * goes_on
    return [*events, event("end", how="finished", **how)]


@pytest.mark.parametrize(
    ("serial", "ranks", "says"),
    [
        ((4, False), (4, False), ""),
        ((4, True), (4, True), ""),
        ((4, False), (5, False), "end after 5 epochs, the serial script after 4"),
        ((4, False), (4, True), "go on after 4 epochs, where the serial script ends"),  # n times the patience
        ((4, True), (4, False), "end after 4 epochs, and the serial script goes on"),
    ],
)
def test_ranks_that_leave_the_epochs_earlier_or_later_are_told(serial, ranks, says) -> None:
    found = ends_elsewhere(run(ended(*serial)), run(ended(*ranks), ended(*ranks)))
    assert (says in found) if says else not found


def test_how_far_a_run_came_names_the_epochs_that_were_left_out() -> None:
    assert how_far(run(ended(4, True)).root) == "in 4 steps, 4 of 12 epochs, to the end of the script"
    assert how_far(run(ended(4)).root) == "in 4 steps, to the end of the script"


def test_the_last_of_few_epochs_are_named_where_no_time_was_left_for_them() -> None:
    begun, batches = [event("decision", what="range(3)", values={TURNS: 3.0})], epoch([[0], [1]])
    batches[0].facts["loops"] = True
    serial = run([*begun, *batches, step(1, 0.9), step(2, 0.8)])
    assert epochs_of(serial.root) == 3
    cut, whole = run([event("ended", turns=2)]).root, run([]).root
    check = epochs_left(3, cut, 2, 12)
    assert check is not None
    assert check.finding.startswith("what comes after 2 of 3 epochs")
    assert [epochs_left(3, whole, 2, 12), epochs_left(99, cut, 2, 12), epochs_left(3, cut, 3, 12)] == [None] * 3


@pytest.mark.parametrize(
    ("serial", "ranks", "fault"),
    [
        ({"left": "3"}, ({"left": "3"}, {"left": "3"}), ""),
        ({}, ({}, {}), ""),
        ({"left": "3"}, ({}, {}), "other-exit-code"),
        ({}, ({}, {"left": "3"}), "other-exit-code"),
        ({}, ({"left": "AssertionError", "line": "t.py:9"},) * 2, "other-exit-code"),
    ],
)
def test_ranks_end_with_the_exit_code_of_the_serial_script(serial, ranks, fault) -> None:
    check = exits(run(ended(4, **serial)), run(*(ended(4, **each) for each in ranks)))
    assert (check.fault if check else "") == fault


JUDGED = """
import sys
import dl_comm.torch as dl
import torch
dl.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    model(torch.ones(4, 2)).sum().backward()
    dl.gradients(optimizer)
    optimizer.step()
sys.exit(3)
"""


def test_a_script_that_ends_itself_by_what_it_has_come_to_comes_to_its_end(tmp_path, monkeypatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judged.py").write_text(JUDGED)
    runs = Path("runs").resolve()
    done = execute(Task("few", Path("judged.py"), (), 2, runs / "few", orders(9, 9, frozen=True, few=3), {}, 60.0))
    assert done.whole
    assert [trace.last("end")["left"] for trace in done.traces] == ["3", "3"]
