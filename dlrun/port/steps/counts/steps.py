"""Step "steps": with n ranks an epoch has 1/n of the steps, so constants that count steps shrink alike."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import computed, leaves
from dlrun.port.insert import expression, with_argument
from dlrun.port.program.script import argument, dotted, walk
from dlrun.port.steps.counts import (
    changing_rates,
    milestones,
    moving,
    schedulers,
    script_schedules,
    step_rates,
    unseen_schedules,
)
from dlrun.port.steps.counts.bounds import bars, bounds, lasts
from dlrun.port.steps.counts.conditions import fewer, picked_by
from dlrun.port.steps.counts.counters import Counters, attributes, batches_before, counters, tells
from dlrun.port.steps.counts.counts import all_samples, is_own, of_an_epoch
from dlrun.port.steps.counts.step_rates import StepRates

_COUNTED = re.compile(r"^(num_)?((warm_?up|total|max|train|training|decay)_(steps|iters|iterations|updates)|t_total)$")


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Divide loop bounds that count steps, and the constants of schedulers that step with every batch.

    Before:
        sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1000)
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            sched.step()

    After:
        sched = torch.optim.lr_scheduler.StepLR(opt, step_size=dl.steps(1000))
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            sched.step()
    """
    if facts.keeps_steps:
        return

    def divide(node: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/steps", {"count": node}, dl=facts.alias)

    found, beside = dict(_counts(facts)), dict[cst.BaseExpression, str]()
    for node, why in found.items():
        if not _follows(facts, node, found):
            yield Edit(node, why, divide)
            continue
        for part in milestones.beside(facts, node, partial(_is_local, facts, set(found) - {node})):
            beside[part] = why
    for part, why in beside.items():
        yield Edit(part, why, divide)
    done: set[cst.CSTNode] = {*found, *beside}
    known = set(counters(facts)) | set(attributes(facts))
    yield from at_times(facts, known, done)
    known |= milestones.numbers(facts, known)
    rates = StepRates(facts, tells(facts, known), done)
    yield from rates.told(step_rates.set_by_hand(facts))
    yield from changing_rates.compounded(facts, done)
    yield from moving.torch(facts, rates, done)
    for call, name in schedulers.batchwise(facts):
        yield from script_schedules.torch(facts, call, name, done)
        gamma = argument(call, "gamma", schedulers.FACTORS[name]) if name in schedulers.FACTORS else None
        if gamma is not None and not is_own(facts, gamma):  # else of as many steps as a rank takes
            yield changing_rates.compound(facts, gamma)
        if name == "CyclicLR" and argument(call, "step_size_up", 3) is None and not any(a.star for a in call.args):
            yield Edit(
                call,
                "half a cycle is 2000 batches where nothing is said, and each rank sees 1/n of them",
                lambda c: with_argument(c, "step_size_up", divide(cst.Integer("2000"))),
            )
    for value in schedulers.by_epochs(facts):
        yield Edit(
            value,
            "epochs, as many as the serial run has batches in one: a rank has 1/n of these",
            lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias),
        )
    for count in schedulers.serial_counts(facts):
        yield Edit(
            count,
            "of all batches of an epoch, of which n ranks take n at once",
            lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias),
        )
    for value in bars(facts):
        if not _is_divided(facts, value, done):
            yield Edit(value, "the bar counts what one rank goes through", divide)
    yield from _doubts(facts, done)
    yield from schedulers.doubts(facts)
    told = list(_out_of_sight(facts, done))
    yield from told
    unseen = unseen_schedules.torch(facts)
    yield from (d for d in unseen if not any(facts.script.inside(one.node, d.node) for one in told))


def _before(facts: Facts, known: Counters, done: set[cst.CSTNode]) -> Iterator[Edit]:
    """Divide the batches of an epoch in counts over all epochs, ``epoch * batches + i``; they are ``done`` then."""
    counted = tells(facts, known)
    for node in facts.script.of(cst.BinaryOperation):
        for side in (node.left, node.right) if isinstance(node.operator, cst.Add) and counted(node) else ():
            batches = batches_before(facts, side)
            if batches is not None and not is_own(facts, batches) and not _is_divided(facts, batches, done):
                done.add(batches)
                yield Edit(
                    batches,
                    "the batches of an epoch, of which a rank takes 1/n",
                    lambda n: expression("torch/steps", {"count": n}, dl=facts.alias),
                )


def at_times(facts: Facts, known: Counters, done: set[cst.CSTNode]) -> Iterator[Edit]:
    """Divide the counts at which the rate changes, or the script saves or decides; they are ``done`` then."""
    yield from _before(facts, known, done)
    counts = set(done)
    for value in milestones.torch(facts, known):
        parts = milestones.beside(facts, value, lambda part: _is_divided(facts, part, done))
        for part in parts or [value]:
            if picked_by(facts.script, part) is not None:
                continue  # no count of steps: see ``_doubts``
            if not _is_divided(facts, part, done) and not any(facts.script.inside(n, part) for n in done):
                done.add(part)
                yield fewer(facts, part, milestones.WHY, counts)


