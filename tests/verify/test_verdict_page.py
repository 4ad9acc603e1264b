"""The page of a verification: the checks with the lines they name, and where the runs diverge."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import epoch, event, optimizer, run, step

from dlrun.verify import Job, Verdict
from dlrun.verify.page import page
from dlrun.verify.trace import Event, Run
from dlrun.verify.verdict import failed, passed


def trained(*after: float, batches: list[list[int]], lr: float = 0.1, name: str = "weight") -> list[Event]:
    """One rank's events: a batch and a step for each value that the parameter is left with."""
    first, *read = epoch(batches)
    steps = [e for pair in zip(read, (step(i, a, lr=lr) for i, a in enumerate(after, 1)), strict=False) for e in pair]
    held = optimizer()
    return [replace(held, facts={**held.facts, "names": [name]}), first, event("trains", epoch=0), *steps, event("end")]


def named(name: str, made: Run) -> tuple[str, Run]:
    return name, replace(made, name=name)


def test_the_page_shows_the_line_of_a_fault_and_where_the_runs_part(tmp_path: Path) -> None:
    (tmp_path / "train_dist.py").write_text("one\ntwo\nx < three\nfour\nfive\nsix\n")
    serial = run(trained(0.5, 0.25, batches=[[0, 1], [2, 3]]))
    apart = run(
        trained(0.5, 0.25, batches=[[0, 1], [2, 3]], lr=0.2), trained(0.5, 0.1, batches=[[4, 5], [3, 6]], lr=0.2)
    )
    runs = [named("serial", serial), named("again", serial), named("identity", serial), named("sharded", apart)]
    check = failed("same parameters", "rank 1 <differs>", "average", "f", where="train_dist.py:3", parameter="weight")
    text = page(Job(tmp_path / "train.py", tmp_path / "train_dist.py"), Verdict((check,)), dict(runs))
    cells = [re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall("<tr.*?</tr>", text)]
    assert ["3", "x &lt; three"] in cells and ["1", "one"] in cells and ["6", "six"] not in cells
    assert "rank 1 &lt;differs&gt;" in text and "not proved" in text
    assert ["the port on 1 rank", "0", "0"] in cells
    assert ["2 ranks that share the data, from rank 0 to the others", "0", "20%"] in cells  # 0.15 of 0.75
    assert ["weight", "0", "20%"] in cells and "<details open>" in text
    assert ["the serial script", "0.1", "0.1"] in cells and ["the port", "0.2", "0.2"] in cells
    assert ["rank 1", "2: 4 5", "2: 3 6"] in cells
    red = re.findall('<td class="far"[^>]*>(.*?)<', text)
    assert "2: 2 3" in red and "2: 3 6" in red and "2: 0 1" not in red
    assert not re.search(r"(src|href)=|https?:|@import", text), "the page needs nothing from outside"


def test_the_page_has_a_figure_of_the_loss_of_both_runs(tmp_path: Path) -> None:
    def falling(*losses: float) -> list[Event]:
        made = trained(*losses, batches=[[0]] * len(losses))
        return [
            part for e in made for part in ([event("backward", loss=e["step"] / 4), e] if e.kind == "step" else [e])
        ]

    runs = [named("serial", run(falling(0.5, 0.25))), named("sharded", run(falling(0.5, 0.25), falling(0.5, 0.25)))]
    text = page(Job(tmp_path / "a.py", tmp_path / "b.py"), Verdict((passed("x", "y"),)), dict(runs))
    curves = re.findall(r'<polyline class="(\w+)" points="([\d., ]+)"', text)
    assert [name for name, _ in curves] == ["serial", "sharded"]
    assert curves[0][1] == curves[1][1] == "44.0,176.0 596.0,44.0"
    assert ">0.25</text>" in text and ">0.5</text>" in text and ">step 2</text>" in text
    assert not re.search(r"(src|href)=|https?:|@import", text)


def test_the_page_of_a_script_that_does_not_repeat_itself_has_what_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # temporary folders may lie in the checkout
    runs = [named("serial", run(trained(0.5, batches=[[0]]))), named("again", run(trained(0.75, batches=[[0]])))]
    text = page(Job(tmp_path / "a.py", tmp_path / "b.py", ("--lr", "<1>")), Verdict((passed("x", "y"),)), dict(runs))
    full = {**dict(runs), "sharded": run(trained(0.5, batches=[[0]]))}
    judged = page(Job(tmp_path / "a.py", tmp_path / "b.py"), Verdict((passed("same global batch", "y"),)), full)
    assert "2 ranks with the serial global batch" in judged and "2 ranks with the serial global batch" not in text
    assert re.search(r"<th>date</th><td>\d{4}-\d\d-\d\d \d\d:\d\d UTC</td>", text)
    assert f"dlrun verify {tmp_path}/a.py {tmp_path}/b.py -n 2 --steps 6 -- --lr" in text
    assert "<th>commit</th><td>not in a Git repository</td>" in text and "Python 3." in text and " cores, " in text
    assert "50%" in text and "with --lr &lt;1&gt;" in text and "Learning rates" not in text
