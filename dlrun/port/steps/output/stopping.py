"""Part of step "output": a job that is told to end has its checkpoint written, and ends."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.updates.rates import ORDER
from dlrun.port.insert import expression, in_brackets, statements
from dlrun.port.placement.rules import Row, of_function
from dlrun.port.placement.torch import interpreted
from dlrun.port.program.script import dotted, names_in, walk
from dlrun.port.steps.metrics import environments


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Ask, where the outermost training loop saves its checkpoint, whether the job was told to stop.

    What saves every so many epochs, or where a clock or a signal says so, saves then, too:
    ``if dl.should_stop() or epoch % 10 == 0:``. What saves where a number is good enough does not.

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
            if isinstance(last, cst.If) and last.orelse is None and _is_due(facts, last.test):
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


def _is_due(facts: Facts, test: cst.BaseExpression) -> bool:
    """Tell whether ``test`` asks for nothing but the number of an epoch or a step, or goes by a clock or a signal.

    So not ``epoch % 10 == 0 and score > best``: a file of the best model would get another one.
    """
    handled = {name for _, name in interpreted(facts).at_any_time}  # what handlers of signals set

    def by_clock(node: cst.BaseExpression) -> bool:
        made = (n for n in computed(facts.flow, [node]).nodes if isinstance(n, cst.Call))
        return any(of_function(facts.script.name_of(call.func)) is Row.CLOCK for call in made)

    counted = {name for n in walk(test) if _is_rest(n) for name in names_in(n.left)}  # type: ignore[attr-defined]
    flags = [n for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute)) and dotted(n).split(".")[-1] in handled]
    ordered = [n for n in walk(test) if isinstance(n, cst.Comparison) and isinstance(n.comparisons[0].operator, ORDER)]
    asks = bool(counted or flags) or by_clock(test)
    return asks and all(counted & set(names_in(n)) or by_clock(n) for n in ordered)


def _is_rest(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is the rest of a division: ``epoch % 10``."""
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo)


def _as_operand(test: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``test`` as it stands behind ``or``."""
    loose = isinstance(test, (cst.IfExp, cst.Lambda, cst.NamedExpr)) and not test.lpar
    return in_brackets(test) if loose else test


def _saves(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether running ``node`` may save a checkpoint with torch.save()."""
    inside = (n for body in facts.flow.bodies(node) for n in walk(body) if isinstance(n, cst.Call))
    return any(facts.script.name_of(call.func) == "torch.save" for call in inside)
