"""What a script shows as a number: the values that a format such as ``%.4f`` or ``{loss:.4f}`` takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Formatter

import libcst as cst

from dlrun.port.program.script import calls_method, walk

_NUMBER = re.compile(r"[eEfFgG%]$")
_PERCENT = re.compile(r"%(?:\((?P<name>\w+)\))?[#0\- +]*\d*(?:\.\d+)?(?P<kind>[a-zA-Z%])")


def numbers(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the expressions within ``node`` that are formatted as numbers with a fraction."""
    for n in walk(node):
        match n:
            case cst.FormattedStringExpression(format_spec=[cst.FormattedStringText(value=spec)]):
                if _NUMBER.search(spec):
                    yield n.expression
            case cst.BinaryOperation(operator=cst.Modulo(), left=cst.SimpleString() | cst.ConcatenatedString()):
                yield from _percent(_text(n.left), n.right)
            case cst.Call():
                yield from in_braces(n, _NUMBER)


def is_number(spec: str) -> bool:
    """Tell whether a format such as ``.4f`` shows a number with a fraction."""
    return bool(_NUMBER.search(spec))


def _text(node: cst.BaseExpression) -> str:
    value = node.evaluated_value if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)) else None
    return value if isinstance(value, str) else ""


def _percent(text: str, right: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    found = [m for m in _PERCENT.finditer(text) if m["kind"] != "%"]
    values = [e.value for e in right.elements] if isinstance(right, cst.Tuple) else [right]
    if len(found) == len(values) and not any(m["name"] for m in found):
        yield from (v for m, v in zip(found, values, strict=True) if _NUMBER.search(m["kind"]))


def in_braces(call: cst.Call, kind: re.Pattern[str]) -> Iterator[cst.BaseExpression]:
    """Yield what ``"{:.3f} {loss}".format(...)`` shows in formats of a ``kind``; nothing of another call."""
    left = call.func.value if isinstance(call.func, cst.Attribute) and calls_method(call, "format") else None
    text = _text(left) if left is not None else ""
    plain = [a for a in call.args if a.keyword is None and a.star != "**"]
    first = next((k for k, a in enumerate(plain) if a.star), len(plain))
    named = {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    try:
        fields = [(name, spec or "") for _, name, spec, _ in Formatter().parse(text) if name is not None]
    except ValueError:
        return
    for at, (name, spec) in enumerate(fields):
        place = int(name) if name.isdigit() else at if name == "" else -1
        value = named.get(name) if place < 0 else plain[place].value if place < first else None
        if value is not None and kind.search(spec):
            yield value
    behind = fields[first:]  # what the first star gives, and all after it
    if behind and all(name == "" and kind.search(spec) for name, spec in behind):
        yield from (a.value for a in plain[first:])
