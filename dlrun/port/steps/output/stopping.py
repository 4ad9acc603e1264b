"""Part of step "output": a job that is told to end has its checkpoint written, and ends."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import expression, in_brackets, statements
from dlrun.port.program.script import walk
from dlrun.port.steps.metrics import environments


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Ask, where the outermost training loop saves its checkpoint, whether the job was told to stop.

    What saves every so many epochs, or before it leaves, saves then, too: ``if dl.should_stop() or epoch % 10 == 0:``.

    Before:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters())
        for epoch in range(9):
            for x, y in DataLoader(data, shuffle=True):
                (model(x) - y).pow(2).mean().backward()
                opt.step()
            torch.save(model.state_dict(), "model.pt")

    After:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters())
        for epoch in range(9):
            for x, y in DataLoader(data, shuffle=True):
                (model(x) - y).pow(2).mean().backward()
                opt.step()
            torch.save(model.state_dict(), "model.pt")
            if dl.should_stop():  # the scheduler ends the job: this was its last checkpoint
                break
    """
    if environments.uneven(facts) is not None:
        return  # the ranks do not come to the end of an iteration together
    for top in facts.tops:
        saving = [s for s in facts.script.block_of(top.loop) if _saves(facts, s)]
        line = facts.script.parents[saving[-1]] if saving else None
        if isinstance(line, (cst.SimpleStatementLine, cst.IndentedBlock)):  # none beside others: for e in n: f(); g()
            last = line if isinstance(line, cst.SimpleStatementLine) else saving[-1]
            if isinstance(last, cst.If) and _is_due(last):
                yield Edit(
                    last.test,
                    "a job that is told to end saves, too, before it leaves",
                    lambda test: expression("torch/stop_or_due", {"due": _as_operand(test)}, dl=facts.alias),
                )
                if any(isinstance(n, cst.Break) for n in walk(last.body)):
                    continue
            yield Edit(
                last,
                "a job that is told to end leaves after its checkpoint",
                after=statements("torch/should_stop", dl=facts.alias),
            )


def _is_due(node: cst.If) -> bool:
    """Tell whether ``node`` saves every so many epochs, or before it leaves the loop; not only what is best so far."""
    leaves = any(isinstance(n, (cst.Break, cst.Return)) for n in walk(node.body))
    return node.orelse is None and (leaves or any(isinstance(n, cst.Modulo) for n in walk(node.test)))


def _as_operand(test: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``test`` as it stands behind ``or``."""
    loose = isinstance(test, (cst.IfExp, cst.Lambda, cst.NamedExpr)) and not test.lpar
    return in_brackets(test) if loose else test


def _saves(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether running ``node`` may save a checkpoint with torch.save()."""
    inside = (n for body in facts.flow.bodies(node) for n in walk(body) if isinstance(n, cst.Call))
    return any(facts.script.name_of(call.func) == "torch.save" for call in inside)
