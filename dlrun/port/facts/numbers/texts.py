"""What a text is made of: a path, or a command, as far as its literals tell, by whatever names they go."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from dlrun.port.program.flow import Flow

UNKNOWN = "?"
_SAME = (
    "shlex.split",
    "builtins.str",
    "os.path.expanduser",
    "os.path.abspath",
    "os.path.expandvars",
    "os.fspath",
    "os.path.realpath",
    "os.path.normpath",
)
_JOINS = ("os.path.join", "pathlib.Path", "pathlib.PurePath")
_FOLDERS = ("tempfile.gettempdir", "tempfile.mkdtemp", "tempfile.mktemp", "tempfile.TemporaryDirectory")
_VARIABLES = ("os.getenv", "os.environ.get")
_DEEPEST = 6


def spelt(flow: Flow, node: cst.CSTNode | None, depth: int = 0) -> str:
    """Return the text that ``node`` stands for, with UNKNOWN for each part that no literal tells.

    The words of a list come with blanks between them: ``["cp", name]`` is ``cp ?``.
    """
    if depth > _DEEPEST or node is None:
        return UNKNOWN
    parts, between = _parts(flow, node, depth)
    if isinstance(parts, str):
        return parts
    if parts:
        return between.join(spelt(flow, part, depth + 1) for part in parts)
    made = [o.node for o in flow.origins(node) if o.node is not node]
    return next((text for m in made if (text := spelt(flow, m, depth + 1)) != UNKNOWN), UNKNOWN)


def _parts(flow: Flow, node: cst.CSTNode, depth: int) -> tuple[str | Sequence[cst.CSTNode], str]:
    """Return the text of ``node``, or what it is put together of, and what comes between these."""
    match node:
        case cst.SimpleString():
            return str(node.evaluated_value), ""
        case cst.FormattedStringText(value=text):
            return text, ""
        case cst.FormattedStringExpression(expression=value):
            return [value], ""
        case cst.BinaryOperation(left=left, operator=cst.Modulo(), right=right):
            values = [e.value for e in right.elements] if isinstance(right, cst.Tuple) else [right]
            return _filled(flow, left, r"%[\w.]+", values, depth + 1), ""
        case cst.FormattedString(parts=parts):
            return parts, ""
        case cst.ConcatenatedString(left=left, right=right):
            return [left, right], ""
        case cst.BinaryOperation(left=left, operator=cst.Divide(), right=right) if _counts(left) or _counts(right):
            return [], ""
        case cst.BinaryOperation(left=left, operator=how, right=right) if isinstance(how, (cst.Add, cst.Divide)):
            plain = isinstance(right, (cst.Integer, cst.Float))  # n / 600 is no path
            return [] if plain else [left, right], "" if isinstance(how, cst.Add) else "/"
        case cst.List(elements=elements) | cst.Tuple(elements=elements):
            return [e.value for e in elements], " "
        case cst.Subscript(value=value, slice=[cst.SubscriptElement(slice=cst.Index(value=key))]):
            return (f"${spelt(flow, key, depth + 1)}" if flow.script.name_of(value) == "os.environ" else []), ""
        case cst.Call():
            return _of_call(flow, node, depth)
    return [], ""


def _counts(node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is written as a number, and no part of a path."""
    if isinstance(node, cst.BinaryOperation):
        return not isinstance(node.operator, (cst.Add, cst.Divide, cst.Modulo)) or any(
            map(_counts, (node.left, node.right))
        )
    return isinstance(node, (cst.Integer, cst.Float, cst.UnaryOperation))


def _of_call(flow: Flow, call: cst.Call, depth: int) -> tuple[str | Sequence[cst.CSTNode], str]:
    name, given = flow.script.name_of(call.func), [arg.value for arg in call.args]
    if name in _FOLDERS:
        return "/tmp", ""
    if name in _VARIABLES and given:
        return f"${spelt(flow, given[0], depth + 1)}", ""
    if name in _JOINS or name in _SAME:
        return given if name in _JOINS else given[:1], "/"
    match call.func:
        case cst.Attribute(value=cst.SimpleString(), attr=cst.Name("join")):
            return given[:1], ""
        case cst.Attribute(value=value, attr=cst.Name("format")):
            return _filled(flow, value, r"\{[^{}]*\}", given, depth + 1), ""
        case cst.Attribute(value=value, attr=cst.Name("split" | "strip" | "rstrip")):
            return [value], ""
        case cst.Attribute(value=value, attr=cst.Name("joinpath" | "with_suffix")):
            return [value, *given], "/"
    return [], ""


def _filled(flow: Flow, text: cst.CSTNode, places: str, values: Sequence[cst.CSTNode], depth: int) -> str:
    """Return ``text`` with ``values`` at its ``places``, one after the other."""
    filled = spelt(flow, text, depth)
    for put in (spelt(flow, value, depth) for value in values):
        before, *rest = re.split(places, filled, maxsplit=1)
        filled = put.join((before, *rest))
    return filled
