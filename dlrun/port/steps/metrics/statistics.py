"""Part of step "metrics": BatchNorm's running statistics, which each rank keeps of its own samples."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import statements
from dlrun.port.program.script import dotted, walk

# Models that come with BatchNorm layers inside.
_WITH_LAYERS = ("torchvision.models.", "timm.create_model", "torch.hub.load", "segmentation_models_pytorch.")
_PLAIN = ("torch.", "builtins.", "math.", "numpy.")  # what makes none but by its name


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Average the statistics where a model is put into evaluation mode: all ranks evaluate and save one model.

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
    found = False
    for call in facts.script.calls:
        line = facts.script.line_of(facts.script.statement_of(call))
        evaluates = _evaluates(facts, call) and isinstance(line, (cst.SimpleStatementLine, cst.Expr))
        if evaluates and not _has_none(facts, call.func.value):  # type: ignore[attr-defined]
            found = True
            model = facts.script.code(call.func.value)  # type: ignore[attr-defined]
            yield Edit(
                line,
                f"{model}: all ranks evaluate with the same statistics of BatchNorm",
                after=statements("torch/statistics", dl=facts.alias, model=model),
            )
    model = next((t for top in facts.tops for t in top.things if t not in top.optimizers), "model")
    if facts.options.batch == "global":
        why = "BatchNorm takes its statistics from a rank's 1/n of the batch, unlike the serial run"
        write = f"{model} = {facts.alias}.sync_batchnorm({model}) before the optimizer is made"
        yield Doubt(layer, why, "medium", write, name="batchnorm-statistics")
    elif not found:
        yield Doubt(
            layer,
            "each rank's BatchNorm keeps statistics of its own samples; saved are rank 0's",
            "low",
            f"{facts.alias}.average({model}) before evaluating or saving",
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
    """Tell whether ``call`` is a statement ``model.eval()`` to which all ranks come."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "eval" or call.args:
        return False
    if not isinstance(facts.script.parents[call], cst.Expr) or facts.kinds.of(call.func.value) != "module":
        return False
    around = [up.iter for up in facts.script.above(call) if isinstance(up, cst.For)]
    if any(".modules()" in facts.script.code(n) for i in around for n in (i, *(o.node for o in facts.flow.origins(i)))):
        return False  # layers that are frozen one by one, and keep the statistics that they have
    function = facts.script.function_of(call)
    if isinstance(function, cst.FunctionDef) and function.name.value == "__init__":
        return False  # of a copy that is being made: it has the statistics of what it is a copy of
    tests = [up.test for up in facts.script.above(call) if isinstance(up, cst.If)]
    return not any(facts.unequal(n) for test in tests for n in walk(test) if isinstance(n, (cst.Name, cst.Call)))
