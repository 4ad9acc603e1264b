"""Part of step "steps": the bounds of loops that count steps, and what in them asks for the last step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.numbers.computed import computed, reaching
from dlrun.port.facts.updates.rates import is_least
from dlrun.port.feeds.draws import DRAWS
from dlrun.port.feeds.iterated import BARS
from dlrun.port.program.script import Scope, Script, argument, calls_method, children, dotted, names_in, walk
from dlrun.port.steps.counts.counters import (
    count_name,
    counters,
    each_update,
    feeds_of,
    innermost,
    number_of,
    position_of,
    runs_inside,
    tells,
)
from dlrun.port.steps.counts.counts import adds_samples, all_samples, is_own
from dlrun.port.steps.counts.takes import but_one, takes
from dlrun.port.steps.counts.update_counts import bare, steps_so_far

LAST = "the last step is the last of these"
FILLED = "an entry for each of these iterations: a local number"
_MAKES = re.compile(r"^(numpy|torch|tensorflow)\.(zeros|ones|empty|full)$")
_DIVIDES = (cst.Divide, cst.FloorDivide)
AFTER, _BEFORE = (cst.GreaterThan, cst.GreaterThanEqual), (cst.LessThan, cst.LessThanEqual)
_TURNED = dict(zip((*AFTER, *_BEFORE), (*_BEFORE, *AFTER), strict=True))  # as seen from the other side


def bounds(facts: Facts) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yield the bounds of loops that make one step an iteration on batches of their own drawing."""
    why = "the loop counts steps, and n ranks together take n batches a step"
    for loop, counts in facts.counted:
        if isinstance(counts, cst.Call):
            plain = [a for a in counts.args if a.keyword is None and not a.star]
            if plain and (facts.script.name_of(counts.func) or dotted(counts.func)).endswith("range"):
                bound = but_one(plain[min(1, len(plain) - 1)].value)
                starts = [a.value for a in plain[:-1]][:1]
                spans = list(_span(facts, loop, [a.value for a in plain[:2]])) or _goes_on(facts, starts, bound)
                yield from ((node, why) for node in spans)
                yield from ((node, why) for node in plain_starts(facts.script, starts))
                yield from ((node, FILLED) for node in tables(facts, loop, plain[0].value if len(plain) == 1 else None))
                yield from ((node, LAST) for node in _asked(facts, loop, bound))
        elif isinstance(loop, cst.While) and isinstance(loop.test, cst.Comparison) and len(loop.test.comparisons) == 1:
            target = loop.test.comparisons[0]
            left = loop.test.left
            counts_steps = "epoch" not in count_name(facts, left) and not facts.unequal(left)  # no time, and no loss
            other = _grows_at_times(facts, loop, count_name(facts, left)) or _of_samples(facts, loop, left)
            if isinstance(target.operator, (cst.LessThan, cst.LessThanEqual)) and counts_steps and not other:
                yield target.comparator, why
    for loop in (n for n in facts.loops if isinstance(n, cst.For) and position_of(facts, n) is not None):
        ends = [a.value for a in loop.iter.args] if isinstance(loop.iter, cst.Call) else []
        last = but_one(ends[-1]) if len(ends) in (1, 2) else loop.iter  # without a stride
        yield from ((node, LAST) for node in _asked(facts, loop, last))
    for loop, taken in takes(facts):
        yield taken, why
        yield from ((node, LAST) for node in _asked(facts, loop, taken))
    for bound in _ends(facts):
        yield bound, why
    yield from ((steps, "the steps of an epoch, of which n ranks take n at once") for steps in _of_an_epoch(facts))
    yield from (
        (last, "the last of a rank's batches, of 1/n of all") for last in lasts(facts) if all_samples(facts, last)
    )
    done = tells(facts, set(counters(facts)))  # of local steps, also where a checkpoint brings it
    for count in of_epochs(facts, lambda node: is_own(facts, node)):
        less = isinstance(count, cst.BinaryOperation) and isinstance(count.operator, cst.Subtract) and done(count.right)
        left = count.left if isinstance(count, cst.BinaryOperation) and less else count
        if not done(left):
            yield left, "a count of steps, which the length of a rank's share turns into epochs"


