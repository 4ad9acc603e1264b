"""Part of step "metrics": BatchNorm's running statistics, which each rank keeps of its own samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import statements
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.output.writes import in_memory

# Models that come with BatchNorm layers inside.
_WITH_LAYERS = ("torchvision.models.", "timm.create_model", "torch.hub.load", "segmentation_models_pytorch.")
DEPTH = 4  # of functions that call functions
_PLAIN = ("torch.", "builtins.", "math.", "numpy.")  # what makes none but by its name


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Average the statistics where a model is put into evaluation mode, and where it is saved after further steps.

    So all ranks evaluate and save one model.

    Before:
        model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
        opt = torch.optim.SGD(model.parameters())
        for epoch in range(9):
            for x, y in DataLoader(data, shuffle=True):
                (model(x) - y).pow(2).mean().backward()
                opt.step()
            model.eval()

    After:
        model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
        opt = torch.optim.SGD(model.parameters())
        for epoch in range(9):
            for x, y in DataLoader(data, shuffle=True):
                (model(x) - y).pow(2).mean().backward()
                opt.step()
            model.eval()
            dl.average(model)  # BatchNorm's statistics: of all ranks' samples
    """
    layer = _layer(facts)
    if layer is None:
        return
    evaluated: list[cst.CSTNode] = []
    for call in facts.script.calls:
        line = facts.script.line_of(facts.script.statement_of(call))
        evaluates = _evaluates(facts, call) and isinstance(line, (cst.SimpleStatementLine, cst.Expr))
        if evaluates and not _has_none(facts, call.func.value):  # type: ignore[attr-defined]
            evaluated.append(call)
            model = facts.script.code(call.func.value)  # type: ignore[attr-defined]
            yield Edit(
                line,
                f"{model}: all ranks evaluate with the same statistics of BatchNorm",
                after=statements("torch/statistics", dl=facts.alias, model=model),
            )
    yield from _copied(facts)
    saved = list(_saved(facts, evaluated))
    yield from saved
    model = next((t for top in facts.tops for t in top.things if t not in top.optimizers), "model")
    if facts.options.batch == "global":
        why = "BatchNorm takes its statistics from a rank's 1/n of the batch, unlike the serial run"
        write = f"{model} = {facts.alias}.sync_batchnorm({model}) before the optimizer is made"
        yield Doubt(layer, why, "medium", write, name="batchnorm-statistics")
    elif not evaluated and not saved:
        yield Doubt(
            layer,
            "each rank's BatchNorm keeps statistics of its own samples; saved are rank 0's",
            "low",
            f"{facts.alias}.average({model}) before evaluating or saving",
            name="batchnorm-statistics",
        )


def _copied(facts: Facts) -> Iterator[Doubt]:
    """Doubt moving averages of all that a model holds: of BatchNorm's statistics as each rank has them."""
    script = facts.script
    for loop in script.of(cst.For):
        read = [c for c in walk(loop.iter) if calls_method(c, "state_dict", "buffers")]
        held = [c for c in read if facts.kinds.of(c.func.value) == "module"]
        moves = any(calls_method(c, "mul_", "lerp_", "add_") for c in walk(loop.body))
        around = (up for frame in facts.flow.frames(loop) for up in (frame, *script.above(frame)))
        if held and moves and any(up in facts.loops for up in around):
            yield Doubt(
                loop.iter,
                "a moving average of BatchNorm's statistics of each rank's own samples: saved are rank 0's",
                "low",
                f"{facts.alias}.average() of those entries before they are saved or evaluated",
                name="batchnorm-statistics",
            )


def _has_none(facts: Facts, model: cst.CSTNode) -> bool:
    """Tell whether all that makes ``model`` is in sight, and makes no BatchNorm layer."""
    todo, seen = [o.node for o in facts.flow.origins(model)], set[cst.CSTNode]()
    if not todo or not all(isinstance(node, cst.Call) for node in todo):
        return False
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for call in (n for n in walk(node) if isinstance(n, cst.Call)):
            names = facts.kinds.names(call.func)
            if any("BatchNorm" in n or n.startswith(_WITH_LAYERS) for n in names):
                return False
            own = facts.flow.definitions(call.func)
            todo.extend(own)
            given = [a for a in call.args if a.star or facts.kinds.of(a.value) == "module"]
            if any(a.star for a in given) or (not own and _is_out_of_sight(facts, call)):
                return False
            todo.extend(o.node for a in given for o in facts.flow.origins(a.value))
        if isinstance(node, cst.ClassDef):
            if any(not base.startswith("torch.nn.") for base in facts.flow.bases(node)):
                return False
            todo.extend(d for base in node.bases for d in facts.flow.definitions(base.value))
    return True


