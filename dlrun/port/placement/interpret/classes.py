"""Objects of the program's classes: how they are made, their attributes, properties, methods and operators."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import libcst as cst

from dlrun.port.placement import rules
from dlrun.port.placement.interpret import parts
from dlrun.port.placement.interpret.containers import Containers
from dlrun.port.placement.rules import Row
from dlrun.port.placement.store import (
    CONTENT,
    OTHERS,
    PROPERTY,
    REST,
    Bound,
    Class,
    Frame,
    Function,
    Member,
    Method,
    Obj,
    key_of,
)
from dlrun.port.placement.values import ANY, FROM, SAME, Kind, Value, combine, join, joined, unknown
from dlrun.port.program.script import dotted, names_in, walk

_KINDS = {
    "builtins.dict": "dict",
    "collections.OrderedDict": "dict",
    "collections.defaultdict": "dict",
    "collections.Counter": "dict",
    "builtins.list": "list",
    "builtins.set": "set",
    "collections.UserDict": "dict",
}
_BARE = ("builtins.object", "abc.ABC", "typing.Protocol", "typing.Generic", "typing_extensions.Protocol")
_RATES = ("lr", "learning_rate")
_DEALT = "batch_sampler"  # what a loader holds that is sharded with it; its sampler draws for all ranks
_DRAWS = ("__getitem__", "__getitems__", "__iter__", "__next__")
_SHAPES = ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "is_sparse", "layout")


class Classes(Containers):
    """Evaluates what objects do."""

    def run_function(
        self,
        function: Function,
        args: list[Value],
        keywords: dict[str, Value],
        node: cst.CSTNode,
        receiver: Value | None = None,
    ) -> Value:
        """Run a function of the program; see ``calls``."""
        raise NotImplementedError

    def call_value(self, callee: Value, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        """Call a value; see ``calls``."""
        raise NotImplementedError

    # -- the classes themselves ------------------------------------------------------------------------------------

    def lines(self, cls: Class) -> list[Class]:
        """Return ``cls`` and the program's classes that it derives from, in the order in which they are asked."""
        found: list[Class] = []
        todo = [cls]
        while todo:
            each = todo.pop(0)
            if each not in found:
                found.append(each)
                todo += [ref for base in each.bases for ref in base.refs if isinstance(ref, Class)]
        return found

    def foreign_bases(self, cls: Class) -> list[str]:
        """Return the qualified names of what ``cls`` and its bases derive from out of sight, and inherit members of."""
        names = [base.name for each in self.lines(cls) for base in each.bases]
        return [name for name in names if name and name not in _BARE]

    def fixed(self, cls: Class) -> bool:
        """Tell whether the fields of a class' objects cannot be set: of a named tuple, or a frozen data class."""
        calls = [d.decorator for c in self.lines(cls) for d in c.node.decorators if isinstance(d.decorator, cst.Call)]
        words = [arg for call in calls for arg in call.args if arg.keyword is not None]
        frozen = any(w.keyword.value == "frozen" and dotted(w.value) == "True" for w in words if w.keyword is not None)
        return frozen or any(base.endswith("NamedTuple") for base in self.foreign_bases(cls))

    def _is_enumeration(self, cls: Class) -> bool:
        """Tell whether the members of a class are no numbers and no texts, as those of an ``IntEnum`` are."""
        return {*self.foreign_bases(cls)} == {"enum.Enum"}

    def members(self, cls: Class) -> list[Value]:
        """Return the members of an enumeration of the program's, in their order; of another class none."""
        names = [name for name, value in self.fields(cls.body) if not value.refs and not name.startswith("_")]
        return [Value(const=Member(f"{cls.node.name.value}.{n}")) for n in names] if self._is_enumeration(cls) else []

    def is_module(self, cls: Class) -> bool:
        """Tell whether ``cls`` is a module of a network, whose forward pass computes and keeps nothing."""
        return any(name.endswith(("Module", ".Model", ".Layer", "LightningModule")) for name in self.foreign_bases(cls))

    def layers(self) -> list[Obj]:
        """Return the layers and modules of the program, as they were made."""
        found = {at[0] for at in self.state or {} if isinstance(at[0], Obj) and at[0].cls is not None}
        return sorted((ref for ref in found if self.is_module(ref.cls)), key=lambda ref: ref.number)

    def changed_as_drawn(self, cls: Class | None) -> frozenset[str]:
        """Return the attributes that the methods of a data set change by which a loader draws its samples."""
        if cls is None or not any(name.endswith("Dataset") for name in self.foreign_bases(cls)):
            return frozenset()
        if cls not in self._changed:
            found = set()
            methods = [m for each in self.lines(cls) for m in each.node.body.body if isinstance(m, cst.FunctionDef)]
            for n in (n for method in methods if method.name.value in _DRAWS for n in walk(method)):
                targets = [n.target] if isinstance(n, cst.AugAssign) else []
                targets += [t.target for t in n.targets] if isinstance(n, cst.Assign) else []
                for target in targets:
                    base = target.value if isinstance(target, cst.Subscript) else target
                    if isinstance(base, cst.Attribute) and isinstance(base.value, cst.Name):
                        found.add(base.attr.value)
            self._changed[cls] = frozenset(found)
        return self._changed[cls]

    def member(self, cls: Class, name: str, after: Class | None = None) -> Value | None:
        """Return what ``cls`` or a base has under ``name``; with ``after``, only what comes behind that class."""
        order = self.lines(cls)
        for each in order[order.index(after) + 1 if after in order else 0 :]:
            if (found := self.read((each.body, name))) is not None:
                return found
        return None

    def instantiate(self, cls: Class, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        """Return a new object of ``cls``."""
        by = [r for r in (self.member(cls, "__new__") or ANY).refs if isinstance(r, Function)]
        if by:
            return self._made_by(by[0], cls, args, keywords, node)
        value = self.made_of(cls, node)
        (made,) = value.refs
        if self._initialised(cls, value, args, keywords, node):
            self._built(cls, value, node)
            return value
        if made.kind != "instance":
            self.filled(made, args, keywords)
        self._fields_of(cls, made, args, keywords, node)
        if post := [r for r in (self.member(cls, "__post_init__") or ANY).refs if isinstance(r, Function)]:
            self.run_function(post[0], [], {}, node, value)
        self._built(cls, value, node)
        return value

    def made_of(self, cls: Class, node: cst.CSTNode) -> Value:
        """Return an object of ``cls`` that nothing has initialised."""
        bases = self.foreign_bases(cls)
        kind = next((_KINDS[base] for base in bases if base in _KINDS), "instance")
        made = self.new(kind, node, cls=cls, name=next(iter(bases), ""))
        return Value(refs=frozenset([made]))

    def _initialised(
        self, cls: Class, made: Value, args: list[Value], keywords: dict[str, Value], node: cst.Call
    ) -> bool:
        """Run an ``__init__`` of the program on a new object; tell whether there is one."""
        functions = [r for r in (self.member(cls, "__init__") or ANY).refs if isinstance(r, Function)]
        if functions:
            self.run_function(functions[0], args, keywords, node, made)
        return bool(functions)

    def _made_by(
        self, maker: Function, cls: Class, args: list[Value], keywords: dict[str, Value], node: cst.Call
    ) -> Value:
        """Return what a ``__new__`` of the program returns: a new object, or the one that there is."""
        made = self.run_function(maker, [Value(refs=frozenset([cls])), *args], keywords, node)
        if any(isinstance(ref, Obj) and ref.cls is cls for ref in made.refs):
            self._initialised(cls, made, args, keywords, node)
        return made

    def _built(self, cls: Class, value: Value, node: cst.Call) -> None:
        """Let a layer of Keras make its variables, which it does before its first call: ``build(input_shape)``."""
        if not any(base.endswith(_BUILT) for base in self.foreign_bases(cls)):
            return
        for build in [r for r in (self.member(cls, "build") or ANY).refs if isinstance(r, Function)]:
            self.run_function(build, [ANY], {}, node, value)

    def filled(self, made: Obj, args: list[Value], keywords: dict[str, Value]) -> None:
        """Put into a new object of a class of containers what ``dict()`` or ``list()`` would."""
        for arg in args:
            if made.kind == "dict":
                self._update(made, arg)
            else:
                self.grow(made, self.entries(arg))
        for name, value in keywords.items():
            self.put(made, key_of(name) if name != OTHERS else None, value)

    def _fields_of(self, cls: Class, made: Obj, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> None:
        """Set the fields of a data class or named tuple, in their order."""
        fields = [line for each in reversed(self.lines(cls)) for line in _annotated(each.node)]
        for i, line in enumerate(fields):
            name = line.target.value if isinstance(line.target, cst.Name) else ""
            if name in keywords:
                value = keywords[name]
            elif i < len(args):
                value = args[i]
            elif line.value is not None:
                value = join(keywords.get(OTHERS), self._default(line.value, node, name))
            elif OTHERS in keywords:
                value = keywords[OTHERS]
            else:
                continue
            self.write((made, name), value)

    def _default(self, value: cst.BaseExpression, node: cst.Call, name: str) -> Value:
        called = value.func if isinstance(value, cst.Call) else None
        if called is None or dotted(called).split(".")[-1] != "field":
            return self.eval(value)
        for arg in value.args:  # type: ignore[attr-defined]
            if arg.keyword is not None and arg.keyword.value == "default_factory":
                return self.call_value(self.eval(arg.value), [], {}, value)  # type: ignore[arg-type]
            if arg.keyword is not None and arg.keyword.value == "default":
                return self.eval(arg.value)
        return ANY

    # -- attributes ------------------------------------------------------------------------------------------------

    def attribute(self, owner: Value, name: str, node: cst.CSTNode) -> Value:
        """Return the attribute ``name`` of ``owner``."""
        if name == "num_batches_tracked":
            return Value(self.updates, scalar=True)  # of a BatchNorm layer
        found: Value | None = None
        for ref in self._with_member(owner.refs, name):
            found = join(found, self._of_ref(ref, owner, name, node))
        if found is not None:
            return found
        place = self.content(owner)
        if name in _SHAPES:
            if name == "shape" and "picked" in place.adds:
                return Value(parts.SUMMED)
            means = name == "shape" and "means" in place.adds  # a place for each local iteration
            return Value(place if means else SAME, name="size" if name == "shape" and place.kind is Kind.ENTRY else "")
        if name == "size" and place.kind is Kind.ENTRY and self.shards.parts and self._stands_for_number(node):
            return self.size_of(place)  # of an array of NumPy
        if name == "T" and place.kind is Kind.ENTRY and self.shards.parts:
            return parts.transposed(replace(owner, place=place), [])
        if name in ("data", "T") and place.kind is Kind.ENTRY:
            return owner
        if place.kind is Kind.SHARD and name != _DEALT:
            return Value(refs=frozenset([Method(owner, name)]))  # loader.dataset, loader.batch_size: the whole one's
        if place.kind in (Kind.SAME,) and not owner.name:
            return Value(refs=frozenset([Method(owner, name)]))
        return Value(place, refs=frozenset([Method(owner, name)]))

    def _stands_for_number(self, size: cst.CSTNode) -> bool:
        """Tell whether an attribute ``size`` is used as a number: ``n += errors.size``, not ``x.size(0)``."""
        up = self.script.parents.get(size)
        if isinstance(up, cst.Assign):
            return all(isinstance(target.target, cst.Name) for target in up.targets)
        return isinstance(up, (cst.AugAssign, cst.BinaryOperation, cst.Arg))

    def _with_member(self, refs: frozenset[Any], name: str) -> frozenset[Any]:
        """Return what an attribute may be asked of: of what a function may have handed on, the program's objects."""
        holders = [r for r in refs if isinstance(r, Obj) and r.kind == "foreign" and self.read((r, REST)) is not None]
        own = refs.difference(holders) if holders else refs
        asked = any(isinstance(r, Obj) and r.cls is not None and self.member(r.cls, name) is not None for r in own)
        return own if asked else refs

    def _of_ref(self, ref: Any, owner: Value, name: str, node: cst.CSTNode) -> Value:
        single = Value(owner.place, refs=frozenset([ref]), scalar=owner.scalar, pending=owner.pending)
        if isinstance(ref, Class):
            member = self.member(ref, name)
            if member is not None and not member.refs and self._is_enumeration(ref):
                return Value(const=Member(f"{ref.node.name.value}.{name}"))
            return self._of_class(member, single) if member is not None else Value(name="")
        if isinstance(ref, Frame):
            return self.read((ref, name)) or ANY
        if data := self._data_behind(ref):
            return self.attribute(Value(refs=data), name, node)
        if isinstance(ref, (Function, Bound, Method)):
            return self.read((ref, name)) or Value(refs=frozenset([Method(single, name)]))
        if not isinstance(ref, Obj):
            return ANY
        if (held := self.read((ref, name))) is not None:
            if self.sharded and not held.place.why and name in self.changed_as_drawn(ref.cls):
                text = "it changes where a sample is drawn: each rank draws those of its share"
                return Value(unknown(ref.site, text, (ref, name)), scalar=held.scalar)
            if name in _RATES and held.place.kind is Kind.COUNT:
                return Value(scalar=True)  # set by a serial count: the rate that all ranks train with
            return self.of_chosen(owner, held) if ref.kind == "instance" else held
        if name == "iterations" and "keras.optimizers." in f"{ref.name}.":
            return Value(self.updates, scalar=True, name=f"{FROM}{int(self.updated)}" if self.loop is not None else "")
        if name == "layers" and "keras." in ref.name and ref.kind != "list":
            layers = self.new("list", node, "layers")
            self.write((layers, REST), Value(refs=frozenset(self.layers())))
            return Value(refs=frozenset([layers]))
        if ref.kind == "foreign" and name == "state" and ref.name.startswith("torch.optim."):
            return self._states(node)
        if (
            self._by_key(ref, "__getattr__")
            and self.member(ref.cls, name) is None
            and (ref, key_of(name)) in (self.state or {})
        ):
            return self.entry_in(ref, key_of(name), single)
        if ref.cls is not None and (member := self.member(ref.cls, name)) is not None:
            return self._bind(member, single, ref.cls, node)
        if name in _SHAPES:
            place = self.content(owner) if name == "shape" else SAME
            serial = name == "shape" and self.loop is None and self.serial(owner)
            return Value(place) if "means" in place.adds else Value(reduced=serial)
        if rules.sums_in(ref.name, name):
            held = self.read((ref, CONTENT)) or ANY
            return Value(replace(held.place, counts=False), scalar=True, zero=held.zero, reduced=held.reduced)
        if name == "__class__" and ref.cls is not None:
            return Value(refs=frozenset([ref.cls]))
        if name == "__dict__":
            return Value(refs=frozenset([ref]), name="__dict__")
        if ref.kind == "instance" and not self.foreign_bases(ref.cls) and name not in _OBJECTS:
            return self._dynamic(ref, single, name, node)
        if single.place.kind is Kind.SHARD and name == _DEALT:
            return single
        if ref.kind == "instance" and name not in _OBJECTS and not self.is_module(ref.cls) and self._getters(ref):
            return join(self._dynamic(ref, single, name, node), Value(refs=frozenset([Method(single, name)])))
        held_by = self.content(single) if ref.kind == "foreign" else SAME
        place = held_by if held_by.kind is Kind.UNKNOWN else SAME
        return Value(place, refs=frozenset([Method(single, name)]))

    def _states(self, node: cst.CSTNode) -> Value:
        """Return what an optimizer keeps of each parameter, the number of its updates among it."""
        of_one = self.new("dict", node, "state of one")
        self.put(of_one, None, ANY)
        self.put(of_one, key_of("step"), Value(self.updates, scalar=True))
        kept = self.new("dict", node, "state")
        self.put(kept, None, Value(refs=frozenset([of_one])))
        return Value(refs=frozenset([kept]))

    def _dynamic(self, ref: Obj, single: Value, name: str, node: cst.CSTNode) -> Value:
        """Return an attribute that ``__getattr__`` may make."""
        if getters := self._getters(ref):
            return self.run_function(getters[0], [Value(const=name)], {}, node, single)
        return Value(refs=frozenset([Method(single, name)]))

    def _getters(self, ref: Obj) -> list[Function]:
        """Return the program's ``__getattr__`` of an object's class."""
        return [r for r in (self.member(ref.cls, "__getattr__") or ANY).refs if isinstance(r, Function)]

    def _of_class(self, member: Value, cls: Value) -> Value:
        """Return a member that is asked of its class: of a class method, ``Meter.add``, its first argument is known."""
        bound = [
            Bound(ref, cls) if isinstance(ref, Function) and "classmethod" in _decorators(ref) else ref
            for ref in member.refs
        ]
        return replace(member, refs=frozenset(bound))

    def _bind(self, member: Value, receiver: Value, cls: Class, node: cst.CSTNode) -> Value:
        found: list[Value] = []
        for ref in member.refs:
            if isinstance(ref, Obj) and ref.name == PROPERTY:  # avg = property(lambda self: self.sum / self.count)
                getters = [f for f in (self.read((ref, "get")) or ANY).refs if isinstance(f, Function)]
                found += [self.run_function(f, [], {}, node, receiver) for f in getters]
            if not isinstance(ref, Function):
                continue
            decorators = _decorators(ref)
            if "staticmethod" in decorators:
                found.append(Value(refs=frozenset([ref])))
            elif decorators & {"property", "cached_property"}:
                found.append(self.run_function(ref, [], {}, node, receiver))
            elif "classmethod" in decorators:
                found.append(Value(refs=frozenset([Bound(ref, Value(refs=frozenset([cls])))])))
            else:
                found.append(Value(refs=frozenset([Bound(ref, receiver)])))
        return joined(found) if found else member

    def set_attribute(self, owner: Value, name: str, value: Value, node: cst.CSTNode) -> None:
        """Set the attribute ``name`` of all objects that ``owner`` may be."""
        refs = [each for ref in owner.refs for each in (self._data_behind(ref) or (ref,))]
        objects = [r for r in refs if isinstance(r, (Obj, Class, Frame, Function))]
        for ref in objects:
            if isinstance(ref, Obj) and ref.cls is not None and self._set_property(ref, owner, name, value, node):
                continue
            if isinstance(ref, Obj) and self._by_key(ref, "__setattr__"):
                self.put(ref, key_of(name), value)
                continue
            where = ref.body if isinstance(ref, Class) else ref
            if len(objects) > 1:
                value = join((self.state or {}).get((where, name)), value)
            self.write((where, name), value)
            if isinstance(ref, Obj) and ref.kind == "dict" and ref.cls is None and ref.name != "namespace":
                self.write((ref, key_of(name) or name), value)

    def _data_behind(self, ref: Any) -> frozenset[Any]:
        """Return the program's data set that ``loader.dataset`` is, where ``ref`` is that."""
        loaders = ref.receiver.refs if isinstance(ref, Method) and ref.name == "dataset" else ()
        return frozenset(each for loader in loaders for each in self.data_of.get(loader, ()))

    def _by_key(self, ref: Obj, name: str) -> bool:
        """Tell whether a dict's attributes are its entries: ``__getattr__ = dict.__getitem__``."""
        if ref.kind != "dict" or ref.cls is None:
            return False
        method = self.member(ref.cls, name)
        return method is not None and not method.refs and method.name.startswith("builtins.dict.")

    def _set_property(self, ref: Obj, owner: Value, name: str, value: Value, node: cst.CSTNode) -> bool:
        setter = self.member(ref.cls, f"{name}.setter")
        for made in (self.member(ref.cls, name) or ANY).refs if setter is None else ():
            setter = self.read((made, "set")) if isinstance(made, Obj) and made.name == PROPERTY else setter
        functions = [r for r in setter.refs if isinstance(r, Function)] if setter is not None else []
        if functions:
            self.run_function(functions[0], [value], {}, node, Value(refs=frozenset([ref])))
        return bool(functions)

    def keeps(self, network: Obj) -> bool:
        """Tell whether a forward pass of a network, or of one in it, sets attributes: whether it keeps something."""
        parts = [ref.cls for ref in self.reachable([Value(refs=frozenset([network]))]) if ref.cls is not None]
        modules = (cls for cls in parts if self.is_module(cls))
        return any(self._changes(cls, name) for cls in modules for name in ("forward", "call"))

    def _changes(self, cls: Class, method: str) -> bool:
        member = self.member(cls, method)
        functions = [ref.node for ref in (member or ANY).refs if isinstance(ref, Function)]
        return any(isinstance(node, cst.FunctionDef) and _sets_attributes(node) for node in functions)

    def foreign_content(self, ref: Obj) -> Value:
        """Return what an object of a library holds."""
        return self.read((ref, CONTENT)) or ANY

    def content_of(self, values: list[Value]) -> Value:
        """Return what is computed from ``values``."""
        return Value(combine(self.content(v) for v in values))


_BUILT = ("keras.layers.Layer", "keras.Layer", "keras.Model")
_OBJECTS = ("__dict__", "__class__", "__name__")


def _decorators(function: Function) -> set[str]:
    """Return the names of a function's decorators, without their modules."""
    own = function.node.decorators if isinstance(function.node, cst.FunctionDef) else ()
    return {dotted(d.decorator).split(".")[-1] for d in own}


def _annotated(cls: cst.ClassDef) -> list[cst.AnnAssign]:
    lines = [line for part in cls.body.body if isinstance(part, cst.SimpleStatementLine) for line in part.body]
    return [line for line in lines if isinstance(line, cst.AnnAssign) and "ClassVar" not in names_in(line.annotation)]


_SETS = (Row.APPEND, Row.ADD, Row.STORE)


@lru_cache(maxsize=256)
def _sets_attributes(function: cst.FunctionDef) -> bool:
    targets: list[cst.CSTNode] = []

    class Find(cst.CSTVisitor):
        def visit_AssignTarget(self, node: cst.AssignTarget) -> None:  # noqa: N802
            targets.append(node.target)

        def visit_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
            targets.append(node.target)

        def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
            if isinstance(node.func, cst.Attribute) and rules.of_method(node.func.attr.value) in _SETS:
                targets.append(node.func.value)

    function.visit(Find())
    return any(isinstance(t, cst.Attribute) and dotted(t).startswith("self.") for t in targets)
