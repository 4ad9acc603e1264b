"""Lists whose entries are added up: ``sum(losses)`` is to them what ``total += loss`` is to a number."""

from __future__ import annotations

import libcst as cst

from dlrun.port.program.script import Script, walk

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
    """Tell whether ``name`` stands where its entries are added up: ``losses`` in ``sum(losses)``.

    Or in what makes an array of them, which is: ``p = torch.cat(losses)``, ``p.sum()``.
    """
    if any(summed(script, up) is name for up in script.above(name)):
        return True
    line = next((up for up in script.above(name) if isinstance(up, cst.Assign)), None)
    targets = [n for t in line.targets for n in walk(t) if isinstance(n, cst.Name)] if line is not None else []
    uses = (use for target in targets for use in script.names_of(target.value, script.scope_of(target)))
    return any(summed(script, up) is name for use in uses if use not in targets for up in script.above(use))


def length_of(script: Script, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the variable whose entries ``node`` counts: ``len(losses)``, ``torch.cat(labels).shape[0]``."""
    match node:
        case cst.Call(args=[cst.Arg(value=inner)]) if script.name_of(node.func) == "builtins.len":
            return _listed(script, inner)
        case (
            cst.Call(func=cst.Attribute(value=inner, attr=cst.Name("numel")), args=[])
            | cst.Call(func=cst.Attribute(value=inner, attr=cst.Name("size")), args=[cst.Arg(value=cst.Integer("0"))])
            | cst.Subscript(value=cst.Attribute(value=inner, attr=cst.Name("shape")),
                            slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer("0")))])
        ):  # fmt: skip
            box = _listed(script, inner)
            return box if box is not inner else None
    return None


def _listed(script: Script, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the variable that holds what ``node`` is a list, an array or a generator of."""
    match node:
        case cst.Name():
            return listed_by(script, node) or node
        case cst.Attribute() | cst.Subscript(value=cst.Name() | cst.Attribute()):
            return node
        case cst.Comparison(left=inner, comparisons=[_]):
            return _listed(script, inner)
        case cst.GeneratorExp() | cst.ListComp() if node.for_in.inner_for_in is None and not node.for_in.ifs:
            return _listed(script, node.for_in.iter)
        case cst.Call(args=[cst.Arg(value=inner), *_]) if script.name_of(node.func) in _ARRAYS:
            return _listed(script, inner)
    return None


def listed_by(script: Script, name: cst.Name) -> cst.BaseExpression | None:
    """Return the variable of whose entries ``name`` is the array: ``p = torch.cat(predicted).cpu().numpy()``."""
    made = script.bindings_of(name)
    value = made[0].written if len(made) == 1 and made[0].how == "assign" else None
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _SAME:
        value = value.func.value
    arrays = isinstance(value, cst.Call) and script.name_of(value.func) in _ARRAYS
    return _listed(script, value) if arrays and value is not None else None
