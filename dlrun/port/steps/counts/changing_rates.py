"""Part of step "steps": rates that a factor, or a step of their own, changes at every batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import given as handed
from dlrun.port.facts.updates.rates import ENDS, given, holds_rate, scaled_already, set_in_group
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.counts.counters import each_update, innermost
from dlrun.port.steps.counts.counts import is_own
from dlrun.port.steps.counts.step_rates import TELLS_APART

MULTIPLIES = "it multiplies the rate at every batch, and n ranks take 1/n of the batches"
FORGETS = "a moving average forgets with every step, and n ranks take 1/n of them (arXiv 2307.13813)"
_MOVES = ("assign_add", "assign_sub")
_READ = ("numpy", "item", "value", "read_value")
_TOLD = ("get_lr", "get_last_lr")  # rates that are in use
_SCALES = (cst.MultiplyAssign, cst.DivideAssign)


def compound(facts: ScriptFacts, factor: cst.BaseExpression, why: str = MULTIPLIES) -> Edit:
    """Return the edit of a ``factor`` that something, such as the rate, is multiplied by at every batch."""
    return Edit(factor, why, lambda node: expression("torch/compound", {"factor": node}, dl=facts.alias))


def compounded(
    facts: Facts, divided: Collection[cst.CSTNode], fed: Iterable[cst.BaseExpression] = ()
) -> Iterator[Edit | Doubt]:
    """Raise the factor that the rate is multiplied by at every update, and multiply what it grows or falls by.

    ``group["lr"] *= 0.999``, also by a name that is written there. Not so under a test with one of the counts that are
    ``divided``, or with values of the training. A factor that changes is only doubted. ``fed`` are rates that sessions
    are fed.
    """
    written = [*given(facts), *(rate for _, rates in facts.by_hand for rate in rates), *fed]
    params = [b for value in written if isinstance(value, cst.Name) for b in facts.script.bindings_of(value)]
    written += [value for b in params if b.how == "param" for value in handed(facts.flow, b)]  # set_rate(state.lr)
    for node in facts.script.nodes:
        yield from _updated(facts, node, divided)
        if (found := change(facts, node)) is None or not _is_rate(facts, target_of(node), written):
            continue
        by, adds = found
        if _begins_anew(facts, node):
            continue  # rate = f(step); if step < warm: rate /= 10
        if is_own(facts, by):
            continue  # (high / low) ** (1 / len(loader)): as many steps as a rank takes
        around = innermost(facts, node)
        over_groups = isinstance(around, cst.For) and around not in facts.loops
        at = around if around is not None and over_groups else node
        if not each_update(facts, at) or is_told(facts, at, divided) or is_judged(facts, at):
            continue
        bindings = [
            b
            for n in walk(by)
            if isinstance(n, cst.Name) and n in facts.script.scopes
            for b in facts.script.bindings_of(n)
        ]
        loop = innermost(facts, at)
        if any(loop is not None and facts.script.inside(b.node, loop) for b in bindings):
            how = "serial_steps" if adds else "compound"
            yield Doubt(
                node,
                "changes the rate at every batch, and n ranks take 1/n of the batches: it changes n times more slowly",
                "high",
                f"{facts.alias}.{how}({facts.script.code(by)})",
            )
        elif adds:
            yield Edit(
                by, "the rate changes by it at every batch, and n ranks take 1/n of the batches", _grown(facts, node)
            )
        else:
            yield compound(facts, by)


def _begins_anew(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether what ``node`` changes was computed anew in this iteration: nothing of it goes on to the next."""
    script, target = facts.script, target_of(node)
    loop = next((up for up in script.above(node) if up in facts.loops), None)
    home, name = script.function_of(node), script.code(target)

    onward = {
        script.code(t.target) for n in script.of(cst.Assign) if _mentions(facts, n.value, {name}) for t in n.targets
    }

    def anew(line: cst.CSTNode) -> bool:
        if not isinstance(line, cst.Assign) or all(script.code(t.target) != name for t in line.targets):
            return False
        read = [n for body in facts.flow.bodies(line.value) for n in walk(body)]
        kept = any(holds_rate(facts, n) or (isinstance(n, cst.Call) and calls_method(n, *_TOLD)) for n in read)
        return not kept and not _mentions(facts, line.value, {name, *onward})

    for line in (*script.of(cst.Assign), *script.of(cst.Expr)):
        if script.function_of(line) is not home or script.order[line] >= script.order[node]:
            continue
        if not script.inside(node, script.suite(line)) or (loop is not None and not script.inside(line, loop)):
            continue
        made = line.value if isinstance(line, (cst.Assign, cst.Expr)) else None
        bodies = [t.body for t in facts.flow.targets(made)] if isinstance(made, cst.Call) else []
        whole = [n for body in bodies for n in walk(body) if isinstance(n, cst.Assign) and script.suite(n) is body]
        if anew(line) or ("." in name and any(map(anew, whole))):
            return True
    return False


