"""Where variables are set at times: one model takes over the weights of another, a rate falls."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.program.script import calls_method, dotted, walk

_WHOLE = {"load_state_dict": "state_dict", "set_weights": "get_weights"}
_EACH = ("copy_", "assign")


def takes_over(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether running ``node`` gives a model the weights that another has: all at once, or each in a loop."""
    for call in (n for body in facts.flow.bodies(node, 3) for n in walk(body) if isinstance(n, cst.Call)):
        if any(_copies(facts, n) for n in (call, *_run_by(facts, call))):
            return True
    return False


def lowers(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether running ``node`` makes a variable's value of the one before: ``rate.assign(rate * 0.5)``.

    Itself, or by a session that runs what does.
    """
    for call in (n for n in walk(node) if isinstance(n, cst.Call)):
        if any(_is_of_itself(facts, n) for n in (call, *_run_by(facts, call))):
            return True
    return False


def _run_by(facts: ScriptFacts, call: cst.Call) -> Iterator[cst.CSTNode]:
    """Yield the operations that ``call`` runs, if a session does, with what they are made of."""
    for value in [a.value for a in call.args[:1]] if calls_method(call, "run") else []:
        yield from computed(facts.flow, [value]).nodes
        yield from (n for origin in facts.flow.origins(value) for n in walk(origin.node))


def _is_of_itself(facts: ScriptFacts, call: cst.CSTNode) -> bool:
    """Tell whether ``call`` multiplies what a variable holds: ``rate.assign(rate * 0.5)``, or by ``tf.assign()``."""
    if not isinstance(call, cst.Call) or not call.args:
        return False
    named = plain(facts.script.name_of(call.func)) == "tensorflow.assign"
    held = call.args[0].value if named else call.func.value if calls_method(call, "assign") else None
    value = call.args[-1].value
    times = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, (cst.Multiply, cst.Divide))
    return times and held is not None and any(dotted(n) == dotted(held) != "" for n in walk(value))


def _copies(facts: ScriptFacts, call: cst.CSTNode) -> bool:
    """Tell whether ``call`` copies weights: ``target.load_state_dict(net.state_dict())``, ``v.assign(u)`` of pairs."""
    if not isinstance(call, cst.Call) or not call.args:
        return False
    name = plain(facts.script.name_of(call.func))
    if name == "copy.deepcopy":
        return facts.kinds.of(call.args[0].value) == "module"
    for method, source in _WHOLE.items():
        if calls_method(call, method):
            return any(calls_method(n, source) for n in walk(call.args[0].value))
    each = name == "tensorflow.assign" or calls_method(call, *_EACH)
    return each and bool(dotted(call.args[-1].value)) and _in_pairs(facts, call)


def _in_pairs(facts: ScriptFacts, call: cst.Call) -> bool:
    """Tell whether a loop around ``call`` goes through two lists side by side."""
    for up in facts.script.above(call):
        if isinstance(up, cst.FunctionDef):
            return False
        if isinstance(up, (cst.For, cst.ListComp, cst.GeneratorExp)):
            over = up.iter if isinstance(up, cst.For) else up.for_in.iter
            if any(isinstance(n, cst.Call) and dotted(n.func) == "zip" for n in walk(over)):
                return True
    return False