def _counts(facts: Facts) -> list[tuple[cst.BaseExpression, str]]:
    """Return the counts of serial steps, where they are written, of schedulers and of loops."""
    found: list[tuple[cst.BaseExpression, str]] = []
    for value, why in [*schedulers.counts(facts), *bounds(facts)]:
        parts = leaves(facts.flow, value)
        own = [part for part in parts if is_own(facts, part)]
        for node in [part for part in parts if part not in own] if own else [_source(facts, value)]:
            found.append((of_an_epoch(facts, node) if all_samples(facts, node) else node, why))
        for part in own:  # len(loader) * epochs - 500
            found += [(other, why) for other in milestones.beside(facts, part, partial(is_own, facts))]
    return found


def _follows(facts: Facts, node: cst.BaseExpression, divided: Collection[cst.CSTNode]) -> bool:
    """Tell whether ``node`` is computed from another count that is ``divided``."""
    return any(n in divided and n is not node for n in computed(facts.flow, [node]).nodes)


def _is_local(facts: Facts, divided: Collection[cst.CSTNode], part: cst.BaseExpression) -> bool:
    """Tell whether a summand is a number of a rank's steps, or becomes one."""
    return is_own(facts, part) or _is_divided(facts, part, divided)


def _is_divided(facts: Facts, value: cst.BaseExpression, divided: Collection[cst.CSTNode], depth: int = 3) -> bool:
    """Tell whether ``value`` is one of the counts that are ``divided``, or a part of one: ``total // 4``."""
    for leaf in (value, *leaves(facts.flow, value)):
        inner = (n for n in walk(leaf) if n is not value and isinstance(n, (cst.Name, cst.Attribute)))
        if leaf in divided or (depth and any(_is_divided(facts, n, divided, depth - 1) for n in inner)):
            return True
    return False


def _out_of_sight(facts: Facts, found: Collection[cst.CSTNode]) -> Iterator[Doubt]:
    """Yield counts of steps that go to schedules out of sight, each of which may be stepped in its own way."""
    known = {call for call, _ in schedulers.batchwise(facts)}
    for call in facts.script.calls:
        name = facts.script.name_of(call.func)
        if call in known or not name or name.startswith((".", "builtins.", "torch.optim.")):
            continue
        for arg in call.args:
            counted = arg.keyword is not None and _COUNTED.search(arg.keyword.value)
            if counted and arg.keyword is not None and arg.value not in found and not is_own(facts, arg.value):
                keyword, code = arg.keyword.value, facts.script.code(arg.value)
                yield Doubt(
                    arg,
                    f"{keyword} may count steps, of which n ranks take 1/n",
                    "medium",
                    f"{keyword}={facts.alias}.steps({code}), if it does",
                )


def _doubts(facts: Facts, done: Collection[cst.CSTNode]) -> Iterator[Doubt]:
    """Yield what asks for batches that a rank may not come to, and loops that take as many steps on n ranks."""
    for test, count, stride in milestones.in_strides(facts):
        name, step = facts.script.code(count), facts.script.code(stride)
        yield Doubt(
            test,
            f"{name} goes up by {step} at a time, in 1/n of the iterations: it may miss what it is compared with",
            "medium",
            f"compare {facts.alias}.serial_steps({name}), which goes up by {facts.alias}.serial_steps({step})",
        )
    for value in milestones.torch(facts, set(counters(facts)) | set(attributes(facts))):
        if (picked := picked_by(facts.script, value)) is not None and not facts.local(value):
            batches = facts.script.code(picked.value)
            yield Doubt(
                picked,
                f"all ranks take the same entry of {batches} in an iteration, which the serial script puts beside "
                "another batch each",
                "medium",
                f"make {batches} of a share: {facts.alias}.shard(loader) in place of the loader",
                name="same-samples",
            )
    for last in lasts(facts):
        if not all_samples(facts, last) and not _is_divided(facts, last, done):
            yield Doubt(
                last,
                "a rank takes 1/n of the batches: if this is their number, it never comes to the last",
                "medium",
                f"{facts.alias}.steps({facts.script.code(last)}), if it is",
            )
    cut = [bound for bound, _ in bounds(facts)] if not facts.feeds else []
    for loop in (loop for loop, _ in facts.counted if isinstance(loop, cst.While) and not facts.feeds):
        timed = any("epoch" in dotted(n) or facts.unequal(n) for n in walk(loop.test))
        if not timed and not any(facts.script.inside(bound, loop) for bound in cut):
            yield Doubt(
                loop.test,
                "each rank makes the serial run's steps, on samples that it draws itself: together "
                "they take n times as many",
                "medium",
                "let it end after 1/n of the steps",
            )


def _source(facts: Facts, value: cst.BaseExpression) -> cst.BaseExpression:
    """Return the literal that a name stands for, where it is bound once; a default is only what calls may leave out."""
    if isinstance(value, cst.Name):
        bindings = facts.script.bindings_of(value)
        if len(bindings) == 1 and isinstance(bindings[0].value, cst.Integer) and bindings[0].how == "assign":
            return bindings[0].value
    return value
