"""Part of step "steps": counts of steps that come back from a checkpoint, which are the serial script's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import expression, statements
from dlrun.port.placement.values import SAME
from dlrun.port.program.script import argument, calls_method, walk

_LOADS = ("torch.load", "json.load", "pickle.load", "joblib.load", "yaml.safe_load")
_TELLS = ("builtins.print", "builtins.str")
_SHOWN = "as many as the serial script counts"
_WHY = "the checkpoint counts serial steps, of which n ranks take 1/n"


def counts(facts: Facts, edits: Iterable[Edit]) -> Iterator[Edit]:
    """Yield what turns serial counts that ``edits`` save back into those of a rank, where they are loaded.

    Before:
        import os, torch
        step = 0
        if os.path.exists("last.pt"):
            step = torch.load("last.pt")["step"]
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            step += 1
            torch.save({"step": step}, "last.pt")

    After:
        import os, torch
        step = 0
        if os.path.exists("last.pt"):
            step = torch.load("last.pt")["step"]
        step = dl.steps(step)  # the checkpoint counts serial steps
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            step += 1
            torch.save({"step": dl.serial_steps(step)}, "last.pt")
    """
    edits = list(edits)
    keys = {key for edit in edits if _makes_serial(facts, edit) for key in [_key(facts, edit.node)] if key}
    if not keys:
        return
    done = set[tuple[cst.CSTNode, str]]()
    divided = set[cst.CSTNode]()
    for node in facts.script.nodes:
        if not isinstance(node, (cst.Subscript, cst.Call)) or _asked(node) not in keys or not _is_loaded(facts, node):
            continue
        line = facts.script.statement_of(node)
        target = line.targets[0].target if isinstance(line, cst.Assign) and len(line.targets) == 1 else None
        loop = _loop_after(facts, line)
        if isinstance(target, cst.Name) and loop is not None:
            if (loop, target.value) not in done:
                done.add((loop, target.value))
                lines = statements("torch/resumed", dl=facts.alias, name=target.value)
                yield Edit(loop, _WHY, before=lines, step="steps")
        elif not any(
            isinstance(up, cst.Call) and facts.script.name_of(up.func) in _TELLS for up in facts.script.above(node)
        ):
            divided.add(node)
            yield Edit(node, _WHY, lambda n: expression("torch/steps", {"count": n}, dl=facts.alias), step="steps")
    yield from _shown(facts, divided, {edit.node for edit in edits})


def _shown(facts: Facts, divided: set[cst.CSTNode], edited: set[cst.CSTNode]) -> Iterator[Edit]:
    """Yield what makes the ``divided`` counts serial again where they are shown before a loop goes on with them."""
    from dlrun.port.placement.torch import interpreted

    run = interpreted(facts)
    shown = (n for sinks in run.sinks.values() for sink in sinks[-1:] for part in sink.shows for n in walk(part))
    for node in shown if divided else ():
        read = isinstance(node, (cst.Name, cst.Attribute)) and node not in edited
        if not read or any(value.place != SAME or value.reduced for value in run.seen.get(node, ())):
            continue
        made = {o.node for o in facts.flow.origins(node)}
        if made & divided and all(n in divided or isinstance(n, cst.Integer) for n in made):
            edited.add(node)
            yield Edit(node, _SHOWN, lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias))


def _makes_serial(facts: Facts, edit: Edit) -> bool:
    """Tell whether ``edit`` multiplies a count by the number of ranks where it is saved."""
    if not isinstance(edit.node, cst.BaseExpression) or not _key(facts, edit.node):
        return False
    return facts.script.code(edit.rewrite(edit.node)).startswith(f"{facts.alias}.serial_steps(")


def _key(facts: Facts, node: cst.CSTNode) -> str:
    """Return the key below which a dict, or a call of ``dict()``, holds ``node``."""
    for up in facts.script.above(node):
        if isinstance(up, cst.DictElement):
            return str(up.key.evaluated_value) if isinstance(up.key, cst.SimpleString) else ""
        if isinstance(up, cst.Arg) and up.keyword is not None:
            return up.keyword.value
        if isinstance(up, cst.Assign) and isinstance(target := up.targets[0].target, cst.Subscript):
            return _text(target)
        if isinstance(up, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return ""
    return ""


def _text(node: cst.Subscript) -> str:
    match node.slice:
        case [cst.SubscriptElement(slice=cst.Index(value=cst.SimpleString() as key))]:
            return str(key.evaluated_value)
    return ""


def _asked(node: cst.Subscript | cst.Call) -> str:
    """Return the key that ``node`` asks for: ``state["step"]``, ``state.get("step", 0)``."""
    if isinstance(node, cst.Subscript):
        return _text(node)
    key = argument(node, "key", 0) if calls_method(node, "get") else None
    return str(key.evaluated_value) if isinstance(key, cst.SimpleString) else ""


def _is_loaded(facts: Facts, node: cst.Subscript | cst.Call) -> bool:
    """Tell whether ``node`` asks what was loaded from a file."""
    owner = node.value if isinstance(node, cst.Subscript) else node.func.value  # type: ignore[attr-defined]
    made = [o.node for o in facts.flow.origins(owner)]
    return any(isinstance(m, cst.Call) and facts.script.name_of(m.func) in _LOADS for m in made)


def _loop_after(facts: Facts, line: cst.CSTNode) -> cst.CSTNode | None:
    """Return the first loop of the function of ``line``, after it, that trains."""
    script = facts.script
    if any(isinstance(up, (cst.For, cst.While)) for up in script.above(line)):
        return None
    loops = [script.outermost_loop(loop) or loop for loop in facts.loops]
    mine = [
        n for n in loops if script.function_of(n) is script.function_of(line) and script.order[n] > script.order[line]
    ]
    return min(mine, key=lambda n: script.order[n], default=None)
