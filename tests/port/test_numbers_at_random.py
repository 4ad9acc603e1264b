"""Numbers kept in ways put together at random are the serial script's on ranks, or the port tells of them.

A program trains at rate 0 and evaluates. What is added up, kept and shown comes from ``numbers_at_random.py``: each way
stands in a training loop of its own and in an evaluation of its own. ``DLRUN_FUZZ_NUMBERS`` sets how many programs are
tried, ``DLRUN_FUZZ_SEED`` the first one's seed.
"""

import os
import random
import re

import pytest
from numbers_at_random import snippet
from running import started
from test_rules import EVALUATE, PRELUDE, TRAIN, alike

from dlrun.port import Options, port

FIRST = int(os.environ.get("DLRUN_FUZZ_SEED", "0"))
PROGRAMS = int(os.environ.get("DLRUN_FUZZ_NUMBERS", "1"))
WAYS = 24  # a program
METER = """
class Meter:
    def __init__(self):
        self.sum, self.count, self.avg = 0.0, 0, 0.0
    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count
    def mean(self):
        return self.sum / max(self.count, 1)
    def __repr__(self):
        return "%.4f" % self.avg
"""


def program(seed: int) -> str:
    """Return a script of ``WAYS`` training loops and as many evaluations, each of which shows a few numbers."""
    draw = random.Random(seed)
    parts = [PRELUDE]
    for stage, template, loader, data in (
        ("train", TRAIN, "train_loader", "data"),
        ("eval", EVALUATE, "held_loader", "held"),
    ):
        for at in range(WAYS):
            made = snippet(draw)
            named = {"A": f"{stage}_{at}", "B": f"other_{stage}_{at}", "LOADER": loader, "DATA": data}
            named["Meter"] = f"Meter_{stage}_{at}"

            def own(text: str, named: dict[str, str] = named) -> str:
                return re.sub(r"\b(A|B|LOADER|DATA|Meter)\b", lambda found: named[found[0]], text)

            indent = "\n" + (8 if stage == "eval" else 4) * " "
            shown = draw.sample(made.shown, min(2, len(made.shown)))
            made_here = (METER if "Meter" in made.before else "") + template
            text = made_here.format(before=made.before, body=made.body.strip().replace("\n", indent))
            parts.append(f"# {stage} {at}" + own(text))
            parts += [own(f"print({f'{stage} {at} {one}: '!r}, {text})") for one, text in enumerate(shown)]
    return "\n".join(parts)


def _lines(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines() if line.startswith(("train ", "eval ")))


def _told(text: str, doubts) -> set[str]:
    """Return the ways, as "train 3", of which a doubt names a line."""
    lines = text.splitlines()
    starts = [(at, line[2:]) for at, line in enumerate(lines, 1) if re.fullmatch(r"# (train|eval) \d+", line)]
    return {
        max((at, name) for at, name in starts if at <= line)[1]
        for line in doubts
        if any(at <= line for at, _ in starts)
    }


@pytest.mark.parametrize(("batch", "ranks"), [("local", (2, 3)), ("global", (2, 4))])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + PROGRAMS))
def test_each_number_is_the_serial_one_or_told(seed, batch, ranks, tmp_path) -> None:
    text = program(seed)
    tmp_path.joinpath("train.py").write_text(text)
    ported = port(text, Options(batch=batch))
    tmp_path.joinpath("dist.py").write_text(ported.text)
    told = _told(text, [ported.line(doubt) for doubt in ported.doubts])
    assert len(told) < WAYS // 2
    serial = _lines(started(tmp_path, ["train.py"]))
    assert len(serial) > 2 * WAYS
    wrong = []
    for n in ranks:
        mine = _lines(started(tmp_path, ["dist.py"], n))
        wrong += [
            f"{n} ranks, {at}: {mine[at]} for {serial[at]}"
            for at in serial
            if not alike(serial[at], mine[at]) and at.rsplit(" ", 1)[0] not in told
        ]
    assert wrong == []
