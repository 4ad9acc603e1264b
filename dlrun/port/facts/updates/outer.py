"""An update in a function that is called after gradients were read: ``clip(); noam.step()``, ``scaler.step(noam)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from dlrun.port.program.script import dotted

if TYPE_CHECKING:
    from dlrun.port.facts.torch import Gradients


def places(
    gradients: Gradients, call: cst.Call, owner: cst.BaseExpression, part: str = "", depth: int = 3
) -> list[tuple[cst.CSTNode, str]]:
    """Return the statements before which gradients must be averaged for the update ``call``, and whose they are there.

    They are those of ``owner``, or of its ``part``: ``.optimizer``. Nothing is returned where the function that holds
    ``call`` is the place: no caller reads gradients on the way to it.
    """
    function = gradients.script.function_of(call)
    if not isinstance(function, cst.FunctionDef) or function in gradients.leads_to_backward or not depth:
        return []
    found: list[tuple[cst.CSTNode, str]] = []
    late = False
    for caller in gradients.flow.callers(function):
        holder, scales = _holder(caller, function)
        there = _there(gradients, caller, function, owner, holder)
        if there is None:
            return []
        before = gradients.first_reader(caller)
        further = places(gradients, caller, there[0], there[1] + part, depth - 1)
        late = late or scales or bool(further) or before is not gradients.script.statement_of(caller)
        found.extend(further or [(before, gradients.script.code(there[0]) + there[1] + part)])
    return found if late else []


def _holder(caller: cst.Call, function: cst.FunctionDef) -> tuple[cst.BaseExpression | None, bool]:
    """Return the object whose method ``function`` runs by ``caller``; whether a scaler runs it, which reads first."""
    func = caller.func
    if not isinstance(func, cst.Attribute):
        return None, False
    scales = bool(caller.args) and len(function.params.params) == 1
    return (caller.args[0].value if scales else func.value), scales


def _there(
    gradients: Gradients,
    caller: cst.Call,
    function: cst.FunctionDef,
    owner: cst.BaseExpression,
    holder: cst.BaseExpression | None,
) -> tuple[cst.BaseExpression, str] | None:
    """Return what ``owner``, in ``function``, is called where ``caller`` runs that: an expression, and a part of it."""
    name, _, part = dotted(owner).partition(".")
    script = gradients.script
    if name == "self":
        return (holder, f".{part}" if part else "") if holder is not None and dotted(holder) else None
    if not isinstance(owner, cst.Name):
        return None
    given = gradients.flow.argument(caller, function, name)
    if given is not None:
        return (given, "") if dotted(given) else None
    return (owner, "") if script.scopes[caller].lookup(name)[0] == script.bindings_of(owner) else None
