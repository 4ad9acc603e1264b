"""Calls: functions and classes of the program are run, those of libraries follow their rows."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from string import Formatter
from typing import Any

import libcst as cst

from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.updates.session import runs_session
from dlrun.port.placement import rules
from dlrun.port.placement.interpret import parts, sessions
from dlrun.port.placement.interpret.classes import Classes
from dlrun.port.placement.interpret.machine import DEPTH, Flows, Sink
from dlrun.port.placement.rules import Row
from dlrun.port.placement.store import (
    CONTENT,
    GROWN,
    REST,
    Bound,
    Class,
    Frame,
    Function,
    Method,
    Obj,
    key_of,
    merge,
)
from dlrun.port.placement.values import (
    ANY,
    CLOCK,
    ENTRY,
    MIX,
    NOTHING,
    RATIO,
    SAME,
    UNIFORM,
    Kind,
    Place,
    Value,
    combine,
    constant,
    join,
    joined,
    unknown,
)
from dlrun.port.program.script import children, dotted

_SCORES = ("_score", "accuracy", "_auc")
_LOSSES = ("loss", "cross_entropy", "criterion", "_error", "divergence", "kl_div", "nll")
_CONTAINERS = (Row.LIST, Row.SET, Row.DICT, Row.COUNTER, Row.DEQUE)
_IN_PLACE = (Row.ADD, Row.INDEX_ADD, Row.STORE, Row.CLEAR)
_ELEMENTWISE = ("numpy.", "torch.", "tensorflow.", "math.", "jax.numpy.")
_OF_TEXTS = ("os.path.join", "os.fspath", "builtins.str", "pathlib.Path", "pathlib.PurePath")
_OF_BASES = ("__init__", "__setitem__", "__getitem__")
_REDUCES = (Row.SUM, Row.MEAN, Row.MAX, Row.MIN)


def _plain(values: list[Value]) -> bool:
    """Tell whether ``values`` are entries and serial values that hold nothing: no list, no object, no sum so far."""
    held = any(v.refs or v.items is not None or v.pending or v.texts or v.reduced for v in values)
    return not held and all(v.place.kind in (Kind.ENTRY, Kind.SAME) for v in values)


class Calls(Classes):
    """Evaluates calls."""

    def block(self, body: cst.BaseSuite) -> None:
        """Run the statements of a block; see ``statements``."""
        raise NotImplementedError

    def array_of(self, node: cst.BaseExpression) -> Value:
        """Return what a store into ``node`` changes; see ``statements``."""
        raise NotImplementedError

    def fitted(self, given: list[Value], node: cst.CSTNode) -> None:
        """Run the callbacks that ``fit()`` is given; see ``callbacks``."""
        raise NotImplementedError

    def call(self, node: cst.Call) -> Value:
        """Return what a call returns."""
        above = self._super(node)
        callee = above if above is not None else self.eval(node.func)
        args, keywords = self._arguments(node)
        if callee.name in rules.IN_ORDER and self.loop is None:
            args = [self.in_order(node, value) for value in args]
        if node in self.shards.runs:
            return sessions.ran(self, node)
        if self.shards.runs and runs_session(node):  # of samples that all ranks have
            if (kept := sessions.kept(self, node)) is not None:
                return kept
            return Value(scalar=self.shards.number(node) or None)
        return self.call_value(callee, args, keywords, node)

    def _arguments(self, node: cst.Call) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        keywords: dict[str, Value] = {}
        for arg in node.args:
            value = self.eval(arg.value)
            if arg.star == "*":
                args.extend(value.items if value.items is not None else self._unpacked(value))
            elif arg.star == "**":
                for ref in value.refs:
                    if isinstance(ref, Obj):
                        keywords |= {k[2:-2]: v for k, v in self.fields(ref) if k.startswith('["')}
            elif arg.keyword is not None:
                keywords[arg.keyword.value] = value
            else:
                args.append(value)
        return args, keywords

    def _unpacked(self, value: Value) -> list[Value]:
        known = [v for ref in value.refs if isinstance(ref, Obj) for k, v in self.fields(ref) if k[1:-1].isdigit()]
        return known or [self.entries(value)]

    def _super(self, node: cst.Call) -> Value | None:
        """Return the method of a base that ``super().name`` stands for, bound to this object."""
        func = node.func
        inner = func.value if isinstance(func, cst.Attribute) else None
        if not isinstance(inner, cst.Call) or dotted(inner.func) != "super":
            return None
        frame: Frame | None = self.frame
        while frame is not None and not isinstance(frame.function, cst.FunctionDef):
            frame = frame.parent
        params = frame.function.params.params if frame is not None else ()  # type: ignore[attr-defined]
        receiver = self.read((frame, params[0].name.value)) if params else None
        owner = self.script.class_of(node)
        for ref in receiver.refs if receiver is not None else ():
            cls: Class | None = ref.cls if isinstance(ref, Obj) else None
            here = next((c for c in self.lines(cls) if c.node is owner), None) if cls is not None else None
            named = func.attr.value if isinstance(func, cst.Attribute) else ""
            member = self.member(cls, named, here) if here is not None and cls is not None else None
            functions = [r for r in member.refs if isinstance(r, Function)] if member is not None else []
            if functions:
                return Value(refs=frozenset([Bound(functions[0], receiver)]))  # type: ignore[arg-type]
            if isinstance(ref, Obj) and ref.kind in ("dict", "list", "set", "deque"):
                return Value(refs=frozenset([Method(Value(refs=frozenset([ref])), named)]))
        return Value(name="builtins.object")

    def call_value(self, callee: Value, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        """Call a value."""
        found: Value | None = None
        before = self.state
        after = None
        several = len(callee.refs) > 1
        for ref in sorted(callee.refs, key=_order):
            self.state = dict(before) if several and before is not None else before
            found = join(found, self._call_ref(ref, args, keywords, node))
            after = merge(after, self.state) if several else self.state
        if found is not None:
            self.state = after
            return found
        if callee.name and not callee.name.startswith("."):
            return self._function(callee.name, args, keywords, node)
        given = [*args, *keywords.values()]
        self._run_given(given, node)
        place = combine([callee.place, *(self.content(a) for a in given)])
        if place.kind is Kind.SAME:  # nothing is known of it, and so it may keep what it is given later
            return Value(refs=frozenset([self.new("foreign", node, "unknown")]))
        return Value(place)

    def _run_hooks(self, node: cst.Call) -> None:
        """Run the functions that are hooked to modules, as a forward pass does."""
        hooks, self.hooks = self.hooks, {}  # they may run modules, too
        for ref in hooks:
            function = ref.function if isinstance(ref, Bound) else ref
            taken = len(function.node.params.params) - isinstance(ref, Bound)
            self._call_ref(ref, [Value(ENTRY)] * taken, {}, node)
        self.hooks = hooks

    def _call_ref(self, ref: object, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        if self.hooks and self.loop is not None and isinstance(ref, Obj) and self.shards.kind(node.func) == "module":
            self._run_hooks(node)
        if isinstance(ref, Function):
            return self.run_function(ref, args, keywords, node)
        if isinstance(ref, Bound):
            receiver = ref.receiver if ref.receiver is not ANY else None
            return self.run_function(ref.function, [*ref.given, *args], keywords, node, receiver)
        if isinstance(ref, Class):
            return self.instantiate(ref, args, keywords, node)
        if isinstance(ref, Method):
            return self._method_call(ref, args, keywords, node)
        if isinstance(ref, Obj) and ref.cls is not None:
            return self._call_object(ref, args, keywords, node)
        given = [self.content(a) for a in (*args, *keywords.values())]
        if isinstance(ref, Obj) and rules.of_function(ref.name) is Row.STATE:
            metric = self._metric(Value(refs=frozenset([ref])), "__call__", [*args, *keywords.values()], node)
            return metric if metric is not None else ANY
        if isinstance(ref, Obj):
            given.append(self.foreign_content(ref).place)
            if isinstance(self.script.parents.get(node), cst.Expr) and not self.shards.kind(node.func):
                self._sink(node, kept=True) if self.keep(Value(refs=frozenset([ref])), args, node) else None
            loss = ref.name.endswith(("Loss", "loss"))
            if self.shards.parts and loss and combine(given).kind is Kind.ENTRY:
                return Value(self.of_episode(parts.SUMMED) if parts.is_sum(ref.site) else ENTRY, scalar=True)
            return Value(combine(given), scalar=True if loss else None)
        return Value(combine(given))

    def _call_object(self, ref: Obj, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        own = Value(refs=frozenset([ref]))
        if self.is_module(ref.cls):
            name = "forward" if self.member(ref.cls, "forward") is not None else "call"
            if not self.keeps(ref.cls, name) and self.member(ref.cls, "__call__") is None:
                return self.content_of([*args, *keywords.values()])
            if (found := self.dunder(own, name, args, node)) is not None:
                return found
        functions = [r for r in (self.member(ref.cls, "__call__") or ANY).refs if isinstance(r, Function)]
        if functions:
            return self.run_function(functions[0], args, keywords, node, own)
        return self.content_of([*args, *keywords.values()])

    # -- functions of the program ----------------------------------------------------------------------------------

    def run_function(
        self,
        function: Function,
        args: list[Value],
        keywords: dict[str, Value],
        node: cst.CSTNode,
        receiver: Value | None = None,
    ) -> Value:
        """Run a function of the program on these arguments; return what it returns, or a list of what it yields."""
        if function.node in self.shards.drawing:
            return Value(ENTRY)
        busy = sum(frame.function is function.node for frame in self.stack)
        if len(self.stack) > DEPTH or busy > 1:
            return Value(combine(self.content(a) for a in (*args, *keywords.values())))
        who = receiver.refs if receiver is not None else None
        frame = self.frame_of(node, function.node, self.frame, who, function=function.node, parent=function.frame)
        frame.call = node
        for key in self.keys.get(frame, ()):
            if self.state is not None:
                self.state.pop((frame, key), None)
        self._bind_params(frame, function, [*([receiver] if receiver is not None else []), *args], keywords, node)
        return self._run(frame, function, node)

    def _run(self, frame: Frame, function: Function, node: cst.CSTNode) -> Value:
        before, self.frame = self.frame, frame
        self.stack.append(frame)
        self.flows.append(Flows())
        diverged = len(self.diverged)
        if isinstance(function.node, cst.Lambda):
            result = self.eval(function.node.body)
        else:
            self.block(function.node.body)
            flows = self.flows[-1]
            result = joined(v for v, _ in flows.returns) if flows.returns else Value(const=None)
            if flows.returns and self.state is not None and len({id(v) for v, _ in flows.returns}) > 0:
                result = result if result.items is not None or result.refs else join(result, Value())
            for _, state in flows.returns:
                self.state = merge(self.state, state)
            if _yields(function.node):
                self.state = merge(self.state, flows.yielded)
                made = self.new("generator", node, function.node.name.value)
                entry = joined(flows.yields)
                self.write((made, REST), entry)
                result = Value(refs=frozenset([made]))
                if flows.drawn:  # each entry is of an iteration of a loop over a shard
                    result = Value(Place(Kind.SHARD), items=(entry,), name="drawn")
        del self.diverged[diverged:]
        self.flows.pop()
        self.stack.pop()
        self.frame = before
        if not _encloses(function.node) and self.state is not None:
            for key in self.keys.get(frame, ()):
                self.state.pop((frame, key), None)
        return result

    def _bind_params(
        self, frame: Frame, function: Function, args: list[Value], keywords: dict[str, Value], node: cst.CSTNode
    ) -> None:
        params = function.node.params
        plain = [*params.posonly_params, *params.params]
        before, self.frame = self.frame, function.frame
        defaults = {
            p.name.value: self.eval(p.default) for p in (*plain, *params.kwonly_params) if p.default is not None
        }
        self.frame = before
        left = dict(keywords)
        for i, p in enumerate(plain):
            name = p.name.value
            value = args[i] if i < len(args) else left.pop(name, defaults.get(name))
            self.write((frame, name), value if value is not None else ANY)
        if isinstance(params.star_arg, cst.Param):
            self.write((frame, params.star_arg.name.value), Value(items=tuple(args[len(plain) :])))
        for p in params.kwonly_params:
            self.write((frame, p.name.value), left.pop(p.name.value, defaults.get(p.name.value, ANY)))
        if params.star_kwarg is not None:
            rest = self.new("dict", params.star_kwarg, str(id(frame)))
            for name, value in left.items():
                self.write((rest, key_of(name) or name), value)
            self.write((frame, params.star_kwarg.name.value), Value(refs=frozenset([rest])))

    def _run_given(self, given: list[Value], node: cst.CSTNode) -> None:
        """Run the functions of the program that something out of sight is given: it may call them."""
        for value in given:
            for ref in value.refs:
                if isinstance(ref, Function) and isinstance(ref.node, cst.FunctionDef):
                    taken = len(ref.node.params.params)
                    self.run_function(ref, [Value(ENTRY if self.loop else SAME)] * taken, {}, node)
                elif isinstance(ref, Bound):
                    self.run_function(ref.function, [], {}, node, ref.receiver)

    # -- functions and methods of libraries ------------------------------------------------------------------------

    def _function(self, name: str, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        name = plain(name)
        row = rules.of_function(name)
        given = [*args, *keywords.values()]
        if self.shards.runs and name == "tensorflow.placeholder":
            return Value(ENTRY)
        if self.shards.runs and name.startswith("tensorflow.summary."):
            return ANY  # a node of the graph, and shown where a run is
        if self.shards.runs and name.startswith("tensorflow.metrics."):
            return sessions.streaming(self, node, name)
        if row in _CONTAINERS:
            return self.make(row, node, args) if row is not Row.DEQUE else self._deque(node, args)
        if row in _REDUCES and len(args) >= 1 and row is not None:
            total = self._reduced(row, args, keywords, node)
            table = name.endswith(".add_n") and total.place.kind is not Kind.SAME and not self.entries(args[0]).scalar
            return replace(total, scalar=None) if table else total
        handler = getattr(self, f"_row_{row.name.lower()}", None) if row is not None else None
        if handler is not None:
            result: Value = handler(args, node)
            return result
        if row in (Row.REPLACE, Row.AS_DICT) and args:
            return self._fields_in(row, args[0], keywords, node)
        if name == "builtins.map" and len(args) > 1:
            return self._mapped(args, node)
        self._run_given(given, node)
        place = combine(self.content(a) for a in given)
        if row is None and isinstance(self.script.parents.get(node), cst.Expr):
            self._may_fill(node, args)
        losses = name.rpartition(".")[2].lower().endswith(_LOSSES) and "reduction" not in keywords
        of_numbers = bool(given) and all(g.scalar for g in given) and name.startswith(_ELEMENTWISE)
        number = name.endswith(".norm") and len(given) == 1
        number = number or (name.endswith(_SCORES) and "average" not in keywords)
        scalar = True if losses or number or row is Row.SCALAR or of_numbers else None
        if self.shards.parts and place.kind is Kind.ENTRY and row is Row.COUNTS:
            place = self.of_episode(parts.SUMMED)
        elif self.shards.parts and place.kind is Kind.ENTRY:
            numbers = row is Row.SCALAR or any(g.scalar and g.place.kind is Kind.ENTRY for g in given)
            if losses or parts.is_sum(node):
                place = self.of_episode(parts.SUMMED) if parts.is_sum(node) else ENTRY
                scalar = True
            elif numbers and (parts.bends(name) or name.startswith("math.")):
                place = parts.BENT
        reduced = any(map(self.serial, given))
        kinds = (self.shards.kind(n) for n in (node, *(arg.value for arg in node.args)))
        if place.kind in (Kind.COUNT, Kind.INDEX) and any(kinds):
            place = SAME  # a scheduler that is told the steps of an epoch is no count
        if place.kind is Kind.SAME and row is not Row.SCALAR:
            made = self.new("foreign", node, name=name)
            if row is Row.STATE:
                self.write((made, CONTENT), Value(zero=True))
            if row is Row.HOLDS:
                for field, value in keywords.items():
                    self.write((made, field), value)
            return Value(refs=frozenset([made]), scalar=scalar, reduced=reduced)
        texts = frozenset[Any]().union(*(g.texts for g in given)) if name in _OF_TEXTS else frozenset[Any]()
        return Value(place, scalar=scalar, reduced=reduced, texts=texts)

    def _may_fill(self, node: cst.Call, args: list[Value]) -> None:
        """Note that a function out of sight, whose result is not used, may put what it is given into an argument."""
        for i, (arg, value) in enumerate(zip(node.args, args, strict=False)):
            others = combine(self.content(a) for j, a in enumerate(args) if j != i)
            if others.uniform or self.loop is None or self.shards.kind(arg.value):
                continue
            filled = value if value.refs else self.array_of(arg.value)
            for ref in filled.refs:
                if isinstance(ref, Obj) and ref.kind in ("list", "set", "deque", "dict", "foreign"):
                    key = CONTENT if ref.kind == "foreign" else REST if ref.kind == "dict" else GROWN
                    text = f"{self.script.code(node.func)}() may put what each rank gives it there"
                    self.write((ref, key), Value(unknown(node, text)))

    def _mapped(self, args: list[Value], node: cst.Call) -> Value:
        entry = self.call_value(args[0], [self.entries(a) for a in args[1:]], {}, node)
        made = self.new("list", node, "mapped")
        self._like(made, args[1], entry)
        return Value(refs=frozenset([made]))

    def _like(self, made: Obj, source: Value, entry: Value) -> None:
        """Put ``entry`` into ``made``, which has an entry for each of ``source``: grown where that is."""
        grown = self.grown(source)
        if grown and self.state is not None:
            self.write((made, GROWN), Value(self.state[grown[0]].place, refs=entry.refs))
        else:
            self.write((made, REST), entry)

    def _deque(self, node: cst.Call, args: list[Value]) -> Value:
        return self.make(Row.DEQUE, node, args)

    def _reduced(self, row: Row, args: list[Value], keywords: dict[str, Value], node: cst.CSTNode) -> Value:
        """Return the sum, mean or extreme of what one or several arguments hold."""
        whole = len(args) == 1 and not keywords
        first = args[0]
        sides = self._parts_of([first]) if row is Row.SUM and not self.shards.parts else []
        if any(side.place.kind is Kind.RUN for side in sides):
            total = sides[0]
            for side in (*sides[1:], *args[1:2]):
                total = self.operated(cst.Add(), total, side, node)
            return total
        grown = self.grown(first)
        if grown:
            held = (self.state or {})[grown[0]].place
            if row is Row.MEAN:
                return Value(ENTRY, scalar=True)
            if row is Row.SUM:
                return Value(Place(Kind.RUN, held.at, held.adds), scalar=True)
            return Value(Place(Kind.EXTREME, held.at, frozenset({row.name.lower()})), scalar=True)
        if row in (Row.MAX, Row.MIN) and len(args) == 2:
            sides = [replace(a, place=self.one_run(a) or self.content(a)) for a in args]
            for i, (run, other) in enumerate(((sides[0], sides[1]), (sides[1], sides[0]))):
                if run.place.untouched and self.shards.parts and self.content(other).kind is Kind.ENTRY:
                    given = [a.value for a in node.args] if isinstance(node, cst.Call) else []
                    if len(given) == 2 and self.force(given[1 - i], other).place == SAME:
                        return Value(replace(run.place, adds=frozenset({"same"})), scalar=True)
                goes_on = run.place.kind is Kind.EXTREME and run.place.adds == {row.name.lower()}
                if (run.place.untouched or goes_on) and self.content(other).kind in (Kind.ENTRY, Kind.SAME):
                    return Value(Place(Kind.EXTREME, run.place.at, frozenset({row.name.lower()})), scalar=True)
        place = combine(self.content(a) for a in (args if row in (Row.MAX, Row.MIN) else args[:1]))
        if row is Row.MEAN and "means" in place.adds:
            return Value(SAME, scalar=True if whole else None, reduced=True)
        if self.shards.parts and place.kind is Kind.ENTRY:
            axes = [args[1]] if len(args) > 1 else [v for k, v in keywords.items() if k in ("dim", "axis")]
            along = any(axis.const == 0 and axis.const is not False for axis in axes)
            place = self.of_episode(parts.reduced(row, replace(first, place=self.content(first)), whole, along))
            return Value(place, scalar=True if whole else None)
        reduced = any(map(self.serial, args))
        if place.kind is Kind.MIX and len(args) == 1 and (one := self.one_run(first)) is not None and row is Row.SUM:
            place = one
        return Value(place, scalar=True if whole else None, reduced=reduced)

    def _method_call(self, method: Method, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        receiver, name = method.receiver, method.name
        row = rules.of_method(name)
        given = [*args, *keywords.values()]
        if name == "format" and isinstance(receiver.const, str):
            return self.text(node, self._of_fields(receiver.const, args, keywords, node))
        if receiver.name == "__dict__" and name == "update":
            for arg in args:
                for source in arg.refs:
                    for key, value in self.fields(source) if isinstance(source, Obj) else ():
                        self.set_attribute(receiver, key[2:-2], value, node) if key.startswith('["') else None
            return ANY
        if name in _OF_BASES and (owners := [r for r in receiver.refs if isinstance(r, Obj)]):
            return self._of_base(owners, name, args, keywords, node)
        if row is not None and (known := self.method_of(row, receiver, args, node, name)) is not None:
            return known
        if row in _IN_PLACE and row is not None:
            if not receiver.refs and isinstance(node.func, cst.Attribute):
                receiver = self.array_of(node.func.value)
            done = self._cleared(receiver) if row is Row.CLEAR else self.in_place(row, receiver, args, node, name)
            if done is not None:
                return done
        if receiver.place.kind is Kind.SHARD and (found := self._of_shard(receiver, name)) is not None:
            return found
        if (metric := self._metric(receiver, name, given, node)) is not None:
            return metric
        if row is Row.KEEPS:
            return self._converted(receiver, name, node)
        if row in (Row.REPLACE, Row.AS_DICT):
            return self._fields_in(row, receiver, keywords, node)
        if row in _REDUCES and row is not None:
            return self._reduced(row, [receiver, *args], keywords, node)
        if row is Row.SHAPE:
            batch = self.content(receiver).kind is Kind.ENTRY
            axis = args[0].const if args else 0
            return self.size() if batch and not (self.shards.parts and axis) else Value(SAME, scalar=True)
        if self.shards.runs and name == "save":
            return ANY  # with the count of this rank's steps, by which a run goes on: see ``frameworks/sessions``
        board = rules.of_object(_maker(receiver)) is Row.SHOWS
        alone = isinstance(self.script.parents.get(node), cst.Expr)
        if (row is Row.SHOWS and (board or self.content(receiver).uniform)) or (board and alone):
            self._sink(node)
            return ANY
        if self._trains(name, receiver, args, given, node):
            return ANY
        if row in (Row.PROGRESS, Row.NOTHING):
            self._run_given(given, node)
            return ANY
        self._run_given(given, node)
        kind = self.shards.kind(node.func.value if isinstance(node.func, cst.Attribute) else node.func)
        if alone and not kind and self.keep(receiver, given, node):
            self._sink(node, kept=True)
        base = self.content(receiver)
        if self.shards.parts and row is Row.COUNTS and base.kind is Kind.ENTRY:
            return Value(self.of_episode(parts.SUMMED))
        op = parts.operator_of(name)
        if self.shards.parts and op is not None and len(given) == 1 and Kind.ENTRY in (base.kind, given[0].place.kind):
            return self.operated(op, receiver, given[0], node)
        if self.shards.parts and base.kind is Kind.ENTRY and receiver.scalar and parts.bends(name):
            return Value(parts.BENT, scalar=True)
        place = combine([base, *(self.content(a) for a in given)])
        if place.kind is Kind.SAME or (place.kind is Kind.COUNT and name in ("fit", "fit_generator")):
            made = self.new("foreign", node, name=f".{name}")
            return Value(refs=frozenset([made]), reduced=self.serial(receiver) or any(map(self.serial, given)))
        return Value(place, scalar=True if row is Row.SCALAR else None)

    def _of_fields(self, template: str, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Place:
        """Return the placement of what the fields of a template read: ``{top.avg:.3f}`` no more of ``top``."""
        given = {str(i): value for i, value in enumerate(args)} | keywords
        fields = _fields(template)
        read = dict.fromkeys(given) if fields is None else fields
        sources = {a.keyword.value if a.keyword is not None else str(i): a.value for i, a in enumerate(node.args)}
        found: list[Place] = []
        for field in read:
            first, *names = field.split(".")
            value = given.get(first, ANY)
            for name in names:
                value = self.attribute(value, name, node)
            place = self.content(value)
            found.append(place)
            source, kinds = sources.get(first), {ref.kind for ref in given.get(first, ANY).refs if isinstance(ref, Obj)}
            if names and source is not None and kinds == {"instance"} and place.kind not in (*UNIFORM, Kind.CLOCK):
                self.note(source, Value(MIX, refs=given[first].refs))  # no expression here is the number itself
        return combine(found)

    def _of_base(
        self, owners: list[Obj], name: str, args: list[Value], keywords: dict[str, Value], node: cst.Call
    ) -> Value:
        """Return what ``super().__setitem__(key, value)`` and the like do in a class of containers."""
        found: list[Value] = []
        for ref in owners:
            key = key_of(args[0].const) if args else None
            if name == "__init__" and ref.kind != "instance":
                self.filled(ref, args, keywords)
            elif name == "__setitem__" and len(args) == 2:
                self.store_entry(ref, key, args[0], args[1], node)
            elif name == "__getitem__":
                found.append(self.entry_in(ref, key, Value(refs=frozenset([ref]))))
        return joined(found)

    def store_entry(self, ref: Obj, key: str | None, index: Value, value: Value, target: cst.CSTNode) -> None:
        """Keep ``value`` in a container; see ``statements``."""
        raise NotImplementedError

    def _trains(self, name: str, receiver: Value, args: list[Value], given: list[Value], node: cst.Call) -> bool:
        """Note what a method does to the training: rates, losses, hooks, weights; tell whether that is all."""
        if name == "step" and node.args and self.recording and self.shards.kind(node.func.value) == "scheduler":  # type: ignore[attr-defined]
            place = self.content(args[0]) if args else SAME
            if not place.uniform:
                self.steered[node.args[0].value] = None
        if name == "backward" and self.recording and self.loop is not None:
            self.losses[node] = self.content(receiver)
        if name == "backward" and not args:
            self._is_number(node)
        if name.startswith("register_") and name.endswith("hook"):
            self.hooks.update(dict.fromkeys(r for g in given for r in g.refs if isinstance(r, (Function, Bound))))
            return True
        if name == "gradient" and len(args) > 1:
            self.trained |= {r for r in self.reachable(args[1:2]) if r.kind == "foreign"}
        if name in ("fit", "fit_generator"):
            self.fitted(given, node)
        return False

    def _of_shard(self, receiver: Value, name: str) -> Value | None:
        """Return what a method of a shard returns: of a pipeline another one."""
        if name == "enumerate":
            return self.numbered(receiver, self.entries(receiver), False)
        if name in ("cardinality", "__len__"):
            return Value(SAME if self.shards.parts else Place(Kind.COUNT), scalar=True)
        return None if name in ("next", "get_next", "item") else receiver

    def _metric(self, receiver: Value, name: str, given: list[Value], node: cst.Call) -> Value | None:
        """Return what a method of a library's metric object returns, whose state sums up what it is given."""
        owners = [r for r in receiver.refs if isinstance(r, Obj) and rules.of_function(r.name) is Row.STATE]
        if not owners:
            return None
        for ref in owners:
            if name in ("reset_state", "reset_states", "reset"):
                self.write((ref, CONTENT), Value(zero=True))
            elif name in ("update_state", "update", "__call__", "forward"):
                held = self.read((ref, CONTENT)) or Value(zero=True)
                self.write((ref, CONTENT), Value(self.added(held, combine(self.content(g) for g in given), node)))
        if name in ("update_state", "update", "reset_state", "reset_states", "reset"):
            return ANY
        held_now = joined(self.read((ref, CONTENT)) or ANY for ref in owners)
        place = held_now.place
        if place.kind is Kind.RUN:
            place = replace(RATIO, at=place.at) if not place.counts else place
        return Value(place, scalar=True if name == "result" else None, reduced=held_now.reduced)

    def _is_number(self, node: cst.Call) -> None:
        """Note that what ``backward()`` begins at is one number, and by which tests it is made."""
        loss = node.func.value if isinstance(node.func, cst.Attribute) else None
        place = self.content(self.seen_last(loss)) if loss is not None else SAME
        if place.kind is Kind.UNKNOWN and place.why is not None and self.recording:
            self.steers.add(place.why.node)
        frame = self.home(loss.value) if isinstance(loss, cst.Name) else None
        held = self.read((frame, loss.value)) if frame is not None else None  # type: ignore[union-attr]
        if held is not None and not held.refs:
            self.write((frame, loss.value), replace(held, scalar=True))  # type: ignore[union-attr]

    def _cleared(self, receiver: Value) -> Value | None:
        owners = [ref for ref in receiver.refs if isinstance(ref, Obj) and ref.kind == "foreign"]
        for ref in owners:
            self.write((ref, CONTENT), Value(zero=True))
        return Value(refs=receiver.refs) if owners else None

    def _converted(self, value: Value, name: str, node: cst.Call) -> Value:
        """Return a value in another form; of a container a copy."""
        if name in ("copy", "deepcopy", "tolist") and any(
            isinstance(r, Obj) and r.kind in ("list", "dict", "set", "deque") for r in value.refs
        ):
            return self._copied(value, node)
        number = name == "item" or (name in ("float", "int", "complex") and not isinstance(node.func, cst.Attribute))
        scalar = True if number else value.scalar
        if self.grown(value) or any(isinstance(r, Obj) and r.kind in ("list", "set") for r in value.refs):
            return Value(value.place, refs=value.refs, scalar=scalar)
        place = self.content(value)
        if place.kind is Kind.MIX and (run := self.one_run(value)) is not None:
            place = run
        const = value.const if isinstance(value.const, (int, float)) else NOTHING
        zero = value.zero or self._zero(value)
        text = ("number" if number else "list" if name == "tolist" else "") if place.kind is Kind.ENTRY else ""
        return Value(place, const=const, zero=zero, scalar=scalar, reduced=self.serial(value), name=text)

    def _zeros(self, value: Value) -> bool:
        """Tell whether a list holds zeros alone."""
        held = self.held(value)
        return bool(held) and all(v.zero for v in held)

    def _zero(self, value: Value) -> bool:
        held = [v for ref in value.refs if isinstance(ref, Obj) and (v := (self.state or {}).get((ref, CONTENT)))]
        return bool(held) and all(v.zero for v in held)

    def _fields_in(self, row: Row, value: Value, keywords: dict[str, Value], node: cst.CSTNode) -> Value:
        """Return an object anew with other fields, ``stats._replace(seen=8)``, or its fields in a dict."""
        own = [r for r in value.refs if isinstance(r, Obj) and r.kind == "instance"]
        if len(own) != 1 or len(value.refs) != 1:
            return Value(combine([self.content(value), *map(self.content, keywords.values())]))
        held = self.fields(own[0])
        if row is Row.AS_DICT:
            made = self.new("dict", node, "fields")
            for name, field in held:
                self.put(made, key_of(name), field)
            return Value(refs=frozenset([made]))
        made = self.new("instance", node, "replaced", cls=own[0].cls, name=own[0].name)
        for name, field in held:
            self.write((made, name), keywords.get(name, field))
        return Value(refs=frozenset([made]))

    def _copied(self, value: Value, node: cst.CSTNode) -> Value:
        made: list[Obj] = []
        for ref in value.refs:
            if isinstance(ref, Obj):
                one = self.new(ref.kind, node, "copy", cls=ref.cls, name=ref.name)
                for key, held in self.fields(ref):
                    self.write((one, key), held)
                made.append(one)
        return Value(refs=frozenset(made), zero=value.zero)

    def _sink(self, node: cst.Call, kept: bool = False) -> None:
        if self.recording:
            loop = self.loop if self.loop is not None else None
            inner = (node,) if self.playing or (loop is not None and loop.inner) else ()
            shows = tuple(arg.value for arg in node.args)
            for part in shows:
                for value in self.seen.get(part, [])[-1:]:
                    if (place := self.content(self.in_order(part, value))) != value.place:
                        self.note(part, Value(place, refs=value.refs, scalar=value.scalar or self.numbers(value)))
            self.sinks.setdefault(node, []).append(Sink(node, shows, loop, (*self.diverged, *inner), kept))

    # -- rows of functions -----------------------------------------------------------------------------------------

    def _row_keeps(self, args: list[Value], node: cst.Call) -> Value:
        name = dotted(node.func).split(".")[-1]
        value = self._converted(args[0], name, node) if args else ANY
        listed = [r for r in value.refs if isinstance(r, Obj) and r.kind in ("list", "deque", "generator")]
        if listed and not self.grown(value) and name not in ("copy", "deepcopy"):
            made = self.new("foreign", node, name=self.script.name_of(node.func))
            none = NOTHING if any(self.fields(r) for r in listed) else ()
            place, serial = self.content(value), self.serial(value)
            self.write((made, CONTENT), Value(place, const=none, zero=self._zeros(value), reduced=serial))
            return Value(refs=frozenset([made]))
        if (
            value.place.kind is Kind.SAME
            and name not in ("float", "int", "complex", "copy", "deepcopy")
            and (not value.refs)
        ):
            made = self.new("foreign", node, name=self.script.name_of(node.func))
            self.write((made, CONTENT), Value(value.place, zero=value.zero, reduced=value.reduced))
            return Value(refs=frozenset([made]), scalar=value.scalar)
        return value

    def _row_length(self, args: list[Value], node: cst.Call) -> Value:
        if args and (own := self.dunder(args[0], "__len__", [], node)) is not None:
            return own
        return self.length(args[0]) if args else ANY

    def _row_numbers(self, args: list[Value], node: cst.Call) -> Value:
        if not args:
            return ANY
        starts = args[1] if len(args) > 1 else next((self.eval(a.value) for a in node.args if a.keyword), None)
        return self.numbered(args[0], self.iterate(node, args[0]), starts is not None and starts.const == 1)

    def _row_pairs(self, args: list[Value], node: cst.Call) -> Value:
        shard = any(a.place.kind is Kind.SHARD for a in args)
        plain = self.script.name_of(node.func) == "builtins.zip" and not any(arg.star for arg in node.args)
        self.zipped[node] = args if plain else []
        return self.parallel(tuple(self.iterate(node, a) for a in args), shard)

    def _row_iterates(self, args: list[Value], node: cst.Call) -> Value:
        return args[0] if args else ANY

    def _row_join(self, args: list[Value], node: cst.Call) -> Value:
        """Return arrays behind each other: what this rank's iterations add to an array makes it grow."""
        parts = args[:2] if len(args) > 1 and dotted(node.func).endswith("append") else self._parts_of(args[:1])
        places = [self.content(part) for part in parts]
        runs = [p for p in places if p.kind is Kind.RUN and (p.untouched or "joined" in p.adds)]
        others = [p for p in places if p.kind is not Kind.RUN]
        if len(runs) == 1 and len(others) == len(places) - 1 and all(p.kind in (Kind.ENTRY, Kind.SAME) for p in others):
            if self.shards.parts:
                return Value(unknown(node, "parts of batches are put behind each other: their order is another one"))
            return Value(replace(runs[0], adds=runs[0].adds | {"joined"}, counts=False), scalar=False)
        if len(parts) > 1 and any(p.kind is Kind.ENTRY for p in others) and _plain(parts):
            return Value(combine(places), scalar=False)
        return self.make(Row.LIST, node, args)

    def _parts_of(self, args: list[Value]) -> list[Value]:
        """Return the entries of a tuple or list that are all known."""
        if args and args[0].items is not None:
            return list(args[0].items)
        held = [field for value in args for ref in value.refs if isinstance(ref, Obj) for field in self.fields(ref)]
        known = [v for k, v in held if k[1:-1].isdigit()]
        return known if len(known) == sum(v.name != "empty" for _, v in held) else []

    def _row_range(self, args: list[Value], node: cst.Call) -> Value:
        place = combine(self.content(a) for a in args)
        stop = self.content(args[1] if len(args) > 1 else args[0]) if args else SAME
        if stop.kind in (Kind.COUNT, Kind.INDEX) and self.loop is None:
            return Value(Place(Kind.SHARD), name="range", items=(Value(Place(Kind.INDEX), scalar=True),))
        made = self.new("list", node, "range", name="range")
        self.write((made, REST), Value(SAME if stop.kind is Kind.SAME else place, scalar=True))
        return Value(refs=frozenset([made]))

    def _row_next(self, args: list[Value], node: cst.Call) -> Value:
        value = self.iterate(node, args[0]) if args else ANY
        return value if value.items is None or args[0].name != "parallel" else Value(items=value.items)

    def _row_zeros(self, args: list[Value], node: cst.Call) -> Value:
        made = self.new("foreign", node, name=self.script.name_of(node.func))
        place = combine(self.content(a) for a in args)
        shape = args[0].items[0] if args and args[0].items else args[0] if args else ANY
        none = () if shape.const == 0 else NOTHING
        self.write((made, CONTENT), Value(SAME if place.uniform else place, const=none, zero=True))
        return Value(refs=frozenset([made]))

    def _row_filled(self, args: list[Value], node: cst.Call) -> Value:
        made = self.new("foreign", node, name=self.script.name_of(node.func))
        place = combine(self.content(a) for a in args[1:])
        self.write((made, CONTENT), Value(place))
        return Value(refs=frozenset([made]))

    def _row_from_keys(self, args: list[Value], node: cst.Call) -> Value:
        made = self.new("dict", node)
        value = args[1] if len(args) > 1 else constant(None)
        keys = [key_of(key.const) for key in self._parts_of(args[:1])]
        for key in keys if keys and all(keys) else [None]:
            self.put(made, key, value)
        return Value(refs=frozenset([made]), zero=value.zero)

    def _row_push(self, args: list[Value], node: cst.Call) -> Value:
        for ref in args[0].refs if len(args) > 1 else ():
            if isinstance(ref, Obj) and ref.kind in ("list", "deque"):
                self.grow(ref, args[1])
                held = self.read((ref, GROWN))
                if held is not None and held.place.kind is Kind.RUN:
                    self.write((ref, GROWN), held.at(replace(held.place, adds=held.place.adds | {"ordered"})))
        return ANY

    def _row_take(self, args: list[Value], node: cst.Call) -> Value:
        entry = self.entries(args[0]) if args else ANY
        self._row_push(args, node)
        if args:
            self.trim(args[0])
        return join(entry, args[1]) if len(args) > 1 else entry

    def _any_attribute(self, owner: Value, node: cst.Call) -> Value:
        """Return what an attribute may be whose name is made at run time: ``getattr(callback, f"on_{event}")``."""
        text = node.args[1].value if len(node.args) > 1 else None
        first = text.parts[0] if isinstance(text, cst.FormattedString) and text.parts else None
        begin = first.value if isinstance(first, cst.FormattedStringText) else ""
        found = [v for ref in owner.refs for key, v in self.fields(ref) if key.startswith(begin)]
        for ref in owner.refs:
            if isinstance(ref, Obj) and ref.cls is not None:
                names = dict.fromkeys(k for cls in self.lines(ref.cls) for k, _ in self.fields(cls.body))
                own = Value(owner.place, refs=frozenset([ref]))
                found += [self.attribute(own, k, node) for k in names if k.startswith(begin) and not k.startswith("__")]
        return joined(found)

    def _row_attribute(self, args: list[Value], node: cst.Call) -> Value:
        name = args[1].const if len(args) > 1 else NOTHING
        if self.script.name_of(node.func) == "builtins.getattr":
            if not isinstance(name, str):
                return self._any_attribute(args[0], node) if args else ANY
            found = self.attribute(args[0], name, node)
            bare = all(isinstance(r, Method) for r in found.refs) and bool(found.refs)
            return args[2] if bare and len(args) > 2 else found
        if len(args) > 2 and isinstance(name, str):
            self.set_attribute(args[0], name, args[2], node)
        elif len(args) > 2:
            for ref in args[0].refs:
                for key, held in self.fields(ref):
                    self.write((ref, key), join(held, args[2]))
        return ANY

    def _row_fold(self, args: list[Value], node: cst.Call) -> Value:
        adds = node.args and self.script.name_of(node.args[0].value) in ("operator.add", "operator.iadd")
        if isinstance(first := node.args[0].value if node.args else None, cst.Lambda):
            adds = isinstance(first.body, cst.BinaryOperation) and isinstance(first.body.operator, cst.Add)
        if adds and len(args) > 1:
            total = self._reduced(Row.SUM, args[1:2], {}, node)
            return self.operated(cst.Add(), args[2], total, node) if len(args) > 2 else total
        return Value(combine(self.content(a) for a in args[1:]))

    def _row_partial(self, args: list[Value], node: cst.Call) -> Value:
        refs = args[0].refs if args else frozenset()
        bound = [Bound(r, ANY, tuple(args[1:])) for r in refs if isinstance(r, Function)]
        bound += [Bound(r.function, r.receiver, (*r.given, *args[1:])) for r in refs if isinstance(r, Bound)]
        return Value(refs=frozenset(bound) or refs)

    def _row_shape(self, args: list[Value], node: cst.Call) -> Value:
        return Value(scalar=True)

    def _row_shows(self, args: list[Value], node: cst.Call) -> Value:
        self._sink(node)
        return ANY

    def _row_progress(self, args: list[Value], node: cst.Call) -> Value:
        return ANY

    def _row_nothing(self, args: list[Value], node: cst.Call) -> Value:
        return ANY

    def _row_clock(self, args: list[Value], node: cst.Call) -> Value:
        return Value(CLOCK, scalar=True)

    def _row_chance(self, args: list[Value], node: cst.Call) -> Value:
        return Value(ENTRY if self.loop is not None or self.sharded else SAME)

    def _row_index_add(self, args: list[Value], node: cst.Call) -> Value:
        if args:
            array = args[0] if args[0].refs else self.array_of(node.args[0].value)
            self.in_place(Row.INDEX_ADD, array, args[1:], node, "")
        return ANY


