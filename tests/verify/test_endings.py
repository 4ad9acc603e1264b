"""What follows a loop through batches that the script makes itself is reached, and judged."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from textwrap import dedent
from types import SimpleNamespace

import pytest
from mutants import Fault, mutated
from test_other_styles import DEALT, DRAWN

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from dlrun.verify.tracer.conditions import WATCH, counting, watch, watched
from dlrun.verify.tracer.endings import batched, counted
from dlrun.verify.tracer.recorder import UNCUT
from dlrun.verify.tracer.syntax import Loop

SCRIPT = dedent(
    """
    def train(batches):
        for x in batches:
            optimizer.step()

    def alone():
        for x in all:
            optimizer.step()

    for epoch in range(3):
        for i in range(0, 12, 2):
            made.append((epoch, i))
            optimizer.step()
        made.append("evaluated")

    for step in range(9):
        optimizer.step()

    for round in range(2):
        train(round)
    """
)


def test_the_innermost_loops_of_steps_are_those_through_batches_where_they_are_gone_through_again() -> None:
    tree = ast.parse(SCRIPT)
    lines = [SCRIPT.splitlines()[i - 1].strip() for i in sorted(batched(tree, counting(tree)))]
    assert lines == ["for x in batches:", "for i in range(0, 12, 2):"]


def test_the_loops_that_count_steps_have_no_other_in_them() -> None:
    tree = ast.parse(SCRIPT)
    lines = [SCRIPT.splitlines()[i - 1].strip() for i in sorted(counted(tree, counting(tree, Loop)))]
    assert lines == ["for x in batches:", "for x in all:", "for i in range(0, 12, 2):", "for step in range(9):"]


@pytest.mark.parametrize(("cut", "last"), [(2, (1, 2)), (UNCUT, (1, 10))])
def test_such_a_loop_ends_when_all_steps_are_made_in_it(cut, last) -> None:
    noted: list[str] = []
    orders = SimpleNamespace(epoch_steps=cut)
    recorder = SimpleNamespace(note=lambda kind, **_: noted.append(kind), aside=nullcontext, orders=orders)
    recorder.steps, recorder.made, recorder.known = 0, 0, 0
    recorder.done, recorder.statistics, made = False, str, []

    def step() -> None:
        recorder.steps += 1
        recorder.done = recorder.steps >= 8

    script = SCRIPT[SCRIPT.index("for epoch") : SCRIPT.index("for step")]
    watching = watch(recorder)  # type: ignore[arg-type]
    exec(watched(script, "s.py"), {WATCH: watching, "made": made, "optimizer": SimpleNamespace(step=step)})
    assert made.count("evaluated") == 3
    assert [turn for turn in made if turn != "evaluated" and turn[0] == 1][-1] == last
    assert ("ended" in noted) == (cut != UNCUT)


@pytest.mark.parametrize(("cut", "last"), [(2, 4), (UNCUT, 9)])
def test_a_loop_with_while_ends_when_all_steps_are_made_in_it(cut, last) -> None:
    noted: list[dict[str, object]] = []
    orders = SimpleNamespace(epoch_steps=cut)
    recorder = SimpleNamespace(note=lambda kind, **facts: noted.append({"kind": kind} | facts), aside=nullcontext)
    recorder.steps, recorder.made, recorder.done, recorder.statistics, recorder.orders = 0, 0, False, str, orders

    def step() -> None:
        recorder.steps += 1
        recorder.done = recorder.steps >= 8

    script = "epoch = 0\nwhile epoch < 9:\n    for i in [0, 1]:\n        optimizer.step()\n    epoch += 1\n"
    names = {WATCH: watch(recorder), "optimizer": SimpleNamespace(step=step)}  # type: ignore[arg-type]
    exec(watched(script, "s.py", ends=True), names)
    assert names["epoch"] == last
    left = [facts["turns"] for facts in noted if facts["kind"] == "ended"]
    assert left == ([4] if cut != UNCUT else [])


EVALUATED = (
    ("rand(96, 8)", "rand(192, 8)"),
    ("step, best", "falls = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\nstep, best"),
    (
        '            torch.save(model.state_dict(), "model.pt")\n',
        '            torch.save(model.state_dict(), "model.pt")\n'
        "    with torch.no_grad():\n        held = (model(torch.tensor(x).float()) - 1).square().mean(dim=1)\n"
        "    falls.step(held.mean())\n",
    ),
)


@pytest.mark.parametrize("own", [False, True], ids=["whole", "own"])
def test_a_rate_that_falls_by_what_each_rank_finds_on_its_share_is_a_fault_after_batches_by_hand(own, prove) -> None:
    serial = mutated(DRAWN, Fault("", EVALUATED, ""))
    text = mutated(serial, Fault("", DEALT, ""))
    if own:
        text = mutated(text, Fault("", (("held.mean()", "held[dl.get_rank() :: dl.get_nranks()].mean()"),), ""))
    verdict = prove(text, serial=serial)
    print(*(check for check in verdict.checks if check.status == "failed"), sep="\n")
    assert verdict.faults == ({"rank-dependent-rate"} if own else set())
