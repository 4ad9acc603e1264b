"""Part of step "steps": PyTorch's schedulers, which count the batches that they step with, or the epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.updates.keywords import keywords, starred
from dlrun.port.program.script import argument, calls_method, dotted, walk
from dlrun.port.steps.counts import script_schedules
from dlrun.port.steps.counts.counters import (
    attributes,
    counters,
    each_update,
    innermost,
    takes_batches,
    tells,
    this_included,
)
from dlrun.port.steps.counts.counts import all_samples, is_own, of_an_epoch

# Schedulers of schedulers, which step with them: where these are given.
_OF_OTHERS = {"SequentialLR": 1, "ChainedScheduler": 0}
# Scheduler arguments that count scheduler steps: (position, name).
COUNTS = (
    {
        "StepLR": ((1, "step_size"),),
        "MultiStepLR": ((1, "milestones"),),
        "SequentialLR": ((2, "milestones"),),
        "CosineAnnealingLR": ((1, "T_max"),),
        "CosineAnnealingWarmRestarts": ((1, "T_0"),),
        "OneCycleLR": ((2, "total_steps"), (4, "steps_per_epoch")),
        "LinearLR": ((3, "total_iters"),),
        "ConstantLR": ((2, "total_iters"),),
        "PolynomialLR": ((1, "total_iters"),),
        "CyclicLR": ((3, "step_size_up"), (4, "step_size_down")),
        "SWALR": ((2, "anneal_epochs"),),
        "get_constant_schedule_with_warmup": ((1, "num_warmup_steps"),),
        "WarmupConstantSchedule": ((1, "warmup_steps"),),
        "get_scheduler": ((2, "num_warmup_steps"), (3, "num_training_steps")),
    }
    | {
        f"get_{kind}_schedule_with_warmup": ((1, "num_warmup_steps"), (2, "num_training_steps"))
        for kind in ("linear", "cosine", "cosine_with_hard_restarts", "polynomial_decay")
    }
    | {
        f"Warmup{kind}Schedule": ((1, "warmup_steps"), (2, "t_total"))
        for kind in ("Linear", "Cosine", "CosineWithHardRestarts")
    }
)
_ANY = "?"  # a class by any name: getattr(torch.optim.lr_scheduler, name)
FACTORS = {"ExponentialLR": 1, "CyclicLR": 6}  # where the schedulers take what multiplies the rate at every step


def batchwise(facts: Facts) -> Iterator[tuple[cst.Call, str]]:
    """Yield the schedulers that step with every batch, also inside of others, and the names of their classes."""
    calls = facts.script.calls
    made = [o.node for c in calls if _steps_with_batch(facts, c) for o in facts.flow.origins(c.func.value)]  # type: ignore[attr-defined]
    for call in (found := [m for m in dict.fromkeys(made) if isinstance(m, cst.Call)]):
        found.extend(c for c in script_schedules.inner_calls(facts, call) if c not in found)
        for name in script_schedules.names(facts, call):
            yield call, name
            inner = argument(call, "schedulers", _OF_OTHERS[name]) if name in _OF_OTHERS else None
            for origin in facts.flow.origins(inner) if inner is not None else ():
                for element in origin.node.elements if isinstance(origin.node, (cst.List, cst.Tuple)) else ():
                    others = [o.node for o in facts.flow.origins(element.value) if isinstance(o.node, cst.Call)]
                    found.extend(other for other in others if other not in found)


def counts(facts: Facts) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yield the counts of batches that schedulers are made with, each with the reason why ranks have fewer."""
    for call, name in batchwise(facts):
        for keyword, count in _given_counts(facts, call, name):
            yield count, f"{keyword} counts batches, and each rank sees 1/n of them"
    for call in facts.optimizers:
        if (value := argument(call, "t_total")) is not None:
            yield value, "t_total counts steps, and n ranks take 1/n of them"


def _given_counts(facts: Facts, call: cst.Call, name: str) -> list[tuple[str, cst.BaseExpression]]:
    """Return the counts of batches that ``call`` makes the scheduler ``name`` with; of one by any name, by keywords."""
    known = COUNTS.get(name, ()) if name != _ANY else [(-1, keyword) for own in COUNTS.values() for _, keyword in own]
    written = [(keyword, argument(call, keyword, position)) for position, keyword in dict.fromkeys(known)]
    handed = [(given, value) for given, value in keywords(facts, call) if any(given == k for _, k in known)]
    return [*((keyword, value) for keyword, value in written if value is not None), *handed]


