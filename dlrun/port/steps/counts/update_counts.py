"""Part of step "steps": what reads the updates so far, be they counted by the script or by TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import Tells
from dlrun.port.facts.numbers.fetches import entry, taken
from dlrun.port.program.script import argument, calls_method, dotted
from dlrun.port.steps.counts.counters import attributes, counters, tells, variables

_READS = ("numpy", "item", "read_value", "value", "eval")  # of a variable
_NUMBERS = ("builtins.int", "builtins.float", "keras.backend.get_value", "tensorflow.cast")
# What counts updates, or follows their count, in ``global_step``: a saver may be told the epoch there.
_COUNTS = re.compile(r"(minimize|apply_gradients|decay(_restarts)?|optimize_loss|create_train_op)$")
_DEPTH = 4


def steps_so_far(facts: Facts) -> Tells:
    """Return what tells whether a node is the number of updates so far.

    A count of the script's, an optimizer's ``iterations``, the global step of TensorFlow 1, or what is fetched of it.
    """
    script = facts.script
    named = tells(facts, {*counters(facts), *attributes(facts), *variables(facts)})
    counting = [c for c in script.calls if _COUNTS.search(dotted(c.func) or script.code(c.func))]
    runs = {c for c in script.calls if calls_method(c, "run")}
    steps = {o.node for c in counting if (s := argument(c, "global_step")) for o in facts.flow.origins(s)}

    def reads(node: cst.CSTNode, depth: int = _DEPTH) -> bool:
        if isinstance(node, cst.Attribute) and node.attr.value == "iterations":
            return facts.kinds.is_optimizer(node.value)
        if isinstance(node, cst.Subscript):
            values = taken(facts.flow, runs, node) or ()
            held = [o.node for o in facts.flow.origins(node)]  # graph["step"], of a dict of tensors
            if any(m in steps or _is_global_step(facts, m) for m in held):
                return True
            return depth > 0 and any(reads(value, depth - 1) for value in values)
        if not isinstance(node, (cst.Name, cst.Attribute)):
            return _is_global_step(facts, node)
        made = [o.node for o in facts.flow.origins(node)]
        if any(b.how == "param" for b in script.bindings_of(node)):  # of which all calls hand it on
            return _is_global_step(facts, node) or (bool(made) and steps.issuperset(made))
        if named(node) or any(m in steps or _is_global_step(facts, m) for m in made):
            return True
        return depth > 0 and any(reads(value, depth - 1) for value in _read(facts, node))

    return reads


def bare(facts: ScriptFacts, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what ``node`` reads the number of: ``step`` of ``int(step)``, ``step.numpy()`` and ``sess.run(step)``."""
    while isinstance(node, cst.Call):
        name = plain(facts.script.name_of(node.func))
        if name in _NUMBERS and node.args:
            node = node.args[0].value
        elif calls_method(node, *_READS):
            node = node.func.value
        elif calls_method(node, "run") and len(node.args) == 1:
            node = node.args[0].value
        else:
            break
    return node


def _read(facts: Facts, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what a name is given the number of, or what a session's run fetches for it."""
    for binding in facts.script.bindings_of(node):
        value = binding.value
        if binding.how != "assign" or value is None:
            continue
        at = binding.path[0] if len(binding.path) == 1 else None
        if calls_method(value, "run") and isinstance(at, int):
            yield from entry(facts.flow, value, at)
        elif not binding.path and bare(facts, value) is not value:
            yield bare(facts, value)


def _is_global_step(facts: Facts, node: cst.CSTNode) -> bool:
    name = facts.script.name_of(node.func) if isinstance(node, cst.Call) else ""
    return name.endswith("_global_step") or plain(name) == "tensorflow.train.global_step"
