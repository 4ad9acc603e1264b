"""What bends a mean: exponentials, logarithms, roots and rounding, done to the mean; it is not the mean of theirs."""

from __future__ import annotations

import libcst as cst

from dlrun.port.program.script import Script

_CURVES = ("exp", "log", "log2", "log10", "log1p", "sqrt")
_WHERE = ("math", "numpy", "torch", "tensorflow", "tensorflow.math")
CURVED = {f"{module}.{curve}" for module in _WHERE for curve in _CURVES} | {"builtins.round", "numpy.round"}


def bent(script: Script, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what ``node`` rounds, or takes the exponential, the logarithm or the root of: ``loss.sqrt().item()``."""
    if not isinstance(node, cst.Call):
        return None
    if script.name_of(node.func) in CURVED:
        return node.args[0].value if node.args else None
    if not isinstance(node.func, cst.Attribute) or node.args:
        return None
    if node.func.attr.value == "item":
        return bent(script, node.func.value)
    return node.func.value if node.func.attr.value in _CURVES else None


def bend_of(script: Script, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the one call of ``-10 * math.log10(mse)`` that bends what it is given; None of what is none."""
    match node:
        case cst.UnaryOperation(operator=cst.Minus(), expression=inner):
            parts = [inner]
        case cst.BinaryOperation(left=one, right=other):
            parts = [one, other]
        case _:
            return None
    varied = [part for part in parts if not isinstance(part, (cst.Integer, cst.Float))]
    if len(varied) != 1:
        return None
    return varied[0] if bent(script, varied[0]) is not None else bend_of(script, varied[0])
