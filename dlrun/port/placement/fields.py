"""Fields that read an attribute, ``"{loss.avg:.3f}".format(loss=losses)``: each made an argument of its own."""

from __future__ import annotations

import re
from string import Formatter
from typing import Any

import libcst as cst

from dlrun.port.facts.numbers.formats import is_number
from dlrun.port.insert import with_argument
from dlrun.port.program.script import walk


def spelt(call: cst.Call, fields: list[str]) -> bool:
    """Tell whether the template of ``call`` is a literal that spells out each of ``fields``, as ``{loss.avg:.3f}``."""
    if not isinstance(call.func, cst.Attribute) or any(arg.star for arg in call.args):
        return False
    read = [name for name, _ in _read(call)]
    found = [name for text in _literals(call.func) for name in re.findall(r"(?<!\{)\{([\w.]+)(?=[!:}])", text)]
    return all(read.count(field) == found.count(field) > 0 for field in fields if "." in field)


def numbers(call: cst.Call) -> set[str]:
    """Return the fields of the template of ``call`` that are shown as numbers with a fraction."""
    return {name for name, spec in _read(call) if is_number(spec)}


def as_argument(call: cst.Call, field: str, text: str, value: cst.BaseExpression) -> cst.Call:
    """Return ``call`` with ``value`` as an argument of its own for ``field``, named after its ``text``."""
    taken = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    name = re.sub(r"\W+", "_", text).strip("_")
    while name in taken:
        name += "_"
    func = cst.ensure_type(call.func, cst.Attribute)
    func = func.with_changes(value=func.value.visit(_Renamed(field, name)))
    call = with_argument(call.with_changes(func=func), name, value)
    source = field.partition(".")[0]
    left = [first for text in _literals(func) for first in re.findall(r"\{(\w+)", text)]
    args = [arg for arg in call.args if source in left or arg.keyword is None or arg.keyword.value != source]
    return call.with_changes(args=args)


class _Renamed(cst.CSTTransformer):
    def __init__(self, field: str, name: str) -> None:
        super().__init__()
        self.old, self.new = rf"(?<!\{{)\{{{re.escape(field)}(?=[!:}}])", f"{{{name}"

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> Any:  # noqa: N802
        return updated_node.with_changes(value=re.sub(self.old, self.new, updated_node.value))


def _read(call: cst.Call) -> list[tuple[str, str]]:
    """Return the fields of the template of ``call``, each with its format; none of what is no literal."""
    template = call.func.value if isinstance(call.func, cst.Attribute) else None
    text = template.evaluated_value if isinstance(template, (cst.SimpleString, cst.ConcatenatedString)) else ""
    try:
        return [(name, spec or "") for _, name, spec, _ in Formatter().parse(str(text or "")) if name]
    except ValueError:
        return []


def _literals(node: cst.CSTNode) -> list[str]:
    return [n.value for n in walk(node) if isinstance(n, cst.SimpleString)]
