"""Part of step "metrics": BatchNorm's running statistics, which each rank keeps of its own samples."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import statements
from dlrun.port.program.script import walk

# Models that come with BatchNorm layers inside.
_WITH_LAYERS = ("torchvision.models.", "timm.create_model", "torch.hub.load", "segmentation_models_pytorch.")


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
        if _evaluates(facts, call) and isinstance(line, (cst.SimpleStatementLine, cst.Expr)):
            found = True
            model = facts.script.code(call.func.value)  # type: ignore[attr-defined]
            yield Edit(line, f"{model}: all ranks evaluate with the same statistics of BatchNorm",
                       after=statements("torch/statistics", dl=facts.alias, model=model))  # fmt: skip
    model = next((t for top in facts.tops for t in top.things if t not in top.optimizers), "model")
    if facts.options.batch == "global":
        why = "BatchNorm takes its statistics from a rank's 1/n of the batch, unlike the serial run"
        write = f"{model} = {facts.alias}.sync_batchnorm({model}) before the optimizer is made"
        yield Doubt(layer, why, "medium", write)
    elif not found:
        yield Doubt(layer, "each rank's BatchNorm keeps statistics of its own samples; saved are rank 0's", "low",
                    f"{facts.alias}.average({model}) before evaluating or saving")  # fmt: skip


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
