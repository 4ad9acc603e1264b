"""What the program's classes do where Python's syntax asks them: ``a + b``, ``a[k]``, ``x in a``, ``for x in a``."""

from __future__ import annotations

from typing import Any

import libcst as cst

from dlrun.port.placement.interpret.classes import Classes
from dlrun.port.placement.store import REST, VIEW, Function, Obj, key_in, key_of
from dlrun.port.placement.values import ANY, Kind, Value, joined

_DUNDERS: dict[type[Any], str] = {
    cst.Add: "__add__",
    cst.AddAssign: "__iadd__",
    cst.Subtract: "__sub__",
    cst.Multiply: "__mul__",
    cst.Divide: "__truediv__",
    cst.BitOr: "__or__",
    cst.BitOrAssign: "__ior__",
    cst.BitAnd: "__and__",
    cst.Modulo: "__mod__",
    cst.Power: "__pow__",
    cst.FloorDivide: "__floordiv__",
    cst.MatrixMultiply: "__matmul__",
    cst.SubtractAssign: "__isub__",
    cst.LeftShift: "__lshift__",
    cst.LeftShiftAssign: "__ilshift__",
}
_IN_PLACE = {"__iadd__": "__add__", "__ior__": "__or__", "__isub__": "__sub__", "__ilshift__": "__lshift__"}
_PLAIN = ("builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol")
_GO_THROUGH = ("itertools.", "numpy.", "statistics.")
_TAKE = ("sum", "min", "max", "list", "tuple", "set", "frozenset", "sorted", "reversed", "dict", "iter")
_BUILTINS = {f"builtins.{name}" for name in (*_TAKE, "enumerate", "zip", "map", "filter", "any", "all")}


class Protocols(Classes):
    """Runs the special methods of the program's classes."""

    def special(self, op: Any, left: Value, right: Value, node: cst.CSTNode) -> Value | None:
        """Return what a dunder method of the program makes of two values; None where they have none."""
        name = _DUNDERS.get(type(op), "")
        for value, other, prefix in ((left, right, ""), (right, left, "r")):
            for ref in value.refs if name else ():
                if isinstance(ref, Obj) and ref.cls is not None:
                    method = f"__r{name[2:]}" if prefix else name
                    for each in (method, _IN_PLACE.get(method, "")):
                        functions = [r for r in (self.member(ref.cls, each) or ANY).refs if isinstance(r, Function)]
                        if each and functions:
                            return self.run_function(functions[0], [other], {}, node, Value(refs=frozenset([ref])))
        return None

    def dunder(
        self, value: Value, name: str, args: list[Value], node: cst.CSTNode, keywords: dict[str, Value] | None = None
    ) -> Value | None:
        """Return what the method ``name`` of the program's objects in ``value`` returns; None where they have none."""
        found: list[Value] = []
        for ref in value.refs:
            if isinstance(ref, Obj) and ref.cls is not None:
                functions = [r for r in (self.member(ref.cls, name) or ANY).refs if isinstance(r, Function)]
                whose = Value(refs=frozenset([ref]))
                found += [self.run_function(f, args, keywords or {}, node, whose) for f in functions[:1]]
        return joined(found) if found else None

    def is_plain(self, ref: Obj) -> bool:
        """Tell whether the class of an object is the program's alone, of no library."""
        if ref.kind != "instance" or ref.cls is None:
            return False
        return all(base in _PLAIN for base in self.foreign_bases(ref.cls))

    def entry_by(self, owner: Value, index: Value, node: cst.CSTNode) -> Value | None:
        """Return what a ``__getitem__`` of the program returns, or its ``__missing__``; None where it has none."""
        own = [ref for ref in owner.refs if isinstance(ref, Obj) and (ref.kind == "dict" or self.is_plain(ref))]
        if not own or len(own) != len(owner.refs):
            return None
        if (found := self.dunder(owner, "__getitem__", [index], node)) is not None:
            return found
        key = key_of(key_in(index))
        there = key is not None and all((ref, key) in (self.state or {}) for ref in own)
        if there or (key is None and index.name == "slice"):
            return None
        before = dict(self.state or {})
        made = self.dunder(owner, "__missing__", [index], node)
        for at, value in (self.state or {}).items() if made is not None else ():
            if at not in before and isinstance(at[0], Obj):
                self.born[at] = value  # as if it had been there before the loop
        return made

    def iterated(self, value: Value, node: cst.CSTNode) -> Value:
        """Return what gives the entries of ``value``: of an object of the program's what its ``__iter__`` returns.

        An object that goes through a shard stays what it is: a loop over it is one over a shard.
        """
        own = [ref for ref in value.refs if isinstance(ref, Obj) and self.is_plain(ref)]
        if not own or len(own) != len(value.refs) or value.place.kind is Kind.SHARD:
            return value
        made = self.dunder(value, "__iter__", [], node)
        if made is None or made.place.kind is Kind.SHARD:
            return value
        entry = self.dunder(made, "__next__", [], node)
        if entry is None:
            return made
        listed = self.new("list", node, "iterator")
        self.write((listed, REST), entry)
        return Value(refs=frozenset([listed]))

    def handed_through(self, name: str, args: list[Value], node: cst.CSTNode) -> list[Value]:
        """Return the arguments of a function that goes through them: ``sum(meters)``, ``zip(names, meters)``."""
        if name not in _BUILTINS and not name.startswith(_GO_THROUGH):
            return args
        return [self._bare(self.iterated(value, node), node) for value in args]

    def _bare(self, value: Value, node: cst.CSTNode) -> Value:
        """Return the list alone that an object of a class of lists is, without its attributes."""
        ref = next(iter(value.refs), None)
        if len(value.refs) != 1 or not isinstance(ref, Obj) or ref.kind != "list" or ref.cls is None:
            return value
        bare = self.new("list", node, VIEW, name=VIEW)
        for key, held in self.fields(ref):
            if key.startswith("["):
                self.write((bare, key), held)
        return Value(refs=frozenset([bare]))
