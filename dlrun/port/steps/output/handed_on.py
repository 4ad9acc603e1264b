"""Part of step "output": functions that write files, handed on to what calls them: threads, pools, partials."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.insert import expression
from dlrun.port.steps.output.writes import SAVES, WRITES

_ASKS = ("builtins.isinstance", "builtins.issubclass", "builtins.callable", "builtins.hasattr")


def writers(facts: ScriptFacts) -> Iterator[Edit]:
    """Let a function that writes, and is handed on, write on rank 0 alone.

    Before:
        threading.Thread(target=torch.save, args=(model.state_dict(), "model.pt")).start()

    After:
        threading.Thread(target=dl.save, args=(model.state_dict(), "model.pt")).start()
    """
    script, dl = facts.script, facts.alias
    for node in (*script.of(cst.Attribute), *script.of(cst.Name)):
        arg = script.parents[node]
        call = script.parents[arg] if isinstance(arg, cst.Arg) and arg.value is node else None
        if not isinstance(call, cst.Call) or script.name_of(call.func) in _ASKS:
            continue
        name = script.name_of(node)
        if name == "torch.save":
            yield Edit(node, "rank 0 writes the file, whole or not at all", lambda _: expression("torch/save", dl=dl))
        elif name.rpartition(".")[2][:1].islower() and (WRITES.search(name) or SAVES.search(name)):
            yield Edit(node, "rank 0 writes", lambda f: expression("torch/rank0", {"call": f}, dl=dl))
