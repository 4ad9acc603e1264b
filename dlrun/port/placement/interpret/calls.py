"""Calls: functions and classes of the program are run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import libcst as cst

from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.updates import coupling
from dlrun.port.facts.updates.session import runs_session
from dlrun.port.placement import rules
from dlrun.port.placement.interpret import parts, sessions
from dlrun.port.placement.interpret.libraries import MADE_BY, Libraries
from dlrun.port.placement.interpret.machine import DEPTH, Flows, encloses
from dlrun.port.placement.rules import Row
from dlrun.port.placement.store import (
    OTHERS,
    REST,
    Bound,
    Class,
    Frame,
    Function,
    Method,
    Obj,
    State,
    key_of,
    merge,
)
from dlrun.port.placement.values import (
    ANY,
    COUNT,
    ENTRY,
    Kind,
    Place,
    Value,
    chosen_locally,
    combine,
    join,
    joined,
    of_clock,
    out_of_sight,
    unknown,
)
from dlrun.port.program.script import calls_method, children, dotted, walk

_OWN = (Function, Bound, Class)  # what the program itself defines

_TAKE_ALL = ("builtins.list", "builtins.tuple", "builtins.set", "builtins.sorted", "collections.deque")
_NUMBERS = ("builtins.int", "builtins.float")


class Calls(Libraries):
    """Runs calls."""

    def call(self, node: cst.Call) -> Value:
        """Return what a call returns."""
        above = self._super(node)
        callee = above if above is not None else self.eval(node.func)
        args, keywords = self._arguments(node)
        asks = callee.name == "builtins.isinstance" and len(args) == len(node.args) == 2
        if asks and (known := self.is_of_kind(args[0], node.args[1].value)) is not None:
            return known
        args = self.handed_through(callee.name, args, node)
        if callee.name in rules.IN_ORDER and self.loop is None:
            args = [self.in_order(node, value) for value in args]
        if self.loop is None and not self.shards.parts and not any(isinstance(r, _OWN) for r in callee.refs):
            args = self._beside_serial(node, callee, args)
        if node in self.shards.runs:
            return sessions.ran(self, node)
        if self.shards.runs and runs_session(node):  # of samples that all ranks have
            if (kept := sessions.kept(self, node)) is not None:
                return kept
            fed = keywords.get("feed_dict") or next(iter(args[calls_method(node, "run") :]), None)
            local = fed is not None and self.content(fed).kind is Kind.ENTRY
            return sessions.ran(self, node) if local else sessions.of_all_ranks(self, node)
        named = plain(self.script.name_of(node.func)) == "tensorflow.train.global_step"
        if self.shards.runs and (named or (calls_method(node, "eval") and self.shards.counts_steps(node.func.value))):
            return Value(self.updates, scalar=True)
        result = self.call_value(callee, args, keywords, node)
        taken = self.loop is None and any(self.drawn(self.seen_last(arg.value)) for arg in node.args)
        place = self.content(result) if callee.name in _TAKE_ALL else result.place
        if taken and place.kind is Kind.ENTRY and callee.name != "builtins.next":
            return Value(unknown(node, "it takes what this rank's iterations yield"), scalar=result.scalar)
        return result

    def _beside_serial(self, node: cst.Call, callee: Value, args: list[Value]) -> list[Value]:
        """Return arguments with the counts among them as the serial ones, where the others are serial already.

        So an array of all ranks' entries gets its serial shape: ``losses.reshape(-1, len(loader))``.
        """
        asked = [r for r in callee.refs if isinstance(r, Method)]
        row = rules.of_method(asked[0].name) if asked else rules.of_function(callee.name)
        given = [*(method.receiver for method in asked), *args]
        plain = len(args) == len(node.args) and not any(arg.star or arg.keyword for arg in node.args)
        if row not in (None, Row.KEEPS) or not plain or not any(self.serial(v) and not v.scalar for v in given):
            return args
        found = []
        for value, arg in zip(args, node.args, strict=True):
            inner = [e.value for e in arg.value.elements] if isinstance(arg.value, cst.Tuple) else [arg.value]
            held = value.items if isinstance(arg.value, cst.Tuple) and value.items is not None else (value,)
            now = tuple(
                self.restore(each, v) if v.scalar and v.place == COUNT else v
                for each, v in zip(inner, held, strict=False)
            )
            found.append(now[0] if held == (value,) and now else replace(value, items=now))
        return found

    @staticmethod
    def drawn(value: Value) -> bool:
        """Tell whether a generator goes through a shard, and yields what its iterations compute."""
        return value.place.kind is Kind.SHARD and value.name == "drawn"

    def _arguments(self, node: cst.Call) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        keywords: dict[str, Value] = {}
        for arg in node.args:
            space = self.namespace(arg.value) if arg.star == "**" else None
            value = space if space is not None else self.eval(arg.value)
            if arg.star == "*":
                value = self.iterated(value, arg.value)
                args.extend(value.items if value.items is not None else self._unpacked(value))
                self.use(*args)
            elif arg.star == "**":
                keywords |= {name: held for ref in value.refs for name, held in self._named(ref)}
                if not calls_method(node, "format"):  # which reads some of them alone
                    self.use(*keywords.values())
                if (others := self._of_unknown_names(value)) is not None:
                    keywords[OTHERS] = join(keywords.get(OTHERS), others)
            elif arg.keyword is not None:
                keywords[arg.keyword.value] = value
            else:
                args.append(value)
        return args, keywords

    def _named(self, ref: Any) -> list[tuple[str, Value]]:
        """Return what ``**ref`` gives by name: the entries of a dict, the fields of ``vars(meter)``, ``locals()``."""
        if not isinstance(ref, (Obj, Frame)):
            return []
        named = {key[2:-2] if key.startswith('["') else key: held for key, held in self.fields(ref)}
        return [(name, held) for name, held in named.items() if name.isidentifier()]

    def _of_unknown_names(self, value: Value) -> Value | None:
        """Return what ``**value`` gives to parameters whose names are not known: a batch; None of what is serial."""
        held = [v for ref in value.refs if isinstance(ref, Obj) and (v := self.read((ref, REST))) is not None]
        if not value.refs and value.items is None:
            held = [Value(value.place)]
        return joined(held) if any(self.content(v).kind is not Kind.SAME for v in held) else None

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
            cls: Class | None = ref.cls if isinstance(ref, Obj) else ref if isinstance(ref, Class) else None
            here = next((c for c in self.lines(cls) if c.node is owner), None) if cls is not None else None
            named = func.attr.value if isinstance(func, cst.Attribute) else ""
            member = self.member(cls, named, here) if here is not None and cls is not None else None
            functions = [r for r in member.refs if isinstance(r, Function)] if member is not None else []
            if functions:
                return Value(refs=frozenset([Bound(functions[0], receiver)]))  # type: ignore[arg-type]
            if isinstance(ref, Obj) and ref.kind in ("dict", "list", "set", "deque"):
                return Value(refs=frozenset([Method(Value(refs=frozenset([ref])), named)]))
        made = isinstance(func, cst.Attribute) and func.attr.value == "__new__"
        return Value(name=MADE_BY if made else "builtins.object")

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
        self.run_given(given, node)
        if (objects := self.may_return(given, node, "unknown")) is not None:
            return objects
        place = out_of_sight(parts.of_mean(combine([callee.place, *(self.content(a) for a in given)]), ""))
        if place.kind is Kind.SAME:  # nothing is known of it, and so it may keep what it is given later
            return Value(refs=frozenset([self.new("foreign", node, "unknown")]))
        return Value(place)

    def run_hooks(self, kind: str, node: cst.Call) -> None:
        """Run the functions that are hooked to modules, as a forward pass does, or to what has gradients."""
        hooks = getattr(self, kind)
        setattr(self, kind, {})  # they may run modules, too
        for ref in hooks:
            function = ref.function if isinstance(ref, Bound) else ref
            taken = len(function.node.params.params) - isinstance(ref, Bound)
            self._call_ref(ref, [Value(ENTRY)] * taken, {}, node)
        setattr(self, kind, hooks)

    def _call_ref(self, ref: object, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        if self.hooks and self.loop is not None and isinstance(ref, Obj) and self.shards.kind(node.func) == "module":
            self.run_hooks("hooks", node)
        if isinstance(ref, Function):
            return self.run_function(ref, args, keywords, node)
        if isinstance(ref, Bound):
            receiver = ref.receiver if ref.receiver is not ANY else None
            return self.run_function(ref.function, [*ref.given, *args], {**dict(ref.named), **keywords}, node, receiver)
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
            loss = loss or (self.shards.kind(node.func) == "loss" and self.shards.number(node))
            if self._goes_by_own_steps(ref.site):
                return Value(scalar=True)  # a schedule that goes by the local steps
            how = parts.reduction(ref.site, self.read((ref, "reduction"))) if loss else "none"
            if self.shards.parts and how != "none" and combine(given).kind is Kind.ENTRY:
                name = parts.FOREIGN if parts.is_foreign(ref.name) else ""
                place = parts.LOCAL if parts.of_spread([*args, *keywords.values()]) else combine(given)
                reduced = self.of_episode(parts.loss(place, how)) if how else unknown(node, parts.SUM_OR_MEAN)
                return Value(reduced, scalar=True, name=name)
            foreign = parts.FOREIGN if parts.is_foreign(ref.name) and combine(given) == ENTRY else ""
            number = True if loss and how != "none" else None
            flat = parts.FLAT if loss and how == "none" and combine(given) == ENTRY else ""
            return Value(parts.of_mean(out_of_sight(combine(given)), ref.name), scalar=number, name=foreign or flat)
        return Value(parts.of_mean(out_of_sight(combine(given)), ""))

    def _call_object(self, ref: Obj, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        own = Value(refs=frozenset([ref]))
        if self.is_module(ref.cls):
            name = "forward" if self.member(ref.cls, "forward") is not None else "call"
            plain = not self.keeps(ref) and self.member(ref.cls, "__call__") is None
            if plain and not self._makes_numbers(ref, name):
                return self.content_of([*args, *keywords.values(), *self._kept_before(ref, name)])
            if (found := self.dunder(own, name, args, node, keywords)) is not None:
                return found
        functions = [r for r in (self.member(ref.cls, "__call__") or ANY).refs if isinstance(r, Function)]
        if functions:
            return self.run_function(functions[0], args, keywords, node, own)
        if self.dunder(own, "update_state", args, node, keywords) is not None:
            return self.dunder(own, "result", [], node, {}) or ANY  # a metric that is called: Keras' __call__ does both
        return self.content_of([*args, *keywords.values()])

    def _makes_numbers(self, ref: Obj, name: str) -> bool:
        """Tell whether a model's method makes plain numbers: ``return losses.mean(), int((losses > 0).sum())``.

        A loss that is written as a module makes one of a part of the samples: their sum, the root of a mean.
        """
        if self.shards.parts and ref.cls is not None and coupling.computes(self.script, ref.cls.node):
            return True
        nodes = [n for r in (self.member(ref.cls, name) or ANY).refs if isinstance(r, Function) for n in walk(r.node)]
        calls = [n for n in nodes if isinstance(n, cst.Call)]
        return any(calls_method(c, "item") or self.script.name_of(c.func) in _NUMBERS for c in calls)

    def _kept_before(self, ref: Obj, name: str) -> list[Value]:
        """Return the numbers of earlier iterations that a model's method reads of what the model keeps."""
        kept = {at: v for at, v in self.fields(ref) if "earlier" in self.content(v).adds}
        read = (self.member(ref.cls, name) or ANY).refs if kept else ()
        nodes = [n for r in read if isinstance(r, Function) for n in walk(r.node)]
        return [kept[n.attr.value] for n in nodes if isinstance(n, cst.Attribute) and n.attr.value in kept]

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
        self.forget(frame)
        self._bind_params(frame, function, [*([receiver] if receiver is not None else []), *args], keywords, node)
        return self._run(frame, function, node)

    def _run(self, frame: Frame, function: Function, node: cst.CSTNode) -> Value:
        before, self.frame = self.frame, frame
        self.stack.append(frame)
        diverged, paces = len(self.diverged), len(self.paces)
        self.flows.append(Flows(called_in=self.loop, since=diverged))
        around, self.by_clock = self.by_clock, False
        if isinstance(function.node, cst.Lambda):
            result = self.eval(function.node.body)
        else:
            self.block(function.node.body)
            flows = self.flows[-1]
            result = self._returned(flows)
            for _, state in flows.returns:
                self.state = self.met(self.state, state, flows.left_by)
            if _yields(function.node):
                self.state = self._left_by_generator(node, self.state, flows)
                made = self.new("generator", node, function.node.name.value)
                entry = joined(flows.yields)
                self.write((made, REST), entry)
                result = Value(refs=frozenset([made]))
                if flows.drawn:  # each entry is of an iteration of a loop over a shard
                    result = Value(Place(Kind.SHARD), items=(entry,), name="drawn")
        self.by_clock = around
        del self.diverged[diverged:], self.paces[paces:]
        self.flows.pop()
        self.stack.pop()
        self.frame = before
        if not encloses(function.node):
            self.forget(frame)
        return result

    def _returned(self, flows: Flows) -> Value:
        """Return what a call returns, by whatever way: local where a test that diverges, or a clock, has chosen it."""
        values = [value for value, _ in flows.returns]
        if not values:
            return Value(const=None)
        result, test = values[0], flows.left_by
        for value in values[1:]:
            result = join(result, value) if test is None else chosen_locally(result, value, test)
        if self.state is not None:  # or nothing
            if test is not None:
                result = chosen_locally(result, Value(const=None), test)
            elif result.items is None and not result.refs:
                result = join(result, Value())
        several = len(values) > (self.state is None)
        return of_clock(result) if self.by_clock and several else result

    def run_manager(self, item: cst.WithItem, body: Callable[[], None]) -> bool:
        """Run ``body`` where a context manager that is a generator function yields; tell whether ``item`` is one."""
        call = item.item
        if not isinstance(call, cst.Call) or not isinstance(call.func, (cst.Name, cst.Attribute)):
            return False
        callee = self.eval(call.func)
        made = next(iter(callee.refs), None) if len(callee.refs) == 1 else None
        function = made.function if isinstance(made, Bound) else made
        if not isinstance(function, Function) or not _is_manager(function.node):
            return False
        args, keywords = self._arguments(call)
        around, depth, ran = self.frame, len(self.flows), False
        diverged: list[cst.CSTNode] = []

        def entered(value: Value) -> None:
            nonlocal ran
            ran, tests = True, len(self.diverged)
            inside, flows = self.frame, self.flows[depth:]
            del self.flows[depth:]
            self.frame = around
            if item.asname is not None:
                self.assign(item.asname.name, value)
            body()
            diverged.extend(self.diverged[tests:])  # by a test that some ranks leave an iteration at
            self.frame = inside
            self.flows += flows

        outer = self.entered
        self.entered = {**outer, function.node: entered}
        self.call_value(callee, args, keywords, call)
        self.entered = outer
        self.diverged += diverged
        if not ran:
            body()
        return True

    def _left_by_generator(self, node: cst.CSTNode, ended: State | None, flows: Flows) -> State | None:
        """Return what holds while a generator is drawn from, and behind it: it may be drained, or left earlier."""
        state = merge(ended, flows.yielded)
        for at, inside in (flows.yielded or {}).items() if flows.drawn and state is not None else ():
            after = (ended or {}).get(at)
            if inside.place.kind is Kind.RUN and after is not None and after.place != inside.place:
                why = "a generator changes it, which makes it serial where it ends, and may be left before"
                state[at] = Value(unknown(node, why), scalar=inside.scalar)  # type: ignore[index]
        return state

    def made_defaults(self, function: cst.FunctionDef) -> None:
        """Make the objects that parameters default to, once: calls share what they keep in them."""
        params = function.params
        for p in (*params.posonly_params, *params.params, *params.kwonly_params):
            if isinstance(p.default, (cst.Dict, cst.List, cst.Set, cst.Call)):
                self.defaults[p, self.frame] = self.eval(p.default)

    def shared_by_calls(self, ref: object) -> bool:
        """Tell whether ``ref`` is what a parameter defaults to."""
        return any(ref in made.refs for made in self.defaults.values())

    def _default_of(self, param: cst.Param, default: cst.BaseExpression) -> Value:
        kept = self.defaults.get((param, self.frame))
        own = [ref for ref in kept.refs if isinstance(ref, Obj)] if kept is not None else []
        return kept if kept is not None and any(map(self.fields, own)) else self.eval(default)

    def _bind_params(
        self, frame: Frame, function: Function, args: list[Value], keywords: dict[str, Value], node: cst.CSTNode
    ) -> None:
        params = function.node.params
        plain = [*params.posonly_params, *params.params]
        before, self.frame = self.frame, function.frame
        defaults = {
            p.name.value: self._default_of(p, p.default)
            for p in (*plain, *params.kwonly_params)
            if p.default is not None
        }
        self.frame = before
        left = dict(keywords)
        others = left.pop(OTHERS, None)
        missing = {p.name.value: join(others, defaults.get(p.name.value)) for p in (*plain, *params.kwonly_params)}
        for i, p in enumerate(plain):
            name = p.name.value
            self.write((frame, name), args[i] if i < len(args) else left.pop(name, missing[name]))
        if isinstance(params.star_arg, cst.Param):
            self.write((frame, params.star_arg.name.value), Value(items=self._rest(args, len(plain), node)))
        for p in params.kwonly_params:
            self.write((frame, p.name.value), left.pop(p.name.value, missing[p.name.value]))
        if params.star_kwarg is not None:
            rest = self.new("dict", params.star_kwarg, str(id(frame)))
            for name, value in self._as_row(left, node).items():
                self.write((rest, key_of(name) or name), value)
            if others is not None:
                self.write((rest, REST), others)
            self.write((frame, params.star_kwarg.name.value), Value(refs=frozenset([rest])))

    def _rest(self, args: list[Value], first: int, node: cst.CSTNode) -> tuple[Value, ...]:
        """Return what ``*rest`` takes, from the argument number ``first`` on; counts as ``_as_row`` does."""
        written = node.args if isinstance(node, cst.Call) else ()
        named = {str(i): a.value for i, a in enumerate(written) if a.keyword is None}
        given = {str(i): value for i, value in enumerate(args) if i >= first}
        starred = any(a.star for a in written)
        return tuple((given if starred else self._serial_beside_others(given, named)).values())

    def _as_row(self, given: dict[str, Value], node: cst.CSTNode) -> dict[str, Value]:
        """Return what ``**row`` takes; counts beside other values as the serial ones: ``log(step=i, loss=x)``."""
        args = node.args if isinstance(node, cst.Call) else ()
        return self._serial_beside_others(given, {arg.keyword.value: arg.value for arg in args if arg.keyword})

    def _serial_beside_others(self, given: dict[str, Value], written: dict[str, Any]) -> dict[str, Value]:
        """Return what is ``given`` with counts made serial that stand beside other values.

        Within a loop that is where all ranks come as often as the serial script, and a count is of the steps so far.
        """
        counts = {
            name: written[name]
            for name, value in given.items()
            if name in written and (self._counts(written[name], value) or self.counts_at_cadence(written[name], value))
        }
        inside = self.loop is not None and not all(given[name].place.counts for name in counts)
        if inside or self.shards.parts or len(counts) == len(given):
            return given
        return {**given, **{name: self.restore(value, given[name]) for name, value in counts.items()}}


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
def _is_manager(function: cst.CSTNode) -> bool:
    """Tell whether a function is made a context manager: its caller's block runs where it yields."""
    made = function.decorators if isinstance(function, cst.FunctionDef) else ()
    return any(dotted(d.decorator).rpartition(".")[2] == "contextmanager" for d in made)
