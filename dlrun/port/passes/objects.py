"""What methods of a script's own classes add up of the samples that training loops hand them."""

from __future__ import annotations

from functools import cached_property

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts.entries import of_zeros
from dlrun.port.passes.counters import runs_inside
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.script import Script, added, argument, calls_method, dotted, table_of, walk

Key = tuple[cst.CSTNode, str]  # a class, and the name of an attribute

_ZEROS = ("numpy.zeros", "torch.zeros")
_EMPTIES = ("zero_", "fill", "fill_", "clear")
_DEPTH = 4
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)


class Held:
    """What adds to one attribute of a class, and what reads it."""

    def __init__(self, metrics: Metrics, key: Key, uses: list[cst.Attribute]) -> None:
        self.metrics = metrics
        self.script = metrics.script
        self.key = key
        self.adds = {n: add for n in uses if (add := _add(self.script, n)) is not None}
        self.loops = [loop for add in self.adds.values() for loop in loops_around(metrics, add)]
        adding = {self.script.function_of(add) for add in self.adds.values()}
        adding -= {self.script.function_of(loop) for loop in self.loops if loop is not None}
        self.reads = [n for n in uses if self._is_read(n) and self.script.function_of(n) not in adding]

    @cached_property
    def trains(self) -> bool:
        """Whether a training loop adds to it."""
        return any(loop is not None for loop in self.loops)

    @cached_property
    def is_of_samples(self) -> bool:
        """Whether it is a table, or counts one sample after the other, or under tests of them."""
        made = [b.written for b in self.script.attributes[self.key] if b.how == "assign" and added(b.node) is None]
        tables = any(made_of is not None and self._is_table(made_of) for made_of in made)
        counted = any(map(self._is_counted, self.adds.values()))
        return counted or (tables and self._is_array() and self.depends)

    @cached_property
    def depends(self) -> bool:
        """Whether what is added depends on the samples, and not only on how many there are."""
        own = [n for add in self.adds.values() for n in _terms(add)]
        return any(self.metrics.trained(n) for n in own) or any(map(self._is_counted, self.adds.values()))

    @cached_property
    def fits(self) -> bool:
        """Whether it begins at zero, is added to by training loops alone, and can be summed up where it is read."""
        script, bound = self.script, self.script.attributes[self.key]
        begun = [b.written for b in bound if added(b.node) is None]
        zero = all(b.how == "assign" for b in bound) and all(map(self._begins, begun))
        dealt = all(isinstance(loop, cst.For) and self.metrics.sums.dealt(loop, loop.iter, True) for loop in self.loops)
        deep = [n for n in self.adds if isinstance(script.parents[script.parents[n]], cst.Subscript)]  # table[a][b]
        flat = not deep or self._is_array()
        graded = any(map(self.metrics.has_gradients, self.reads))
        return zero and dealt and flat and not graded and all(map(self._is_common, self.reads))

    def doubt(self) -> Doubt:
        """Return what is told where no edit is possible."""
        name, add = self.key[1], next(iter(self.adds.values()))
        lines = ", ".join(map(str, sorted({self.script.line(n) for n in self.reads})[:3]))
        alias = self.metrics.facts.alias
        return Doubt(add, f"{name} counts among this rank's own samples in training, 1/n of all, and is read as if of "
                     f"all in line {lines}", "high", f"{alias}.total() of it there")  # fmt: skip

    def _is_read(self, use: cst.Attribute) -> bool:
        """Tell whether ``use`` stands for its value: not where it is set, emptied, or asked for None."""
        script, up = self.script, self.script.parents[use]
        line = script.statement_of(use)
        if use in self.adds or any(script.inside(use, add) for add in self.adds.values()):
            return False
        targets = [t.target for t in line.targets] if isinstance(line, cst.Assign) else []
        targets += [line.target] if isinstance(line, (cst.AugAssign, cst.AnnAssign)) else []
        empties = isinstance(up, cst.Attribute) and up.attr.value in _EMPTIES
        none = isinstance(up, cst.Comparison) and isinstance(up.comparisons[0].operator, (cst.Is, cst.IsNot))
        inside = any(loop is not None and script.inside(use, loop.body) for loop in self.loops)
        return not (empties or none or inside or any(script.inside(use, t) for t in targets))

    def _is_common(self, read: cst.CSTNode, depth: int = _DEPTH) -> bool:
        """Tell whether all ranks come to ``read`` together, also through the functions around it."""
        ups = [up for up in self.script.above(read) if isinstance(up, _COMPREHENSIONS)]
        turns = [n for up in ups if not self.script.inside(read, up.for_in.iter) for n in walk(up.for_in.iter)]
        own = any(isinstance(n, cst.Name) and self.metrics.facts.unequal(n) for n in turns)
        if own or not self.metrics.all_ranks(self.script.statement_of(ups[-1]) if ups else read):
            return False
        function = self.script.function_of(read)
        calls = self.metrics.facts.flow.callers(function) if isinstance(function, cst.FunctionDef) and depth else []
        return all(self._is_common(call, depth - 1) for call in calls)

    def _is_counted(self, add: cst.CSTNode) -> bool:
        """Tell whether ``add`` adds for one sample after the other, or where a test of a rank's own samples holds."""
        ups = [up for up in self.script.above(add) if up not in self.loops]
        until = next((i for i, up in enumerate(ups) if isinstance(up, cst.FunctionDef)), len(ups))
        turns = [up for up in ups[:until] if isinstance(up, cst.For)]
        own = any(self.metrics.facts.unequal(n) for up in turns for n in walk(up.iter) if isinstance(n, cst.Name))
        tests = [up.test for up in ups[:until] if isinstance(up, cst.If)]
        one = isinstance((added(add) or (add, add))[1], cst.Integer) or isinstance(add, cst.Assign)
        return one and (own or any(self.metrics.facts.unequal(n) for t in tests for n in walk(t)))

    def _is_array(self) -> bool:
        made = [b.written for b in self.script.attributes[self.key]]
        return any(isinstance(m, cst.Call) and self.script.name_of(m.func) in _ZEROS for m in made)

    def _is_table(self, made: cst.BaseExpression) -> bool:
        """Tell whether ``made`` is an array of zeros, an empty dict or Counter, or a list that is written out."""
        zeros = isinstance(made, cst.Call) and self.script.name_of(made.func) in _ZEROS
        array = zeros and not self.metrics.scalar(made)
        if isinstance(made, cst.Call) and self.script.name_of(made.func) == "dataclasses.field":
            return dotted(argument(made, "default_factory") or made) in ("dict", "Counter", "collections.Counter")
        empty = (isinstance(made, cst.Dict) and not made.elements) or of_zeros(self.script, made)
        repeated = isinstance(made, cst.BinaryOperation) and isinstance(made.left, cst.List)
        return array or empty or repeated or isinstance(made, cst.ListComp)

    def _begins(self, made: cst.BaseExpression | None) -> bool:
        zero = isinstance(made, (cst.Integer, cst.Float)) and made.evaluated_value == 0
        empty = isinstance(made, cst.Name) and made.value == "None"
        if isinstance(made, cst.BinaryOperation):  # [0] * 10
            return isinstance(made.left, cst.List) and len(made.left.elements) == 1 and self._begins(
                made.left.elements[0].value)  # fmt: skip
        if isinstance(made, cst.ListComp):
            return self._begins(made.elt)
        return zero or empty or (made is not None and self._is_table(made))


