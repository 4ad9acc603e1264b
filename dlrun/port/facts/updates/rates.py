"""Where a script sets the learning rates that optimizers hold."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import computed, reaching
from dlrun.port.program.dicts import pairs
from dlrun.port.program.reaching import reaching as seen_by
from dlrun.port.program.script import Binding, dotted, walk

_RATES = ("lr", "learning_rate")
# What keeps a rate above one that is given, or below.
ENDS = (
    "builtins.max",
    "builtins.min",
    "numpy.maximum",
    "numpy.minimum",
    "numpy.clip",
    "tensorflow.maximum",
    "tensorflow.minimum",
    "tensorflow.clip_by_value",
)
ORDER = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)
_CALLBACKS = ("LearningRateScheduler", "ReduceLROnPlateau")


def changes(facts: ScriptFacts) -> Iterator[cst.CSTNode]:
    """Yield the places where the script changes an optimizer's rate: schedulers, callbacks, assignments."""
    for node in facts.script.nodes:
        if isinstance(node, cst.Call):
            name = facts.script.name_of(node.func)
            sets = dotted(node.func).endswith((".lr.assign", ".learning_rate.assign")) or name.endswith(".set_value")
            sets = sets or set_in_group(facts, node) is not None
            if facts.kinds.of_call(node) == "scheduler" or name.endswith(_CALLBACKS) or sets:
                yield node
        elif isinstance(node, (cst.Assign, cst.AugAssign)):
            yield from (node for target in targets(node) if holds_rate(facts, target))


def given(facts: ScriptFacts) -> Iterator[cst.BaseExpression]:
    """Yield what the rates that optimizers hold are set to: ``rate`` of ``opt.learning_rate.assign(rate)``."""
    for node in changes(facts):
        if isinstance(node, cst.Assign):
            yield node.value
        elif isinstance(node, cst.Call) and node.args and dotted(node.func).endswith(("assign", "set_value")):
            yield node.args[-1].value


def holds_rate(facts: ScriptFacts, target: cst.CSTNode) -> bool:
    """Tell whether ``target`` is the rate that an optimizer holds: ``group["lr"]``, ``opt.learning_rate``."""
    held = isinstance(target, cst.Attribute) and target.attr.value in _RATES
    return is_groups_rate(facts, target) or (held and facts.kinds.is_optimizer(target.value))  # type: ignore[attr-defined]


def targets(node: cst.Assign | cst.AugAssign) -> tuple[cst.CSTNode, ...]:
    """Return what an assignment sets: two things in ``lr = group["lr"] = 0.1``."""
    return (node.target,) if isinstance(node, cst.AugAssign) else tuple(t.target for t in node.targets)


