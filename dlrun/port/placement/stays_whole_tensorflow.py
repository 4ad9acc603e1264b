"""Why a loop of a TensorFlow script that evaluates stays whole: layers in training mode, pipelines that draw."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Evaluation, Facts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.program.script import argument, dotted, walk

_DRAWS = re.compile(r"^tensorflow\.(random\.|image\.(stateless_)?(random|sample)_|nn\.(\w+_)?dropout|keras\.random\.)")
_LAYERS = re.compile(
    r"(^|\.)(\w*BatchNorm\w*|\w*Dropout\w*|Gaussian\w+|Random\w+)$|^keras\.applications\.|^tensorflow_hub"
)
_CALLS = ("call", "__call__")
_DEPTH = 6


def training_mode(facts: Facts, evaluation: Evaluation) -> str:
    """Return how a model that the loop runs may be in training mode; "" where none has layers that go by it."""
    layer = next((n for c in facts.script.calls for n in facts.kinds.names(c.func) if _LAYERS.search(n)), "")
    if not layer:
        return ""
    for body in facts.flow.bodies(evaluation.loop.body):
        for call in (n for n in walk(body) if isinstance(n, cst.Call)):
            mode = _mode(facts, call)
            if mode is not None and not _is_off(facts, evaluation, mode):
                return f"{layer.rpartition('.')[2]} may be in training mode"
    return ""


def _mode(facts: Facts, call: cst.Call) -> cst.BaseExpression | None:
    """Return what tells a model whether it trains, where ``call`` runs one and says it."""
    named = argument(call, "training", 99)
    if named is not None or facts.kinds.of(call.func) != "module":
        return named
    return call.args[1].value if len(call.args) > 1 and call.args[1].keyword is None else None


def _is_off(facts: Facts, evaluation: Evaluation, mode: cst.BaseExpression) -> bool:
    """Tell whether a mode is none of training, also where the loop hands it to the function that runs the model."""
    if isinstance(mode, cst.Name) and mode.value in ("False", "None"):
        return True
    function = facts.script.function_of(mode)
    if not isinstance(mode, cst.Name) or not isinstance(function, cst.FunctionDef):
        return False
    given = {p.name.value: p.default for p in (*function.params.params, *function.params.kwonly_params)}
    if mode.value not in given:
        return False
    if facts.script.class_of(function) is not None and function.name.value in _CALLS:
        return True  # a layer's own, which goes by what its model is told
    bodies = facts.flow.bodies(evaluation.loop.body)
    calls = [c for c in facts.flow.callers(function) if any(facts.script.inside(c, body) for body in bodies)]
    told = [facts.flow.argument(c, function, mode.value) or given[mode.value] for c in calls]
    return bool(told) and all(isinstance(t, cst.Name) and t.value in ("False", "None") for t in told)


def drawn(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` draws random numbers of TensorFlow's."""
    return bool(_DRAWS.search(plain(facts.script.name_of(call.func))))


def of_pipeline(facts: Facts, source: cst.BaseExpression) -> str:
    """Return what makes the batches of a tf.data pipeline other ones each time, or others on each rank."""
    for call in _stages(facts, source):
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        text = facts.script.code(call)
        if method == "shuffle" and not _is_seeded(call) and not _before_training(facts, call):
            return "its order is drawn where it is made"
        if "deterministic=False" in text.replace(" ", "") or "shuffle_files=True" in text.replace(" ", ""):
            return "its order may be another one on each rank"
        for given in call.args:
            for made in [o.node for o in facts.flow.origins(given.value)]:
                body = made.body if isinstance(made, (cst.FunctionDef, cst.Lambda)) else None
                for inner in facts.flow.bodies(body) if body is not None else ():
                    if any(_draws(facts, n) for n in walk(inner)):
                        return f"{method}() draws at random"
    return ""


def _before_training(facts: Facts, node: cst.CSTNode, depth: int = 3) -> bool:
    """Tell whether ``node`` runs before training begins: until then all ranks draw the same random numbers."""
    script, home = facts.script, facts.script.function_of(node)
    tops = [top.loop for top in facts.tops if script.function_of(top.loop) is home]
    if tops or not isinstance(home, cst.FunctionDef):
        inside = any(isinstance(up, (cst.For, cst.While)) for up in script.above(node))
        return not inside and all(script.order[node] < script.order[loop] for loop in tops)
    callers = facts.flow.callers(home)
    return bool(callers and depth) and all(_before_training(facts, call, depth - 1) for call in callers)


def _is_seeded(call: cst.Call) -> bool:
    return argument(call, "seed", 1) is not None


def _draws(facts: Facts, node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.Call):
        return False
    return drawn(facts, node) or facts.script.name_of(node.func).startswith(("numpy.random.", "random."))


def _stages(facts: Facts, source: cst.BaseExpression) -> Iterator[cst.Call]:
    """Yield the calls that the data set ``source`` is made by, one after the other."""
    seen: set[cst.CSTNode] = set()
    todo: list[tuple[cst.CSTNode, int]] = [(source, 0)]
    while todo:
        node, depth = todo.pop()
        for made in [node, *(o.node for o in facts.flow.origins(node))]:
            if made in seen or depth > _DEPTH * 3 or not isinstance(made, cst.Call):
                continue
            seen.add(made)
            yield made
            if isinstance(made.func, cst.Attribute):
                todo.append((made.func.value, depth + 1))
            todo += [(a.value, depth + 1) for a in made.args if dotted(a.value) or isinstance(a.value, cst.Call)]
