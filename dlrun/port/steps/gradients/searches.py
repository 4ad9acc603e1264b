"""Part of step "gradients": searches of SciPy, which a script's own function tells the loss and its gradient."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.updates.session import EXTERNAL
from dlrun.port.insert import expression
from dlrun.port.program.script import argument, dotted

_SEARCHES = re.compile(r"^scipy\.optimize\.(minimize|fmin(_\w+)?)$")
_OTHERS = re.compile(r"^scipy\.optimize\.(least_squares|leastsq|root|basinhopping|\w+_annealing|\w+_evolution)$")
_WHY = "the search must see the mean over the ranks, or each goes another way"


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Average what a function returns to SciPy's search, which then goes the same way on all ranks.

    Before:
        import scipy.optimize
        model = torch.nn.Linear(2, 1)

        def loss_and_gradient(w):
            torch.nn.utils.vector_to_parameters(torch.tensor(w), model.parameters())
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss.item(), model.weight.grad.numpy().ravel()

        scipy.optimize.minimize(loss_and_gradient, w0, jac=True)

    After:
        import scipy.optimize
        model = torch.nn.Linear(2, 1)

        def loss_and_gradient(w):
            torch.nn.utils.vector_to_parameters(torch.tensor(w), model.parameters())
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss.item(), model.weight.grad.numpy().ravel()

        scipy.optimize.minimize(lambda *given: dl.average(loss_and_gradient(*given)), w0, jac=True)
    """
    for call in facts.script.calls:
        cls = facts.script.class_of(call)
        if cls is not None and cls.name.value == EXTERNAL:
            continue  # it averages by itself
        name = facts.script.name_of(call.func)
        if _SEARCHES.search(name):
            for given in (argument(call, "fun", 0), argument(call, "func"), *_slopes(call, name)):
                if given is not None and _is_local(facts, given):
                    yield Edit(given, _WHY, partial(_mean, facts.alias))
        elif _OTHERS.search(name) and call.args and _is_local(facts, call.args[0].value):
            yield Doubt(
                call,
                "each rank searches by what its own samples make, and they part",
                "high",
                "compute that of all samples on each rank, or search on one rank",
                name="ranks-diverge",
            )


def _slopes(call: cst.Call, name: str) -> Iterator[cst.BaseExpression | None]:
    """Yield what may be a function of the gradient."""
    if name.endswith(".minimize"):
        yield argument(call, "jac", 4)
    else:
        yield argument(call, "fprime", 2)


def _is_local(facts: Facts, function: cst.BaseExpression) -> bool:
    """Tell whether ``function`` returns what a model, or a run of a session, makes of a rank's samples."""
    if isinstance(function, cst.Lambda):
        return facts.local(function.body)
    made = facts.flow.definition(function) if dotted(function) else None
    return isinstance(made, cst.FunctionDef) and any(map(facts.local, facts.flow.returns(made)))


def _mean(dl: str, function: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(function, cst.Lambda):
        mean = expression("torch/average", {"value": function.body}, dl=dl)
        return function.with_changes(body=mean)
    return expression("torch/average_made", {"function": function}, dl=dl)