def _is_out_of_sight(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` may make layers that nothing here tells: another library's, or what is given."""
    if (name := facts.script.name_of(call.func)) and not name.startswith("."):
        return not name.startswith(_PLAIN)
    computes = isinstance(call.func, cst.Attribute) and dotted(call.func.value) != "self"  # x.view(-1)
    function = facts.script.function_of(call)
    return not computes and not (isinstance(function, cst.FunctionDef) and function.name.value == "forward")


def _layer(facts: Facts) -> cst.CSTNode | None:
    """Return the first call that makes a BatchNorm layer, or a model that holds some."""
    for call in facts.script.calls:
        names = facts.kinds.names(call.func)
        if any("BatchNorm" in n or n.startswith(_WITH_LAYERS) for n in names):
            return call
    return None


def _evaluates(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` is a statement ``model.eval()``, or may be one, to which all ranks come."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("eval", "train"):
        return False
    mode = facts.script.code(call.args[0].value) if call.args else "True"
    if (call.func.attr.value == "train" and mode == "True") or (call.func.attr.value == "eval" and call.args):
        return False
    named = isinstance(call.func.value, (cst.Name, cst.Attribute))  # model = model.eval()
    holder = facts.script.parents[call]
    while isinstance(holder, cst.IfExp):  # model.train() if training else model.eval()
        holder = facts.script.parents[holder]
    alone = isinstance(holder, (cst.Expr, cst.Assign) if named else cst.Expr)
    if not alone or facts.kinds.of(call.func.value) != "module":
        return False
    around = [up.iter for up in facts.script.above(call) if isinstance(up, cst.For)]
    if any(".modules()" in facts.script.code(n) for i in around for n in (i, *(o.node for o in facts.flow.origins(i)))):
        return False  # layers that are frozen one by one, and keep the statistics that they have
    function = facts.script.function_of(call)
    if isinstance(function, cst.FunctionDef) and function.name.value == "__init__":
        return False  # of a copy that is being made: it has the statistics of what it is a copy of
    return _all_come(facts, call)


def _all_come(facts: Facts, node: cst.CSTNode) -> bool:
    tests = [up.test for up in facts.script.above(node) if isinstance(up, cst.If)]
    return not any(facts.unequal(n) for test in tests for n in walk(test) if isinstance(n, (cst.Name, cst.Call)))


def _saved(facts: Facts, evaluated: Sequence[cst.CSTNode]) -> Iterator[Edit]:
    """Average the statistics of what is saved, where steps come between it and those that were ``evaluated``."""
    done: set[tuple[cst.CSTNode, str]] = set()
    for call in facts.script.calls:
        if facts.script.name_of(call.func) != "torch.save" or not call.args or in_memory(facts, call):
            continue
        for place, model in _models(facts, call):
            line = facts.script.line_of(facts.script.statement_of(place))
            text = facts.script.code(model)
            alone = isinstance(line, cst.SimpleStatementLine) and (line, text) not in done
            if not alone or _has_none(facts, model) or not _all_come(facts, place):
                continue
            its = [e for e in evaluated if _is_of(facts, e, place, text)]
            if not _is_fresh(facts, facts.script.statement_of(place), its):
                done.add((line, text))
                why = f"{text}: what is saved has BatchNorm's statistics of all ranks' samples"
                yield Edit(line, why, before=statements("torch/statistics", dl=facts.alias, model=text))


def _is_of(facts: Facts, evaluated: cst.CSTNode, place: cst.CSTNode, model: str) -> bool:
    """Tell whether the model that is evaluated is this one, or may be: another function has other names."""
    text = facts.script.code(evaluated.func.value)  # type: ignore[attr-defined]
    return text == model or facts.script.function_of(evaluated) is not facts.script.function_of(place)


def _models(facts: Facts, save: cst.Call) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield the modules that are saved, each with the node that reads its state."""
    given = save.args[0].value
    if facts.kinds.of(given) == "module":
        yield save, given
    for made in [given, *(o.node for o in facts.flow.origins(given))]:
        for call in (n for n in walk(made) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)):
            model = call.func.value  # type: ignore[attr-defined]
            if call.func.attr.value == "state_dict" and facts.kinds.of(model) == "module":  # type: ignore[attr-defined]
                yield call, model


def _is_fresh(facts: Facts, statement: cst.CSTNode, evaluated: Sequence[cst.CSTNode]) -> bool:
    """Tell whether no step comes between the last averaging and ``statement``, as far as its function shows."""
    script = facts.script
    while True:
        block = script.block(statement)
        at = block.index(statement)
        for earlier in reversed(block[:at]):
            if (left := _leaves(facts, earlier, evaluated)) is not None:
                return left
        around = next((up for up in script.above(statement) if isinstance(up, cst.BaseCompoundStatement)), None)
        if isinstance(around, (cst.For, cst.While)):  # the iteration before
            for later in reversed(block[at + 1 :]):
                if (left := _leaves(facts, later, evaluated)) is not None:
                    return left
        if around is None:
            return False
        if isinstance(around, cst.FunctionDef):
            callers = facts.flow.callers(around)
            return len(callers) == 1 and _is_fresh(facts, script.statement_of(callers[0]), evaluated)
        statement = around


def _steps_in(facts: Facts, node: cst.CSTNode, depth: int = DEPTH) -> bool:
    """Tell whether a statement makes an optimizer step, also through functions."""
    if any(facts.script.inside(step.before, node) for step in facts.steps):
        return True
    functions = [f for n in walk(node) if depth and isinstance(n, cst.Call) for f in facts.flow.targets(n)]
    return any(_steps_in(facts, function, depth - 1) for function in functions)


def _leaves(facts: Facts, node: cst.CSTNode, evaluated: Sequence[cst.CSTNode], depth: int = DEPTH) -> bool | None:
    """Tell whether a statement leaves averaged statistics, or such as steps have moved; None of neither."""
    if isinstance(node, (cst.For, cst.While, cst.With)):
        found = (_leaves(facts, n, evaluated, depth) for n in reversed(facts.script.block_of(node)))
        return next((left for left in found if left is not None), None)
    if isinstance(node, cst.BaseCompoundStatement):
        return False if _steps_in(facts, node) else None
    for call in (n for n in walk(node) if isinstance(n, cst.Call)):
        if call in evaluated:
            return True
        for function in facts.flow.targets(call) if depth else ():
            found = (_leaves(facts, n, evaluated, depth - 1) for n in reversed(facts.script.block_of(function)))
            if (left := next((left for left in found if left is not None), None)) is not None:
                return left
    return False if _steps_in(facts, node) else None
