"""Where a value may come from at once: one step back through names, arguments, returns, tuples, dicts and ``self``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import libcst as cst

from dlrun.port.program.dicts import pairs
from dlrun.port.program.handed import Handed
from dlrun.port.program.reaching import reaching
from dlrun.port.program.script import Binding, Path, dotted

# Methods that give back the object they are called on (or one that stands for it).
SAME = {
    "to",
    "cuda",
    "cpu",
    "train",
    "eval",
    "float",
    "double",
    "half",
    "requires_grad_",
    "apply",
    "share_memory",
    "detach",
    "bfloat16",
    "type",
    "contiguous",
}
# What keeps the model that it is given as ``module``.
_HOLDS_MODULE = {
    "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.data_parallel.DataParallel",
}
# Callables that wrap their first argument and leave it what it is.
WRAPPERS = {
    *_HOLDS_MODULE,
    "torch.compile",
    "copy.deepcopy",
    "copy.copy",
    "torch.jit.script",
    "tqdm.tqdm",
    "tqdm.auto.tqdm",
    "tqdm.notebook.tqdm",
    "builtins.enumerate",
    "builtins.list",
    "builtins.tuple",
    "builtins.iter",
    "itertools.cycle",
    "builtins.reversed",
    "itertools.islice",
    "builtins.sorted",
    "rich.progress.track",
    "tqdm.std.tqdm",
}
_PROPERTIES = ("property", "cached_property", "functools.cached_property")
# What keeps its keyword arguments as attributes.
KEEPERS = (
    "types.SimpleNamespace",
    "argparse.Namespace",
    "tensorflow.train.Checkpoint",
    "tensorflow.compat.v1.train.Checkpoint",
)

_DICTS = ("dict", "OrderedDict", "collections.OrderedDict", "defaultdict", "collections.defaultdict")


@dataclass(frozen=True)
class Origin:
    """An expression that a value comes from. ``whole`` is False where it is only some part of that expression."""

    node: cst.CSTNode
    whole: bool = True


# An expression, and which part of its value is meant.
State = tuple[cst.CSTNode, Path]


class Onward(Handed, ABC):
    """Leads from an expression, or a part of its value, to those that it may be."""

    @abstractmethod
    def origins(self, node: cst.CSTNode, path: Path = ()) -> tuple[Origin, ...]:
        """Return the expressions that the value of ``node`` (or its part ``path``) may come from."""

    @abstractmethod
    def drawn(self, node: cst.CSTNode) -> list[cst.FunctionDef]:
        """Return the generators that ``node`` draws from."""

    def classes(self, node: cst.CSTNode) -> list[cst.ClassDef]:
        """Return the local classes that the value of ``node`` may be an instance of."""
        if isinstance(node, cst.Name) and node.value in ("self", "cls"):
            own = self.script.class_of(node)
            return [own, *self.heirs(own)] if own is not None else []
        found = []
        for origin in self.origins(node):
            if isinstance(origin.node, cst.Call) and origin.whole:
                found += [c for c in self.definitions(origin.node.func) if isinstance(c, cst.ClassDef)]
            if isinstance(origin.node, cst.Param) and origin.node.name.value == "self" and origin.whole:  # show(self)
                own = self.script.class_of(origin.node)
                found += [own, *self.heirs(own)] if own is not None else []
        return list(dict.fromkeys(found))

    def kept(self, node: cst.CSTNode) -> list[tuple[str, cst.BaseExpression]]:
        """Return the attributes that ``node`` got as keywords, ``Checkpoint(model=net).model`` is ``net``, or later.

        ``DataParallel(net).module`` is ``net``.
        """
        made = [o.node for o in self.origins(node) if isinstance(o.node, cst.Call) and o.whole]
        keeps = [call for call in made if self.script.name_of(call.func) in KEEPERS]
        given = [(a.keyword.value, a.value) for call in keeps for a in call.args if a.keyword is not None]
        holds = [call for call in made if self.script.name_of(call.func) in _HOLDS_MODULE]
        given += [("module", call.args[0].value) for call in holds if call.args]
        return [*given, *(pair for call in made for pair in (*self.fields(call), *self.given_later(call)))]

    def _in_table(self, func: cst.CSTNode) -> list[cst.FunctionDef | cst.Lambda]:
        """Return the functions that ``table[name]`` may be, or ``self.name``, which was handed in or is a method."""
        found: list[cst.FunctionDef | cst.Lambda] = []
        kept = (
            isinstance(func, cst.Attribute) and func.attr.value not in self.methods and bool(self.classes(func.value))
        )
        for origin in self.origins(func) if kept or isinstance(func, (cst.Subscript, cst.Name)) else ():
            local = self.definitions(origin.node) or self._bound(origin.node) if origin.node is not func else ()
            found += [f for f in (origin.node, *local) if isinstance(f, (cst.Lambda, cst.FunctionDef))]
        return found

    def _bound(self, node: cst.CSTNode) -> tuple[cst.FunctionDef, ...]:
        """Return the methods that ``node`` is, bound to their object: ``self.draw = self.draw_waves``."""
        if not isinstance(node, cst.Attribute) or node.attr.value not in self.methods:
            return ()
        found = (self.method(cls, node.attr.value) for cls in self.classes(node.value))
        return tuple(f for f in found if f is not None)

    def _onward(self, node: cst.CSTNode, path: Path) -> list[State] | None:
        """Return the states that the value of this one may come from; None where it starts here."""
        match node:
            case cst.Name():
                seen = reaching(self.script, node)
                return self._of_bindings(self.script.bindings_of(node) if seen is None else seen, path) or None
            case cst.Attribute():
                if (there := self.script.member(node)) is not None:
                    return self._of_bindings(there[0], path) or None
                found = [s for c in self.classes(node.value) for s in self._of_self(c, node.attr.value, path)]
                kept = self.kept(node.value) if not found else ()
                return found or [(value, path) for name, value in kept if name == node.attr.value] or None
            case cst.Tuple() | cst.List() if path and path[0] != "part":
                values = [*(e.value for e in node.elements), *self.filled(node)]
                if isinstance(path[0], int):
                    return [(values[path[0]], path[1:])] if path[0] < len(values) else []
                return [(v, path[1:]) for v in values]
            case cst.Subscript():
                return self._of_subscript(node, path) or None
            case cst.Call():
                return self._of_call(node, path) or None
            case cst.IfExp():
                return [(node.body, path), (node.orelse, path)]
            case cst.BooleanOperation():
                return [(node.left, path), (node.right, path)]
            case cst.NamedExpr():
                return [(node.value, path)]
            case cst.ListComp() | cst.GeneratorExp() if path and path[0] != "part":
                return [(node.elt, path[1:])]
        return None

    def _of_bindings(self, bindings: list[Binding], path: Path) -> list[State]:
        found: list[State] = []
        for b in bindings:
            if b.how == "param":
                found.extend(self._of_param(b, path))
            elif b.value is not None and "part" not in b.path:
                found.append((b.value, (*b.path, *path)))
        return found

    def _of_param(self, binding: Binding, path: Path) -> list[State]:
        function = self.script.scopes[binding.node].node
        found: list[State] = []
        if isinstance(function, cst.FunctionDef):
            for call in self._callers.get(function, []) if self._callers is not None else self.named_calls(function):
                if function.params.star_arg is binding.node:  # def fire(event, *args), fire("step", trainer)
                    rest = self.beyond(call, function)
                    begin = path[0] if path and isinstance(path[0], int) else len(rest)
                    found.extend((arg, path[1:]) for arg in rest[begin : begin + 1])
                elif (handed := self.handed(call, function, binding.name)) is not None:
                    value, at = handed
                    found.append((value, path if at is None else (at, *path)))
        if not found and binding.value is not None:
            found.append((binding.value, path))
        return found

    def _of_self(self, cls: cst.ClassDef, name: str, path: Path) -> list[State]:
        found: list[State] = [
            (b.value, (*b.path, *path))
            for b in self.script.attributes.get((cls, name), [])
            if b.value is not None and "part" not in b.path
        ]
        getter = self._getter(cls, name) if not found else None
        if getter is not None:
            found = [(value, path) for value in self.returns(getter)]
        for base in cls.bases:
            local = self.definition(base.value)
            if not found and isinstance(local, cst.ClassDef) and local is not cls:
                found.extend(self._of_self(local, name, path))
        return found

    def getters(self, node: cst.CSTNode) -> list[cst.FunctionDef]:
        """Return the methods that reading the attribute ``node`` runs: properties of the program's classes."""
        if not isinstance(node, cst.Attribute) or node.attr.value not in self.methods:
            return []
        found = (self._getter(cls, node.attr.value) for cls in self.classes(node.value))
        return [getter for getter in found if getter is not None]

    def _getter(self, cls: cst.ClassDef, name: str) -> cst.FunctionDef | None:
        getter = self.method(cls, name)
        is_property = getter is not None and any(dotted(d.decorator) in _PROPERTIES for d in getter.decorators)
        return getter if is_property else None

    def _of_subscript(self, node: cst.Subscript, path: Path) -> list[State]:
        index = node.slice[0].slice
        key = index.value if isinstance(index, cst.Index) else None
        return self._of_entry(node.value, key, isinstance(index, cst.Slice), path)

    def _of_entry(
        self, table: cst.BaseExpression, key: cst.BaseExpression | None, sliced: bool, path: Path
    ) -> list[State]:
        found: list[State] = [(value, path) for value in self._of_keyword(table, key)]
        for origin in self.origins(table):
            box = origin.node
            if held := [pair for pair in pairs(box) if pair[0] is not None] or self._filled_in(box):
                same = [pair for pair in held if pair[0] is not None and key is not None and _alike(pair[0], key)]
                found.extend((value, path) for _, value in same or held)
            elif isinstance(box, cst.DictComp):
                found.append((box.value, path))
            elif isinstance(box, (cst.Dict, cst.Call)) and path[:1] == ("each",):  # of lists: HOOKS = defaultdict(list)
                found.extend((value, path[1:]) for value in self.filled(box))
            elif isinstance(box, (cst.List, cst.Tuple, cst.ListComp)) and not sliced:
                i: int | str = int(key.value) if isinstance(key, cst.Integer) and key.value.isdigit() else "each"
                found.append((box, ("each" if isinstance(box, cst.ListComp) else i, *path)))
        return found

    def _filled_in(self, box: cst.CSTNode) -> list[tuple[cst.BaseExpression | None, cst.BaseExpression]]:
        """Return what is put into the dict ``box``, which is made empty."""
        empty = isinstance(box, cst.Dict) or (isinstance(box, cst.Call) and dotted(box.func) in _DICTS)
        return self.stored(box) if empty else []

    def _of_call(self, node: cst.Call, path: Path) -> list[State]:
        func = node.func
        if path and isinstance(path[0], int) and (fields := self.fields(node)):  # train, test = Data(a, b)
            return [(fields[path[0]][1], path[1:])] if path[0] < len(fields) else []
        name = self.script.name_of(func)
        first = node.args[0].value if node.args and not node.args[0].star and node.args[0].keyword is None else None
        method = func.attr.value if isinstance(func, cst.Attribute) and (not name or name.startswith(".")) else ""
        if isinstance(func, cst.Attribute) and self.script.local_modules(func.value):
            method = ""
        own = method in self.methods and bool(self.classes(func.value)) if isinstance(func, cst.Attribute) else False
        if method in SAME and isinstance(func, cst.Attribute) and not own:
            return [(func.value, path)]
        if name in WRAPPERS and first is not None:
            if name == "builtins.enumerate":
                return [(first, ("each", *path[2:]))] if path[:2] == ("each", 1) else [] if path else [(first, path)]
            return [(first, path)] if name.startswith(("tqdm", "builtins", "itertools")) or path else []
        if first is not None and self.drawn(node):  # step, loss = next(train(model))
            return [(first, ("each", *path))]
        if name == "builtins.zip" and path[:1] == ("each",) and len(path) > 1 and isinstance(path[1], int):
            return [(node.args[path[1]].value, ("each", *path[2:]))] if path[1] < len(node.args) else []
        if method == "get" and isinstance(func, cst.Attribute) and first is not None and not own:
            return self._of_entry(func.value, first, False, path)
        if method in ("values", "items") and isinstance(func, cst.Attribute) and path[:1] == ("each",):
            rest = path[2:] if method == "items" and path[1:2] == (1,) else path[1:]
            return [(v, rest) for o in self.origins(func.value) for v in self._held(o.node)]
        local = self.definitions(func)
        functions = [f for f in local if isinstance(f, cst.FunctionDef)]
        if not local and isinstance(func, cst.Attribute) and func.attr.value in self.methods:
            functions = [m for c in self.classes(func.value) if (m := self.method(c, func.attr.value))]
        table = self._in_table(func) if not local and not functions else []
        functions += [f for f in table if isinstance(f, cst.FunctionDef)]
        lambdas: list[State] = [(f.body, path) for f in table if isinstance(f, cst.Lambda)]
        yielded = [s for f in functions for s in self.yielded(f, path)] if path else []
        return [*lambdas, *(yielded or ((r, path) for f in functions for r in self.returns(f)))]

    def _held(self, box: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return the values of a dict: those written in it, and those that are put into an empty one."""
        if isinstance(box, cst.DictComp):
            return [box.value]
        written = [value for key, value in pairs(box) if key is not None] or [v for _, v in self.keyworded(box)]
        return written or [value for _, value in self.stored(box)]


def _alike(one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Tell whether two keys are written alike; ``deep_equals`` alone takes long over large tables."""
    if isinstance(one, cst.SimpleString) and isinstance(other, cst.SimpleString):
        return one.evaluated_value == other.evaluated_value
    return type(one) is type(other) and one.deep_equals(other)
