"""Part of step "output": a file or folder that the script makes where it is missing, and goes another way where not."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method, walk
from dlrun.port.steps.finish.finish import EXITS
from dlrun.port.steps.output import downloads
from dlrun.port.steps.output.stamps import once

_MAKES = ("os.makedirs", "os.mkdir")
_ENDS = {*EXITS, "builtins.input"}
_Test = cst.If | cst.While | cst.Assert


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
    alone = downloads.turns(facts)
    tests: list[_Test] = [*facts.script.of(cst.If), *facts.script.of(cst.While), *facts.script.of(cst.Assert)]
    for node in tests:
        if any(facts.script.inside(node, turn) for turn in alone):
            continue
        loads = not isinstance(node, cst.Assert) and _loads_or_saves(facts, node)
        for call in (n for n in walk(node.test) if isinstance(n, cst.Call) and not _looks_inside(facts, n)):
            if downloads.looks(facts, call) and (loads or _meets_its_own(facts, node, call)):
                yield Edit(
                    call,
                    "rank 0 looks whether it is there: all ranks go on in the same way",
                    lambda found: expression("torch/same", {"value": found}, dl=facts.alias),
                )


def _loads_or_saves(facts: Facts, node: cst.If | cst.While) -> bool:
    one, two = _calls(facts, node.body), _calls(facts, node.orelse) if node.orelse is not None else set[str]()
    return ("torch.load" in one and "torch.save" in two) or ("torch.load" in two and "torch.save" in one)


def _looks_inside(facts: Facts, call: cst.Call) -> bool:
    """Tell whether it is an argument of ``call`` that looks for a file: ``any(map(os.path.exists, paths))``."""
    return any(downloads.looks(facts, arg.value) for arg in call.args)


def _meets_its_own(facts: Facts, node: _Test, look: cst.Call) -> bool:
    """Tell whether ``node`` ends the run, asks, or takes another name, where something is there already.

    Another rank may have made it a moment ago.
    """
    script = facts.script
    denied = isinstance(node.test, cst.UnaryOperation)
    if isinstance(node, cst.Assert):
        return denied and once(facts, node)
    there, missing = (node.orelse, node.body) if denied else (node.body, node.orelse)
    if isinstance(node, cst.If) and missing is not None and _makes_and_leaves(facts, missing, look):
        return once(facts, next((up for up in script.above(node) if isinstance(up, cst.While)), node))
    if isinstance(node, cst.While) or there is None or not once(facts, node):
        return isinstance(node, cst.While) and once(facts, node)
    if not _ENDS.isdisjoint(_calls(facts, there)) or any(isinstance(n, cst.Raise) for n in walk(there)):
        return True
    home, path = script.function_of(node), _path(facts, look)
    made = any(
        _makes(facts, c, path) and script.function_of(c) is home and script.order[node] < script.order[c]
        for c in script.calls
    )
    return made and ("torch.load" in _calls(facts, there) or any(isinstance(n, cst.Return) for n in walk(there)))


def _makes_and_leaves(facts: Facts, branch: cst.CSTNode, look: cst.Call) -> bool:
    """Tell whether ``branch`` makes the folder that ``look`` misses, and leaves: who finds it there goes on."""
    path = _path(facts, look)
    made = any(isinstance(n, cst.Call) and _makes(facts, n, path) for n in walk(branch))
    return made and any(isinstance(n, (cst.Return, cst.Break)) for n in walk(branch))


def _makes(facts: Facts, call: cst.Call, path: str) -> bool:
    """Tell whether ``call`` makes the folder ``path``."""
    makes = facts.script.name_of(call.func) in _MAKES or calls_method(call, "mkdir")
    return makes and _path(facts, call) == path


def _path(facts: Facts, call: cst.Call) -> str:
    """Return what ``os.path.exists(path)`` or ``path.exists()`` asks for, as text."""
    if isinstance(call.func, cst.Attribute) and not facts.script.name_of(call.func).startswith("os."):
        return facts.script.code(call.func.value)
    return facts.script.code(call.args[0].value) if call.args else ""


def _calls(facts: Facts, branch: cst.CSTNode) -> set[str]:
    return {facts.script.name_of(n.func) for n in walk(branch) if isinstance(n, cst.Call)}
