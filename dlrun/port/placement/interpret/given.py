"""What is given to functions out of sight: they may call it, fill it, or return it, or what it holds."""

from __future__ import annotations

from typing import Any

import libcst as cst

from dlrun.port.placement.interpret.protocols import Protocols
from dlrun.port.placement.store import CONTENT, GROWN, REST, VIEW, Bound, Function, Obj
from dlrun.port.placement.values import (
    ANY,
    ENTRY,
    SAME,
    Value,
    combine,
    joined,
    out_of_sight,
    unknown,
)

_OF_DATA = ("__getitem__", "__iter__", "__next__")


class Given(Protocols):
    """Follows what functions out of sight are given."""

    def block(self, body: cst.BaseSuite) -> None:
        """Run the statements of a block; see ``statements``."""
        raise NotImplementedError

    def array_of(self, node: cst.BaseExpression) -> Value:
        """Return what a store into ``node`` changes; see ``statements``."""
        raise NotImplementedError

    def objects_in(self, given: list[Value]) -> frozenset[Any]:
        """Return the objects of the program's plain classes among ``given`` and in the containers there."""
        held = [*given, *(self.entries(value) for value in given if value.items or value.refs)]
        held = [each for value in held for each in (value, *(value.items or ()))]
        return frozenset(r for value in held for r in value.refs if isinstance(r, Obj) and self.is_plain(r))

    def run_given(self, given: list[Value], node: cst.CSTNode) -> None:
        """Run the functions of the program that something out of sight is given: it may call them.

        So it may with the objects that it is given beside them.
        """
        functions = [ref for value in given for ref in value.refs if isinstance(ref, (Function, Bound))]
        objects = self.objects_in(given) if functions else frozenset()
        argument = Value(ENTRY if self.loop else SAME, refs=objects)
        for ref in functions:
            if isinstance(ref, Bound):
                bound = ref.receiver is not ANY
                taken = {name for name, _ in ref.named}
                asked = [p for p in ref.function.node.params.params[bound + len(ref.given) :] if p.default is None]
                more = [argument for p in asked if p.name.value not in taken]
                receiver = ref.receiver if bound else None
                self.run_function(ref.function, [*ref.given, *more], dict(ref.named), node, receiver)
            elif objects or isinstance(ref.node, cst.FunctionDef):
                self.run_function(ref, [argument] * len(ref.node.params.params), {}, node)

    def may_return(self, given: list[Value], node: cst.CSTNode, name: str) -> Value | None:
        """Return what a function out of sight returns that is given objects of the program: it may be any of them.

        Or something that holds them: ``itertools.product(meters, groups)``. None where it is given none.
        """
        if isinstance(self.script.parents.get(node), cst.Expr) or not (objects := self.objects_in(given)):
            return None
        if any(self.member(ref.cls, method) is not None for ref in objects for method in _OF_DATA):
            return None  # data: a loader's samples come of it
        others = combine(self.content(value) for value in given if not self.objects_in([value]))
        made = self.new("foreign", node, name=name)
        held = Value(out_of_sight(others), refs=objects | {made})
        self.write((made, REST), held)
        return held

    def may_fill(self, node: cst.Call, args: list[Value]) -> None:
        """Note that a function out of sight, whose result is not used, may put what it is given into an argument."""
        for i, (arg, value) in enumerate(zip(node.args, args, strict=False)):
            others = combine(self.content(a) for j, a in enumerate(args) if j != i)
            if others.uniform or self.loop is None or self.shards.kind(arg.value):
                continue
            filled = value if value.refs else self.array_of(arg.value)
            self.lose_shared(filled, arg.value)
            for ref in filled.refs:
                if isinstance(ref, Obj) and ref.kind in ("list", "set", "deque", "dict", "foreign"):
                    key = CONTENT if ref.kind == "foreign" else REST if ref.kind == "dict" else GROWN
                    text = f"{self.script.code(node.func)}() may put what each rank gives it there"
                    self.write((ref, key), Value(unknown(node, text)))

    def picked(self, args: list[Value]) -> Value | None:
        """Return which object it may be that is picked of a list, or of several; None of others than the program's."""
        entry = self.entries(args[0]) if len(args) == 1 else joined(args) if args else ANY
        own = bool(entry.refs) and all(isinstance(ref, Obj) and ref.kind == "instance" for ref in entry.refs)
        return entry if own else None

    def objects_of(self, sources: list[Value], node: cst.CSTNode) -> Value | None:
        """Return a list of the objects that ``sources`` hold; None where they hold none."""
        entries = [self.entries(source) for source in sources]
        if not any(entry.refs for entry in entries):
            return None
        made = self.new("list", node, VIEW, name=VIEW)
        for source in sources:
            self.like(made, source, joined(entries))
        return Value(refs=frozenset([made]))

    def like(self, made: Obj, source: Value, entry: Value) -> None:
        """Put ``entry`` into ``made``, which has an entry for each of ``source``: grown where that is."""
        grown = self.grown(source)
        if grown and self.state is not None:
            self.write((made, GROWN), Value(self.state[grown[0]].place, refs=entry.refs))
        else:
            self.write((made, REST), entry)