def _mentions(facts: Facts, value: cst.CSTNode, names: set[str]) -> bool:
    """Tell whether ``value`` is computed from one of ``names``, which may be attributes and entries, too."""
    parts = (n for n in walk(value) if isinstance(n, (cst.Name, cst.Attribute, cst.Subscript)))
    return any(facts.script.code(n) in names for n in parts)


def _updated(facts: Facts, node: cst.CSTNode, divided: Collection[cst.CSTNode]) -> Iterator[Doubt]:
    """Yield a doubt where a dict of a group changes its rate at every batch: ``g.update(lr=g["lr"] * 0.999)``."""
    rate = set_in_group(facts, node) if isinstance(node, (cst.Call, cst.AugAssign)) else None
    if rate is None or not scaled_already(facts, rate):
        return
    around = innermost(facts, node)
    at = around if isinstance(around, cst.For) and around not in facts.loops else node
    if each_update(facts, at) and not is_told(facts, at, divided) and not is_judged(facts, at):
        why = "changes the rate at every batch, and n ranks take 1/n of the batches: it changes n times more slowly"
        yield Doubt(node, why, "high", f'group["lr"] *= {facts.alias}.compound(factor)')


def _grown(facts: Facts, node: cst.CSTNode) -> Callable[[cst.BaseExpression], cst.BaseExpression]:
    """Return what multiplies that by which ``node`` changes a rate; one that is scaled, by as much again.

    What is added in a new rate of Keras is scaled with it: see ``steps/rate/keras_rate``.
    """
    target = target_of(node)
    rule = facts.options.lr_scaling
    if facts.framework != "torch" and not isinstance(node, cst.AugAssign) and not calls_method(node, *_MOVES):
        rule = "none"

    def more(by: cst.BaseExpression) -> cst.BaseExpression:
        steps = expression("torch/serial_steps", {"step": by}, dl=facts.alias)
        if rule == "none" or not holds_rate(facts, target):
            return steps
        return expression("torch/rate", {"lr": steps}, dl=facts.alias, rule=rule)

    return more


