"""Part of step "steps": moving averages of weights forget a little with every step, of which n ranks take 1/n."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Danger, Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.moving import Average, averages, taken_from_one
from dlrun.port.facts.models.moving import of_numbers as numbers
from dlrun.port.facts.updates.session import SessionGradients, runs_session
from dlrun.port.insert import expression
from dlrun.port.program.script import argument, calls_method, walk
from dlrun.port.steps.counts import shrinking
from dlrun.port.steps.counts.changing_rates import FORGETS, compound, is_told
from dlrun.port.steps.counts.conditions import divided as divided_by
from dlrun.port.steps.counts.conditions import is_apart
from dlrun.port.steps.counts.counters import callers, each_update, innermost
from dlrun.port.steps.counts.keras.schedules import of_batches
from dlrun.port.steps.counts.step_rates import StepRates, ways

# Libraries' averages of weights: where they take what stays of the old one.
LIBRARIES = {
    "ModelEma": (1, "decay"),
    "ModelEmaV2": (1, "decay"),
    "ModelEmaV3": (1, "decay"),
    "EMAModel": (1, "decay"),
    "ExponentialMovingAverage": (1, "decay"),
    "EMA": (2, "beta"),
    "get_ema_multi_avg_fn": (0, "decay"),
    "get_ema_avg_fn": (0, "decay"),
}
UPDATES = ("update", "update_parameters", "step")
FROM = ("timm.", "diffusers.", "torch_ema.", "ema_pytorch.", "torch.optim.swa_utils.")


def torch(facts: Facts, rates: StepRates, divided: Collection[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Let averages of weights forget as in the serial run: the EMA scaling rule (Busbridge et al., arXiv 2307.13813).

    Not those under a test with one of the counts that are ``divided``, nor those made once an epoch. What weighs the
    old ones may follow the steps, as ``rates`` do.

    Before:
        mean = [p.detach().clone() for p in model.parameters()]
        for x, y in loader:
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            for m, p in zip(mean, model.parameters()):
                m.mul_(0.999).add_(p.detach(), alpha=1 - 0.999)

    After:
        mean = [p.detach().clone() for p in model.parameters()]
        for x, y in loader:
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            for m, p in zip(mean, model.parameters()):
                m.mul_(dl.compound(0.999)).add_(p.detach(), alpha=1 - dl.compound(0.999))
    """
    averaged = list(by_hand(facts, rates, divided))
    yield from averaged
    known = {found.node for found in averaged}
    for node, edit in shrinking.torch(facts):
        if edit.node not in known and _each_step(facts, node, divided):
            yield edit
    for call in facts.script.calls:
        name = facts.script.name_of(call.func)
        at = LIBRARIES.get(name.rsplit(".", 1)[-1]) if name.startswith(FROM) else None
        kept = argument(call, at[1], at[0]) if at is not None else None
        if kept is None:
            continue
        updates = _updates_of(facts, call)
        if not updates or any(_each_step(facts, update, divided) for update in updates):
            yield compound(facts, kept, FORGETS)


def _updates_of(facts: Facts, made: cst.Call) -> list[cst.Call]:
    """Return the calls that update the average of a library in which ``made`` says how: ``mean.update(model)``."""
    calls = (c for c in facts.script.calls if calls_method(c, *UPDATES) and isinstance(c.func, cst.Attribute))
    return [c for c in calls if any(facts.script.inside(made, o.node) for o in facts.flow.origins(c.func.value))]


