"""What must stay a whole number where it is shown: of ``{hits:3d}``, ``"#" * hits``, ``name.ljust(hits)``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.facts.numbers.formats import in_braces
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import calls_method, dotted, walk

_WHOLE = re.compile(r"[bcdoxX]$")
_TAKES = ("ljust", "rjust", "center", "zfill", "hex", "bin", "oct", "chr")
_TEXTS = (cst.SimpleString, cst.FormattedString, cst.ConcatenatedString, cst.List)


def integers(node: cst.CSTNode, is_text: Callable[[cst.CSTNode], bool]) -> Iterator[cst.BaseExpression]:
    """Yield the expressions within ``node`` for which a fraction would fail; ``is_text`` knows texts by their names."""
    for n in walk(node):
        match n:
            case cst.FormattedStringExpression(format_spec=[*_, cst.FormattedStringText(value=spec)]):
                yield from [n.expression] if _WHOLE.search(spec) else []
            case cst.BinaryOperation(operator=cst.Multiply()):
                for side, other in ((n.left, n.right), (n.right, n.left)):
                    yield from [other] if isinstance(side, _TEXTS) or is_text(side) else []
            case cst.Call():
                yield from in_braces(n, _WHOLE)
                name = n.func.attr if isinstance(n.func, cst.Attribute) else n.func
                if n.args and dotted(name) in _TAKES:
                    yield n.args[0].value


def indexes(flow: Flow, call: cst.Call, value: cst.BaseExpression) -> bool:
    """Tell whether a function of the program picks an entry by the ``value`` that ``call`` gives it."""
    for function in flow.targets(call):
        for name in (
            p.name.value for p in function.params.params if flow.argument(call, function, p.name.value) is value
        ):
            for n in walk(function.body):
                by = n.slice if isinstance(n, cst.Subscript) else n.args[:1] if calls_method(n, "get") else ()
                if any(isinstance(m, cst.Name) and m.value == name for part in by for m in walk(part)):
                    return True
    return False