def tables(facts: ScriptFacts, loop: cst.CSTNode, bound: cst.BaseExpression | None) -> Iterator[cst.BaseExpression]:
    """Yield ``bound``, the iterations of ``loop``, in the shapes of arrays that it fills: ``losses = np.zeros(n)``."""
    target = loop.target if isinstance(loop, cst.For) else None
    if bound is None or not isinstance(target, cst.Name):
        return
    filled = [
        t.target
        for n in walk(loop.body)  # type: ignore[attr-defined]
        if isinstance(n, cst.Assign)
        for t in n.targets
        if isinstance(t.target, cst.Subscript)
    ]
    for box in filled:
        index = [dotted(e.slice.value) if isinstance(e.slice, cst.Index) else "" for e in box.slice]
        at = [k for k, name in enumerate(index) if name == target.value]
        made = [b.value for b in facts.script.bindings_of(box.value) if isinstance(b.value, cst.Call) and b.value.args]
        for call in made if at else ():
            shape = call.args[0].value
            sides = [e.value for e in shape.elements] if isinstance(shape, (cst.Tuple, cst.List)) else [shape]
            known = _MAKES.search(facts.script.name_of(call.func)) and at[0] < len(sides)
            if known and facts.script.code(sides[at[0]]) == facts.script.code(bound):
                yield sides[at[0]]


