"""Where values go: into expressions around them, names, attributes of ``self``, parameters, what functions return."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import TypeGuard

import libcst as cst

from dlrun.port.facts.numbers.lists import keys_are_written, turned
from dlrun.port.facts.numbers.tested import is_value, tested
from dlrun.port.program.flow import Flow
from dlrun.port.program.reaching import reaching
from dlrun.port.program.scopes import Path
from dlrun.port.program.script import Binding, added, calls_method, children, dotted, numbered, table_of

# Methods that put their arguments into the object they are called on.
_FILLS = {
    "update",
    "append",
    "extend",
    "add",
    "insert",
    "push",
    "record",
    "index_add_",
    "scatter_add_",
    "copy_",
    "fill_",
}
# What these make of a value is the same for all values of one kind and length.
_SHAPES = {f"builtins.{name}" for name in ("len", "range", "type", "isinstance", "enumerate")}
_OPENS = {"builtins.open", "io.open", "gzip.open", "bz2.open", "codecs.open"}  # files hold what their names do not say
_SHAPE_METHODS = {"size", "dim", "numel", "state_dict", "parameters"}
_SHAPE_ATTRIBUTES = {"shape", "dtype", "device", "size", "ndim", "is_cuda", "requires_grad"}
_LIKE = {"type_as", "view_as", "expand_as", "reshape_as", "to"}  # only kind and shape are the argument's
_FILLED = re.compile(r"(^|\.)(zeros|ones|empty)_like$|^\.?(\w+\.)*new_(zeros|ones|empty)$")
_PARSES = ("parse_args", "parse_known_args", "parse")


class Spread:
    """``into``: what each value goes into at once.

    An expression stands for its value; a name with its scope, a name with its class and ``("returns", function)``
    for what they hold.
    """

    def __init__(self, flow: Flow) -> None:
        """Read every expression of the program once."""
        self.flow = flow
        self.script = flow.script
        self.into: dict[object, list[object]] = defaultdict(list)
        for node in self.script.nodes:
            self._join(self._parts(node), node)
            if (grown := added(node)) is not None and (tests := tested(self.script, node)):
                self._kept_in(grown[0], tests)
            match node:
                case cst.Call():
                    self._handed_on(node)
                case cst.Return(value=value) | cst.Yield(value=value) if value is not None:
                    handed = value.item if isinstance(value, cst.From) else value
                    self._join([handed], ("returns", self.script.function_of(node)))
                case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript() as target), *_]):
                    self._kept_in(target.value, [node.value, *target.slice])  # right[out.argmax(1) == y] = 1
                case cst.Assign(targets=[cst.AssignTarget(cst.Attribute(attr=cst.Name("data")) as place)]):
                    self._kept_in(place.value, [node.value])
                case cst.Assign(targets=[cst.AssignTarget(cst.Attribute() as place)]):
                    self._join([node.value] if place.attr.value in self._options else [], ("options", place.attr.value))
                case cst.AugAssign(target=cst.Subscript() as target):
                    self._kept_in(target.value, [node.value, *target.slice])
        for scope in {id(s): s for s in self.script.scopes.values()}.values():
            for name, bindings in scope.names.items():
                self._bound(bindings, (scope, name))
        for attribute, bindings in self.script.attributes.items():
            self._bound(bindings, attribute)

    def _join(self, parts: Iterable[object], whole: object) -> None:
        for part in parts:
            self.into[part].append(whole)

    def _parts(self, node: cst.CSTNode) -> Iterable[object]:
        """Return what the value of ``node`` is made of."""
        match node:
            case cst.Comparison():
                # As a condition it is decided; as an array of outcomes, counted or averaged, it is a value.
                return children(node) if is_value(self.script, node) else ()
            case cst.Lambda():
                return ()
            case cst.IfExp():
                return (node.body, node.orelse, *tested(self.script, node))  # else the test is decided
            case cst.ListComp() | cst.SetComp() | cst.GeneratorExp():
                return (node.elt, *tested(self.script, node))  # into which the entries go
            case cst.Name() if (reaching := self._reaching(node)) is not None:
                return reaching
            case cst.Name() | cst.Attribute(value=cst.Name(value="self")) if (held := self._held(node)) is not None:
                return (held,)
            case cst.Attribute() if (held := self._held(node)) is not None:
                return (held, node.value)
            case cst.Attribute():
                return (node.value,) if node.attr.value not in _SHAPE_ATTRIBUTES else ()
            case cst.Call():
                return self._of_call(node)
        return children(node)

    def _of_call(self, node: cst.Call) -> list[object]:
        name = self.script.name_of(node.func)
        if name in _SHAPES or name in _OPENS or _FILLED.search(name or f".{dotted(node.func)}"):
            return []
        of: list[object] = []
        if isinstance(node.func, cst.Attribute):
            if node.func.attr.value in _SHAPE_METHODS:
                return []
            of.append(node.func.value)
            if node.func.attr.value in _LIKE and not self.flow.targets(node):
                return of
        if self._unpacked(node):
            return of
        if targets := self.flow.targets(node):
            return [*of, *(("returns", target) for target in targets)]
        return [*of, *(a.value for a in node.args)]

    def _reaching(self, use: cst.Name) -> list[cst.CSTNode] | None:
        """Return what ``use`` may be given, where a loop or a line above it is sure to bind it anew; else None.

        ``loss`` of the training loop is another than that of the evaluation after it.
        """
        if (self.script.scope_of(use), use.value) in self._changed:
            return None
        found = reaching(self.script, use)
        if found is None or any(b.how != "assign" for b in found):
            return None
        return [value for b in found for value in self._values(b)]

    @cached_property
    def _changed(self) -> set[object]:
        """The variables that the program changes in place."""
        boxes: list[cst.CSTNode] = []
        for node in self.script.nodes:
            match node:
                case cst.AugAssign(target=box):
                    boxes.append(box)
                case cst.Assign(targets=[cst.AssignTarget(target=box)]) if added(node) and tested(self.script, node):
                    boxes.append(box)  # if found == label: right = right + 1
                case cst.Assign(targets=targets):
                    boxes.extend(t.target for t in targets if isinstance(t.target, cst.Subscript))
                    boxes.extend(t.target.value for t in targets if _is_data(t.target))
                case cst.Call(func=cst.Attribute(value=box, attr=cst.Name(name))) if name in _FILLS:
                    boxes.append(box)
        return {held for box in boxes if (held := self._held(table_of(box))) is not None}

    def _bound(self, bindings: Iterable[Binding], to: object) -> None:
        for binding in bindings:
            self._join(self._values(binding), to)

    def _values(self, binding: Binding) -> list[cst.CSTNode]:
        """Return what ``binding`` gives its name, and what stands in the same place where a function returns it."""
        value = self._value(binding)
        if value is None:
            return []
        if binding.value is not None and (yielded := self.flow.entries(binding.value, binding.path)):
            return [*yielded]
        if columns := _column(value, binding.path):
            return columns
        at = binding.path[0] if binding.path else None
        return [value, *(each.elements[at].value for each in self._unpacked(value) if isinstance(at, int))]

    def _unpacked(self, call: cst.CSTNode) -> list[cst.Tuple]:
        """Return the tuples, one of which is taken apart where ``call`` is: in ``loss, step = train(step)``."""
        line = self.script.parents.get(call)
        target = line.targets[0].target if isinstance(line, cst.Assign) and len(line.targets) == 1 else None
        if not isinstance(target, cst.Tuple) or not isinstance(call, cst.Call):
            return []
        returned = [value for function in self.flow.targets(call) for value in self.flow.returns(function)]
        tuples = [value for value in returned if isinstance(value, cst.Tuple)]
        starred = any(isinstance(e, cst.StarredElement) for box in (target, *tuples) for e in box.elements)
        alike = all(len(box.elements) == len(target.elements) for box in tuples)
        return tuples if alike and not starred and len(tuples) == len(returned) else []

    def _value(self, binding: Binding) -> cst.CSTNode | None:
        """Return what ``binding`` gives its name, be it a part of it."""
        value: cst.CSTNode | None = binding.value if binding.how == "assign" else None
        at = binding.path[0] if binding.path else "all"
        if isinstance(value, cst.Tuple) and isinstance(at, int) and at < len(value.elements):
            return value.elements[at].value
        each = binding.path in (("each", 0), ("each",)) and value is not None
        if each and keys_are_written(self.flow, value, alone=len(binding.path) == 1):  # type: ignore[arg-type]
            return None
        if value is not None and at == "each" and self._counts(value):
            if binding.path[1:2] != (1,):
                return None  # the number of the iteration
            if isinstance(value, cst.Call) and self._enumerates(value):
                if isinstance(value.func, cst.Attribute) and numbered(value):
                    return value.func.value
                return value.args[0].value if value.args else None
        return value

    def _counts(self, entries: cst.CSTNode) -> bool:
        """Tell whether ``entries`` come with their numbers: ``enumerate(loader)``, also by a name or in a bar."""
        return any(map(self._enumerates, self.flow.through(entries)))

    def _enumerates(self, node: cst.CSTNode) -> bool:
        return numbered(node) or (isinstance(node, cst.Call) and self.script.name_of(node.func) == "builtins.enumerate")

    def _handed_on(self, call: cst.Call) -> None:
        """Note which parameters, or which object, the arguments of ``call`` go into."""
        for target in self.flow.targets(call):
            for param in (*target.params.params, *target.params.kwonly_params):
                if (handed := self.flow.handed(call, target, param.name.value)) is not None:
                    self._join([handed[0]], (self.script.scopes[target.body], param.name.value))
            if (options := target.params.star_kwarg) is not None:
                named = [value for _, value in self.flow.keyworded(options)]
                self._join(named, (self.script.scopes[target.body], options.name.value))
        if calls_method(call, *_FILLS):
            begins = 2 if call.func.attr.value.endswith("_add_") else 0  # dim, index, what is added
            self._kept_in(call.func.value, [a.value for a in call.args[begins:]])

    def _kept_in(self, box: cst.CSTNode, values: Iterable[cst.CSTNode]) -> None:
        values = list(values)
        while _is_data(box):
            box = box.value
        if (held := self._held(table_of(box))) is not None:
            self._join(values, held)
        for b in self.script.bindings_of(table_of(box)):
            if b.how == "param" and not isinstance(self.script.parents[box], (cst.AugAssign, cst.AssignTarget)):
                self._joined_to_arguments(b, values)
            elif b.value is not None and (over := turned(b.value, b.path)) is not None:
                self._kept_in(over, values)  # for net, losses in zip(nets, histories): losses.append(loss)

    def _joined_to_arguments(self, parameter: Binding, values: list[cst.CSTNode]) -> None:
        """Note that ``values`` go into what calls hand on for ``parameter``: ``def count(y, sums): sums[0] += y``."""
        function = self.script.scopes[parameter.node].node
        if not isinstance(function, cst.FunctionDef):
            return
        for call in self.flow.callers(function):
            handed = self.flow.handed(call, function, parameter.name)
            if handed is not None and (held := self._held(table_of(handed[0]))) is not None:
                self._join(values, held)

    def _held(self, node: cst.CSTNode) -> object | None:
        """Return what stands for the variable that ``node`` names; None where it names none of the program's."""
        if isinstance(node, cst.Name):
            scope = self.script.scope_of(node)
            return (scope, node.value) if scope is not None else None
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self":
            owner = self.script.class_of(node)
            return self._kept_by(owner, node.attr.value) or (owner, node.attr.value) if owner is not None else None
        if isinstance(node, cst.Attribute) and node.attr.value in self._options:  # wherever they are handed on
            return ("options", node.attr.value)
        if isinstance(node, cst.Attribute) and (there := self.script.member(node)) is not None:  # of a module
            return (there[1], node.attr.value)
        if isinstance(node, cst.Attribute) and isinstance(node.value, (cst.Name, cst.Attribute)):
            kept = self.flow.keepers(node)
            return (kept[0], node.attr.value) if len(kept) == 1 else None
        return None

    @cached_property
    def _options(self) -> set[str]:
        """The settings that the script writes over after it has read them: ``args.save = f"{args.save}-{date}"``."""
        places = [t.target for n in self.script.of(cst.Assign) for t in n.targets]
        others = [p for p in places if isinstance(p, cst.Attribute) and dotted(p.value) != "self"]
        made = [(p, o.node) for p in others for o in self.flow.origins(p.value)]
        return {p.attr.value for p, node in made if calls_method(node, *_PARSES)}

    def _kept_by(self, cls: cst.ClassDef, name: str) -> object | None:
        """Return what stands for the attribute ``name`` of ``cls``, or of its local bases: what a property returns."""
        if (keeper := self.flow.keeper(cls, name)) is not None:
            return (keeper, name)
        getter = self.flow.method(cls, name)
        reads = getter is not None and any(dotted(d.decorator) == "property" for d in getter.decorators)
        return ("returns", getter) if reads else None


def _is_data(target: cst.CSTNode) -> TypeGuard[cst.Attribute]:
    """Tell whether ``target`` is what a tensor holds: ``radius.data``."""
    return isinstance(target, cst.Attribute) and target.attr.value == "data"


def _column(value: cst.CSTNode, path: Path) -> list[cst.CSTNode]:
    """Return what stands in one place of each row that is written out: the names in ``(("train", a), ("val", b))``."""
    match path, value:
        case ("each", int(at), *_), cst.Tuple(elements=elements) | cst.List(elements=elements):
            rows = [e.value for e in elements if isinstance(e.value, (cst.Tuple, cst.List))]
            plain = all(isinstance(e, cst.Element) for row in (elements, *(r.elements for r in rows)) for e in row)
            if plain and len(rows) == len(elements) and all(at < len(row.elements) for row in rows):
                return [row.elements[at].value for row in rows]
    return []
