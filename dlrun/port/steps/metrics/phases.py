"""Part of step "metrics": losses that are made otherwise, and updates that begin or end, from some step on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import Tells, computed, given
from dlrun.port.facts.taint import losses
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.updates.rates import ORDER
from dlrun.port.facts.updates.session import runs_session
from dlrun.port.program.script import Script, walk
from dlrun.port.steps.counts import milestones
from dlrun.port.steps.counts.bounds import compared
from dlrun.port.steps.counts.counters import Counters, attributes, counters, each_update, tells, variables
from dlrun.port.steps.counts.counts import is_own
from dlrun.port.steps.counts.milestones import numbers
from dlrun.port.steps.counts.update_counts import steps_so_far


def torch(facts: Facts, followed: Collection[cst.CSTNode]) -> Iterator[Doubt]:
    """Yield a doubt where the loss is made of something else from some step on: ``if step > 1000: weight = 0.1``."""
    known = set(counters(facts)) | set(attributes(facts))
    yield from _turns(facts, followed, known, tells(facts, numbers(facts, known)), losses(facts.script))


def tensorflow(facts: TensorFlowFacts, followed: Collection[cst.CSTNode]) -> Iterator[Doubt]:
    """Likewise for TensorFlow, where what a session is fed and runs, and which optimizer it is, make the loss, too."""
    known = {*counters(facts), *attributes(facts), *variables(facts)}
    named, kept = tells(facts, numbers(facts, known)), steps_so_far(facts)
    made = [c.args[0].value for c in facts.averages if c.args] + [value for _, value in facts.fed]
    for step in (step.node for step in facts.steps if isinstance(step.node, cst.Call)):
        made += [step.args[0].value] if step.args and runs_session(step) else []
        made += [step.func.value] if isinstance(step.func, cst.Attribute) else []
    yield from _turns(facts, followed, known, lambda node: named(node) or kept(node), made)


def _turns(
    facts: Facts, followed: Collection[cst.CSTNode], known: Counters, reads: Tells, backwards: list[cst.BaseExpression]
) -> Iterator[Doubt]:
    divided, script = set(milestones.torch(facts, known)), facts.script
    asked = [
        (node, count, issubclass(how, ORDER) and not _is_rest(left))
        for node, test in _tested(facts)
        for left, how, right in compared(test)
        if (count := _count(facts, left, right, reads)) is not None
        and count not in divided
        and _is_serial(facts, count)
        and not any(n in followed for n in walk(test))
    ]
    made = set(computed(facts.flow, backwards).nodes) if asked else set()
    for node, count, once in asked:
        name = ""
        if not isinstance(node, cst.If):
            name = script.code(node) if node in made else ""
        elif any(script.inside(frame, node) for step in facts.steps for frame in facts.flow.frames(step.node)):
            name = "an update" if once and not _ends(node) else ""
        else:
            written = [n for n in walk(node) if isinstance(n, (cst.Assign, cst.AugAssign)) and n.value in made]
            kept = [
                n
                for n in written
                if "detach" not in script.code(n.value)  # where back-propagation is cut short
                and not _is_gone(facts, node, n, backwards)
            ]
            name = (
                script.code(kept[0].targets[0].target if isinstance(kept[0], cst.Assign) else kept[0].target)
                if kept
                else ""
            )
        if name:
            what = "an update begins or ends" if name == "an update" else f"{name}, of which the loss is made, changes"
            yield Doubt(
                count,
                f"{what} at this step, and n ranks take 1/n of the steps: it comes n times later",
                "medium",
                f"{facts.alias}.steps({script.code(count)})",
            )


def _tested(facts: Facts) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield the tests in training loops, with the statements that they head; as values, with themselves."""
    for node in facts.script.nodes:
        inside = isinstance(node, cst.If) and any(up in facts.loops for up in facts.script.above(node))
        if isinstance(node, cst.If) and (inside or each_update(facts, node)):
            yield node, node.test
        elif isinstance(node, cst.Comparison):
            heads = facts.script.statement_of(node)
            if not (isinstance(heads, (cst.If, cst.While)) and facts.script.inside(node, heads.test)):
                yield node, node


def _is_rest(left: cst.BaseExpression) -> bool:
    """Tell whether ``left`` is what remains of a count: ``step % 5``."""
    return any(isinstance(n, cst.Modulo) for n in walk(left))


def _ends(node: cst.If) -> bool:
    return any(isinstance(n, (cst.Break, cst.Return)) for n in walk(node))


def _is_gone(facts: Facts, test: cst.If, node: cst.Assign | cst.AugAssign, backwards: Collection[cst.CSTNode]) -> bool:
    """Tell whether no later iteration sees what ``node`` gives its names: ``x = x.argmax(1)`` after the loss is made.

    They are made anew there, or nothing reads them but what ``test`` heads: that is asked for itself.
    """
    script = facts.script
    loop = next((up for up in script.above(test) if up in facts.loops), script.function_of(test))
    target = node.target if isinstance(node, cst.AugAssign) else node.targets[0].target
    names = [target] if isinstance(target, cst.Name) else [n for n in walk(target) if isinstance(n, cst.Name)]
    after = any(script.inside(n, loop) and script.order[n] < script.order[test] for n in backwards)
    if not isinstance(target, (cst.Name, cst.Tuple)):
        return False
    return all(
        all(
            script.inside(use, test) or is_target(script, use)
            for use in script.names_of(name.value, script.scope_of(name))
        )
        or (
            after
            and any(script.inside(b.node, loop) and not script.inside(b.node, test) for b in script.bindings_of(name))
        )
        for name in names
    )


def _count(
    facts: Facts, left: cst.BaseExpression, right: cst.BaseExpression, reads: Tells
) -> cst.BaseExpression | None:
    """Return what the step's number is compared with: ``k`` in ``step > k``, ``step + 1 == k``, ``step % k == 0``."""
    if isinstance(left, cst.BinaryOperation):
        if isinstance(left.operator, cst.Modulo):
            return _count(facts, left.left, left.right, reads) if isinstance(right, cst.Integer) else None
        one = isinstance(left.operator, (cst.Add, cst.Subtract)) and isinstance(left.right, cst.Integer)
        return _count(facts, left.left, right, reads) if one else None
    handed = [b for b in facts.script.bindings_of(left) if b.how == "param"] if isinstance(left, cst.Name) else []
    return right if reads(left) or any(reads(value) for b in handed for value in given(facts.flow, b)) else None


def _is_serial(facts: Facts, count: cst.BaseExpression) -> bool:
    """Tell whether ``count`` may be a number of serial steps, and not the first one, nor of local ones."""
    first = isinstance(count, cst.Integer) and count.evaluated_value < 2
    return not first and not is_own(facts, count)


def is_target(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is given a value, also beside others: ``best, count = 0, 0``."""
    up = script.parents[node]
    if isinstance(up, (cst.Element, cst.Tuple, cst.List)):
        return is_target(script, up)
    return isinstance(up, cst.AssignTarget) or (isinstance(up, cst.AugAssign) and up.target is node)
