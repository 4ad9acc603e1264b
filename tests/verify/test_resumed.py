"""Checkpoints that the serial script writes are laid beside both scripts, which go on from them alike, or not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from by_hand import epoch, event, note, optimizer, run, step
from mutants import Fault, mutated

from dlrun.verify.resumed import NAME, _judged
from dlrun.verify.trace import Event

SCRIPTS = Path(__file__).parent / "scripts"
READ = """start = 0
if os.path.exists("last.pt"):
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["epoch"] + 1
"""
KEPT = '{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "last.pt")\n'
RESUMES = (
    ("import argparse\n", "import argparse\nimport os\n"),
    ("for epoch in range(20):", "for epoch in range(start, 20):"),
)
SENT, EPOCH = "dl.broadcast(model, optimizer)\n", "start = dl.broadcast(start)\n"
FIRST = ('if os.path.exists("last.pt"):', 'if dl.is_rank0() and os.path.exists("last.pt"):')


@pytest.mark.parametrize(
    ("edits", "fault"),
    [
        ((FIRST, (SENT, f"{SENT}{EPOCH}")), ""),
        ((FIRST, (SENT, f"dl.broadcast(model)\n{EPOCH}")), "rank-dependent-rate"),
        (((' = torch.load("last.pt")', ' = dl.load("last.pt")'),), ""),
    ],
    ids=["right", "no-optimizer", "dl-load"],
)
@pytest.mark.wide("dl-load")
def test_ranks_go_on_from_a_checkpoint_alike(edits, fault, prove, port) -> None:
    begin, best = ("best, bad = float", f"{READ}best, bad = float"), "    if val_loss < best:"
    saves = ((best, f"    {face}.save({KEPT}{best}") for face in ("torch", "dl"))
    serial, text = (
        mutated(script, Fault("", (*RESUMES, save, begin), ""))
        for script, save in zip(((SCRIPTS / "train.py").read_text(), port), saves, strict=True)
    )
    text = mutated(text, Fault("", edits, ""))
    verdict = prove(text, serial=f"{serial}\n# {edits}")  # runs of its own, whose files lie where this test looks
    print(*verdict.checks, sep="\n")
    (check,) = (check for check in verdict.checks if check.name == NAME)
    assert check.fault == fault
    assert re.search(r", which \S+:\d+ reads, ", check.finding)
    assert verdict.faults == ({fault} if fault else set())


def going(*start: float, error: str = "", best: float = 0.25) -> list[Event]:
    made = optimizer()
    held = [event(made.kind, **{**made.facts, "params": [note(x)]}) for x in start]
    failed = [event("error", type="KeyError", message=error, line="t.py:9")] if error else []
    chosen = event("choice", "t.py:8", what="loss < best", values={"best": best}, statistics="")
    return [event("restores", "t.py:4"), *held, *epoch([[0, 1]]), step(1, 0.9), chosen, *failed, event("end")]


@pytest.mark.parametrize(
    ("ranks", "fault", "says"),
    [
        ([going(0.5), going(0.5)], "", "t.py:4 reads, 2 ranks go on alike"),
        ([going(0.75), going(0.75)], "missing-restore", "weight is another one on 2 ranks than on 1"),
        (
            [going(0.5), going(0.5, best=9.5)],
            "rank-dependent-choice",
            "best in `loss < best` at t.py:8 is 0.25 on rank 0",
        ),
        ([going(0.5), going(0.5, error="'epoch'")], "fails", "rank 1 fails: KeyError: 'epoch'"),
    ],
)
def test_what_ranks_go_on_from_is_what_1_rank_does(ranks, fault, says) -> None:
    check = _judged(run(going(0.5)), run(*ranks), (run([]), run([])))
    assert check.fault == fault
    assert says in check.finding
