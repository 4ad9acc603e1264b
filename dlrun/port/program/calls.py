"""The functions and classes of a program: what a name stands for, who calls whom outright, and with which arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.port.program.dicts import pairs
from dlrun.port.program.reaching import reaching
from dlrun.port.program.script import Binding, Script, calls_method, dotted

_BOUND = ("classmethod", "staticmethod")


class Calls:
    """Answers what can be told from names alone, without following values."""

    def __init__(self, script: Script) -> None:
        """Index the methods, and what functions return, of ``script``."""
        self.script = script
        self._returns: dict[cst.CSTNode, list[cst.BaseExpression]] = {}
        self._decorated: dict[cst.CSTNode, list[cst.ClassDef | cst.FunctionDef]] | None = None
        self._named: dict[cst.CSTNode, list[cst.Call]] | None = None
        self._definitions: dict[cst.CSTNode, tuple[cst.ClassDef | cst.FunctionDef, ...]] = {}
        self._heirs: dict[cst.ClassDef, list[cst.ClassDef]] | None = None
        self._inherited: dict[tuple[cst.ClassDef, str], cst.FunctionDef | None] = {}
        self.methods: dict[str, list[cst.FunctionDef]] = {}
        for node in script.nodes:
            if isinstance(node, (cst.Return, cst.Yield)) and isinstance(node.value, cst.BaseExpression):
                self._returns.setdefault(script.function_of(node), []).append(node.value)
            elif isinstance(node, cst.FunctionDef) and isinstance(script.scopes[node].node, cst.ClassDef):
                self.methods.setdefault(node.name.value, []).append(node)

    def definition(self, node: cst.CSTNode) -> cst.ClassDef | cst.FunctionDef | None:
        """Return the class or function of this program that the expression ``node`` names: the first that it may be."""
        return next(iter(self.definitions(node)), None)

    def definitions(self, node: cst.CSTNode) -> tuple[cst.ClassDef | cst.FunctionDef, ...]:
        """Return the classes and functions of this program that ``node`` may name: another one in each branch."""
        if node not in self._definitions:
            self._definitions[node] = ()  # what `first = second; second = first` leads back to
            self._definitions[node] = tuple(dict.fromkeys(self._defined(node)))
        return self._definitions[node]

    def _defined(self, node: cst.CSTNode) -> Iterator[cst.ClassDef | cst.FunctionDef]:
        if isinstance(node, cst.IfExp):
            yield from (*self.definitions(node.body), *self.definitions(node.orelse))
        elif isinstance(node, cst.Call) and self._bound_early(node):  # partial(update, model)(x, y)
            yield from self.definitions(node.args[0].value)
        elif isinstance(node, cst.Call):  # choose(name)(data)
            functions = (f for f in self.definitions(node.func) if isinstance(f, cst.FunctionDef))
            yield from (d for f in functions for value in self.returns(f) for d in self.definitions(value))
        elif isinstance(node, cst.Subscript):  # CHOICES[name](data)
            tables = (b.value for b in self.script.bindings_of(node.value) if not b.path)
            entries = (value for table in tables if table is not None for _, value in pairs(table))
            yield from (d for entry in entries for d in self.definitions(entry))
        elif isinstance(node, cst.Attribute):  # Log.add(loss), of a class itself
            owners = [d for d in self.definitions(node.value) if isinstance(d, cst.ClassDef)]
            methods = [m for cls in owners if (m := self.method(cls, node.attr.value)) is not None]
            yield from (m for m in methods if any(dotted(d.decorator) in _BOUND for d in m.decorators))
        seen = reaching(self.script, node) if isinstance(node, cst.Name) else None
        for binding in seen or self.script.bindings_of(node):
            if isinstance(binding.node, (cst.ClassDef, cst.FunctionDef)):
                yield binding.node
                yield from self._wrapped_by(binding.node)
            elif binding.how == "param":
                yield from self._decorates(binding)
            elif binding.how == "assign" and not binding.path and binding.value not in (None, node):
                yield from self.definitions(binding.value)

    def _wrapped_by(self, node: cst.ClassDef | cst.FunctionDef) -> Iterator[cst.FunctionDef]:
        """Yield the functions that decorators of the program put around ``node``: what they return, and hold."""
        for decorator in node.decorators:
            by = self.definition(decorator.decorator)
            if not isinstance(by, cst.FunctionDef) or by is node:
                continue
            for value in self.returns(by):
                made = self.definition(value)
                if isinstance(made, cst.FunctionDef) and made is not node and self.script.inside(made, by.body):
                    yield made

    def _decorates(self, parameter: Binding) -> list[cst.ClassDef | cst.FunctionDef]:
        """Return what ``parameter``, the first of a function that decorates, gets: ``@on("epoch") def show():``."""
        function = self.script.scopes[parameter.node].node
        if not isinstance(function, cst.FunctionDef) or function.params.params[:1] != (parameter.node,):
            return []
        if self._decorated is None:
            self._decorated = {}
            for node in self.script.nodes:
                for decorator in node.decorators if isinstance(node, (cst.ClassDef, cst.FunctionDef)) else ():
                    for by in self.definitions(decorator.decorator):
                        self._decorated.setdefault(by, []).append(node)  # type: ignore[arg-type]
        return self._decorated.get(function, [])

    def _bound_early(self, call: cst.Call) -> Sequence[cst.Arg]:
        """Return the arguments that ``functools.partial(function, 2, size=3)`` hands on; of another call none."""
        return call.args[1:] if self.script.name_of(call.func) == "functools.partial" and call.args else ()

    def _bound_before(self, func: cst.CSTNode) -> list[cst.Arg]:
        """Return the arguments that ``func`` was given before it is called, as ``step = partial(update, model)``."""
        made = [func, *(b.value for b in self.script.bindings_of(func) if b.how == "assign" and not b.path)]
        found = [list(self._bound_early(m)) for m in made if isinstance(m, cst.Call)]
        return found[0] if len(found) == 1 else []

    def inherited(self, func: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the method of a local base that ``super().name`` stands for."""
        call = func.value if isinstance(func, cst.Attribute) else None
        if not isinstance(call, cst.Call) or self.script.name_of(call.func) != "builtins.super":
            return None
        own = self.script.class_of(call)
        bases = [b for base in own.bases if isinstance(b := self.definition(base.value), cst.ClassDef)] if own else []
        found = (self.method(base, func.attr.value) for base in bases if base is not own)  # type: ignore[attr-defined]
        return next((f for f in found if f is not None), None)

    def begins_base(self, call: cst.Call) -> bool:
        """Tell whether ``call`` is ``super().__init__(...)``."""
        if not calls_method(call, "__init__") or not isinstance(call.func.value, cst.Call):
            return False
        return self.script.name_of(call.func.value.func) == "builtins.super"

    def heirs(self, cls: cst.ClassDef) -> list[cst.ClassDef]:
        """Return the local classes that derive from ``cls``, directly or not."""
        if self._heirs is None:
            self._heirs = {}
            for heir in self.script.of(cst.ClassDef):
                for base in heir.bases:
                    if isinstance(local := self.definition(base.value), cst.ClassDef) and local is not heir:
                        self._heirs.setdefault(local, []).append(heir)
        found = [cls]
        for one in found:
            found += [heir for heir in self._heirs.get(one, []) if heir not in found]
        return found[1:]

    def bases(self, cls: cst.ClassDef, seen: frozenset[cst.CSTNode] = frozenset()) -> list[str]:
        """Return the qualified names of the foreign classes that ``cls`` derives from, through local ones too."""
        names: list[str] = []
        for base in cls.bases:
            local = self.definition(base.value)
            if isinstance(local, cst.ClassDef) and local not in seen:
                names.extend(self.bases(local, seen | {cls}))
            else:
                names.append(self.script.name_of(base.value))
        return names

    def lineage(self, cls: cst.ClassDef, seen: frozenset[cst.CSTNode] = frozenset()) -> list[cst.ClassDef]:
        """Return ``cls`` and the local classes that it derives from."""
        bases = [self.definition(base.value) for base in cls.bases if cls not in seen]
        local = [base for base in bases if isinstance(base, cst.ClassDef)]
        return list(dict.fromkeys([cls, *(up for base in local for up in self.lineage(base, seen | {cls}))]))

    def is_plain(self, cls: cst.CSTNode | None) -> bool:
        """Tell whether ``cls`` is a class of this script that derives from none out of sight."""
        return isinstance(cls, cst.ClassDef) and set(self.bases(cls)) <= {"builtins.object"}

    def method(self, cls: cst.ClassDef, name: str) -> cst.FunctionDef | None:
        """Return the method of ``cls`` or of its local bases."""
        if (cls, name) not in self._inherited:
            self._inherited[cls, name] = None
            self._inherited[cls, name] = self._method(cls, name)
        return self._inherited[cls, name]

    def _method(self, cls: cst.ClassDef, name: str) -> cst.FunctionDef | None:
        for candidate in self.methods.get(name, []):
            if self.script.scopes[candidate].node is cls:
                return candidate
        for base in cls.bases:
            local = self.definition(base.value)
            if isinstance(local, cst.ClassDef) and local is not cls and (found := self.method(local, name)):
                return found
        return None

    def fields(self, made: cst.Call) -> list[tuple[str, cst.BaseExpression]]:
        """Return what ``made``, a named tuple or an object of a data class, gets for its fields, in their order."""
        cls = self.definition(made.func)
        names = _declared(cls) if isinstance(cls, cst.ClassDef) and self.method(cls, "__init__") is None else []
        for binding in self.script.bindings_of(made.func) if cls is None else ():
            if isinstance(maker := binding.value, cst.Call) and not binding.path:
                named = self.script.name_of(maker.func) == "collections.namedtuple" and len(maker.args) > 1
                names = list(_listed(maker.args[1].value)) if named else names
        given = [a.value for a in made.args if a.keyword is None]
        keyed = [(a.keyword.value, a.value) for a in made.args if a.keyword is not None]
        starred = any(a.star for a in made.args)
        return [*zip(names, given, strict=False), *(p for p in keyed if p[0] in names)] if not starred else []

    def returns(self, function: cst.FunctionDef) -> list[cst.BaseExpression]:
        """Return what ``function`` returns or yields."""
        return self._returns.get(function, [])

    def named_calls(self, function: cst.FunctionDef) -> list[cst.Call]:
        """Return the calls that name ``function`` outright; what is known before ``callers`` is."""
        if self._named is None:
            self._named = {}
            for call in self.script.calls:
                above = self.inherited(call.func)
                for local in self.definitions(call.func) or ([above] if above is not None else []):
                    run = self.method(local, "__init__") if isinstance(local, cst.ClassDef) else local
                    if run is not None:
                        self._named.setdefault(run, []).append(call)
        return self._named.get(function, [])

    def argument(self, call: cst.Call, function: cst.FunctionDef, name: str) -> cst.BaseExpression | None:
        """Return the expression that ``call`` passes for the parameter ``name`` of ``function``."""
        found = self.handed(call, function, name)
        return found[0] if found is not None and found[1] is None else None

    def handed(
        self, call: cst.Call, function: cst.FunctionDef, name: str
    ) -> tuple[cst.BaseExpression, int | None] | None:
        """Return what ``call`` passes for a parameter; with the place in it where it is unpacked: ``f(*pair(x))``.

        That not of what foreign functions return: they tell nothing of their parts. What comes behind is only known
        where it is known how many these are.
        """
        names = [p.name.value for p in (*function.params.posonly_params, *function.params.params)]
        if isinstance(self.script.scopes[function].node, cst.ClassDef) and names and names[0] in ("self", "cls"):
            names = names[1:]
        position, unpacked = 0, None
        given = [*self._bound_before(call.func), *call.args]
        sure = not isinstance(function.params.star_arg, cst.Param)
        every = sure and not any(p.default for p in function.params.params)
        once = sum(arg.star != "" for arg in given) == 1
        rest = len(names) - len(given) + 1 if every and once else 0  # what is unpacked fills what nothing else does
        for arg in given:
            if arg.keyword is not None:
                if arg.keyword.value == name:
                    return arg.value, None
            elif arg.star == "*":
                own, size = self._parts(arg.value)
                size = size or max(rest, 0)
                if own and unpacked is None and name in names[position : position + size if size else None]:
                    unpacked = (arg.value, names.index(name) - position)
                position = position + size if size else len(names)
            elif not arg.star:
                if position < len(names) and names[position] == name:
                    return arg.value, None
                position += 1
            elif (entry := self._entry(arg.value, name)) is not None:
                return entry, None
        return unpacked

    def _entry(self, unpacked: cst.BaseExpression, name: str) -> cst.BaseExpression | None:
        """Return what the dict ``unpacked``, written out where it is or once before, has for ``name``."""
        bound = self.script.bindings_of(unpacked)
        made = bound[0].value if len(bound) == 1 and bound[0].how == "assign" and not bound[0].path else None
        found = [value for key, value in pairs(made or unpacked) if _text(key) == name]
        return found[0] if len(found) == 1 else None

    def beyond(self, call: cst.Call, function: cst.FunctionDef) -> list[cst.BaseExpression]:
        """Return what ``call`` gives ``function`` for its ``*args``; nothing where it unpacks what it gives."""
        own = isinstance(self.script.scopes[function].node, cst.ClassDef)
        named = len(function.params.posonly_params) + len(function.params.params) - own
        given = [*self._bound_before(call.func), *call.args]
        return [] if any(a.star for a in given) else [a.value for a in given if a.keyword is None][named:]

    def _parts(self, unpacked: cst.BaseExpression) -> tuple[bool, int]:
        """Tell whether the program shows what ``unpacked`` is made of, and how many parts it has; 0: unknown."""
        bindings = self.script.bindings_of(unpacked)
        whole = all(b.how == "assign" and not b.path for b in bindings)
        named = [b.value for b in bindings if b.value is not None] if whole else []
        made: list[cst.BaseExpression] = []
        for value in named or [unpacked]:
            functions = self.definitions(value.func) if isinstance(value, cst.Call) else ()
            made += [v for f in functions if isinstance(f, cst.FunctionDef) for v in self.returns(f)] or [value]
        sizes = {len(value.elements) if isinstance(value, cst.Tuple) else 0 for value in made}
        nested = any(isinstance(e, cst.StarredElement) for v in made if isinstance(v, cst.Tuple) for e in v.elements)
        foreign = any(isinstance(value, cst.Call) and self.definition(value.func) is None for value in made)
        return not foreign, sizes.pop() if len(sizes) == 1 and not nested else 0


