"""Learning rates of Keras and TensorFlow that follow the number of steps: what in them is a rate, what counts steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.updates.keywords import keywords
from dlrun.port.facts.updates.rates import is_zero
from dlrun.port.insert import expression
from dlrun.port.program.script import argument, dotted, walk
from dlrun.port.steps.counts import decays
from dlrun.port.steps.counts.changing_rates import FORGETS, compound
from dlrun.port.steps.counts.counts import all_samples

RATES = ("learning_rate", "lr")
WHY = "n times the batch, n times the rate"
_COUNTS = "counted in batches: each rank sees 1/n of them"
_Arguments = tuple[tuple[int, str], ...]


class Schedule(NamedTuple):
    """The arguments, with their positions, that are rates and that count steps."""

    rates: _Arguments
    counts: _Arguments


_DECAY = Schedule(((0, "initial_learning_rate"),), ((1, "decay_steps"),))
_KERAS_OWN = re.compile(r"(^|\.)keras\.([\w.]*\.)?\w*optimizers?\w*\.(\w+\.)*\w+$")
_KERAS = re.compile(r"(keras|tensorflow)\.optimizers\.schedules\.(\w+)$")
SCHEDULES = {
    "ExponentialDecay": _DECAY,
    "InverseTimeDecay": _DECAY,
    "PolynomialDecay": Schedule((*_DECAY.rates, (2, "end_learning_rate")), _DECAY.counts),
    "CosineDecay": Schedule((*_DECAY.rates, (4, "warmup_target")), (*_DECAY.counts, (5, "warmup_steps"))),
    "CosineDecayRestarts": Schedule(_DECAY.rates, ((1, "first_decay_steps"),)),
    "PiecewiseConstantDecay": Schedule(((1, "values"),), ((0, "boundaries"),)),
}
_MOVING = re.compile(r"^tensorflow\.(compat\.v1\.)?train\.ExponentialMovingAverage$")
# Optimizers of TensorFlow's add-ons that take the weight decay before the rate, and do not multiply it by that.
_DECAY_FIRST = re.compile(r"^tensorflow(_addons\.optimizers\.(\w+\.)?(AdamW|SGDW)|\.contrib\.opt\.\w+WOptimizer)$")


def rates_of(facts: ScriptFacts, optimizer: cst.Call) -> list[cst.BaseExpression]:
    """Return the learning rate that an optimizer is made with: several where ``**options`` may be one of some dicts."""
    at = 1 if _DECAY_FIRST.search(facts.script.name_of(optimizer.func)) else 0
    named = (argument(optimizer, name) for name in RATES)
    found = next((value for value in named if value is not None), argument(optimizer, "", at))
    return [found] if found is not None else [rate for name, rate in keywords(facts, optimizer) if name in RATES]


def decay_of(facts: ScriptFacts, optimizer: cst.Call) -> cst.BaseExpression | None:
    """Return the weight decay of an optimizer that takes it off at each step as it is: a rate, too."""
    first = _DECAY_FIRST.search(facts.script.name_of(optimizer.func)) is not None
    return argument(optimizer, "weight_decay", 0) if first else None


def wraps(facts: ScriptFacts, optimizer: cst.Call) -> bool:
    """Tell whether ``optimizer`` only wraps another one, which has the rate: ``LossScaleOptimizer(Adam(1e-3))``."""
    first = argument(optimizer, "optimizer", 0)
    if first is None:
        return False
    made = any(o.node in facts.optimizers for o in facts.flow.origins(first))
    return made or dotted(first).rsplit(".", 1)[-1] in ("opt", "optim", "optimizer", "inner_optimizer")


def rates(facts: ScriptFacts, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the rates in the schedules of Keras' own behind ``value``; nothing where it is something else."""
    given = [rate for call, known in _made(facts, value) for rate in _given(call, known.rates)]
    return [rate for rate in given if not isinstance(rate, cst.Float) or rate.evaluated_value != 0]


