"""Part of step "output": a file that the script makes where it is missing, and loads where it is there."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import expression
from dlrun.port.program.script import walk

_LOOKS = ("os.path.exists", "os.path.isfile")


def torch(facts: Facts) -> Iterator[Edit]:
    """Let rank 0 look for the file: a rank that comes later would find what rank 0 has just written, and wait alone.

    Before:
        import os, torch
        if os.path.exists("corpus.pt"):
            corpus = torch.load("corpus.pt")
        else:
            corpus = read()
            torch.save(corpus, "corpus.pt")

    After:
        import os, torch
        if dl.broadcast(os.path.exists("corpus.pt")):
            corpus = torch.load("corpus.pt")
        else:
            corpus = read()
            torch.save(corpus, "corpus.pt")
    """
    for node in (n for n in facts.script.of(cst.If) if isinstance(n.orelse, cst.Else)):
        assert node.orelse is not None
        branches = [_calls(facts, node.body), _calls(facts, node.orelse)]
        if any("torch.load" in one and "torch.save" in two for one, two in (branches, branches[::-1])):
            for call in (n for n in walk(node.test) if isinstance(n, cst.Call)):
                if facts.script.name_of(call.func) in _LOOKS:
                    yield Edit(call, "rank 0 looks whether the file is there: all ranks load it, or none",
                               lambda found: expression("torch/same", {"value": found}, dl=facts.alias))  # fmt: skip


def _calls(facts: Facts, branch: cst.CSTNode) -> set[str]:
    return {facts.script.name_of(n.func) for n in walk(branch) if isinstance(n, cst.Call)}
