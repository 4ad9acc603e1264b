"""Step "steps": with n ranks an epoch has 1/n of the steps, so constants that count steps shrink alike."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.computed import computed, leaves
from dlrun.port.facts.keywords import keywords, starred
from dlrun.port.insert import expression, with_argument
from dlrun.port.passes import changing_rates, milestones, moving, own_schedules, step_rates
from dlrun.port.passes.bounds import bars, bounds, lasts
from dlrun.port.passes.counters import Counters, attributes, counters, each_update, innermost, tells
from dlrun.port.passes.counts import all_samples, is_own
from dlrun.port.passes.step_rates import StepRates
from dlrun.port.program.script import argument, calls_method, dotted, walk

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

    found = dict(_counts(facts))
    for node, why in found.items():
        if not _follows(facts, node, found):
            yield Edit(node, why, divide)
    done: set[cst.CSTNode] = set(found)
    known = set(counters(facts)) | set(attributes(facts))
    yield from at_times(facts, known, done)
    known |= milestones.numbers(facts, known)
    rates = StepRates(facts, tells(facts, known), done)
    yield from rates.told(step_rates.set_by_hand(facts))
    yield from changing_rates.compounded(facts, done)
    yield from moving.torch(facts, rates, done)
    for call, name in _batchwise(facts):
        yield from own_schedules.torch(facts, call, name, done)
        gamma = argument(call, "gamma", FACTORS[name]) if name in FACTORS else None
        if gamma is not None:
            yield changing_rates.compound(facts, gamma)
        if name == "CyclicLR" and argument(call, "step_size_up", 3) is None and not any(a.star for a in call.args):
            yield Edit(call, "half a cycle is 2000 batches where nothing is said, and each rank sees 1/n of them",
                       lambda c: with_argument(c, "step_size_up", divide(cst.Integer("2000"))))  # fmt: skip
    for value in _epochs_by_batches(facts):
        yield Edit(value, "epochs, as many as the serial run has batches in one: a rank has 1/n of these",
                   lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias))  # fmt: skip
    for value in bars(facts):
        if not _is_divided(facts, value, done):
            yield Edit(value, "the bar counts what one rank goes through", divide)
    yield from _doubts(facts)
    yield from _out_of_sight(facts, done)


def at_times(facts: Facts, known: Counters, done: set[cst.CSTNode]) -> Iterator[Edit]:
    """Divide the counts at which the rate changes, or the script saves or decides; they are ``done`` then."""

    def divide(node: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/steps", {"count": node}, dl=facts.alias)

    def last_step(node: cst.BaseExpression) -> cst.BaseExpression:
        count = cst.Integer(str(node.evaluated_value + 1))  # type: ignore[attr-defined]
        return expression("torch/last_step", {"count": count}, dl=facts.alias)

    counts = set(done)
    for value in milestones.torch(facts, known):
        if not _is_divided(facts, value, done) and not any(facts.script.inside(n, value) for n in done):
            last = milestones.is_last(facts.script, value, counts)
            done.add(value)
            yield Edit(value, "this counts serial steps, of which n ranks take 1/n", last_step if last else divide)


def _counts(facts: Facts) -> list[tuple[cst.BaseExpression, str]]:
    """Return the counts of serial steps, where they are written, of schedulers and of loops."""
    found: list[tuple[cst.BaseExpression, str]] = []
    for value, why in [*_scheduler_counts(facts), *bounds(facts)]:
        parts = leaves(facts.flow, value)
        own = [part for part in parts if is_own(facts, part)]
        for node in [part for part in parts if part not in own] if own else [_source(facts, value)]:
            found.append((_of_an_epoch(facts, node) if all_samples(facts, node) else node, why))
    return found


def _epochs_by_batches(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the lengths of a rank's share that schedulers take which step once an epoch: ``T_max=len(loader)``."""
    steps = [c for c in facts.script.calls if calls_method(c, "step")]
    made = {o.node for c in steps for o in facts.flow.origins(c.func.value)}
    batchwise = {call for call, _ in _batchwise(facts)}
    for call in (c for c in facts.script.calls if c in made and c not in batchwise):
        for position, keyword in COUNTS.get(facts.script.name_of(call.func).rsplit(".", 1)[-1], ()):
            value = argument(call, keyword, position)
            if value is not None and is_own(facts, value):
                yield value


def _follows(facts: Facts, node: cst.BaseExpression, divided: Collection[cst.CSTNode]) -> bool:
    """Tell whether ``node`` is computed from another count that is ``divided``."""
    return any(n in divided and n is not node for n in computed(facts.flow, [node]).nodes)


def _is_divided(facts: Facts, value: cst.BaseExpression, divided: Collection[cst.CSTNode], depth: int = 3) -> bool:
    """Tell whether ``value`` is one of the counts that are ``divided``, or a part of one: ``total // 4``."""
    for leaf in (value, *leaves(facts.flow, value)):
        inner = (n for n in walk(leaf) if n is not value and isinstance(n, (cst.Name, cst.Attribute)))
        if leaf in divided or (depth and any(_is_divided(facts, n, divided, depth - 1) for n in inner)):
            return True
    return False


def _scheduler_counts(facts: Facts) -> Iterator[tuple[cst.BaseExpression, str]]:
    for call, name in _batchwise(facts):
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


def _out_of_sight(facts: Facts, found: Collection[cst.CSTNode]) -> Iterator[Doubt]:
    """Yield counts of steps that go to schedules out of sight, each of which may be stepped in its own way."""
    known = {call for call, _ in _batchwise(facts)}
    for call in facts.script.calls:
        name = facts.script.name_of(call.func)
        if call in known or not name or name.startswith((".", "builtins.", "torch.optim.")):
            continue
        for arg in call.args:
            counted = arg.keyword is not None and _COUNTED.search(arg.keyword.value)
            if counted and arg.keyword is not None and arg.value not in found and not is_own(facts, arg.value):
                keyword, code = arg.keyword.value, facts.script.code(arg.value)
                yield Doubt(arg, f"{keyword} may count steps, of which n ranks take 1/n", "medium",
                            f"{keyword}={facts.alias}.steps({code}), if it does")  # fmt: skip