def fits(call: cst.Call, function: cst.FunctionDef) -> bool:
    """Tell whether ``function`` takes as many arguments as ``call`` gives it."""
    params = [*function.params.posonly_params, *function.params.params]
    needed = [p for p in params if p.default is None]
    unpacks = any(arg.star for arg in call.args)
    return (
        unpacks
        or isinstance(function.params.star_arg, cst.Param)
        or (
            len(needed) <= len(call.args)
            and (
                len(call.args) <= len(params)
                or bool(function.params.kwonly_params)
                or function.params.star_kwarg is not None
            )
        )
    )


def _declared(cls: cst.ClassDef) -> list[str]:
    """Return the names of the fields that ``cls`` declares, ``train: Iterator``."""
    lines = (line for part in cls.body.body if isinstance(part, cst.SimpleStatementLine) for line in part.body)
    return [n.target.value for n in lines if isinstance(n, cst.AnnAssign) and isinstance(n.target, cst.Name)]


def _text(key: cst.CSTNode | None) -> object:
    return key.evaluated_value if isinstance(key, cst.SimpleString) else None


def _listed(names: cst.BaseExpression) -> Iterator[str]:
    """Yield the names in ``"train test"`` and in ``["train", "test"]``."""
    if isinstance(names, cst.SimpleString):
        yield from str(names.evaluated_value).replace(",", " ").split()
    for element in names.elements if isinstance(names, (cst.List, cst.Tuple)) else ():
        if isinstance(element.value, cst.SimpleString):
            yield str(element.value.evaluated_value)
