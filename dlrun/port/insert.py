"""Turns the templates of ``templates/port/`` into nodes; passes hold no Python in strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import libcst as cst

from dlrun.render import render

# What needs no parentheses as the argument of a call.
_BARE = (
    cst.Name,
    cst.Attribute,
    cst.Subscript,
    cst.Call,
    cst.UnaryOperation,
    cst.BinaryOperation,
    cst.BooleanOperation,
    cst.Comparison,
)


class _Fill(cst.CSTTransformer):
    def __init__(self, nodes: dict[str, cst.CSTNode]) -> None:
        super().__init__()
        self.nodes = nodes

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:  # noqa: N802 - libcst's name
        return self.nodes.get(original_node.value, updated_node)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:  # noqa: N802
        value = updated_node.value
        plain = isinstance(value, _BARE) and all(
            isinstance(paren.whitespace_after, cst.SimpleWhitespace) for paren in value.lpar
        )
        return updated_node.with_changes(value=value.with_changes(lpar=(), rpar=())) if plain else updated_node


def statements(template: str, **facts: Any) -> tuple[cst.CSTNode, ...]:
    """Return the statements of ``templates/port/<template>.py.j2`` filled with ``facts`` (text)."""
    return tuple(cst.parse_module(render(f"port/{template}.py.j2", **facts)).body)


def expression(template: str, nodes: dict[str, cst.BaseExpression] | None = None, **facts: Any) -> cst.BaseExpression:
    """Return the expression of a template; ``nodes`` are put in as they are, with their own formatting.

    A tuple without brackets (``return x, y``) gets some: among arguments it would be several.
    """
    nodes = {name: _in_brackets(node) for name, node in (nodes or {}).items()}
    marks = {name: f"_dlrun_{name}" for name in nodes}
    parsed = cst.parse_expression(render(f"port/{template}.py.j2", **facts, **marks).strip())
    filled = parsed.visit(_Fill({marks[name]: node for name, node in nodes.items()}))
    assert isinstance(filled, cst.BaseExpression)
    return filled


def _in_brackets(node: cst.BaseExpression) -> cst.BaseExpression:
    return in_brackets(node) if isinstance(node, cst.Tuple) and not node.lpar else node


def in_brackets(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``node`` in round brackets."""
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def inside(call: cst.Call, func: cst.BaseExpression, change: Callable[[cst.Call], cst.Call]) -> cst.Call:
    """Return ``call`` with a ``change`` of the call of ``func``, around which another step may have put something."""
    if not call.func.deep_equals(func) and call.args and isinstance(inner := call.args[0].value, cst.Call):
        return call.with_changes(args=[call.args[0].with_changes(value=inside(inner, func, change)), *call.args[1:]])
    return change(call)


def with_argument(call: cst.Call, keyword: str, value: cst.BaseExpression) -> cst.Call:
    """Return ``call`` with one more keyword argument at the end."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    arg = cst.Arg(value, keyword=cst.Name(keyword), equal=tight)
    if not call.args:
        return call.with_changes(args=[arg])
    last = call.args[-1]
    # A trailing comma (and the line break after it) moves behind the new argument.
    kept = last.comma if isinstance(last.comma, cst.Comma) else cst.MaybeSentinel.DEFAULT
    end, last = last.whitespace_after_arg, last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    arg = arg.with_changes(whitespace_after_arg=end)
    space: Any = cst.SimpleWhitespace(" ")
    if len(call.args) > 1 and isinstance(call.args[0].comma, cst.Comma):
        space = call.args[0].comma.whitespace_after
        if isinstance(space, cst.ParenthesizedWhitespace):  # without the comments that stand there
            space = space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    args = [*call.args[:-1], last.with_changes(comma=cst.Comma(whitespace_after=space)), arg.with_changes(comma=kept)]
    return call.with_changes(args=args)
