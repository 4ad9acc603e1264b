"""Part of step "steps": what changes the rate, saves, or ends the training at certain numbers of steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import libcst as cst

from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.taken_over import lowers, takes_over
from dlrun.port.facts.numbers.computed import computed, leaves
from dlrun.port.facts.updates.rates import ORDER, changes
from dlrun.port.program.script import Script, added, calls_method, dotted, only_adds, walk
from dlrun.port.steps.counts import windows
from dlrun.port.steps.counts.conditions import asked, ends_iteration, goes_on, rests_of, skipped
from dlrun.port.steps.counts.counters import Counters, each_update, held, innermost, is_one, position_of, tells
from dlrun.port.steps.counts.counts import all_samples, from_length
from dlrun.port.steps.counts.step_rates import set_by_hand
from dlrun.port.steps.counts.update_counts import bare, steps_so_far

TAKEN_OF = ("gradient", "grad", "compute_gradients", "minimize", "scale")
WHY = "this counts serial steps, of which n ranks take 1/n"
_SAVES = ("save", "save_weights")  # of models, savers, and managers of checkpoints


def torch(facts: Facts, counters: Counters) -> Iterator[cst.BaseExpression]:
    """Yield what a count of steps is compared with, where that changes the rate: ``if step in (8000, 12000):``.

    And where it is a part of an epoch: ``if step % (len(data) // 5) == 0:``. What is compared is yielded also where the
    change is computed with it: ``if step < ramp: lr *= step / ramp``. So are the steps at which the script saves, or
    decides whether to go on: 64 ranks might not make 1000 steps, and save nothing. All cadences of a loop follow one
    rule, ``step % 100 == 0``: what is shown or evaluated every so often comes as often as in the serial run.
    """
    script = facts.script
    named = tells(facts, numbers(facts, counters))
    kept = named if facts.framework == "torch" else steps_so_far(facts)  # by TensorFlow, too
    places = {*changes(facts), *facts.optimizers, *_made_of(facts)}  # an optimizer made anew begins with another rate
    for node in script.of(cst.If):
        inside = any(up in facts.loops for up in script.above(node)) or each_update(facts, node)
        rest = script.block(node)[script.block(node).index(node) + 1 :] if inside and node in script.block(node) else []
        skips = inside and goes_on(node.body)
        bodies: list[cst.CSTNode] = [node.body]
        if skips:  # what the iterations do that are not left out
            bodies = rest
        elif ends_iteration(script, node.body):
            bodies += rest
        for count, number in (skipped(node.test) if skips else asked(facts.flow, node.test)) if inside else ():
            if not (named(bare(facts, count)) or kept(bare(facts, count))):
                continue
            if passes_by(facts, bare(facts, count), number):
                continue
            sets = any(_sets_rate(facts, body, places) for body in bodies)
            sets = sets and not (_is_every(facts, number) and updates(facts, bodies, elsewhere=False))
            if _of_all(facts, number) or sets or _acts(facts, node, bodies) or _is_cadence(facts, node, bodies, number):
                yield from serial(facts, bodies, number)


def _made_of(facts: Facts) -> Iterator[cst.CSTNode]:
    """Yield what is assigned to names that rates set in training loops are made of: ``now = step / 500``."""
    if facts.framework == "torch":
        for node in computed(facts.flow, list(set_by_hand(facts))).nodes:
            up = facts.script.parents.get(node)
            if isinstance(up, cst.Assign) and up.value is node:
                yield node


def passes_by(facts: ScriptFacts, count: cst.CSTNode, number: cst.CSTNode) -> bool:
    """Tell whether ``count`` goes in strides, ``range(0, n, 8)``, and may pass by ``number`` once that is divided."""
    bindings = facts.script.bindings_of(count)
    strided = any(
        isinstance(b.value, cst.Call)
        and len(b.value.args) > 2
        and isinstance(b.node, cst.For)
        and position_of(facts, b.node) is not None  # type: ignore[arg-type]
        for b in bindings
    )
    up = facts.script.parents[number]
    test = facts.script.parents[up] if isinstance(up, cst.ComparisonTarget) else up
    return strided and not (isinstance(test, cst.Comparison) and isinstance(test.comparisons[0].operator, ORDER))


def in_strides(facts: ScriptFacts) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, cst.BaseExpression]]:
    """Yield tests for a number of counts that go up in strides: ``seen += len(x)``, and ``if seen % 100 == 0``.

    Each with the count and its stride. Of n ranks each makes 1/n of the strides, and may pass by the number.
    """
    strides: dict[str, cst.BaseExpression] = {}
    for loop in getattr(facts, "loops", ()):
        for found in (found for n in walk(loop.body) if (found := added(n)) is not None):
            if not is_one(found[1]) and not isinstance(found[1], cst.UnaryOperation):
                strides[facts.script.code(found[0])] = found[1]
    for test in (n.test for n in facts.script.of(cst.If)) if strides else ():
        for count, number in asked(facts.flow, test):
            up = facts.script.parents[number]
            bound = isinstance(up, cst.ComparisonTarget) and isinstance(up.operator, ORDER)
            stride = strides.get(facts.script.code(count))
            if stride is not None and not bound:
                yield test, count, stride


def serial(
    facts: Facts, bodies: list[cst.CSTNode], number: cst.BaseExpression, known: bool = False
) -> Iterator[cst.BaseExpression]:
    """Yield ``number``, where it counts serial steps, and the places in its test and in ``bodies`` that use it.

    ``known``: it is a number of the serial script's, whatever else is kept beside it.
    """
    if not known and not _of_all(facts, number):
        yield from beside(facts, number, lambda part: from_length(facts, part))
    if known or _of_all(facts, number) or not from_length(facts, number):
        yield number
        named = facts.script.code(number) if dotted(number) or _is_entry(number) else ""
        asked = next((up for up in facts.script.above(number) if isinstance(up, cst.Comparison)), None)
        yield from rests_of(facts.script, number)
        part = facts.script.parents[number]
        if isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.FloorDivide):  # saved = step // 200
            yield from (
                n.right
                for body in bodies
                for n in walk(body)
                if n is not part and isinstance(n, cst.BinaryOperation) and n.deep_equals(part)
            )
            return
        if isinstance(part, cst.BinaryOperation) and isinstance(number, cst.Integer):  # epoch = step // 100
            parts = [n for body in bodies for n in walk(body) if isinstance(n, cst.BinaryOperation)]
            yield from (
                n.right
                for n in parts
                if isinstance(n.operator, cst.FloorDivide)
                and n.left.deep_equals(part.left)
                and n.right.deep_equals(number)
            )
        loop = next((up for up in facts.script.above(number) if up in facts.loops), None)
        places = dict.fromkeys((*([asked] if asked is not None else []), *bodies))
        if loop is not None:
            test = next((up.test for up in facts.script.above(number) if isinstance(up, cst.If)), number)
            yield from windows.means(facts, loop, [test, *bodies], number)
        same = [
            n
            for part in places
            for n in walk(part)
            if named and n is not number and _reads(facts.script, n) and facts.script.code(n) == named
        ]
        if not any(getattr(facts.script.parents[n], "target", None) is n for n in same):  # counted on in serial steps
            yield from same  # type: ignore[misc]


def _reads(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a value: not an argument as a whole, nor the name of an argument or an attribute."""
    up = script.parents.get(node)
    return isinstance(node, cst.BaseExpression) and node not in (
        getattr(up, "keyword", None),
        getattr(up, "attr", None),
    )


def _of_all(facts: Facts, number: cst.BaseExpression) -> bool:
    """Tell whether ``number`` is made of the number of all samples."""
    return any(all_samples(facts, leaf) for leaf in leaves(facts.flow, number))


def numbers(facts: Facts, counters: Counters) -> Counters:
    """Return ``counters``, the numbers of loops that draw a batch an iteration, and what they add up to over epochs."""
    known = counters | set(_counted(facts))
    return known | set(_sums(facts, known))


def beside(
    facts: Facts, number: cst.BaseExpression, own: Callable[[cst.BaseExpression], bool]
) -> list[cst.BaseExpression]:
    """Return the numbers of serial steps that ``number`` adds to what is a rank's ``own``: 500 of ``total - 500``."""
    parts = [number]
    while isinstance(parts[0], cst.BinaryOperation) and isinstance(parts[0].operator, (cst.Add, cst.Subtract)):
        parts = [parts[0].left, parts[0].right, *parts[1:]]
    others = [part for part in parts if not own(part)]
    return [part for part in others if _is_written(facts, part)] if 0 < len(others) < len(parts) else []


def _is_written(facts: Facts, part: cst.BaseExpression) -> bool:
    """Tell whether ``part`` is a number above 1, or one that the program is given: ``500``, ``args.warm``."""
    return all(
        n.evaluated_value > 1 if isinstance(n, cst.Integer) else isinstance(n, cst.Attribute)
        for n in leaves(facts.flow, part)
    )


def _is_entry(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Subscript) and bool(dotted(node.value))


def _counted(facts: Facts) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the numbers of the loops that draw a batch an iteration."""
    for loop, _ in facts.counted:
        if isinstance(loop, cst.For) and isinstance(loop.target, cst.Name):
            yield from held(facts, loop.target)


def _sums(facts: Facts, known: set[tuple[cst.CSTNode, str]]) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the names of steps counted over epochs: ``done = epoch * len(loader) + i``."""
    counted, script = tells(facts, known), facts.script
    for node in facts.script.of(cst.Assign):
        added = isinstance(node.value, cst.BinaryOperation) and isinstance(node.value.operator, cst.Add)
        shares = [
            n
            for n in walk(node.value)
            if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, (cst.Divide, cst.FloorDivide))
        ]  # epoch + i / batches
        found = [n for n in walk(node.value) if isinstance(n, cst.Name) and counted(n)] if added else []
        if any(not any(script.inside(n, share) for share in shares) for n in found):
            yield from held(facts, node.targets[0].target)


