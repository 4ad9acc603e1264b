"""What can be told of a node alone: what is below it, its names, and which of a few shapes it has."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, TypeGuard, TypeVar

import libcst as cst

Node = TypeVar("Node", bound=cst.CSTNode)


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    dull = ("whitespace", "lpar", "rpar", "leading_lines", "trailing", "header", "footer", "comma", "equal", "colon")
    return tuple(f for f in kind.__dataclass_fields__ if not any(d in f for d in dull))


def _kinds(kind: type[Any]) -> set[type[Any]]:
    return {kind, *(k for below in kind.__subclasses__() for k in _kinds(below))}


class _Concrete(ABCMeta):
    """An abstract class to which nothing is registered: isinstance() asks the type alone, at a third of the time."""

    __instancecheck__ = type.__instancecheck__


_NODES = frozenset(_kinds(cst.CSTNode))
for _kind in _NODES:  # a node is equal to itself alone: so Python's own two say, without a call of Python
    _kind.__eq__, _kind.__hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]
    if type(_kind) is ABCMeta:
        _kind.__class__ = _Concrete


@lru_cache(maxsize=1 << 17)  # a node never changes, and is asked some dozen times
def children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """Return the child nodes in source order, without white space and commas."""
    found = []
    for name in _fields(type(node)):
        value = getattr(node, name)
        if type(value) in _NODES:
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [v for v in value if type(v) in _NODES]
    return tuple(found)


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield ``node`` and everything below it, in source order."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(children(top)))


def names_in(node: cst.CSTNode) -> set[str]:
    """Return the names that appear in ``node``."""
    return {n.value for n in walk(node) if isinstance(n, cst.Name)}


def dotted(node: cst.CSTNode) -> str:
    """Return ``a.b.c`` for a chain of names, else an empty string."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr.value}" if head else ""
    return ""


def statements(block: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the small and compound statements of a module, an indented block or a one-line suite."""
    body = getattr(block, "body", [])
    if isinstance(body, cst.BaseSuite):
        return statements(body)
    flat: list[cst.CSTNode] = []
    for statement in body:
        flat.extend(statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement])
    return flat


def argument(call: cst.Call, keyword: str, position: int = -1) -> cst.BaseExpression | None:
    """Return the value that ``call`` passes by ``keyword``, or else at ``position``."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg.value
    plain = [a for a in call.args if a.keyword is None and not a.star]
    if 0 <= position < len(plain) and not any(a.star for a in call.args[: position + 1]):
        return plain[position].value
    return None


def table_of(entry: Node) -> Node | cst.BaseExpression:
    """Return ``table`` of its entry ``table[a][b]``; what is no entry itself."""
    table: Node | cst.BaseExpression = entry
    while isinstance(table, cst.Subscript):
        table = table.value
    return table


class MethodCall(cst.Call):
    """A call of a method, as type checkers know it: what it calls is an attribute."""

    func: cst.Attribute


def calls_method(node: cst.CSTNode, *names: str) -> TypeGuard[MethodCall]:
    """Tell whether ``node`` is a call of a method that has one of these ``names``, of whatever object."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in names


def added(node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Return a name and what is added to it: of ``total += loss``, and of ``total = total + loss``, which is alike.

    Likewise an entry of a dict: ``sums[key] = sums.get(key, 0) + loss``.
    """
    match node:
        case cst.AugAssign(operator=cst.AddAssign()):
            return node.target, node.value
        case cst.Assign(targets=[cst.AssignTarget(target=target)], value=cst.BinaryOperation(left, cst.Add(), right)):
            for one, other in ((left, right), (right, left)):
                if (dotted(target) and dotted(target) == dotted(one)) or _is_entry(target, one):
                    return target, other
    return None


def only_adds(node: cst.If) -> bool:
    """Tell whether all that the branches of ``node`` do is to add to something: ``total += x``, ``kept.append(x)``."""
    lines: list[cst.CSTNode] = list(node.body.body)
    if isinstance(node.orelse, cst.If):
        return False
    lines += node.orelse.body.body if node.orelse is not None else ()
    for line in lines:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else (line,):
            call = small.value if isinstance(small, cst.Expr) else None
            if added(small) is None and not (isinstance(call, cst.Call) and calls_method(call, "append")):
                return False
    return True


def _is_entry(entry: cst.CSTNode, read: cst.CSTNode) -> bool:
    """Tell whether ``read`` is the ``entry`` of a dict as it is so far: ``sums[key]``, ``sums.get(key, 0)``."""
    match entry, read:
        case cst.Subscript(value=box, slice=[cst.SubscriptElement(slice=cst.Index(value=key))]), cst.Call(
            func=cst.Attribute(value=other, attr=cst.Name("get")),
            args=[cst.Arg(value=asked), cst.Arg(value=cst.Integer() | cst.Float() as begins)],
        ):
            return begins.evaluated_value == 0 and box.deep_equals(other) and key.deep_equals(asked)
        case cst.Subscript(), cst.Subscript():
            return entry.deep_equals(read)
    return False


def numbered(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a data set of TensorFlow whose elements come with their numbers: ``ds.enumerate()``."""
    return calls_method(node, "enumerate")


def begins_at_first(loop: cst.CSTNode) -> list[cst.If]:
    """Return the tests of the first iteration under which a loop only sets constants: ``if i == 0: total = 0.0``."""
    match loop:
        case cst.For(
            target=cst.Name(number) | cst.Tuple(elements=[cst.Element(value=cst.Name(number)), *_]),
            iter=cst.Call(func=cst.Name("range" | "enumerate"), args=[_]),
        ):
            lines = [line for line in statements(loop) if isinstance(line, cst.If)]
            return [line for line in lines if _is_first(line.test, number) and _sets_constants(line.body)]
    return []


def _is_first(test: cst.BaseExpression, number: str) -> bool:
    match test:
        case cst.Comparison(
            left=cst.Name(name),
            comparisons=[cst.ComparisonTarget(operator=cst.Equal(), comparator=cst.Integer("0"))],
        ):
            return name == number
    return False


def _sets_constants(body: cst.CSTNode) -> bool:
    lines = statements(body)
    return all(isinstance(line, cst.Assign) and not names_in(line.value) for line in lines)
