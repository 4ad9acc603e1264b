"""Step "start": import dl_comm and join the other ranks, once, in the main process only."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.insert import statements
from dlrun.port.program.script import Script, dotted, walk
from dlrun.port.refusals import optional
from dlrun.port.steps.start import devices, standard_input


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Put the import beside the others, and init() after it, or first under the main guard.

    Before:
        import torch
        train()

    After:
        import torch
        import dl_comm.torch as dl  # averages gradients over the ranks; without a launcher: one rank

        dl.init()  # join the other ranks; this rank's GPU becomes the current one
        train()
    """
    yield from devices.torch(facts)
    yield from beside_imports(facts, ("torch",))


def beside_imports(facts: ScriptFacts, frameworks: tuple[str, ...]) -> Iterator[Edit | Doubt]:
    """Yield the import after the others, with what follows it, and init() at its place."""
    script, dl, kind = facts.script, facts.alias, facts.framework
    after = [*standard_input.imports(facts), *statements(f"{kind}/import", dl=dl)]
    block: list[cst.CSTNode] = []
    same_input = standard_input.shared(facts)
    if facts.uncalled is not None:
        pass  # imported by the script that runs the training: joining is that script's part
    elif facts.meeting is None:
        block.extend([*statements(f"{kind}/init", dl=dl), *same_input])
    else:
        first = facts.meeting.body.body[0]
        yield Edit(
            first,
            "the ranks meet in the main process only, not in worker processes",
            before=(*statements(f"{kind}/init", dl=dl), *same_input),
        )
    yield from standard_input.answers(facts)
    if prints(facts):
        block.extend(statements(f"{kind}/print", dl=dl))
    if block:
        head = block[0]
        block[0] = head.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    yield from _left_off(facts)
    anchor = last_import(script.module, frameworks)
    why = "the ranks meet before anything else happens" if block else "dl_comm beside the other imports"
    yield _at_the_top(script.module, anchor, why, (*after, *block))


def _left_off(facts: ScriptFacts) -> Iterator[Doubt]:
    """Yield the first place where an option, off by default, would distribute the training in another way."""
    for node, tool in optional(facts.script)[:1]:
        yield Doubt(
            node,
            f"distributed by {tool}, where an option is on that is off by default: what is ported is the "
            "serial training",
            "low",
            "leave that option off",
            name="optional-path",
        )


def into_module(facts: ScriptFacts, tree: cst.Module) -> Iterator[Edit]:
    """Yield the import for a local module that other steps have changed; joining the ranks is the script's part."""
    lines = list(statements(f"{facts.framework}/import", dl=facts.alias))
    if prints(facts, tree):
        (head,) = statements(f"{facts.framework}/print", dl=facts.alias)
        lines.append(head.with_changes(leading_lines=[cst.EmptyLine(indent=False)]))
    anchor = last_import(tree, ("keras", "tensorflow", "torch"))
    yield _at_the_top(tree, anchor, "dl_comm beside the other imports", tuple(lines))


def above_uses(module: cst.Module, dl: str) -> cst.Module:
    """Return a port with the import of dl_comm, and what stands with it, above the first line that uses it.

    A script may open its log before it imports a framework.
    """
    body = list(module.body)
    heads = ("import dl_comm", f"{dl}.init(", f"print = {dl}.")
    ours = [
        s
        for s in body
        if isinstance(s, cst.SimpleStatementLine)
        and module.code_for_node(s.with_changes(leading_lines=())).startswith(heads)
    ]
    before = body[: body.index(ours[0])] if ours else []
    runs = (s for s in before if not isinstance(s, (cst.FunctionDef, cst.ClassDef)))
    first = next((s for s in runs if any(isinstance(n, cst.Name) and n.value == dl for n in walk(s))), None)
    if first is None:
        return module
    rest = [s for s in body if s not in ours]
    at = rest.index(first)
    return module.with_changes(body=[*rest[:at], *ours, *rest[at:]])


def own_first(script: Script) -> Iterator[Edit]:
    """Yield what keeps the folder of a ported script before those that it puts on its path.

    Before:
        sys.path.insert(0, "..")

    After:
        sys.path.insert(1, "..")
    """
    for call in script.calls:
        if dotted(call.func).endswith("sys.path.insert") and len(call.args) == 2:
            at = call.args[0].value
            if isinstance(at, cst.Integer) and at.value == "0":
                yield Edit(at, "modules beside the port come before those of the serial script", rewrite=_one)


def _one(at: cst.CSTNode) -> cst.CSTNode:
    return cst.Integer("1")


def _at_the_top(tree: cst.Module, anchor: cst.CSTNode | None, why: str, lines: tuple[cst.CSTNode, ...]) -> Edit:
    """Return the Edit that puts ``lines`` below the imports, or below the docstring, or first."""
    if anchor is None and tree.get_docstring() is not None:
        anchor = tree.body[0]
    return Edit(tree.body[0], why, before=lines) if anchor is None else Edit(anchor, why, after=lines)


def prints(facts: ScriptFacts, tree: cst.Module | None = None) -> bool:
    """Tell whether the script (or its module ``tree``) prints, and has not given ``print`` a meaning of its own."""
    script = facts.script
    tree = tree or script.module
    return "print" not in script.scopes[tree].names and any(
        isinstance(c.func, cst.Name)
        and c.func.value == "print"
        and script.name_of(c.func) == "builtins.print"
        and script.tree_of(c) is tree
        for c in script.calls
    )


def last_import(module: cst.Module, frameworks: tuple[str, ...]) -> cst.CSTNode | None:
    """Return the last statement of the run of imports in which a framework is imported (else of the first run)."""
    last: cst.CSTNode | None = None
    seen = False
    for statement in module.body:
        if _imports(statement):
            last = statement
            seen = seen or _mentions(statement, frameworks)
        elif seen or (
            last is not None
            and not _light(statement)
            and not any(_mentions(s, frameworks) for s in module.body if _imports(s))
        ):
            return last
    return last


def _imports(statement: cst.CSTNode) -> bool:
    if isinstance(statement, cst.SimpleStatementLine):
        return any(isinstance(s, (cst.Import, cst.ImportFrom)) for s in statement.body)
    if isinstance(statement, (cst.Try, cst.If)):
        return (
            any(isinstance(n, (cst.Import, cst.ImportFrom)) for n in walk(statement))
            and not any(isinstance(n, (cst.For, cst.While, cst.FunctionDef, cst.ClassDef)) for n in walk(statement))
            and sum(isinstance(n, cst.BaseSmallStatement) for n in walk(statement)) <= 8
        )
    return False


def _light(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine)


def _mentions(statement: cst.CSTNode, frameworks: tuple[str, ...]) -> bool:
    for n in walk(statement):
        if isinstance(n, (cst.Import, cst.ImportFrom)):
            names: list[cst.CSTNode | None] = [n.module] if isinstance(n, cst.ImportFrom) else [a.name for a in n.names]
            for name in names:
                while isinstance(name, cst.Attribute):
                    name = name.value
                if isinstance(name, cst.Name) and name.value in frameworks:
                    return True
    return False