def is_judged(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` runs where values of the training are so: ``if loss.item() > 2``."""
    tests = [up.test for up in facts.script.above(node) if isinstance(up, cst.If)]
    return any(facts.local(n) for test in tests for n in walk(test))


def is_told(facts: Facts, node: cst.CSTNode, divided: Collection[cst.CSTNode], depth: int = 3) -> bool:
    """Tell whether ``node`` runs once in as many steps as one of the counts that are ``divided``, or at that step."""
    tests = [
        n
        for up in facts.script.above(node)
        if isinstance(up, cst.If)
        for n in walk(up.test)
        if isinstance(n, cst.Comparison) and isinstance(n.comparisons[0].operator, TELLS_APART)
    ]
    function = facts.script.function_of(node)
    calls = facts.flow.callers(function) if depth and isinstance(function, cst.FunctionDef) else []
    return any(facts.script.inside(n, test) for n in divided for test in tests) or (
        bool(calls) and all(is_told(facts, call, divided, depth - 1) for call in calls)
    )


def target_of(node: cst.CSTNode) -> cst.CSTNode:
    """Return what ``node``, an assignment, or a call that assigns to a variable, gives a value to."""
    if isinstance(node, cst.Call):  # lr.assign(x), or set_value(lr, x)
        return node.args[0].value if len(node.args) == 2 else cst.ensure_type(node.func, cst.Attribute).value
    return node.target if isinstance(node, cst.AugAssign) else cst.ensure_type(node, cst.Assign).targets[0].target


def change(facts: ScriptFacts, node: cst.CSTNode) -> tuple[cst.BaseExpression, bool] | None:
    """Return what ``node`` multiplies a number, such as a rate, with, or adds to it, and whether it adds.

    ``f`` in ``g["lr"] *= f``, in ``g["lr"] = f * g["lr"]``, in ``lr = max(low, lr * f)`` and in ``lr.assign(lr * f)``.
    Also of a rate that is read in another way, ``opt.lr = float(opt.lr) * f``, or handed on, ``set_lr(rate() * f)``.
    """
    if isinstance(node, cst.AugAssign):
        adds = isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign))
        return (node.value, adds) if adds or isinstance(node.operator, _SCALES) else None
    if isinstance(node, cst.Call) and node.args and calls_method(node, *_MOVES):
        return node.args[0].value, True
    sets = isinstance(node, cst.Call) and len(node.args) == 2 and facts.script.name_of(node.func).endswith(".set_value")
    if not isinstance(node, cst.Assign) and not sets and not (calls_method(node, "assign") and node.args):
        return None
    target = target_of(node)
    made = node.value if isinstance(node, cst.Assign) else cst.ensure_type(node, cst.Call).args[-1].value
    kept = [made]
    if isinstance(made, cst.Name) and holds_rate(facts, target):
        kept = [value for binding in facts.script.bindings_of(made) for value in handed(facts.flow, binding)]
    kept = [
        arg.value if isinstance(arg, cst.Arg) else arg
        for v in kept
        for arg in (v.args if isinstance(v, cst.Call) and plain(facts.script.name_of(v.func)) in ENDS else [v])
    ]
    for value in (v for v in kept if isinstance(v, cst.BinaryOperation)):
        same = [_reads(facts, side, target) for side in (value.left, value.right)]
        other = value.right if same[0] else value.left
        turned = isinstance(value.operator, (cst.Multiply, cst.Add))
        if same == [True, False] or (same == [False, True] and turned):
            if isinstance(value.operator, (cst.Add, cst.Subtract)):
                return other, True
            return (other, False) if isinstance(value.operator, (cst.Multiply, cst.Divide)) else None
    return None


def _reads(facts: ScriptFacts, side: cst.BaseExpression, target: cst.CSTNode) -> bool:
    """Tell whether ``side`` is what ``target`` held, or the rate that an optimizer held, when this batch began."""
    side = _number_of(facts, side)
    if facts.script.code(side) == facts.script.code(target):
        return True
    if not holds_rate(facts, target):
        return False
    if isinstance(side, cst.Call):
        made = [_number_of(facts, o.node) for o in facts.flow.origins(side)]  # type: ignore[arg-type]
        return bool(made) and all(holds_rate(facts, value) for value in made)
    if not isinstance(side, cst.Name):
        return holds_rate(facts, side)
    loops = [up for up in facts.script.above(side) if up in getattr(facts, "innermost", ())]
    return bool(loops) and all(
        b.value is not None and not b.path and facts.script.inside(b.node, loops[0]) and _reads(facts, b.value, target)
        for b in facts.script.bindings_of(side)
    )


def _number_of(facts: ScriptFacts, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the variable that ``node`` reads: that of ``float(lr)``, ``lr.numpy()`` and ``get_value(lr)``."""
    if isinstance(node, cst.Call):
        if not node.args and isinstance(node.func, cst.Attribute) and node.func.attr.value in _READ:
            return _number_of(facts, node.func.value)
        name = facts.script.name_of(node.func)
        if len(node.args) == 1 and (name == "builtins.float" or name.endswith(".get_value")):
            return _number_of(facts, node.args[0].value)
    return node


def _is_rate(facts: Facts, target: cst.CSTNode, written: Collection[cst.BaseExpression]) -> bool:
    """Tell whether ``target`` is an optimizer's rate, or is ``written`` into one as it is: ``group["lr"] = lr``.

    Or the rate of an update by hand: ``w -= lr * w.grad``.
    """
    return holds_rate(facts, target) or is_set(facts, target, written)


def is_set(facts: ScriptFacts, target: cst.CSTNode, written: Collection[cst.BaseExpression]) -> bool:
    """Tell whether ``target`` is a name, or an attribute, that is one of those ``written``."""
    if not isinstance(target, (cst.Name, cst.Attribute)):
        return False
    return any(
        type(value) is type(target)
        and dotted(value) == dotted(target)
        and (
            facts.script.bindings_of(value) == facts.script.bindings_of(target)
            if isinstance(target, cst.Name)
            else facts.script.class_of(value) is facts.script.class_of(target)
        )
        for value in written
    )
