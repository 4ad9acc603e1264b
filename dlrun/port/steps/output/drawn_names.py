"""Part of step "output": names of files and folders that a script draws at random."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.taint import DRAWS, Taint
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method, dotted
from dlrun.port.steps.output.stamps import once

_WRITES = re.compile(
    r"^(torch\.save|os\.mkdir)$|(^|\.)(makedirs|MakeDirs|SummaryWriter|FileWriter|FileHandler|create_file_writer|"
    r"TensorBoard|ModelCheckpoint|CSVLogger|CheckpointManager|RunConfig|save|save_weights)$"
)
_TURNS = ("builtins.str", "builtins.int", "builtins.hex")
_TEXTS = ("item", "tolist", "format", "hex", "zfill")


def names(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Let rank 0 name what holds a random number, where each rank draws its own: after training has begun.

    From init() to reseed() all ranks draw alike. What other files a draw picks is data.

    Before:
        import random, torch
        from torch.utils.data import DataLoader
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
        path = f"models/{random.randint(0, 10000)}.pt"
        torch.save(model.state_dict(), path)
        best = torch.load(path)

    After:
        import random, torch
        from torch.utils.data import DataLoader
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
        path = f"models/{dl.broadcast(random.randint(0, 10000))}.pt"
        dl.save(model.state_dict(), path)
        best = dl.load(path)
    """
    script, done = facts.script, set()
    seeds = any("seed" in (script.name_of(c.func) or dotted(c.func)).rsplit(".", 1)[-1].lower() for c in script.calls)
    for call in (c for c in script.calls if script.name_of(c.func).startswith(DRAWS)):
        whole = _whole(facts, call)
        if whole in done or not isinstance(whole, cst.BaseExpression) or not _is_text(facts, whole):
            continue
        if not _names_path(facts, Taint(script, facts.kinds, [whole])):
            continue
        done.add(whole)
        function = script.function_of(call)
        early = isinstance(function, cst.Module) and function is not script.module  # where a module is imported
        if early and not seeds:
            yield Doubt(
                whole,
                "each rank draws a name of its own here, before the ranks meet: they may look for other "
                "files than rank 0 writes",
                "medium",
                f"{facts.alias}.broadcast() it under the main guard",
                name="name-differs",
            )
        elif not early and once(facts, call) and not _before_training(facts, call):
            yield Edit(
                whole,
                "one name for all ranks, rank 0's: each draws its own",
                lambda node: expression("torch/same", {"value": node}, dl=facts.alias),
            )


def _whole(facts: ScriptFacts, call: cst.CSTNode) -> cst.CSTNode:
    """Return the text or number that ``call`` is made into: ``torch.randint(9, (1,)).item()``, ``"".join(...)``."""
    node = call
    while True:
        up = facts.script.parents[node]
        if isinstance(up, cst.Arg):
            user = facts.script.parents[up]
            if not isinstance(user, cst.Call) or not (facts.script.name_of(user.func) in _TURNS or _joins(user)):
                return node
            node = user
        elif isinstance(up, (cst.GeneratorExp, cst.ListComp)) and up.elt is node:
            node = up
        elif isinstance(up, cst.Attribute) and up.attr.value in _TEXTS:
            method = facts.script.parents[up]
            if not isinstance(method, cst.Call):
                return node
            node = method
        else:
            return node


def _joins(call: cst.Call) -> bool:
    return calls_method(call, "join") and isinstance(call.func.value, cst.SimpleString)


def _is_text(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node``, or what becomes of it, goes into a text."""
    drawn = Taint(facts.script, facts.kinds, [node])
    if isinstance(node, cst.Call) and (_joins(node) or facts.script.name_of(node.func) == "builtins.str"):
        return True
    parts = [p.expression for p in facts.script.of(cst.FormattedStringExpression)]
    for call in facts.script.calls:
        if facts.script.name_of(call.func) == "builtins.str" or calls_method(call, "format"):
            parts += [a.value for a in call.args]
    for part in facts.script.of(cst.BinaryOperation):
        if isinstance(part.operator, cst.Modulo) and isinstance(part.left, cst.SimpleString):
            parts.append(part.right)
    return any(map(drawn, parts))


def _names_path(facts: ScriptFacts, drawn: Taint) -> bool:
    """Tell whether something that ``drawn`` marks becomes the name of a file or folder that the script writes."""
    for call in facts.script.calls:
        name = facts.script.name_of(call.func) or dotted(call.func)
        made = [call.func.value] if calls_method(call, "mkdir") else []
        opens = (
            name in ("builtins.open", "io.open")
            and len(call.args) > 1
            and (re.search("[wax]", facts.script.code(call.args[1].value)))
        )
        if _WRITES.search(name) or opens:
            given = call.args[1:2] if name == "torch.save" else call.args[:1] if opens else call.args
            made = [*made, *(a.value for a in given)]
        if any(map(drawn, made)):
            return True
    return False


def _before_training(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` stands before all that trains: from the meeting until then all ranks draw alike."""
    function = facts.script.function_of(node)
    places = [node, *(facts.flow.callers(function) if isinstance(function, cst.FunctionDef) else ())]
    loops = [top.loop for top in getattr(facts, "tops", ())]
    return not any(facts.script.order[place] > facts.script.order[loop] for place in places for loop in loops)