def counts(facts: ScriptFacts, optimizers: Iterable[cst.Call]) -> Iterator[Edit]:
    """Divide what counts steps in the schedules of the optimizers' rates.

    A schedule of the script's own class is left to ``lr_scale``, which scales its steps with its rates.
    """
    optimizers = list(optimizers)
    values = [rate for call in optimizers for rate in rates_of(facts, call)]
    values += [decay for call in optimizers if (decay := decay_of(facts, call)) is not None]
    found = {id(count): (count, f"{name}, {_COUNTS}") for value in values for count, name in _counts(facts, value)}
    for count, why in found.values():
        yield Edit(count, why, lambda n: expression("torch/steps", {"count": n}, dl=facts.alias))
    for call in optimizers:
        falls = argument(call, "decay") if _KERAS_OWN.search(facts.script.name_of(call.func)) else None
        if falls is not None and not is_zero(falls):
            yield Edit(
                falls,
                "with each step the rate falls by it, and n ranks take 1/n of the steps",
                lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias),
            )
    for decay in _averages(facts, optimizers):
        yield compound(facts, decay, FORGETS)
    if facts.options.lr_scaling == "none":
        for value in values:
            behind = [] if _made(facts, value) else [o.node for o in facts.flow.origins(value)]
            own = any(_is_schedule(facts, cls) for cls in facts.flow.classes(value))
            if own or any(_KERAS.search(facts.script.name_of(n.func)) for n in behind if isinstance(n, cst.Call)):
                yield Edit(value, f"the schedule, {_COUNTS}", scaling(facts))


def _averages(facts: ScriptFacts, optimizers: list[cst.Call]) -> Iterator[cst.BaseExpression]:
    """Yield what moving averages of the weights keep of the old ones in every step."""
    moving = [c for c in facts.script.calls if _MOVING.search(facts.script.name_of(c.func))]
    given = [argument(call, "ema_momentum") for call in optimizers] + [argument(call, "decay", 0) for call in moving]
    yield from (decay for decay in given if decay is not None)


def scaling(facts: ScriptFacts) -> Callable[[cst.BaseExpression], cst.BaseExpression]:
    """Return the edit that scales a rate."""
    rule = facts.options.lr_scaling
    return lambda node: expression("torch/rate", {"lr": node}, dl=facts.alias, rule=rule)


def _counts(facts: ScriptFacts, value: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, str]]:
    for call, known in _made(facts, value):
        yield from ((n, name) for at, name in known.counts for n in _given(call, ((at, name),)) if _is_whole(facts, n))
    yield from ((n, name) for n, name in decays.counts(facts, value) if _is_whole(facts, n))


def follows_steps(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` makes a schedule of Keras' or TensorFlow 1's own, whose steps are divided."""
    name = facts.script.name_of(node.func) if isinstance(node, cst.Call) else ""
    return bool(_KERAS.search(name) or decays.DECAYS.search(name))


def _made(facts: ScriptFacts, value: cst.BaseExpression) -> list[tuple[cst.Call, Schedule]]:
    """Return the calls that make a schedule of Keras' own behind ``value``, and what is known of it.

    None where it may be something else, too: that is scaled as a whole, by ``lr_scale``.
    """
    found: list[tuple[cst.Call, Schedule]] = []
    for made in dict.fromkeys(o.node for o in facts.flow.origins(value)):
        if isinstance(made, cst.Name) and made.value == "None":
            continue
        match = _KERAS.search(facts.script.name_of(made.func)) if isinstance(made, cst.Call) else None
        if not isinstance(made, cst.Call) or match is None or match[2] not in SCHEDULES:
            return []
        found.append((made, SCHEDULES[match[2]]))
    return found


def _given(call: cst.Call, wanted: _Arguments) -> list[cst.BaseExpression]:
    """Return those of the ``wanted`` arguments that the call has, and that are not None."""
    values = [argument(call, name, at) for at, name in wanted]
    return [v for v in values if v is not None and not (isinstance(v, cst.Name) and v.value == "None")]


def _is_whole(facts: ScriptFacts, count: cst.BaseExpression) -> bool:
    """Tell whether ``count`` is one of serial steps: what is computed from the length of a share is not.

    What is given to ``fit`` is whole: ``fit`` deals it out.
    """
    lengths = any(isinstance(n, cst.Call) and facts.script.name_of(n.func) == "builtins.len" for n in walk(count))
    return not lengths or not isinstance(facts, Facts) or all_samples(facts, count)


def _is_schedule(facts: ScriptFacts, cls: cst.ClassDef) -> bool:
    return any(base.endswith("LearningRateSchedule") for base in facts.flow.bases(cls))
