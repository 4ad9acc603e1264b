"""Checkpoints that the serial script writes are laid beside both scripts, which go on from them alike, or not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from by_hand import epoch, event, note, optimizer, run, step
from mutants import Fault, mutated

from dlrun.verify.resumed import NAME, _alone, _judged, _rate_of_own
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


def going(*start: float, error: str = "", best: float = 0.25, says: str = "", lr: float = 0.1) -> list[Event]:
    made = optimizer()
    held = [event(made.kind, **{**made.facts, "params": [note(x)]}) for x in start]
    failed = [event("error", type="KeyError", message=error, line="t.py:9")] if error else []
    chosen = event("choice", "t.py:8", what="loss < best", values={"best": best}, statistics="")
    told = [event("print", "t.py:5", text=says)] if says else []
    return [
        event("restores", "t.py:4"),
        *told,
        *held,
        *epoch([[0, 1]]),
        step(1, 0.9, lr=lr),
        chosen,
        *failed,
        event("end"),
    ]


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


def test_what_ranks_show_of_a_checkpoint_is_what_is_in_it() -> None:
    one, two = (run(*[going(0.5, says=f"from epoch 2, best {best}")] * n) for best, n in (("0.25", 1), ("0.125", 2)))
    check = _judged(one, two, (run([]), run([])))
    assert (check.fault, check.where) == ("shown-otherwise", "t.py:5")


def test_1_rank_goes_on_from_a_checkpoint_as_the_serial_script_does() -> None:
    right = run(going(0.5))
    assert _alone(right, right, right) is None
    lost = run([*going(0.5), event("stored", values={"length of history": 1.0})])
    kept = run([*going(0.5), event("stored", values={"length of history": 3.0})])
    check = _alone(kept, kept, lost)
    assert check is not None
    assert "length of history" in check.finding


@pytest.mark.parametrize(("rate", "fault"), [(0.2, ""), (0.4, "double-scaling"), (0.1, "lost-scaling")])
def test_a_checkpoint_of_the_ranks_holds_a_scaled_rate_already(rate: float, fault: str) -> None:
    first = run(going(0.5)), run(*[going(0.5, lr=0.2)] * 2)
    check = _rate_of_own(first, (run(going(0.5)), run(*[going(0.5, lr=rate)] * 2)))
    assert (check.fault if check else "") == fault
