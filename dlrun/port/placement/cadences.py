"""Cadences: numbers of serial steps by which a script shows, evaluates or saves, of which n ranks take 1/n.

What all ranks count is known from the abstract run, in whichever form it is asked: ``if step % 100 == 0``, ``due = not
step % 100``, ``q, rest = divmod(step, 100)``, ``if step in (10, 20)``, ``if step >= due: ...; due += 100``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.insert import expression
from dlrun.port.placement.beside_sums import beside_sums, entries_beside_sums
from dlrun.port.placement.countdowns import fractions, starts
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.selected import compared_in_order
from dlrun.port.placement.shards import Cadence, Shards
from dlrun.port.placement.store import Method, Obj
from dlrun.port.placement.values import BENT_COUNT, NOTHING, Kind, Place
from dlrun.port.program.script import Script, calls_method, dotted, walk
from dlrun.port.steps.counts import windows
from dlrun.port.steps.counts.conditions import divided, ends_iteration, fewer, picked_by, rests_of
from dlrun.port.steps.counts.milestones import WHY, losses_behind, passes_by, serial, sets_any, updates

_RUNS = 3
_COUNTS = (Kind.COUNT, Kind.INDEX)
_MOVES = "each iteration moves it by as much, and n ranks take 1/n of the iterations"
_FROM = (cst.GreaterThan, cst.GreaterThanEqual)
_UNTIL = (cst.LessThan, cst.LessThanEqual)
_FLIPPED: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.Equal: cst.Equal,
    cst.LessThan: cst.GreaterThan,
    cst.LessThanEqual: cst.GreaterThanEqual,
    cst.GreaterThan: cst.LessThan,
    cst.GreaterThanEqual: cst.LessThanEqual,
}
_PASSED_ON = (cst.Comparison, cst.ComparisonTarget, cst.BooleanOperation, cst.Arg, cst.GeneratorExp, cst.ListComp)
_ANSWERS = ("any", "all", "bool", "int")
_WRITTEN = (cst.Tuple, cst.List, cst.Set)


def run_with(facts: ScriptFacts, shards: Shards) -> Interpreter:
    """Run the program, again with what is divided where cadences were found."""
    count_on: set[tuple[cst.CSTNode, Any]] = set()
    serial: set[tuple[cst.CSTNode, Any]] = set()
    entries: set[cst.CSTNode] = set()
    for _ in range(_RUNS):
        run = Interpreter(facts.script, shards)
        run.count_on = count_on
        run.beside_serial, run.serial_entries = serial, entries
        run.run()
        found: dict[cst.CSTNode, Cadence] = {c.node: c for c in (*_found(facts, run), *_moved(facts, run))}
        dropped = {(made.loop, made.path.key) for made in run.exits} & run.counters  # reduced behind some calls alone
        beside, among = beside_sums(run), entries_beside_sums(run)
        whole = run.shards.parts or run.shards.episodes
        moved = frozenset(fractions(facts, run, partial(counts, run)) if not whole else ())
        shards = replace(shards, ramped=shards.ramped | moved, fractions=shards.fractions | moved)
        if not found and not moved and dropped <= count_on and not beside and not among:
            break
        serial, entries = serial | beside, entries | among
        count_on = dropped | count_on
        divided_too = shards.divided | found.keys()
        shards = replace(shards, divided=divided_too, cadences=shards.cadences | found)
    return run


def edits(facts: ScriptFacts, run: Interpreter) -> Iterator[Edit]:
    """Divide the numbers that ``run`` was told to be cadences; multiply what each iteration moves something by."""
    for step in run.shards.fractions:
        yield Edit(step, _MOVES, lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias))
    for cadence in (c for c in run.shards.cadences.values() if not c.known):
        at_last = Edit(cadence.node, WHY, partial(_last_step, facts.alias))
        yield at_last if cadence.index else fewer(facts, cadence.node, WHY)


def _last_step(dl: str, number: cst.BaseExpression) -> cst.BaseExpression:
    """Return the number, from 0, of the local iteration that stands for the serial one of this ``number``."""
    count: cst.BaseExpression = cst.BinaryOperation(number, cst.Add(), cst.Integer("1"))
    if isinstance(number, cst.Integer):
        count = cst.Integer(str(number.evaluated_value + 1))
    return expression("torch/last_step", {"count": count}, dl=dl)


def _found(facts: ScriptFacts, run: Interpreter) -> Iterator[Cadence]:
    """Yield the numbers that tests compare with what counts this rank's iterations, where these govern no update."""
    if run.shards.parts or run.shards.episodes:
        return
    for number in compared_in_order(facts, partial(_place, run)):
        if number not in run.shards.divided and _is_serial(run, number):
            yield Cadence(number, repeats=False)
    for number in starts(facts, run, partial(counts, run), partial(_is_serial, run)):
        yield Cadence(number, repeats=False)
    for number in _raised(facts, run):
        yield Cadence(number, repeats=False)
    for node in [n for n in run.seen if isinstance(n, (cst.Comparison, cst.BinaryOperation, cst.Call))]:
        known = (run.shards.divided, run.shards.counted, run.iteration_numbers)
        if any(n in each for n in walk(node) for each in known):
            continue
        found = [
            c for c in _asked(run, node) if not passes_by(facts, *c[:2]) and not _runs_up(facts.script, node, c[1])
        ]
        if not found:
            continue
        bodies = governed(facts, run, node)
        if bodies is None:
            continue
        trains = updates(facts, bodies) or sets_any(bodies, losses_behind(facts.script, node))
        if not trains and any(how == "until" for _, _, how in found) and _shows(run, bodies):
            continue  # the first few lines: if step < 3: print(x.shape)
        if trains and not all(how in ("from", "until") and not _is_length(count) for count, _, how in found):
            continue  # of several batches
        if any(n in run.shards.ramped for body in bodies for n in walk(body)):
            continue  # what changes there makes up for the iterations between
        for count, number, how in found:
            if picked_by(facts.script, number) is not None:
                continue  # it comes back to the first of some batches: if at >= len(batches): at = 0
            place = _place(run, count)
            if how == "rest":
                for n in _with_windows(facts, run, node, bodies, number):
                    if n not in run.shards.divided:
                        yield Cadence(n)
            elif how in ("from", "until"):
                moved = {dotted(n) for side in (number, count) for n in walk(side)} - {""}
                yield Cadence(number, repeats=sets_any(bodies, moved))
            else:
                yield Cadence(number, index=how == "equal" and place is not None and place.kind is Kind.INDEX)