def sources(facts: ScriptFacts, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return where a bound is computed, if it is bound here: all that is divided by it then sees the same number.

    Itself, where the script picks samples with that number, too: ``x[random.randint(0, n)]``.
    """
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
        sides = (value.left, value.right)  # range(1, batches + 1)
        named = [side for side in sides if isinstance(side, cst.Name)]
        if len(named) == 1 and any(isinstance(side, cst.Integer) and side.evaluated_value == 1 for side in sides):
            found = sources(facts, named[0])
            return found if found != named else [value]
    if isinstance(value, cst.Name):
        bindings, scope = facts.script.scopes[value].lookup(value.value)
        bindings = reaching(facts.script, value, bindings)
        values = [b.value for b in bindings if b.how == "assign" and not b.path and b.value is not None]
        if values and len(values) == len(bindings) and not _picks(facts.script, value, scope):
            here = scope is facts.script.scopes[value]
            if here or (len(values) == 1 and isinstance(values[0], cst.Integer)):
                return values
    return [value]


def _picks(script: Script, name: cst.Name, scope: Scope | None) -> bool:
    """Tell whether ``name`` stands anywhere in a subscript, or among the arguments of what draws at random."""
    return any(
        isinstance(up, cst.SubscriptElement)
        or (isinstance(up, cst.Call) and DRAWS.search(script.name_of(up.func) or f".{dotted(up.func)}"))
        for use in script.names_of(name.value, scope)
        for up in script.above(use)
    )


def _span(facts: Facts, loop: cst.CSTNode, ends: list[cst.BaseExpression]) -> Iterator[cst.BaseExpression]:
    """Yield the steps of an epoch in both ends of ``range(epoch * n, (epoch + 1) * n)``, where the first tells them."""
    if len(ends) < 2 or not isinstance(ends[0], cst.BinaryOperation):
        return
    around = [up.target for up in facts.script.above(loop) if isinstance(up, cst.For)]
    moving = {name for target in around for name in names_in(target)}
    named = [
        [
            n
            for n in walk(end)
            if isinstance(n, (cst.Name, cst.Attribute)) and not isinstance(facts.script.parents[n], cst.Attribute)
        ]
        for end in ends
    ]
    first, last = ({dotted(n) for n in nodes} for nodes in named)
    common = (first & last) - moving
    if len(common) == 1 and not moving.isdisjoint(first):
        yield from (n for nodes in named for n in nodes if dotted(n) in common)


def plain_starts(script: Script, starts: list[cst.BaseExpression]) -> Iterator[cst.BaseExpression]:
    """Yield the numbers other than 0 and 1 at which a range of steps starts: ``range(2, steps)``."""
    for start in starts:
        made = [b.value for b in script.bindings_of(start)] if isinstance(start, cst.Name) else [start]
        if made and all(isinstance(value, cst.Integer) and value.evaluated_value > 1 for value in made):
            yield start


def _goes_on(facts: Facts, starts: list[cst.BaseExpression], bound: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what is divided of a range that goes on where an earlier call has stopped: ``range(done, done + more)``.

    Both ends, but where ``done`` is a count of local steps.
    """
    start, code = starts[0] if starts else None, facts.script.code
    if not isinstance(start, (cst.Name, cst.Attribute)) or not isinstance(bound, cst.BinaryOperation):
        return [bound]
    goes_on = isinstance(bound.operator, cst.Add) and code(start) in (code(bound.left), code(bound.right))
    return [start, bound] if goes_on and not tells(facts, set(counters(facts)))(start) else [bound]


def _grows_at_times(facts: Facts, loop: cst.While, name: str) -> bool:
    """Tell whether ``loop`` changes ``name`` in some iterations alone, beside its updates: a length that it extends."""
    script = facts.script
    changes = [n for n in walk(loop.body) if isinstance(n, cst.AugAssign) and count_name(facts, n.target) == name]
    apart = (cst.If, cst.ExceptHandler)  # such as one of a loader's end
    tests = [[up for up in script.above(n) if isinstance(up, apart) and script.inside(up, loop)] for n in changes]
    return bool(changes) and all(
        any(not any(script.inside(step.node, up) for step in facts.steps) for up in ups) for ups in tests
    )


def _of_samples(facts: Facts, loop: cst.While, count: cst.BaseExpression) -> bool:
    """Tell whether ``loop`` adds the samples of its batches to ``count``, which so becomes that of all ranks."""
    found = [adds_samples(facts, n) for n in walk(loop.body)]
    return any(one is not None and count_name(facts, one[0]) == count_name(facts, count) for one in found)


def _asked(facts: Facts, loop: cst.CSTNode, bound: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield ``bound`` in the body of ``loop``, where the number of the iteration meets it: ``if i == bound - 1:``."""
    target = (number_of(facts, loop) or loop.target) if isinstance(loop, cst.For) else None
    if not isinstance(target, cst.Name) or isinstance(bound, cst.Integer):
        return
    for node in walk(loop.body):  # type: ignore[attr-defined]
        for left, how, right in compared(node) if isinstance(node, cst.Comparison) else ():
            turn, last = but_one(left), but_one(right)
            ends = issubclass(how, (*AFTER, cst.Equal)) and dotted(turn) == target.value
            if ends and facts.script.code(last) == facts.script.code(bound):
                yield last


def lasts(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the counts with which the numbers of batches that are sharded are compared where that asks for the last
    of them, ``if i == n - 1:`` or ``if i + 1 == n:``, but for those that are local."""
    for loop in facts.loops:
        name = number_of(facts, loop)
        if name is None or not isinstance(loop, cst.For) or not feeds_of(facts, loop):
            continue
        for node in walk(loop.body):
            for left, how, right in compared(node) if isinstance(node, cst.Comparison) else ():
                last, moved = but_one(right), (but_one(left) is left) is not (but_one(right) is right)
                ends = issubclass(how, (*AFTER, cst.Equal)) and dotted(but_one(left)) == name.value
                if ends and moved and not isinstance(last, cst.Integer) and not is_own(facts, last):
                    yield last


def of_epochs(facts: Facts, own: Callable[[cst.BaseExpression], bool]) -> Iterator[cst.BaseExpression]:
    """Yield the counts of steps that give a loop its epochs: ``range(iterations // len(loader))``.

    ``own`` tells which numbers of an epoch's steps are a rank's.
    """
    for loop in facts.loops:
        if isinstance(loop, cst.For) and runs_inside(facts, loop.body) and not facts.flow.drawn(loop):
            for node in computed(facts.flow, [loop.iter]).nodes:
                divides = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _DIVIDES)
                if divides and own(node.right) and not own(node.left):  # type: ignore[attr-defined]
                    yield node.left  # type: ignore[attr-defined]


def _ends(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what a count of steps is compared with, where that ends the training: ``if step >= 1000: break``."""
    counted, so_far = tells(facts, set(counters(facts))), steps_so_far(facts)
    for node in facts.script.nodes:
        if not isinstance(node, (cst.If, cst.While)):
            continue
        leaves = isinstance(node, cst.If) and any(isinstance(n, (cst.Break, cst.Return)) for n in _own(node.body))
        inside = any(up in facts.loops for up in (node, *facts.script.above(node)))
        if not inside or not (leaves or isinstance(node, cst.While)) or _is_part(facts, node):
            continue
        for left, how, right in compared(node.test):
            ends = issubclass(how, (*AFTER, cst.Equal) if leaves else _BEFORE)
            at_times = isinstance(node, cst.While) and _grows_at_times(facts, node, count_name(facts, left))
            told = counted(left) or so_far(bare(facts, left))
            if ends and told and not at_times and not is_least(right):
                yield right
    for loop, value in _flags(facts):
        for left, how, right in compared(value):
            told = counted(left) or so_far(bare(facts, left))
            at_times = _grows_at_times(facts, loop, count_name(facts, left))
            if issubclass(how, (*AFTER, *_BEFORE)) and told and not at_times and not is_least(right):
                yield right


def _flags(facts: Facts) -> Iterator[tuple[cst.While, cst.BaseExpression]]:
    """Yield loops that go on by a name, and what they set it to: ``while not done: ...; done = step >= 1000``."""
    for node in facts.script.of(cst.Assign):
        for loop in facts.script.above(node):
            if isinstance(loop, cst.While) and loop in facts.loops and not _is_part(facts, loop):
                asked = {dotted(n) for n in walk(loop.test) if isinstance(n, (cst.Name, cst.Attribute))}
                if any(dotted(t.target) in asked for t in node.targets):
                    yield loop, node.value


def _of_an_epoch(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield by what a loop divides its steps so far to tell the epoch that ends it: ``epoch = step // batches + 1``."""
    counted, so_far = tells(facts, set(counters(facts))), steps_so_far(facts)
    for loop in (n for n in facts.loops if isinstance(n, cst.While) and not _is_part(facts, n)):
        asked = {dotted(n) for n in walk(loop.test) if isinstance(n, (cst.Name, cst.Attribute))}
        made = [n for n in walk(loop.body) if isinstance(n, cst.Assign) and dotted(n.targets[0].target) in asked]
        for node in (n for line in made for n in walk(line.value)):
            if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.FloorDivide):
                left = bare(facts, node.left)
                if (counted(left) or so_far(left)) and not is_own(facts, node.right):
                    yield node.right


def _is_part(facts: Facts, node: cst.If | cst.While) -> bool:
    """Tell whether each iteration of a loop that updates runs the loop that ``node`` ends, or whether it trains not.

    A critic's five updates before one of the generator's; a validation that stops early.
    """
    script = facts.script
    around = [u for u in (node, *script.above(node)) if isinstance(u, (cst.For, cst.While, cst.FunctionDef))]
    ended = around[0] if around else None
    if isinstance(ended, (cst.For, cst.While)) and ended not in facts.loops:
        return True
    return any(innermost(facts, s.node) is up for s in facts.steps for up in around[1:])


def compared(test: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, type, cst.BaseExpression]]:
    """Yield what the comparisons that ``test`` joins with ``and`` and ``or`` set against each other, from each side."""
    if isinstance(test, cst.BooleanOperation):
        yield from compared(test.left)
        yield from compared(test.right)
    elif isinstance(test, cst.Comparison):
        left = test.left
        for target in test.comparisons:
            how, right = type(target.operator), target.comparator
            yield left, how, right
            yield right, _TURNED.get(how, how), left
            left = right


def _own(body: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the nodes of ``body`` that belong to no loop and no function inside it."""
    for child in children(body):
        if not isinstance(child, (cst.For, cst.While, cst.FunctionDef, cst.Lambda)):
            yield child
            yield from _own(child)


def bars(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what the progress bars that move on with every batch count up to, where the serial run makes as many."""
    updates = [c for c in facts.script.calls if calls_method(c, "update")]
    for call in facts.script.calls:
        total = argument(call, "total", 2) if dotted(call.func).rsplit(".", 1)[-1] in BARS else None
        if total is None or is_own(facts, total):
            continue
        loops = [up for up in facts.loops if isinstance(up, cst.For) and facts.script.inside(call, up.iter)]
        moved = (c.func for c in updates if each_update(facts, c))
        held = (o.node for func in moved for o in facts.flow.origins(func.value))
        if any(node is call for node in held) or any(not runs_inside(facts, loop.body) for loop in loops):
            yield total