def _is_cadence(facts: Facts, node: cst.If, bodies: list[cst.CSTNode], number: cst.BaseExpression) -> bool:
    """Tell whether ``number`` says every how many steps something is done, but for updates: of several batches.

    Those in other forms are found as the program is run, see ``placement/cadences``. These are known before: what
    changes at them, as a weight of a loss, changes as often as in the serial run.
    """
    around = innermost(facts, node)
    followed = facts.framework == "torch" or getattr(facts, "style", "") in ("tape", "session")
    inside = around in facts.loops or isinstance(around, cst.FunctionDef)
    several = updates(facts, bodies) or sets_any(bodies, losses_behind(facts.script, node))
    if node.orelse is not None and only_adds(node):
        return False  # each rank adds to what the serial number says
    return followed and _is_every(facts, number) and inside and not several


def _is_every(facts: Facts, number: cst.BaseExpression) -> bool:
    """Tell whether ``number`` says every how many: ``step % number``."""
    up = facts.script.parents[number]
    return isinstance(up, cst.BinaryOperation) and isinstance(up.operator, cst.Modulo) and up.right is number


def losses_behind(script: Script, node: cst.CSTNode) -> set[str]:
    """Return the names of which gradients are taken behind ``node``: ``loss.backward()``, ``tape.gradient(loss)``."""
    home, at = script.function_of(node), script.order[node]
    later = [c for c in script.calls if script.order[c] > at and script.function_of(c) is home]
    found = [c.func.value for c in later if calls_method(c, "backward")]
    found += [c.args[0].value for c in later if calls_method(c, *TAKEN_OF) and c.args]
    return {dotted(node) for node in found} - {""}