def _raised(facts: ScriptFacts, run: Interpreter) -> Iterator[cst.BaseExpression]:
    """Yield the serial numbers at which a bound begins that counts raise: ``patience = 100``, and later
    ``patience = max(patience, 2 * step)``, which ``step >= patience`` asks for."""
    for node in [n for n in run.seen if isinstance(n, cst.Comparison) and len(n.comparisons) == 1]:
        sides = (node.left, node.comparisons[0].comparator)
        for bound, count in (sides, sides[::-1]):
            if not isinstance(bound, cst.Name) or not counts(run, count) or _place(run, bound) != BENT_COUNT:
                continue
            values = [b.value if b.how == "assign" and not b.path else None for b in facts.script.bindings_of(bound)]
            begins = [value for value in values if value is not None and _is_serial(run, value)]
            raises = [value for value in values if value not in begins]
            if raises and all(value is not None and _is_of_counts(run, value, bound.value) for value in raises):
                yield from (value for value in begins if value not in run.shards.divided)


def _is_of_counts(run: Interpreter, value: cst.BaseExpression, name: str) -> bool:
    """Tell whether ``value`` is made of what counts this rank's iterations, and of what ``name`` holds, alone."""
    called = {n.func for n in walk(value) if isinstance(n, cst.Call)}
    parts = [n for n in walk(value) if isinstance(n, cst.Name) and n not in called]
    kinds = [{v.place.kind for v in run.seen.get(n, ())} for n in parts if n.value != name]
    alike = all(found and found <= {Kind.SAME, *_COUNTS} for found in kinds)
    return alike and any(not found.isdisjoint(_COUNTS) for found in kinds)


def _moved(facts: ScriptFacts, run: Interpreter) -> Iterator[Cadence]:
    """Yield the numbers that are divided already, and that move on where they are reached: ``due += 100``."""
    for node in (n for n in run.seen if isinstance(n, cst.Comparison) and len(n.comparisons) == 1):
        number = node.comparisons[0].comparator
        new = number in run.shards.divided and number not in run.shards.cadences
        bodies = governed(facts, run, node) if new and isinstance(node.comparisons[0].operator, _FROM) else None
        names = {dotted(n) for n in walk(node)} - {""}
        if bodies is not None and sets_any(bodies, names) and not updates(facts, bodies):
            yield Cadence(number, known=True)


