"""Parts of the steps "start" and "shard": what a script reads from its standard input, which rank 0 alone has."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import argument

_ASKS = ("isatty", "fileno", "close", "encoding")  # of the stream itself, not of what comes
_DIRECTLY = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_OPENS = ("builtins.open", "io.open", "os.fdopen", "codecs.open")
_READERS = ("fileinput.input", "fileinput.FileInput")


def shared(facts: ScriptFacts) -> list[cst.CSTNode]:
    """Return the lines that give all ranks the input of rank 0, where a script reads its data from it.

    Before:
        import sys
        rows = [line.split() for line in sys.stdin]

    After:
        import io
        import sys
        sys.stdin = io.StringIO(dl.broadcast(sys.stdin.read() if dl.is_rank0() else ""))  # rank 0's input, for all
        rows = [line.split() for line in sys.stdin]
    """
    if not any(not _is_aside(facts, node) for node in _reads(facts)):
        return []
    buffer = any(
        isinstance(up := facts.script.parents[n], cst.Attribute) and up.attr.value == "buffer" for n in _of_sys(facts)
    )
    return list(statements("torch/stdin", dl=facts.alias, buffer=buffer))


def imports(facts: ScriptFacts) -> list[cst.CSTNode]:
    """Return the imports that these lines need, and the script does not have."""
    names = facts.script.scopes[facts.script.module].names
    return (
        [cst.parse_statement(f"import {name}") for name in ("io", "sys") if name not in names] if shared(facts) else []
    )


def answers(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Yield what gives all ranks the answer to a question that rank 0 alone asks, and doubts of other readings."""
    same = shared(facts)
    for call in _questions(facts):
        if not same:
            yield Edit(call, "rank 0 asks, all ranks hear the answer", lambda c: _answer(facts, c))
    for node in _reads(facts):
        if not same:
            yield Doubt(
                node,
                "rank 0 alone has the standard input: the others read nothing here",
                "high",
                f'{facts.alias}.broadcast(sys.stdin.read() if {facts.alias}.is_rank0() else "")',
                name="not-shared",
            )
    for call in facts.script.calls:
        if facts.script.name_of(call.func) in _OPENS and _is_descriptor(argument(call, "file", 0)):
            yield Doubt(
                call,
                "rank 0 alone has the standard input: the others read nothing here",
                "high",
                "read sys.stdin, and port again",
                name="not-shared",
            )


def _answer(facts: ScriptFacts, call: cst.BaseExpression) -> cst.BaseExpression:
    asked = expression("torch/rank0_value", {"value": call, "other": cst.SimpleString('""')}, dl=facts.alias)
    return expression("torch/same", {"value": asked}, dl=facts.alias)


def _of_sys(facts: ScriptFacts) -> list[cst.CSTNode]:
    """Return where ``sys.stdin`` is read, by whatever name."""
    script = facts.script
    found = [n for n in script.nodes if isinstance(n, (cst.Attribute, cst.Name)) and script.name_of(n) == "sys.stdin"]
    return [n for n in found if not _is_no_reading(facts, n) and not _is_alias(facts, n)]


def _is_alias(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a variable that ``sys.stdin`` was given to."""
    return isinstance(node, cst.Name) and all(b.how != "import" for b in facts.script.bindings_of(node))


def _is_no_reading(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    up = facts.script.parents.get(node)
    if isinstance(up, cst.Attribute):
        return up.attr is node or up.attr.value in _ASKS
    return isinstance(up, (cst.AssignTarget, cst.ImportAlias))


def _questions(facts: ScriptFacts) -> list[cst.Call]:
    """Return the calls of ``input()`` that ask for one answer."""
    return [c for c in _inputs(facts) if not _repeats(facts, c)]


def _inputs(facts: ScriptFacts) -> list[cst.Call]:
    return [c for c in facts.script.calls if facts.script.name_of(c.func) == "builtins.input"]


def _repeats(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` takes one line of many, or what ends with them: in a loop, in a ``try``."""
    ups = facts.script.above(call)
    return any(isinstance(up, (cst.For, cst.While, cst.Try, cst.CompFor, cst.ListComp, cst.GeneratorExp)) for up in ups)


def _reads(facts: ScriptFacts) -> list[cst.CSTNode]:
    """Return what reads data from the standard input."""
    readers = [c for c in facts.script.calls if facts.script.name_of(c.func) in _READERS]
    return [*_of_sys(facts), *(c for c in _inputs(facts) if _repeats(facts, c)), *readers]


def _is_aside(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` reads where an option, or a test, asks for it, as in ``open(path) if path else sys.stdin``.

    To read it at the start would wait for a person at a terminal who was not to be asked.
    """
    up: cst.CSTNode = node
    for above in facts.script.above(node):
        if isinstance(above, (cst.IfExp, cst.BooleanOperation, cst.Param)):
            return True
        if isinstance(above, cst.If) and above.test is not up and not _is_guard(above):
            return True
        if isinstance(above, cst.Arg) and above.keyword is not None and above.keyword.value == "default":
            return True
        up = above
    return False


def _is_guard(node: cst.If) -> bool:
    """Tell whether ``node`` is the main guard."""
    test = node.test
    return isinstance(test, cst.Comparison) and isinstance(test.left, cst.Name) and test.left.value == "__name__"


def _is_descriptor(file: cst.BaseExpression | None) -> bool:
    match file:
        case cst.Integer(value="0"):
            return True
        case cst.SimpleString():
            return file.evaluated_value in _DIRECTLY
    return False