def sets_any(bodies: list[cst.CSTNode], names: Collection[str]) -> bool:
    """Tell whether ``bodies`` give one of ``names``, which may be dotted, another value: ``loss = loss + penalty``."""
    for n in (n for body in bodies for n in walk(body)):
        targets = [n.target] if isinstance(n, cst.AugAssign) else [t.target for t in getattr(n, "targets", ())]
        if any(dotted(target) in names for target in targets if isinstance(target, cst.BaseExpression)):
            return True
    return False


def updates(facts: ScriptFacts, bodies: list[cst.CSTNode], elsewhere: bool = True) -> bool:
    """Tell whether running ``bodies`` makes an update, or a part of one: of several batches.

    Without ``elsewhere``, functions that others call, too, are taken to evaluate here: ``step(x, train=False)``.
    """
    steps = {step.node for step in getattr(facts, "steps", ())}
    return any(
        n in steps or calls_method(n, "zero_grad", "unscale_", "train_on_batch", "train_step")
        for body in bodies
        for each in facts.flow.bodies(body, 3)
        if elsewhere or not _is_called_elsewhere(facts, each, bodies)
        for n in walk(each)
    )


def _is_called_elsewhere(facts: ScriptFacts, body: cst.CSTNode, bodies: list[cst.CSTNode]) -> bool:
    """Tell whether ``body`` is that of a function that is not only called in ``bodies``."""
    function = facts.script.parents.get(body)
    calls = facts.flow.callers(function) if isinstance(function, cst.FunctionDef) else []
    return any(not any(facts.script.inside(call, each) for each in bodies) for call in calls)


def _acts(facts: Facts, node: cst.If, bodies: list[cst.CSTNode]) -> bool:
    """Tell whether ``bodies`` save or decide, beside the steps: a body that updates is one of several batches."""
    around = innermost(facts, node)
    trains = around in facts.loops or isinstance(around, cst.FunctionDef)
    acts = trains and any(saves_or_decides(facts, body) for body in bodies)
    return acts and not updates(facts, bodies, elsewhere=False)


def saves_or_decides(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether running ``node`` saves, tells a scheduler a metric, or leaves the loop around it.

    Or gives a model another's weights, as a target network gets them, or lowers a rate.
    """
    if takes_over(facts, node) or lowers(facts, node):
        return True
    for end in (n for n in walk(node) if isinstance(n, cst.Break)):
        loops = (up for up in facts.script.above(end) if isinstance(up, (cst.For, cst.While)))
        if not any(facts.script.inside(loop, node) for loop in loops):
            return True
    for call in (n for body in facts.flow.bodies(node, 3) for n in walk(body) if isinstance(n, cst.Call)):
        told = calls_method(call, "step") and call.args
        if told and facts.kinds.of(call.func.value) == "scheduler":  # type: ignore[attr-defined]
            return True
        if facts.script.name_of(call.func) == "torch.save" or (
            facts.framework != "torch" and any(calls_method(call, name) for name in _SAVES)
        ):
            return True
    return False


def _sets_rate(facts: Facts, node: cst.CSTNode, places: set[cst.CSTNode]) -> bool:
    """Tell whether running ``node`` changes the rate of an optimizer."""
    for n in (n for body in facts.flow.bodies(node, 3) for n in walk(body)):
        if n in places:
            return True
        if isinstance(n, (cst.Assign, cst.AugAssign)):
            target = n.target if isinstance(n, cst.AugAssign) else n.targets[0].target
            if places and dotted(target).rsplit(".", 1)[-1] in ("lr", "learning_rate"):
                return True
    return False
