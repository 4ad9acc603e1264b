"""Part of step "metrics": what stops, keeps or steers the training is the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.rates import ORDER
from dlrun.port.facts.session import runs_alone
from dlrun.port.facts.taint import Taint
from dlrun.port.insert import statements
from dlrun.port.passes import returned, steering, totals
from dlrun.port.passes.counters import attributes, counters, innermost, runs_inside, tells
from dlrun.port.passes.finish import EXITS
from dlrun.port.passes.metrics import Metrics, asked_if_finite
from dlrun.port.program.script import calls_method, dotted, names_in, walk

_TURNS = (cst.For, cst.While, cst.ListComp, cst.GeneratorExp, cst.DictComp)
_ENDS = ("builtins.max", "builtins.min")
_STEERS = ("state_dict", "load_state_dict", "param_groups", "save", "step", "requires_grad", "requires_grad_")
_DEPTH = 4
_LEAVES = (cst.Break, cst.Continue, cst.Return, cst.Raise)


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Yield averages for metrics that stop, keep, or steer the training."""
    for node in metrics.script.nodes:
        if isinstance(node, (cst.If, cst.While)) and _decides(metrics, node):
            yield from _finite(metrics, node)
            tests = [n for n in walk(node.test) if isinstance(n, cst.Comparison)]
            yield from (found for test in tests for found in _decision(metrics, node, test))
        elif isinstance(node, cst.Assign) and _is_flag(metrics, node):
            tests = [n for n in walk(node.value) if isinstance(n, cst.Comparison)]
            yield from (found for test in tests for found in _decision(metrics, node, test))
        elif isinstance(node, cst.IfExp) and not _apart(metrics, node) and _lasts(metrics, node):
            tests = [n for n in walk(node.test) if isinstance(n, cst.Comparison)]
            line = metrics.script.statement_of(node)
            yield from (found for test in tests for found in _decision(metrics, line, test))
    for call in metrics.script.calls:
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value == "step" and call.args:
            value = call.args[0].value
            steers = metrics.facts.kinds.of(func.value) == "scheduler" and metrics.local(value)
            known = metrics.is_averaged(value) or _counts(metrics, value)
            if (_is_plateau(metrics, func.value) or steers) and not known:
                yield Edit(value, "schedulers must see one value, or the ranks' rates drift apart", metrics.wrapped)


def _counts(metrics: Metrics, value: cst.BaseExpression) -> bool:
    """Tell whether ``value`` counts the steps so far, which all ranks take together."""
    return tells(metrics.facts, {*counters(metrics.facts), *attributes(metrics.facts)})(value)


def _finite(metrics: Metrics, node: cst.If | cst.While) -> Iterator[Edit | Doubt]:
    """Yield averages inside tests for NaN and infinity, which a mean over the ranks passes on."""
    for call in (n for n in walk(node.test) if isinstance(n, cst.Call)):
        value = asked_if_finite(call)
        if value is not None and metrics.local(value) and metrics.all_ranks(node):
            yield Edit(value, "if one rank's value is not finite, all ranks must act", metrics.wrapped)


def _is_plateau(metrics: Metrics, scheduler: cst.BaseExpression) -> bool:
    return any(
        isinstance(o.node, cst.Call) and metrics.script.name_of(o.node.func).endswith("ReduceLROnPlateau")
        for o in metrics.facts.flow.origins(scheduler)
    )


def _decides(metrics: Metrics, node: cst.If | cst.While) -> bool:
    """Tell whether the outcome stops, keeps or steers something: not per sample, and not only for show."""
    if _apart(metrics, node):
        return False
    if isinstance(node, cst.While):
        return node in metrics.facts.loops
    tested = {dotted(n) for n in walk(node.test) if isinstance(n, (cst.Name, cst.Attribute))}
    for n in walk(node):
        if isinstance(n, _LEAVES) or (isinstance(n, cst.Call) and metrics.script.name_of(n.func) in EXITS):
            return True
        if isinstance(n, cst.Assign) and any(dotted(m) in tested for t in n.targets for m in walk(t.target)):
            return True
        if isinstance(n, cst.Attribute) and n.attr.value in _STEERS:
            return True
        if isinstance(n, cst.Call) and "save" in dotted(n.func):
            return True
        if _sets(n) or (isinstance(n, cst.Expr) and runs_alone(metrics.facts, n.value)):
            return True
    return _ends_later(metrics, node) or _lasts(metrics, node) or _of_an_epoch(metrics, node)