def sets_groups_rate(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is an assignment to ``group["lr"]``."""
    return isinstance(node, cst.Assign) and any(is_groups_rate(facts, target) for target in targets(node))


def set_in_group(facts: ScriptFacts, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the rate that ``node`` sets a group's to: of ``group["lr"] = rate``, and of ``group.update(lr=rate)``.

    Also of ``group.__setitem__("lr", rate)``, and of ``group["lr"].fill_(rate)``.
    """
    match node:
        case cst.Assign():
            return node.value if sets_groups_rate(facts, node) else None
        case cst.Call(func=cst.Attribute(value=group, attr=cst.Name("update")), args=args) if is_group(facts, group):
            named = [arg.value for arg in args if arg.keyword is not None and arg.keyword.value == "lr"]
            tables = [arg.value for arg in args if arg.keyword is None]
        case cst.Call(func=cst.Attribute(value=group, attr=cst.Name("__setitem__")), args=[key, rate]):
            return rate.value if text_of(key.value) == "lr" and is_group(facts, group) else None
        case cst.Call(func=cst.Attribute(value=held, attr=cst.Name("fill_" | "copy_")), args=[rate, *_]):
            return rate.value if is_groups_rate(facts, held) else None  # a rate that is a tensor
        case cst.AugAssign(target=group, operator=cst.BitOrAssign(), value=table) if is_group(facts, group):
            named, tables = [], [table]
        case _:
            return None
    entries = [e for table in tables if isinstance(table, cst.Dict) for e in table.elements]
    named += [e.value for e in entries if isinstance(e, cst.DictElement) and text_of(e.key) == "lr"]
    return named[0] if named else None


def is_groups_rate(facts: ScriptFacts, target: cst.CSTNode) -> bool:
    """Tell whether ``target`` is ``group["lr"]``."""
    index = target.slice[0].slice if isinstance(target, cst.Subscript) else None
    named = isinstance(index, cst.Index) and text_of(index.value) == "lr"
    return isinstance(target, cst.Subscript) and named and is_group(facts, target.value)


def text_of(node: cst.CSTNode) -> str:
    """Return the text that ``node`` is, or an empty one."""
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""


def is_group(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a parameter group of an optimizer of PyTorch, or of the state of one."""
    if any(map(_are_groups, walk(node))):
        return True
    if isinstance(node, cst.Name):
        bindings = facts.script.bindings_of(node)
        return any(b.value is not None and any(map(_are_groups, walk(b.value))) for b in bindings)
    return False


def _are_groups(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is ``optimizer.param_groups``, or ``state["param_groups"]``."""
    index = node.slice[0].slice if isinstance(node, cst.Subscript) else None
    named = isinstance(index, cst.Index) and text_of(index.value) == "param_groups"
    return named or (isinstance(node, cst.Attribute) and node.attr.value == "param_groups")


def resets(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the rates that are written over those of PyTorch's optimizers, not changed by a factor."""
    for node in facts.script.nodes:
        value = set_in_group(facts, node)
        if value is not None and not is_zero(value) and not scaled_already(facts, value):
            yield value


def mixed(facts: Facts) -> Iterator[cst.Name]:
    """Yield names that rates are set to and that hold one in use, which is scaled, in some iterations alone.

    ``for epoch in range(9): group["lr"] = lr; ...; lr = 0.5 * group["lr"]``, after ``lr = 0.1``.
    """
    for node in facts.script.nodes:
        value = set_in_group(facts, node)
        if isinstance(value, cst.Name):
            seen = seen_by(facts.script, value) or facts.script.bindings_of(value)
            made = [b.written for b in seen if b.how == "assign" and b.written is not None]
            scaled = {scaled_already(facts, each, frozenset([value.value])) for each in made}
            carried = any(_reads_name(each, value.value) for each in made)  # lr = max(lr * 0.5, low)
            if len(scaled) == 2 and not carried:
                yield value


def _reads_name(node: cst.CSTNode, name: str) -> bool:
    return any(isinstance(n, cst.Name) and n.value == name for n in walk(node))


def ends(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the rates that are set against one that an optimizer holds: ``low`` in ``max(low, 0.9 * group["lr"])``.

    And what such a one is compared with: ``if group["lr"] < 1e-6: break``.
    """
    for node in facts.script.nodes:
        sides: list[cst.BaseExpression] = []
        if isinstance(node, cst.Call) and facts.script.name_of(node.func) in ENDS:
            sides = [arg.value for arg in node.args]
        elif isinstance(node, cst.Comparison) and all(isinstance(c.operator, ORDER) for c in node.comparisons):
            sides = [node.left, *(c.comparator for c in node.comparisons)]
        held = [scaled_already(facts, side) for side in sides]
        if any(held):
            yield from (side for side, known in zip(sides, held, strict=True) if not known and not is_zero(side))


def is_zero(rate: cst.CSTNode) -> bool:
    """Tell whether a rate is written as 0: the one that is meant is set elsewhere."""
    return isinstance(rate, (cst.Integer, cst.Float)) and rate.evaluated_value == 0


def is_least(steps: cst.CSTNode) -> bool:
    """Tell whether a number of steps is written as 0 or 1: the first step is that of n ranks, too."""
    return isinstance(steps, cst.Integer) and steps.evaluated_value in (0, 1)


def scaled_already(facts: ScriptFacts, value: cst.CSTNode, seen: frozenset[str] = frozenset()) -> bool:
    """Tell whether ``value`` is computed from a rate that an optimizer holds, and so is scaled."""
    nodes = list(_made_of(facts, value))
    calls = [n for n in nodes if isinstance(n, cst.Call)]
    numbers = {n for call in calls if dotted(call.func) == "len" for n in walk(call)}  # of groups, and no rates
    others = _reads_other_entries(facts, nodes)
    for n in (n for n in nodes if n not in numbers):
        if isinstance(n, cst.Attribute) and n.attr.value in ("get_last_lr", "get_lr", "defaults", "base_lrs"):
            return True
        if isinstance(n, cst.Call) and (name := dotted(n.func)) and name not in seen:  # def rate(): return group["lr"]
            ends = [end for target in facts.flow.targets(n) for end in facts.flow.returns(target)]
            if any(scaled_already(facts, end, seen | {name}) for end in ends):
                return True
        if isinstance(n, cst.Attribute) and n.attr.value == "param_groups" and not others:
            return True
        if (
            isinstance(n, cst.SimpleString)
            and text_of(n) in ("lr", "initial_lr")
            and isinstance(facts.script.parents[n], cst.Index)
        ):
            box = facts.script.parents[facts.script.parents[facts.script.parents[n]]]
            if isinstance(box, cst.Subscript) and is_group(facts, box.value):
                return True
        if (
            isinstance(n, cst.Name)
            and n.value not in seen
            and not (others and is_group(facts, n))
            and not isinstance(facts.script.parents.get(n), cst.Attribute)
        ):
            bindings, scope = facts.script.scopes[n].lookup(n.value)
            if scope is None or len(bindings) > 6:
                continue
            for b in seen_by(facts.script, n) or bindings:  # lr = sched.get_last_lr()[0], behind SGD(weights, lr=lr)
                plain = b.value if b.path == ("part",) else b.written
                each = _gone_through(b) if b.how == "assign" and b.path[:1] == ("each",) else None
                if b.how == "assign" and plain is not None and scaled_already(facts, plain, seen | {n.value}):
                    return True
                if each is not None and _holds_rates(facts, each, seen | {n.value}):
                    return True
        elif isinstance(n, cst.Attribute) and dotted(n) not in seen:
            kept = [b.written for b in facts.script.kept_bindings(n) if b.written is not None]
            if any(scaled_already(facts, made, seen | {dotted(n)}) for made in kept):
                return True
    return False


def _made_of(facts: ScriptFacts, value: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the nodes of ``value``: of an entry of what is written out those of that entry, and not of its neighbours.

    In ``row = {"loss": loss, "lr": group["lr"]}`` the entry ``row["loss"]`` is no rate.
    """
    entries = _entries(facts, value)
    if entries is None:
        yield value
    for part in value.children if entries is None else entries:
        yield from _made_of(facts, part)


def _entries(facts: ScriptFacts, node: cst.CSTNode) -> list[cst.BaseExpression] | None:
    """Return what may be read by ``row["loss"]`` or ``row[0]`` of dicts and tuples that are written out; else None."""
    match node:
        case cst.Subscript(value=cst.Name() as box, slice=[cst.SubscriptElement(slice=cst.Index(value=at))]):
            key = text_of(at)
        case cst.Call(func=cst.Attribute(value=cst.Name() as box, attr=cst.Name("get")), args=[cst.Arg(value=at), *_]):
            key = text_of(at)
        case _:
            return None
    found: list[cst.BaseExpression] = []
    for binding in facts.script.bindings_of(box):
        made = binding.value if binding.how == "assign" and not binding.path else None
        if key and (keyed := pairs(made)) if made is not None else []:
            found += [value for name, value in keyed if name is None or text_of(name) in ("", key)]
        elif isinstance(made, cst.Tuple) and not _starred(made) and (place := _place(at)) is not None:
            found += [e.value for e in made.elements[place:][:1]]
        else:
            return None
    return found or None


def _place(at: cst.BaseExpression) -> int | None:
    """Return the place that is written as ``2``, or ``-1``."""
    match at:
        case cst.Integer():
            return at.evaluated_value
        case cst.UnaryOperation(operator=cst.Minus(), expression=cst.Integer() as number):
            return -number.evaluated_value
    return None


def _starred(made: cst.Tuple) -> bool:
    return any(isinstance(element, cst.StarredElement) for element in made.elements)


def _reads_other_entries(facts: ScriptFacts, nodes: list[cst.CSTNode]) -> bool:
    """Tell whether ``nodes`` read entries of groups, and none that is a rate: ``group["params"]``."""
    keys = {
        text_of(at)
        for node in nodes
        if isinstance(node, cst.Subscript)
        and isinstance(at := getattr(node.slice[0].slice, "value", None), cst.SimpleString)
        and is_group(facts, node.value)
    }
    return bool(keys) and keys.isdisjoint(("lr", "initial_lr"))


def _gone_through(binding: Binding) -> cst.BaseExpression | None:
    """Return what a loop goes through to bind a name: ``rates`` of ``for group, rate in zip(groups, rates)``."""
    match binding.value, binding.path:
        case cst.Call(func=cst.Name("zip"), args=args), ("each", int(at), *_) if at < len(args):
            return args[at].value
        case cst.Call(func=cst.Name("enumerate"), args=[cst.Arg(value=through), *_]), ("each", 1):
            return through
        case (cst.Name() | cst.Attribute()) as through, ("each",):
            return through
    return None


def _holds_rates(facts: ScriptFacts, node: cst.BaseExpression, seen: frozenset[str]) -> bool:
    """Tell whether ``node`` is a list of rates that an optimizer held: ``[g["lr"] for g in opt.param_groups]``."""
    if isinstance(node, cst.Attribute) and node.attr.value == "param_groups":
        return False  # its groups, not their rates
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        return scaled_already(facts, node.elt, seen)
    if dotted(node) in seen:
        return False
    bindings = facts.script.bindings_of(node) if isinstance(node, cst.Name) else facts.script.kept_bindings(node)
    made = [b.value for b in bindings if b.how == "assign" and b.value is not None and not b.path]
    if isinstance(node, cst.Attribute) and node.attr.value == "base_lrs":
        return True
    return any(_holds_rates(facts, value, seen | {dotted(node)}) for value in made)


def reads_rate(
    facts: ScriptFacts, value: cst.BaseExpression, current: cst.Param | None = None
) -> tuple[cst.BaseExpression, ...]:
    """Return where what ``value`` is computed from reads the rate that an optimizer holds, and so is scaled.

    Also by the parameter ``current``, which a function gets it by.
    """

    def held(node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Name) and current is not None and node.value == current.name.value:
            return any(b.node is current for b in facts.script.bindings_of(node))
        return isinstance(node, cst.Attribute) and node.attr.value in _RATES and facts.kinds.is_optimizer(node.value)

    everywhere = (*facts.script.of(cst.FunctionDef), *facts.script.of(cst.Lambda), *facts.script.of(cst.Module))
    return computed(facts.flow, [value], held, around=everywhere).reads


def absolute(
    facts: ScriptFacts, value: cst.BaseExpression, current: cst.Param | None = None, depth: int = 9
) -> list[cst.BaseExpression]:
    """Return what of a new rate is not made of the ``current`` one, nor of what the optimizer holds.

    All of it; or branches of ``rate if warm else 0.1``, the ends of ``max(0.9 * rate, 1e-5)``, what is added to a rate,
    values of a name, and of a function that is given the rate.
    """
    if not reads_rate(facts, value, current):
        return [value]
    parts: list[cst.BaseExpression] = []
    match value:
        case cst.IfExp():
            parts = [value.body, value.orelse]
        case cst.BinaryOperation(operator=cst.Add() | cst.Subtract()):
            parts = [value.left, value.right]
        case cst.BinaryOperation(operator=cst.Multiply() | cst.Divide()):
            parts = [side for side in (value.left, value.right) if reads_rate(facts, side, current)]
        case cst.Name():
            parts = [
                part
                for binding in reaching(facts.script, value, facts.script.bindings_of(value))
                for part in _given(facts, value, binding)
            ]
        case cst.Call() if plain(facts.script.name_of(value.func)) in ENDS:
            parts = [arg.value for arg in value.args]
        case cst.Call():
            parts = [made for function in facts.flow.targets(value) for made in facts.flow.returns(function)]
    return [p for part in parts if depth for p in absolute(facts, part, current, depth - 1)]


def _given(facts: ScriptFacts, name: cst.Name, binding: Binding) -> list[cst.BaseExpression]:
    """Return what ``binding`` makes of ``name``, a rate, if it is not only multiplied, and not before a loop around."""
    loop = next((up for up in facts.script.above(name) if isinstance(up, (cst.For, cst.While))), None)
    if loop is not None and not facts.script.inside(binding.node, loop):
        return []
    if isinstance(binding.node, cst.AugAssign):
        return [binding.node.value] if isinstance(binding.node.operator, (cst.AddAssign, cst.SubtractAssign)) else []
    return [binding.value] if binding.how == "assign" and not binding.path and binding.value is not None else []
