"""Optimizers whose step() makes the gradients anew: averaging them before it would change nothing."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.facts.torch import Gradients
from dlrun.port.program.script import calls_method, dotted, walk

# What takes a model and its optimizer, gives both back, and leaves the gradients as backward() makes them.
_LEAVES = re.compile(r"^(apex\.amp\.|torch\.|intel_extension_for_pytorch\.|ipex\.|habana_frameworks\.|torch_npu\.)")
_IN_PLACE = ("copy_", "set_")


def rebuilt(gradients: Gradients) -> DlrunError | None:
    """Return the error for a script whose optimizer rebuilds the gradients within step(), or None.

    It clips those of each sample and adds noise, say, and does not look at what backward() left in ``grad``.
    """
    script = gradients.script
    for step, optimizer in gradients.step_calls:
        for cls in gradients.flow.classes(optimizer):
            method = gradients.flow.method(cls, "step")
            if method is not None and (line := _makes_anew(method)) is not None:
                return _refused(script.place(line), f"{cls.name.value}.step() makes the gradients anew here")
        for made in (o.node for o in gradients.flow.origins(optimizer)):
            if isinstance(made, cst.Call) and made is not step and _takes_over(gradients, made):
                what = script.code(made.func)
                return _refused(
                    script.place(made),
                    f"{what}() takes the model and its optimizer, and gives back an "
                    "optimizer of its own, which may make the gradients anew in step()",
                )
    for call in script.calls:
        if calls_method(call, "attach") and any(gradients.kinds.is_optimizer(a.value) for a in call.args):
            return _refused(script.place(call), f"{script.code(call.func)}() gets at the optimizer's step()")
    return None


def _refused(where: str, what: str) -> DlrunError:
    return DlrunError(
        f"{where}: {what}: averaged before it they would change nothing, and each rank would train by itself. Nothing "
        "was written.",
        "Leave it out and port again; or average within its step(), dl.average() of what it makes for each weight.",
    )


def _takes_over(gradients: Gradients, made: cst.Call) -> bool:
    """Tell whether ``made`` is a call of a library, given a model and its optimizer, that gives back several things."""
    name = gradients.script.name_of(made.func)
    if gradients.flow.targets(made) or gradients.flow.definition(made.func) is not None or _LEAVES.search(name):
        return False
    kinds = [gradients.kinds.of(arg.value) for arg in made.args]
    line = gradients.script.parents[made]
    several = isinstance(line, cst.Assign) and isinstance(line.targets[0].target, cst.Tuple)
    return several and "optimizer" in kinds and "module" in kinds


def _makes_anew(method: cst.FunctionDef) -> cst.CSTNode | None:
    """Return where ``method`` sets a weight's ``grad`` to what is not made of it: ``p.grad = p.summed_grad``."""
    for node in walk(method.body):
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=target)], value=value):
                pass
            case cst.Call(func=cst.Attribute(value=target, attr=cst.Name(how)), args=[cst.Arg(value=value), *_]) if (
                how in _IN_PLACE
            ):
                pass
            case _:
                continue
        to_grad = re.search(r"\.grad(\.data)?$", dotted(target))
        read = any(isinstance(n, cst.Attribute) and n.attr.value == "grad" for n in walk(value))
        if to_grad and not read and not isinstance(value, cst.Name | cst.Integer | cst.Float):
            return node
    return None
