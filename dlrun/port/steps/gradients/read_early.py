"""Part of step "gradients": what reads gradients out of sight of the update, and before it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, Step
from dlrun.port.insert import statements
from dlrun.port.program.script import walk

_WHY = "average behind the backward pass: gradients are read before the update"


def torch(facts: Facts, step: Step) -> Iterator[Edit | Doubt]:
    """Average behind each backward pass, where the abstract run has seen gradients read before ``step`` averages them.

    So in callbacks, lambdas, context managers, properties, and in functions that make gradients themselves.

    Before:
        limit = {"norm": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)}
        for x, y in loader:
            loss_of(model(x), y).backward()
            limit["norm"]()
            opt.step()

    After:
        limit = {"norm": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)}
        for x, y in loader:
            loss_of(model(x), y).backward()
            dl.gradients(opt)  # mean over the ranks
            limit["norm"]()
            opt.step()
    """
    from dlrun.port.placement.torch import interpreted

    known = interpreted(facts).gradients
    read = known.early.get(step.within or step.before)
    if read is None:
        return
    backwards = list(known.made.get(step.within or step.before, ()))
    if step.within is None and all(
        call not in known.diverged and _is_known_at(facts, step, call) for call in backwards
    ):
        for place in dict.fromkeys(facts.script.statement_of(call) for call in backwards):
            yield Edit(
                facts.script.line_of(place),
                f"{step.what}: {_WHY}",
                after=statements("torch/gradients", dl=facts.alias, what=step.what),
            )
        return
    yield Doubt(
        read,
        f"{facts.script.code(read)} reads gradients before they are averaged: each rank those of its own samples",
        "high",
        f"{facts.alias}.gradients({step.what}) behind the backward pass",
    )


def never_averaged(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt about what reads gradients of a rank's part of a batch that no update averages.

    With a batch of its own each rank's are those of an iteration of the serial script.
    """
    from dlrun.port.placement.torch import interpreted

    for read in list(interpreted(facts).gradients.left)[:1] if facts.keeps_steps else ():
        code = facts.script.code(read)
        yield Doubt(
            read,
            f"{code}: gradients of a rank's part of each batch, which no update here averages",
            "high",
            f"{facts.alias}.gradients(model) behind the backward pass, once all ranks have the same model",
        )


def _is_known_at(facts: Facts, step: Step, call: cst.Call) -> bool:
    """Tell whether what owns the gradients of ``step`` is called the same where ``call`` makes them."""
    script = facts.script
    place = script.statement_of(call)
    if not isinstance(place, cst.Expr):
        return False
    names = [n for n in walk(cst.parse_expression(step.what)) if isinstance(n, cst.Name)]
    owned = {n.attr for n in walk(cst.parse_expression(step.what)) if isinstance(n, cst.Attribute)}
    here, there = script.scopes[call], script.scopes[step.node]
    for name in (n.value for n in names if not any(n is attr for attr in owned)):
        if name == "self" and here is not there:
            mine, other = script.class_of(call), script.class_of(step.node)
            if mine is None or other is None or not _related(facts, mine, other):
                return False
        elif here.lookup(name)[1] is not there.lookup(name)[1]:
            return False
    return True


def _related(facts: Facts, one: cst.ClassDef, other: cst.ClassDef) -> bool:
    """Tell whether methods of both classes may run on one object."""
    return one in facts.flow.lineage(other) or other in facts.flow.lineage(one)