def held_by(metrics: Metrics) -> dict[Key, Held]:
    """Return the attributes of classes to which a training loop adds."""
    uses: dict[str, list[cst.Attribute]] = {}
    for node in metrics.script.of(cst.Attribute):
        uses.setdefault(node.attr.value, []).append(node)
    found: dict[Key, Held] = {}
    for owner, name in metrics.script.attributes:
        mine = [n for n in uses.get(name, ()) if _add(metrics.script, n) is not None]
        if isinstance(owner, cst.ClassDef) and mine:
            each = Held(metrics, (owner, name), [n for n in uses[name] if key_of(metrics, n) == (owner, name)])
            found |= {each.key: each} if each.trains else {}
    return found


def key_of(metrics: Metrics, use: cst.Attribute) -> Key | None:
    """Return the class that has the attribute ``use``, and its name."""
    script, flow = metrics.script, metrics.facts.flow
    cls = script.class_of(use) if dotted(use.value) == "self" else None
    owners = [flow.keeper(cls, use.attr.value)] if cls is not None else flow.keepers(use)
    return (owners[0], use.attr.value) if len(owners) == 1 and owners[0] is not None else None


def _add(script: Script, use: cst.Attribute) -> cst.CSTNode | None:
    """Return what adds to ``use``, or to an entry of it: ``stats.seen[label] = stats.seen.get(label, 0) + 1``."""
    up: cst.CSTNode = use
    while isinstance(script.parents[up], cst.Subscript) and script.parents[up].value is up:  # type: ignore[attr-defined]
        up = script.parents[up]
    line = script.parents[up]
    match line:
        case cst.AugAssign(operator=cst.AddAssign()) if line.target is up:
            return line
        case cst.AssignTarget():
            whole = script.parents[line]
            value = whole.value if isinstance(whole, cst.Assign) else None
            sides = (value.left, value.right) if isinstance(value, cst.BinaryOperation) else ()
            grows = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add)
            before = [n.func.value if calls_method(n, "get") else table_of(n) for n in sides]
            return whole if grows and any(script.code(n) == script.code(use) for n in before) else None
        case cst.Attribute(attr=cst.Name("update")) if up is use and isinstance(script.parents[line], cst.Call):
            made = [b.written for b in script.kept_bindings(use)]
            counter = all(isinstance(m, cst.Call) and script.name_of(m.func) == "collections.Counter" for m in made)
            return script.parents[line] if made and counter else None
        case cst.Arg() if isinstance(call := script.parents[line], cst.Call) and call.args[0] is line:
            return call if script.name_of(call.func) == "numpy.add.at" else None
    return None


def _terms(add: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what tells how much ``add`` adds, and where."""
    if isinstance(add, cst.Call):
        return [a.value for a in add.args]
    target = add.target if isinstance(add, cst.AugAssign) else add.targets[0].target  # type: ignore[attr-defined]
    places = [n for n in walk(target) if isinstance(n, cst.SubscriptElement)]
    return [add.value, *(n for p in places for n in walk(p) if isinstance(n, cst.Name))]  # type: ignore[attr-defined]


def loops_around(metrics: Metrics, node: cst.CSTNode, depth: int = _DEPTH) -> list[cst.For | cst.While | None]:
    """Return the training loops in whose turns ``node`` runs, be it called there; None for where there is none."""
    for up in metrics.script.above(node):
        if isinstance(up, (cst.For, cst.While)) and up in metrics.facts.loops and not runs_inside(
                metrics.facts, up.body):  # fmt: skip
            return [up]
        if isinstance(up, cst.FunctionDef):
            calls = metrics.facts.flow.callers(up) if depth else []
            return [loop for call in calls for loop in loops_around(metrics, call, depth - 1)] or [None]
    return [None]