def _with_windows(
    facts: ScriptFacts, run: Interpreter, node: cst.CSTNode, bodies: list[cst.CSTNode], number: cst.BaseExpression
) -> Iterator[cst.BaseExpression]:
    """Yield ``number``, and where ``bodies`` use it, too: they take the mean of so many numbers."""
    if isinstance(facts, Facts):
        written = any(v.const is not NOTHING for v in run.seen.get(number, ()))  # cfg["every"], beside a length
        yield from serial(facts, bodies, number, written)
        return
    yield from (number, *rests_of(facts.script, number))
    loop = next((up for up in facts.script.above(node) if isinstance(up, (cst.For, cst.While))), None)
    yield from windows.means(facts, loop, bodies, number) if loop is not None else ()


def _asked(run: Interpreter, node: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, str]]:
    """Yield counts, the serial numbers with which ``node`` compares them, and how.

    That is "rest", "equal", "in", or from or until when: "from", "until".
    """
    whole = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.FloorDivide)
    whole = whole and not _measures(run, node)
    for count, every in [(node.left, node.right)] if whole else divided(node):  # type: ignore[attr-defined]
        count = count.left if isinstance(count, cst.BinaryOperation) and counts(run, count.left) else count
        undivided = all(v.name == "undivided" for v in run.seen.get(node, ())) and not isinstance(node, cst.Call)
        if (undivided or (counts(run, count) and (whole or isinstance(node, cst.Call)))) and _is_serial(run, every):
            yield count, every, "rest"
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return
    target = node.comparisons[0]
    left, right, how = node.left, target.comparator, type(target.operator)
    if _is_serial(run, left) and counts(run, right):
        left, right, how = right, left, _FLIPPED.get(how, cst.Is)
    if not counts(run, left):
        return
    if how is cst.In and _are_serial(run, right):
        yield left, right, "in"
    elif how in _UNTIL and _bounds_loop(run.script, node):
        return
    elif how in (cst.Equal, *_FROM, *_UNTIL) and _is_serial(run, right):
        yield left, right, "equal" if how is cst.Equal else "from" if how in _FROM else "until"


def _bounds_loop(script: Script, test: cst.CSTNode) -> bool:
    """Tell whether a loop goes on by ``test``: see ``steps/counts/bounds``."""
    return any(isinstance(up, cst.While) and script.inside(test, up.test) for up in script.above(test))


def _shows(run: Interpreter, bodies: list[cst.CSTNode]) -> bool:
    """Tell whether ``bodies`` show something, and step no schedule."""
    calls = [n for body in bodies for n in walk(body) if isinstance(n, cst.Call)]
    return any(call in run.sinks for call in calls) and not any(calls_method(call, "step") for call in calls)


def _is_length(count: cst.BaseExpression) -> bool:
    """Tell whether ``count`` is how much this rank has kept: a buffer has what an update takes when it is full."""
    return any(isinstance(n, cst.Call) and dotted(n.func) == "len" for n in walk(count))


def _runs_up(script: Script, node: cst.CSTNode, number: cst.BaseExpression) -> bool:
    """Tell whether a loop itself moves ``number`` up to what it is compared with: ``while i < len(loader): i += 1``."""
    return any(
        isinstance(up, cst.While) and script.inside(node, up.test) and sets_any([up.body], {dotted(number)} - {""})
        for up in script.above(node)
    )


def _measures(run: Interpreter, part: cst.CSTNode) -> bool:
    """Tell whether a count is compared with ``part``: that of a length, as ``step < total // 10``."""
    up = run.script.parents[part]
    test = run.script.parents[up] if isinstance(up, cst.ComparisonTarget) else up
    sides = [test.left, *(c.comparator for c in test.comparisons)] if isinstance(test, cst.Comparison) else []
    return any(side is not part and counts(run, side) for side in sides)


def governed(
    facts: ScriptFacts, run: Interpreter, node: cst.CSTNode, behind: frozenset[cst.CSTNode] = frozenset()
) -> list[cst.CSTNode] | None:
    """Return what runs or not by the answer of ``node``, a test or a part of one; None where it is read otherwise.

    Where a branch ends the iteration or the loop, that is the rest of the iteration, too. ``behind`` are the
    assignments and returns that are being followed: ``late = late or step > 100``.
    """
    script, bodies = facts.script, list[cst.CSTNode]()
    below, up = node, script.parents[node]
    while True:
        if isinstance(up, cst.BooleanOperation) and below is up.left:
            bodies.append(up.right)
        if isinstance(up, cst.Call):
            if dotted(up.func) not in _ANSWERS:
                return None
        elif isinstance(up, cst.UnaryOperation):
            if not isinstance(up.operator, cst.Not):
                return None
        elif not isinstance(up, (*_PASSED_ON, cst.Subscript)):
            break
        below, up = up, script.parents[up]
    if up in behind:
        return bodies
    behind |= {up}
    if isinstance(up, (cst.Assign, cst.NamedExpr)):
        read = _read_as(facts, run, up)
        found = [governed(facts, run, n, behind) for n in read] if read is not None else [None]
        return None if any(f is None for f in found) else [*bodies, *(n for f in found for n in f or ())]
    if isinstance(up, cst.Return):
        calls = facts.flow.callers(script.function_of(up))
        found = [governed(facts, run, call, behind) for call in calls] or [None]
        return None if any(f is None for f in found) else [n for f in found for n in f or ()]
    own = _bodies(script, up, below)
    return None if own is None else bodies + own