def _fields(template: str) -> list[str] | None:
    """Return what the fields of a template name, as ``top.avg`` or ``0``; None where one is no chain of names."""
    try:
        named = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError:
        return None
    numbered = [f"{i}{name}" if name[:1] in ("", ".") else name for i, name in enumerate(named)]
    return numbered if all(re.fullmatch(r"\w+(\.[A-Za-z_]\w*)*", name) for name in numbered) else None


def _maker(value: Value) -> str:
    """Return the qualified name of what made an object of a library."""
    return next((ref.name for ref in value.refs if isinstance(ref, Obj) and ref.kind == "foreign"), "")


def _order(ref: object) -> tuple[str, int]:
    node = getattr(ref, "node", None) or getattr(ref, "site", None)
    return (type(ref).__name__, id(node))


@cache
def _yields(function: cst.FunctionDef) -> bool:
    todo: list[cst.CSTNode] = [function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, cst.Yield):
            return True
        todo += [c for c in children(node) if not isinstance(c, (cst.FunctionDef, cst.Lambda, cst.ClassDef))]
    return False


@cache
def _encloses(function: cst.CSTNode) -> bool:
    """Tell whether functions are defined in ``function``, which may read its variables later."""
    todo = list(children(function))
    while todo:
        node = todo.pop()
        if isinstance(node, (cst.FunctionDef, cst.Lambda, cst.ClassDef, cst.GeneratorExp)):
            return True
        todo += children(node)
    return False


__all__ = ["Calls", "constant"]
