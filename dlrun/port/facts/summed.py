"""Lists whose entries are added up: ``sum(losses)`` is to them what ``total += loss`` is to a number."""

from __future__ import annotations

import libcst as cst

from dlrun.port.program.script import Script

_SUMS = ("builtins.sum", "math.fsum", "numpy.sum", "torch.sum")
_ARRAYS = ("numpy.array", "numpy.asarray", "numpy.stack", "numpy.concatenate", "torch.tensor", "torch.stack",
           "torch.cat", "torch.Tensor", "torch.as_tensor", "builtins.list")  # fmt: skip
_SAME = ("item", "float", "double", "cpu", "numpy", "detach")


def summed(script: Script, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the variable whose entries ``node`` adds up, all of them to one number; None where it does not.

    ``sum(losses)``, ``sum(x.item() for x in kept["loss"])``, ``np.sum(self.losses)``, ``torch.stack(losses).sum()``. Of
    two that are compared the first: ``(torch.cat(predicted) == torch.cat(labels)).sum().item()``.
    """
    match node:
        case cst.Call(args=[cst.Arg(value=inner)]) if script.name_of(node.func) in _SUMS:
            return _listed(script, inner)
        case cst.Call(func=cst.Attribute(value=inner, attr=cst.Name("sum")), args=[]):
            return _listed(script, inner)
        case cst.Call(func=cst.Attribute(value=inner, attr=cst.Name(name)), args=[]) if name in _SAME:
            return summed(script, inner)
        case cst.Call(func=cst.Name("float" | "int"), args=[cst.Arg(value=inner)]):
            return summed(script, inner)
    return None


def is_summed(script: Script, name: cst.CSTNode) -> bool:
    """Tell whether ``name`` stands where its entries are added up: ``losses`` in ``sum(losses)``."""
    return any(summed(script, up) is name for up in script.above(name))


def length_of(script: Script, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the variable whose entries ``node`` counts: ``len(losses)``, ``len(torch.cat(labels))``."""
    match node:
        case cst.Call(args=[cst.Arg(value=inner)]) if script.name_of(node.func) == "builtins.len":
            return _listed(script, inner)
    return None


def _listed(script: Script, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the variable that holds what ``node`` is a list, an array or a generator of."""
    match node:
        case cst.Name() | cst.Attribute() | cst.Subscript(value=cst.Name() | cst.Attribute()):
            return node
        case cst.Comparison(left=inner, comparisons=[_]):
            return _listed(script, inner)
        case cst.GeneratorExp() | cst.ListComp() if node.for_in.inner_for_in is None and not node.for_in.ifs:
            return _listed(script, node.for_in.iter)
        case cst.Call(args=[cst.Arg(value=inner), *_]) if script.name_of(node.func) in _ARRAYS:
            return _listed(script, inner)
    return None
