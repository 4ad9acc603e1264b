"""What is concluded of the runs whose updates are taken back, on traces written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from by_hand import event, optimizer, run, step

from dlrun.verify.checks.numbers import same_batches
from dlrun.verify.frozen import frozen
from dlrun.verify.job import Job
from dlrun.verify.trace import Event, Run
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
        assert (made, orders["turn_steps"]) == ((0,), 0)
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


def test_what_all_ranks_give_their_models_alike_counts_once_among_batches() -> None:
    def rank(*given: str) -> list[Event]:
        return [optimizer(), *(event("forward", hash=each) for each in given), step(1, 0.9)]

    serial = run(rank("a", "b", "prime"))
    assert same_batches(serial, run(rank("a", "prime"), rank("b", "prime")))
    assert not same_batches(serial, run(rank("a", "prime"), rank("c", "prime")))
    assert not same_batches(serial, run(rank("a", "b", "prime"), rank("a", "b", "prime", "c")))
    assert not same_batches(run(rank("a", "a")), run(rank("a"), rank("a")))  # all ranks do the same work


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