def by_epochs(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the lengths of a rank's share that schedulers take which step once an epoch: ``T_max=len(loader)``."""
    steps = [c for c in facts.script.calls if calls_method(c, "step")]
    made = {o.node for c in steps for o in facts.flow.origins(c.func.value)}
    stepped = {call for call, _ in batchwise(facts)}
    for call in (c for c in facts.script.calls if c in made and c not in stepped):
        for position, keyword in COUNTS.get(facts.script.name_of(call.func).rsplit(".", 1)[-1], ()):
            value = argument(call, keyword, position)
            if value is not None and is_own(facts, value):
                yield value


def _steps_with_batch(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` steps a scheduler with every batch: in the innermost loop in which an optimizer steps."""
    if not calls_method(call, "step") or facts.kinds.of(call.func.value) != "scheduler":
        return False
    at: cst.CSTNode = call
    loop = innermost(facts, at)
    if isinstance(loop, cst.For) and dotted(loop.target) == dotted(call.func.value):
        at, loop = loop, innermost(facts, loop)  # for scheduler in schedulers: scheduler.step()
    function = facts.script.function_of(at)
    by_epochs = isinstance(loop, (cst.For, cst.While)) and not takes_batches(facts, loop)  # though it has a last step
    beside = not by_epochs and any(
        innermost(facts, s.node) is loop and facts.script.function_of(s.node) is function for s in facts.steps
    )
    return (beside or each_update(facts, at)) and not any(_tells_epochs(facts, arg.value) for arg in call.args)


def _tells_epochs(facts: Facts, told: cst.BaseExpression) -> bool:
    """Tell whether a scheduler is ``told`` the epochs that are done: ``epoch + i / len(loader)``."""
    return any(True for _ in _fractions(facts, told))


def _fractions(facts: Facts, told: cst.BaseExpression) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield what counts the batches so far in what ``told`` is made of, and the batches of an epoch that divide it.

    What a fraction of an epoch is added to counts epochs: ``epoch + i / 100``.
    """
    done = tells(facts, {*counters(facts), *attributes(facts)})
    for n in computed(facts.flow, [told]).nodes:
        if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Divide):
            up = facts.script.parents[n]
            sides = (up.left, up.right) if _adds(up) else ()
            added = bool(sides) and not any(done(part) for side in sides if side is not n for part in walk(side))
            if added or is_own(facts, n.right) or all_samples(facts, n.right):
                yield from ((part, n.right) for part in walk(n.left) if done(part))


def _adds(node: cst.CSTNode) -> TypeGuard[cst.BinaryOperation]:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add)


def serial_counts(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what counts a rank's batches where a scheduler is told which part of all batches they are."""
    for call in facts.script.calls:
        if calls_method(call, "step") and facts.kinds.of(call.func.value) == "scheduler":
            for part, whole in (pair for arg in call.args for pair in _fractions(facts, arg.value)):
                if isinstance(part, cst.Name) and not is_own(facts, whole):
                    yield this_included(facts.script, part)


def doubts(facts: Facts) -> Iterator[Doubt]:
    """Yield the schedulers whose counts are out of sight, that multiply the rate at every batch, or end too early."""
    for call, name in batchwise(facts):
        hidden = starred(call) or name == _ANY
        if hidden and (name == _ANY or name in COUNTS) and not _given_counts(facts, call, name):
            least = COUNTS[name][0][1] if name in COUNTS else "T_max"
            yield Doubt(
                call,
                "what counts batches is somewhere in these arguments, and is not divided: each rank sees 1/n of them",
                "high",
                f"{least}={facts.alias}.steps(...)",
            )
        if name == "MultiplicativeLR":
            yield Doubt(
                call,
                f"{name} multiplies the rate at every batch, and n ranks take 1/n of the batches: the "
                "rate falls n times more slowly",
                "high",
                f"{facts.alias}.compound(...) around what its function returns",
            )
        total = argument(call, "total_steps", 2) if name == "OneCycleLR" else None
        if total is not None and all_samples(facts, total) and of_an_epoch(facts, total) is total:
            yield Doubt(
                total,
                "where n does not divide an epoch's steps every epoch takes one more, and OneCycleLR "
                "refuses a step beyond the total",
                "medium",
                f"total_steps=epochs * {facts.alias}.steps(steps of an epoch)",
            )
