"""TensorFlow 1's own decays, functions of the steps so far: where they count steps, and which count epochs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.program.script import argument, calls_method, dotted, walk
from dlrun.port.steps.counts.counters import each_update
from dlrun.port.steps.counts.update_counts import steps_so_far

# Functions of the global step. What they return is scaled as a whole.
DECAYS = re.compile(
    r"tensorflow\.(compat\.v1\.)?train\.((exponential|polynomial|natural_exp|inverse_time|cosine|linear_cosine|"
    r"noisy_linear_cosine)_decay|cosine_decay_restarts|piecewise_constant(_decay)?)$"
)
_COUNTS = {
    "piecewise_constant": (1, "boundaries"),
    "piecewise_constant_decay": (1, "boundaries"),
    "cosine_decay_restarts": (2, "first_decay_steps"),
}
_MOVES = ("tensorflow.assign", "tensorflow.assign_add")


def counts(facts: ScriptFacts, value: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yield what counts batches in the decays that ``value`` is computed from, and what it is called there."""
    for call in (n for n in computed(facts.flow, [value]).nodes if isinstance(n, cst.Call)):
        match = DECAYS.search(facts.script.name_of(call.func))
        if match and not (isinstance(facts, Facts) and _is_of_epochs(facts, call)):
            at, name = _COUNTS.get(match[2], (2, "decay_steps"))
            if (count := argument(call, name, at)) is not None and dotted(count) != "None":
                yield count, name


def step_of(facts: ScriptFacts, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the steps so far that the decay made by ``node``, if it is one, follows."""
    match = DECAYS.search(facts.script.name_of(node.func)) if isinstance(node, cst.Call) else None
    if match is None or not isinstance(node, cst.Call):
        return None
    at, name = (0, "x") if match[2].startswith("piecewise") else (1, "global_step")
    return argument(node, name, at)


def _is_of_epochs(facts: Facts, decay: cst.Call) -> bool:
    """Tell whether what ``decay`` follows is surely no count of batches: it is fed, or moved, once in many of them."""
    step = step_of(facts, decay)
    made = set(computed(facts.flow, [step]).nodes) if step is not None else set()
    fed = [value for key, value in getattr(facts, "fed", ()) if _is_among(facts, key, made)]
    if fed:
        counted = steps_so_far(facts)
        iterations = {dotted(loop.target) for loop, _ in facts.counted if isinstance(loop, cst.For)}
        return not any(
            counted(n) or dotted(n) in iterations for value in fed for n in computed(facts.flow, [value]).nodes
        )
    moves = {c for c in facts.script.calls if (v := _moved(facts, c)) is not None and _is_among(facts, v, made)}
    runs = [
        c
        for c in facts.script.calls
        if calls_method(c, "run")
        and any(_is_among(facts, n, moves) for n in walk(c) if isinstance(n, (cst.Name, cst.Call)))
    ]
    return bool(runs) and not any(each_update(facts, run) for run in runs)


def _is_among(facts: Facts, node: cst.CSTNode, made: Collection[cst.CSTNode]) -> bool:
    """Tell whether one of ``made`` makes what ``node`` is."""
    return any(o.node in made for o in facts.flow.origins(node))


def _moved(facts: Facts, call: cst.Call) -> cst.BaseExpression | None:
    """Return the variable that ``call`` gives another value."""
    if plain(facts.script.name_of(call.func)) in _MOVES:
        return call.args[0].value if call.args else None
    return call.func.value if calls_method(call, "assign", "assign_add") else None