def _bodies(script: Script, up: cst.CSTNode, test: cst.CSTNode) -> list[cst.CSTNode] | None:
    """Return what ``up`` runs or not by its ``test``; None where that is none."""
    match up:
        case cst.If(test=asked) if asked is test:
            branches: list[cst.CSTNode] = [up.body, *([up.orelse] if up.orelse is not None else [])]
            ends = any(ends_iteration(script, branch, (cst.Continue, cst.Break)) for branch in branches)
            block = script.block(up) if up in script.parents else []
            return [*branches, *(block[block.index(up) + 1 :] if ends and up in block else [])]
        case cst.IfExp(test=asked) if asked is test:
            return [up.body, up.orelse]
        case cst.While(test=asked) if asked is test:
            return [up.body]
        case cst.Match(subject=asked) if asked is test:
            return [case.body for case in up.cases]
        case cst.Expr() | cst.Assert():
            return []
    return None


def _read_as(facts: ScriptFacts, run: Interpreter, made: cst.Assign | cst.NamedExpr) -> list[cst.CSTNode] | None:
    """Return the places that read what ``made`` keeps under a name; None where it is more than a flag."""
    target = made.target if isinstance(made, cst.NamedExpr) else made.targets[0].target
    if isinstance(target, cst.Tuple):  # q, rest = divmod(step, n)
        target = target.elements[-1].value
    if not isinstance(target, cst.Name):
        return None
    script = facts.script
    name, around = target.value, script.function_of(made)
    found = [n for n in walk(around) if isinstance(n, cst.Name) and n.value == name and n is not target]
    bound = {n for n in found for up in script.above(n) if isinstance(up, cst.AssignTarget)}
    below: list[cst.CSTNode] = [n for n in found if n in run.seen and n not in bound]
    if isinstance(made, cst.NamedExpr):
        return [made, *below]
    return below or None


def _place(run: Interpreter, node: cst.BaseExpression) -> Place | None:
    places = {value.place for value in run.seen.get(node, ()) if not value.refs and value.name != "remainder"}
    return places.pop() if len(places) == 1 else next((p for p in places if p.counts), None)


def counts(run: Interpreter, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` counts this rank's iterations."""
    place = _place(run, node)
    if place is None:
        return False
    run_so_far = place.kind is Kind.RUN and place.counts and "fires" not in place.adds
    return (place.kind in (Kind.COUNT, Kind.INDEX) and place.at is None) or run_so_far


def _is_serial(run: Interpreter, number: cst.BaseExpression) -> bool:
    """Tell whether ``number`` is one of the serial script's, above 1: written, or handed to the program.

    What a count is compared with, or divided by, is taken for a number: ``args.log_interval``.
    """
    if isinstance(number, cst.Integer):
        return number.evaluated_value > 1
    values = run.seen.get(number, ())
    rest = ("remainder", "undivided")
    plain = all(v.place == Place() and v.scalar is not False and v.items is None and v.name not in rest for v in values)
    return bool(values) and plain and not any(_is_no_number(ref) for v in values for ref in v.refs)


def _is_no_number(ref: object) -> bool:
    """Tell whether ``ref`` is a container, an object or a function of the program; an option's attribute may be one."""
    return ref.kind != "foreign" if isinstance(ref, Obj) else not isinstance(ref, Method)


def _are_serial(run: Interpreter, numbers: cst.BaseExpression) -> bool:
    """Tell whether ``numbers`` are several of the serial script's: ``(10, 20)``."""
    if isinstance(numbers, _WRITTEN):
        return any(_is_serial(run, e.value) for e in numbers.elements) and all(
            isinstance(e.value, cst.Integer) or _is_serial(run, e.value) for e in numbers.elements
        )
    values = run.seen.get(numbers, ())
    return bool(values) and all(run.content(v) == Place() and v.refs and run.numbers(v) for v in values)