def _of_an_epoch(metrics: Metrics, node: cst.If) -> bool:
    """Tell whether ``node`` goes, once an epoch, by numbers of a rank's share: ``if sum(hits) > 1000:``."""
    around = innermost(metrics.facts, node)
    batches = isinstance(around, (cst.For, cst.While)) and not runs_inside(metrics.facts, around.body)
    sides = [side for n in walk(node.test) if isinstance(n, cst.Comparison) for side in _sides(n)]
    return not batches and any(metrics.local(side) and metrics.scalar(side) for side in sides)


def _sets(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` gives a variable of TensorFlow, or the rate of an optimizer, another value."""
    if isinstance(node, (cst.Assign, cst.AugAssign)):
        targets = [node.target] if isinstance(node, cst.AugAssign) else [t.target for t in node.targets]
        return any(isinstance(t, cst.Attribute) and t.attr.value in ("lr", "learning_rate") for t in targets)
    return calls_method(node, "assign", "assign_add", "assign_sub", "set_value")


def _lasts(metrics: Metrics, node: cst.If | cst.IfExp) -> bool:
    """Tell whether the training goes on by what ``node`` sets, as by a curriculum's level."""
    return steering.lasts(metrics.facts, node, metrics.sums.trained_by)


def _ends_later(metrics: Metrics, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` sets what ends the training in another line: ``done = True``, then ``if done: break``."""
    set_here = {dotted(t.target) for n in walk(node) if isinstance(n, cst.Assign) for t in n.targets} - {""}
    loops, function = metrics.facts.loops, metrics.script.function_of(node)
    for other in walk(function) if set_here else ():
        leaves = isinstance(other, cst.If) and any(isinstance(n, (cst.Break, cst.Return)) for n in walk(other.body))
        inside = leaves and other is not node and any(up in loops for up in metrics.script.above(other))
        ends = isinstance(other, (cst.If, cst.While)) and (inside or other in loops)
        if ends and not set_here.isdisjoint(dotted(n) for n in walk(other.test)):  # type: ignore[attr-defined]
            return True
    return False


def _apart(metrics: Metrics, node: cst.CSTNode, depth: int = _DEPTH) -> bool:
    """Tell whether ranks may come to ``node`` more or less often than others: in a loop that does not train, or there
    called; in a method of a module, which any of them may run on something else."""
    script, loops = metrics.script, metrics.facts.loops
    function = script.function_of(node)
    around = [u for u in script.above(node) if isinstance(u, (*_TURNS, cst.FunctionDef))]
    own = around[: next((i for i, u in enumerate(around) if isinstance(u, cst.FunctionDef)), len(around))]
    if any(loop not in loops for loop in own):
        return True
    if not isinstance(function, cst.FunctionDef) or not depth or any(script.function_of(x) is function for x in loops):
        return False
    owner = script.class_of(function)
    if owner is not None and metrics.facts.kinds.of_bases(metrics.facts.flow.bases(owner)) == "module":
        return all(script.function_of(step.node) is not function for step in metrics.facts.steps)
    return any(_apart(metrics, call, depth - 1) for call in metrics.facts.flow.callers(function))


def _is_flag(metrics: Metrics, node: cst.Assign) -> bool:
    """Tell whether ``node`` keeps the outcome of a comparison of numbers: ``is_best = accuracy > best``."""
    if _apart(metrics, node) or not isinstance(node.value, (cst.Comparison, cst.BooleanOperation)):
        return False
    sides = [s for n in walk(node.value) if isinstance(n, cst.Comparison) for s in _sides(n)]
    name = dotted(node.targets[0].target)
    used = any(
        isinstance(n, cst.If) and name in {dotted(m) for m in walk(n.test)} for n in metrics.script.nodes
    ) or name.startswith("is_best")
    numbers = name == "is_best" or all(metrics.scalar(s) or metrics.is_record(s, node) for s in sides)
    return bool(name) and used and numbers


def _sides(test: cst.Comparison) -> list[cst.BaseExpression]:
    ordered = all(isinstance(c.operator, ORDER) for c in test.comparisons)
    return [test.left, *(c.comparator for c in test.comparisons)] if ordered else []


def _decision(metrics: Metrics, node: cst.CSTNode, test: cst.Comparison) -> Iterator[Edit | Doubt]:
    anchor = node
    while (up := metrics.script.parents[anchor]) and isinstance(up, cst.If) and up.orelse is anchor:
        anchor = up  # an elif is decided where its chain begins
    for side in _sides(test):
        if not (metrics.local(side) or _timed(metrics, side, node)) or metrics.is_record(side, node):
            continue
        text = metrics.script.code(side)
        if not metrics.all_ranks(anchor):
            why = f"{text}: ranks may decide differently, below a condition that differs too"
            write = f"{text} = {metrics.facts.alias}.average({text}) where every rank comes by"
            yield Doubt(side, why, "high", write)
        elif isinstance(node, cst.While) or not _is_place(metrics, side) or _led_back(metrics, side, anchor) or (
                _is_summed_here(metrics, side, anchor)):  # fmt: skip
            yield _alike(metrics, side, "all ranks must decide alike")
            kept = [value for n in _kept(metrics, node, test) for value in _parts(metrics, n.value)]
            kept += [n.args[0].value for n in walk(node) if calls_method(n, "assign") and n.args]  # best.assign(mean)
            for value in (v for v in kept if metrics.script.code(v) == text):
                yield _alike(metrics, value, "what is kept is what was compared")
            metrics.decided.add(side)
        elif (metrics.script.function_of(anchor), text) not in metrics.averaged:
            line = _first_use(metrics, metrics.script.line_of(anchor), side)
            alias, summed = metrics.facts.alias, _is_sum(metrics, side)
            trains = returned.trains_where(metrics.facts, side) if summed else None
            told = trains and metrics.script.code(trains)
            metrics.settle(text, line)
            lines = statements(f"torch/{'total' if summed else 'average'}_statement", dl=alias, name=text, trains=told)
            yield Edit(line, f"{text}: all ranks must decide alike", before=lines)


def _alike(metrics: Metrics, side: cst.BaseExpression, why: str) -> Edit:
    """Return what makes ``side`` the same on all ranks: the mean, or of sums over a rank's share the sum."""
    summed = _is_sum(metrics, side) or metrics.sums.alone(side)
    total = side if summed else totals.divided(metrics, side)
    if total is None:
        return Edit(side, why, metrics.wrapped)
    metrics.cut([total])
    return Edit(total, why, metrics.total_of(total))


def _parts(metrics: Metrics, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return ``value``, or its entries: ``mean`` of ``max(mean, best)``, and of ``mean, 0``."""
    if isinstance(value, cst.Call) and metrics.script.name_of(value.func) in _ENDS:
        return [arg.value for arg in value.args]
    return [e.value for e in value.elements] if isinstance(value, cst.Tuple) else [value]


def _is_sum(metrics: Metrics, side: cst.BaseExpression) -> bool:
    """Tell whether ``side`` is a sum over a rank's own batches, and divided by nothing after the loop over them."""
    script, sums = metrics.script, metrics.sums
    if not isinstance(side, cst.Name):
        return sums.alone(side)  # sum(hits)
    bound = script.bindings_of(side)
    loops = [up for b in bound for up in script.above(b.node)
             if up in metrics.facts.loops and not script.inside(side, up)]  # fmt: skip
    uses = [n for n in script.named(dotted(side)) if script.bindings_of(n) == bound]
    kept = any(n in metrics.trained.cuts for n in uses)  # and summed up there: the sum of equal means is the sum, too
    return bool(bound) and not kept and all(
        sums.alone(n) for n in uses if not any(script.inside(n, loop) for loop in loops))  # fmt: skip


def _is_summed_here(metrics: Metrics, side: cst.BaseExpression, anchor: cst.CSTNode) -> bool:
    """Tell whether ``side`` is a sum over this rank's batches, which other lines divide, or sum up themselves."""
    known = (metrics.script.function_of(anchor), metrics.script.code(side)) in metrics.averaged
    return not known and isinstance(side, cst.Name) and metrics.sums.alone(side) and not _is_sum(metrics, side)


def _led_back(metrics: Metrics, value: cst.BaseExpression, anchor: cst.CSTNode) -> bool:
    """Tell whether ``backward()`` begins at ``value`` after ``anchor``, in the same block: a mean has no gradients."""
    script, name = metrics.script, dotted(value)
    block, after = script.suite(anchor), script.order[anchor]
    led = (c for c in script.calls if calls_method(c, "backward"))
    return any(script.order[c] > after and script.inside(c, block) and name in names_in(c) for c in led)


def _first_use(metrics: Metrics, line: cst.CSTNode, value: cst.BaseExpression) -> cst.CSTNode:
    """Return the first line that takes ``value`` as it is in ``line``, in the same block: ``stopper.step(loss)``."""
    script = metrics.script
    bindings = script.bindings_of(value) if isinstance(value, cst.Name) else []
    block = list(getattr(script.parents[line], "body", ()))
    before = block[: block.index(line)] if line in block else []
    bound = [i for i, each in enumerate(before) if any(script.inside(b.node, each) for b in bindings)]
    uses = before[bound[-1] + 1 :] if bound else []
    return next((use for use in uses if dotted(value) in names_in(use)), line)


def _kept(metrics: Metrics, node: cst.CSTNode, test: cst.Comparison) -> Iterator[cst.Assign]:
    """Yield the assignments under ``node``, and those beside it of what ``test`` compares: ``last = meter.mean()``."""
    script = metrics.script
    records = {dotted(side) for side in _sides(test)} - {""}
    for n in walk(script.function_of(node)):
        if isinstance(n, cst.Assign):
            beside = any(dotted(t.target) in records for t in n.targets) and metrics.all_ranks(n)
            if beside or (isinstance(node, cst.If) and script.inside(n, node)):
                yield n


def _timed(metrics: Metrics, side: cst.BaseExpression, node: cst.CSTNode) -> bool:
    """Tell whether ``side`` is read from the clock, and ends the training: each rank's own clock."""
    ends = isinstance(node, cst.While) or any(isinstance(n, (cst.Break, cst.Return)) for n in walk(node))
    ends = ends or _ends_later(metrics, node)
    inside = any(up in metrics.facts.loops for up in (node, *metrics.script.above(node)))
    return ends and inside and metrics.facts.unequal(side) and _clock(metrics)(side)


def _clock(metrics: Metrics) -> Taint:
    """Return what is read from the clock."""
    seeds = [c for c in metrics.script.calls if metrics.script.name_of(c.func).startswith(("time.", "datetime."))]
    return Taint(metrics.script, metrics.facts.kinds, seeds)


def _is_place(metrics: Metrics, node: cst.BaseExpression) -> bool:
    """Tell whether a value can be assigned to ``node``: a name, an attribute, an entry under a text; no property."""
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name) and len(node.slice) == 1:
        index = node.slice[0].slice
        return isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)
    if isinstance(node, cst.Attribute):
        flow = metrics.facts.flow
        return not any(flow.method(cls, node.attr.value) for cls in flow.classes(node.value))
    return isinstance(node, cst.Name)
