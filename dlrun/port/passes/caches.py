"""Part of step "output": a file or folder that the script makes where it is missing, and goes another way where not."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import expression
from dlrun.port.passes.stamps import once
from dlrun.port.program.script import walk

_LOOKS = ("os.path.exists", "os.path.isfile", "os.path.isdir")
_MAKES = ("os.makedirs", "os.mkdir")
_PARTS = {"sys.exit", "os._exit", "builtins.exit", "builtins.quit", "builtins.input", "torch.load"}


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
    for node in facts.script.of(cst.If):
        one, two = _calls(facts, node.body), _calls(facts, node.orelse) if node.orelse is not None else set[str]()
        loads = ("torch.load" in one and "torch.save" in two) or ("torch.load" in two and "torch.save" in one)
        for call in (n for n in walk(node.test) if isinstance(n, cst.Call)):
            if facts.script.name_of(call.func) in _LOOKS and (loads or _meets_its_own(facts, node, call)):
                yield Edit(call, "rank 0 looks whether it is there: all ranks go on in the same way",
                           lambda found: expression("torch/same", {"value": found}, dl=facts.alias))  # fmt: skip


def _meets_its_own(facts: Facts, node: cst.If, look: cst.Call) -> bool:
    """Tell whether ``node`` ends the run, or asks, where the folder is there which another rank may just have made."""
    script = facts.script
    home, path = script.function_of(node), [script.code(arg.value) for arg in look.args]
    there = node.orelse if isinstance(node.test, cst.UnaryOperation) else node.body
    made = any(
        script.name_of(c.func) in _MAKES and [script.code(arg.value) for arg in c.args[:1]] == path
        and script.function_of(c) is home and script.order[node] < script.order[c] for c in script.calls)  # fmt: skip
    return made and there is not None and once(facts, node) and (
        not _PARTS.isdisjoint(_calls(facts, there)) or any(isinstance(n, (cst.Raise, cst.Return)) for n in walk(there)))


def _calls(facts: Facts, branch: cst.CSTNode) -> set[str]:
    return {facts.script.name_of(n.func) for n in walk(branch) if isinstance(n, cst.Call)}