def by_hand(facts: Facts, rates: StepRates, divided: Collection[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Yield likewise what becomes of the averages that a script of PyTorch or TensorFlow makes itself."""
    weights: list[cst.BaseExpression] = []
    for average in averages(facts):
        node = average.node
        function = facts.script.function_of(node)
        if isinstance(function, cst.FunctionDef) and not facts.flow.callers(function):
            yield _doubt(facts, node, "perhaps in every step", "low")
        if not _each_step(facts, node, divided):
            if _each_step(facts, node, divided, any):
                yield _doubt(facts, node, "in every step, and elsewhere, too", "medium")
            continue
        if average.old is None and average.new is None:
            yield _doubt(facts, node, "in every step", "medium")
            continue
        yield from _edits(facts, average)
        weights += [way for weight in average[1:] if weight is not None for way in ways(facts, weight)]
    yield from rates.told(dict.fromkeys(weights))


def keras(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Yield likewise what becomes of those in a train_step(), in callbacks of batches, and around train_on_batch()."""
    for average in averages(facts):
        if not _with_batch(facts, average.node):
            continue
        if average.old is None and average.new is None:
            yield _doubt(facts, average.node, "in every step", "medium")
        else:
            yield from _edits(facts, average)


def of_numbers(
    facts: ScriptFacts, decays: Callable[[cst.CSTNode], bool], divided: frozenset[cst.CSTNode]
) -> Iterator[Edit | Doubt]:
    """Let moving averages of numbers forget so, too, where an iteration ``decays`` them; not every ``divided`` so many.

    Before:
        smooth = 0.0
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
            smooth = 0.9 * smooth + 0.1 * loss.item()

    After:
        smooth = 0.0
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
            smooth = dl.compound(0.9) * smooth + (1 - dl.compound(0.9)) * loss.item()
    """
    for average in numbers(facts, decays):
        if any(
            isinstance(up, cst.If) and not divided.isdisjoint(walk(up.test)) for up in facts.script.above(average.node)
        ):
            continue
        if average.old is None and average.new is None:
            yield _doubt(facts, average.node, "in every step", "low", "numbers")
        else:
            yield from _edits(facts, average)


def _with_batch(facts: KerasFacts, node: cst.CSTNode, depth: int = 5) -> bool:
    """Tell whether ``node`` runs with every batch that Keras trains on."""
    ups = list(facts.script.above(node))
    around = next((u for u in ups if isinstance(u, cst.FunctionDef) or u in facts.loops), None)
    if isinstance(around, (cst.For, cst.While)):
        return not any(n in facts.loops for n in walk(around.body))
    if not isinstance(around, cst.FunctionDef):
        return False
    if any(isinstance(up, cst.If) and _at_times(facts, up) for up in ups if facts.script.inside(up, around)):
        return False  # as often as in the serial run
    if of_batches(facts, node) or around.name.value == "train_step":
        return True
    calls = facts.flow.callers(around) if depth else []
    return bool(calls) and all(_with_batch(facts, call, depth - 1) for call in calls)


def _at_times(facts: ScriptFacts, node: cst.If) -> bool:
    """Tell whether ``node`` asks for every so many-th, ``step % 100 == 0``, for what is beside the updates."""
    rests = any(divided_by(n) for n in walk(node.test) if isinstance(n, cst.BaseExpression))
    return rests and is_apart(facts.flow, node.body)


def _doubt(facts: ScriptFacts, node: cst.CSTNode, when: str, danger: Danger, what: str = "weights") -> Doubt:
    why = f"averages {what} {when}, and n ranks take 1/n of the steps: it forgets n times more slowly"
    return Doubt(node, why, danger, f"{facts.alias}.compound(d), where d weighs the old ones", name="counts-steps")


def _edits(facts: ScriptFacts, average: Average) -> Iterator[Edit]:
    old, new = average.old, average.new
    if old is not None:
        yield compound(facts, old, FORGETS)
    if new is None:
        return
    if (taken := taken_from_one(facts, new)) is not None:
        yield compound(facts, taken, FORGETS)
        return
    rest = old if old is not None else expression("torch/rest", {"part": new})
    inner = isinstance(facts.script.parents[new], cst.BinaryOperation)
    made = expression("torch/rest", {"part": expression("torch/compound", {"factor": rest}, dl=facts.alias)})
    made = made.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]) if inner else made
    yield Edit(new, FORGETS, lambda _: made)


def _each_step(
    facts: Facts,
    node: cst.CSTNode,
    divided: Collection[cst.CSTNode],
    which: Callable[[Iterable[bool]], bool] = all,
    depth: int = 5,
) -> bool:
    """Tell whether ``node`` runs in every step, in loops over the weights or in functions that are called there.

    By ``all`` of the calls that training makes, or by ``any``; not by those before it, which make a copy.
    """
    if depth and (runs := _runs_of(facts, node)):
        runs = [run for run in runs if _while_training(facts, run)]
        return bool(runs) and which(_each_step(facts, run, divided, which, depth - 1) for run in runs)
    if is_told(facts, node, divided, 0):
        return False
    at = node
    while isinstance(around := innermost(facts, at), cst.For) and around not in facts.loops:
        at = around
    calls = callers(facts, around) if depth and isinstance(around, cst.FunctionDef) else []
    calls = [call for call in calls if _while_training(facts, call)]
    if calls:
        return which(_each_step(facts, call, divided, which, depth - 1) for call in calls)
    return each_update(facts, at)


def _runs_of(facts: Facts, node: cst.CSTNode, depth: int = 2) -> list[cst.Call]:
    """Return the runs of a session that fetch what a graph makes at ``node``, itself or in a list of operations."""
    if not isinstance(getattr(facts, "gradients", None), SessionGradients):
        return []

    def holds(value: cst.CSTNode, depth: int) -> bool:
        made = [o.node for o in facts.flow.origins(value)]
        if any(facts.script.inside(node, n) for n in made):
            return True
        parts = [p for n in made for p in walk(n) if isinstance(p, (cst.Name, cst.Attribute)) and p is not value]
        return depth > 0 and any(holds(p, depth - 1) for p in parts)

    runs = [c for c in facts.script.calls if runs_session(c) and c.args]
    return [run for run in runs if holds(run.args[0].value, depth)]


def _while_training(facts: Facts, call: cst.Call, depth: int = 4) -> bool:
    """Tell whether a training loop makes ``call``, also in a function that it calls."""
    if any(up in facts.loops for up in facts.script.above(call)):
        return True
    around = facts.script.function_of(call)
    calls = callers(facts, around) if depth and isinstance(around, cst.FunctionDef) else []
    return any(_while_training(facts, c, depth - 1) for c in calls)