def _doubts(facts: Facts) -> Iterator[Doubt]:
    """Yield the schedulers that multiply the rate at every batch, and those that end the training a step too early;
    what asks for a last batch that a rank may not come to."""
    for last in lasts(facts):
        if not all_samples(facts, last):
            yield Doubt(last, "a rank takes 1/n of the batches: if this is their number, it never comes to the last",
                        "medium", f"{facts.alias}.steps({facts.script.code(last)}), if it is")  # fmt: skip
    cut = [bound for bound, _ in bounds(facts)] if not facts.feeds else []
    for loop in (loop for loop, _ in facts.counted if isinstance(loop, cst.While) and not facts.feeds):
        timed = any("epoch" in dotted(n) or facts.unequal(n) for n in walk(loop.test))
        if not timed and not any(facts.script.inside(bound, loop) for bound in cut):
            yield Doubt(loop.test, "each rank makes the serial run's steps, on samples that it draws itself: together "
                        "they take n times as many", "medium", "let it end after 1/n of the steps")  # fmt: skip
    for call, name in _batchwise(facts):
        hidden = starred(call) or name == _ANY
        if hidden and (name == _ANY or name in COUNTS) and not _given_counts(facts, call, name):
            least = COUNTS[name][0][1] if name in COUNTS else "T_max"
            yield Doubt(call, "what counts batches is somewhere in these arguments, and is not divided: each rank sees "
                        "1/n of them", "high", f"{least}={facts.alias}.steps(...)")  # fmt: skip
        if name == "MultiplicativeLR":
            yield Doubt(call, f"{name} multiplies the rate at every batch, and n ranks take 1/n of the batches: the "
                        "rate falls n times more slowly", "high",
                        f"{facts.alias}.compound(...) around what its function returns")  # fmt: skip
        total = argument(call, "total_steps", 2) if name == "OneCycleLR" else None
        if total is not None and all_samples(facts, total) and _of_an_epoch(facts, total) is total:
            yield Doubt(total, "where n does not divide an epoch's steps every epoch takes one more, and OneCycleLR "
                        "refuses a step beyond the total", "medium", "total_steps=epochs * "
                        f"{facts.alias}.steps(steps of an epoch)")  # fmt: skip


def _batchwise(facts: Facts) -> Iterator[tuple[cst.Call, str]]:
    """Yield the schedulers that step with every batch, also inside of others, and the names of their classes."""
    calls = facts.script.calls
    made = [o.node for c in calls if _steps_with_batch(facts, c) for o in facts.flow.origins(c.func.value)]  # type: ignore[attr-defined]
    for call in (found := [m for m in dict.fromkeys(made) if isinstance(m, cst.Call)]):
        found.extend(c for c in own_schedules.inner_calls(facts, call) if c not in found)
        for name in own_schedules.names(facts, call):
            yield call, name
            inner = argument(call, "schedulers", _OF_OTHERS[name]) if name in _OF_OTHERS else None
            for origin in facts.flow.origins(inner) if inner is not None else ():
                for element in origin.node.elements if isinstance(origin.node, (cst.List, cst.Tuple)) else ():
                    others = [o.node for o in facts.flow.origins(element.value) if isinstance(o.node, cst.Call)]
                    found.extend(other for other in others if other not in found)


def _of_an_epoch(facts: Facts, count: cst.BaseExpression) -> cst.BaseExpression:
    """Return the factor of ``epochs * (len(data) // size)`` that counts an epoch's steps: each rounds up its own."""
    while isinstance(count, cst.BinaryOperation) and isinstance(count.operator, cst.Multiply):
        sides = [side for side in (count.left, count.right) if all_samples(facts, side)]
        if len(sides) != 1:
            break
        count = sides[0]
    return count


def _steps_with_batch(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` steps a scheduler with every batch: in the innermost loop in which an optimizer steps."""
    if not (calls_method(call, "step")):
        return False
    if facts.kinds.of(call.func.value) != "scheduler":
        return False
    at: cst.CSTNode = call
    loop = innermost(facts, at)
    if isinstance(loop, cst.For) and dotted(loop.target) == dotted(call.func.value):
        at, loop = loop, innermost(facts, loop)  # for scheduler in schedulers: scheduler.step()
    function = facts.script.function_of(at)
    beside = any(innermost(facts, s.node) is loop and facts.script.function_of(s.node) is function for s in facts.steps)
    return (beside or each_update(facts, at)) and not any(_tells_epochs(facts, arg.value) for arg in call.args)


def _tells_epochs(facts: Facts, told: cst.BaseExpression) -> bool:
    """Tell whether a scheduler is ``told`` the epochs that n ranks have done, too: ``epoch + i / len(loader)``."""
    counts = tells(facts, {*counters(facts), *attributes(facts)})
    for n in computed(facts.flow, [told]).nodes:
        if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Divide) and is_own(facts, n.right):
            return any(counts(part) for part in walk(n.left))
    return False


def _source(facts: Facts, value: cst.BaseExpression) -> cst.BaseExpression:
    """Return the literal that a name stands for, where it is bound once; a default is only what calls may leave out."""
    if isinstance(value, cst.Name):
        bindings = facts.script.bindings_of(value)
        if len(bindings) == 1 and isinstance(bindings[0].value, cst.Integer) and bindings[0].how == "assign":
            return bindings[0].value
    return value
