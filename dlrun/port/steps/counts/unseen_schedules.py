"""Part of step "steps": schedules, warm-ups and averages of libraries out of sight, which step with every batch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.program.script import argument, calls_method, walk
from dlrun.port.steps.counts.counters import attributes, counters, each_update, tells
from dlrun.port.steps.counts.moving import FROM, LIBRARIES
from dlrun.port.steps.counts.schedulers import COUNTS

_STEPS = re.compile(r"^(step|update|anneal|dampen(ing)?)(_\w+)?$|^(on_)?(train_)?batch_end$|^after_\w*(step|batch)$")
_SEEN = ("builtins.", "math.", "numpy.", "torch.")
_KNOWN = ("optimizer", "module", "scaler", "writer", "loss", "loader", "env")
_COUNTING = re.compile(r"step|every|after|start|warm|period|interval|num_", re.IGNORECASE)  # arguments of averages


def torch(facts: Facts) -> Iterator[Doubt]:
    """Doubt what was given the optimizer or the model, is of no library that is known, and is stepped with each batch.

    Nothing tells whether it counts these steps, of which n ranks take 1/n.
    """
    script, told = facts.script, set[cst.CSTNode]()
    for call in script.calls:
        if not isinstance(call.func, cst.Attribute) or not _STEPS.search(call.func.attr.value):
            continue
        made = [o.node for o in facts.flow.origins(call.func.value) if isinstance(o.node, cst.Call) and o.whole]
        unknown = [m for m in made if m not in told and _is_unknown(facts, m)]
        if unknown and each_update(facts, call):
            told.update(unknown)
            name = script.code(unknown[0].func)
            yield Doubt(
                unknown[0],
                f"{name} is stepped with every batch (line {script.line(call)}), of which n ranks "
                "take 1/n: what it counts, or multiplies at each step, goes n times more slowly",
                "high",
                f"{facts.alias}.steps(...) around its counts of steps, {facts.alias}.compound(...) around what "
                "it multiplies",
                name="counts-steps",
            )


def weighing(facts: Facts, weights: Iterable[cst.BaseExpression], known: Set[cst.CSTNode]) -> Iterator[Doubt]:
    """Yield a doubt where what a library makes of the steps so far is one of the loss's ``weights``: ``beta.at(step)``.

    Counts that are ``known`` to be serial, or divided, are left out.
    """
    counted = tells(facts, {*counters(facts), *attributes(facts)})
    for call in (n for value in weights for n in walk(value) if isinstance(n, cst.Call)):
        name = facts.script.name_of(call.func)
        if name.startswith(_SEEN) or facts.flow.targets(call) or facts.flow.definitions(call.func):
            continue
        given = [n for arg in call.args for n in walk(arg.value)]
        step = next((facts.script.code(n) for n in given if counted(n)), "")
        if step and known.isdisjoint(given):
            text = facts.script.code(call.func)
            yield Doubt(
                call,
                f"{text}() is out of sight, and weighs the loss by the steps so far, of which n ranks take 1/n",
                "high",
                f"{facts.alias}.serial_steps({step}), if it counts the serial script's steps",
                name="counts-steps",
            )
            return


def _is_unknown(facts: Facts, made: cst.Call) -> bool:
    """Tell whether ``made`` is an object of a library out of sight that was given the optimizer or the model."""
    name = facts.script.name_of(made.func)
    last = name.rpartition(".")[2]
    if not name or name.startswith((".", "torch.", "builtins.")) or facts.flow.definition(made.func) is not None:
        return False
    if last in COUNTS or facts.kinds.of_call(made) in _KNOWN:
        return False
    if name.startswith("timm.scheduler.") and _is_true(argument(made, "t_in_epochs")):
        return False
    if name.startswith(FROM) and last in LIBRARIES:
        return any(a.keyword is not None and _COUNTING.search(a.keyword.value) for a in made.args)
    return any(_trains(facts, arg.value) for arg in made.args)


def _is_true(given: cst.BaseExpression | None) -> bool:
    """Tell whether an argument that is ``given`` or not, and is true by default, is true."""
    return given is None or (isinstance(given, cst.Name) and given.value == "True")


def _trains(facts: Facts, given: cst.BaseExpression) -> bool:
    """Tell whether ``given`` is an optimizer, a model, or the weights of one."""
    if isinstance(given, (cst.List, cst.Tuple)):
        return any(_trains(facts, e.value) for e in given.elements)
    if calls_method(given, "parameters") or calls_method(given, "named_parameters"):
        return True
    return facts.kinds.of(given) in ("optimizer", "module")
