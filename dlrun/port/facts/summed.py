"""Lists whose entries are added up: ``sum(losses)`` is to them what ``total += loss`` is to a number."""

from __future__ import annotations

import libcst as cst

from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, calls_method, walk

_SUMS = ("builtins.sum", "math.fsum", "numpy.sum", "torch.sum", "tensorflow.reduce_sum", "tensorflow.math.reduce_sum",
         "tensorflow.add_n", "tensorflow.math.add_n")  # fmt: skip
_ARRAYS = ("numpy.array", "numpy.asarray", "numpy.stack", "numpy.concatenate", "torch.tensor", "torch.stack",
           "torch.cat", "torch.Tensor", "torch.as_tensor", "builtins.list", "tensorflow.stack", "tensorflow.concat",
           "tensorflow.convert_to_tensor", "tensorflow.constant")  # fmt: skip
_COUNTS = ("TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives")
_ADDING = tuple(f"metrics.{name}" for name in ("Sum", *_COUNTS))
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
    plain = plain_of(node)
    return summed(script, plain) if plain is not None else None


def plain_of(node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what ``node`` makes a plain number of: ``total`` of ``total.item()``, ``float(total)``; else None."""
    match node:
        case cst.Call(func=cst.Attribute(value=inner, attr=cst.Name(name)), args=[]) if name in _SAME:
            return inner
        case cst.Call(func=cst.Name("float" | "int"), args=[cst.Arg(value=inner)]):
            return inner
    return None


def is_divided(script: Script, number: cst.CSTNode) -> bool:
    """Tell whether ``number`` is a part of a quotient, be it as a plain number: ``float(total) / n``."""
    for up in script.above(number):
        if plain_of(up) is number:
            number = up
        elif not isinstance(up, (cst.Arg, cst.Attribute)):
            return isinstance(up, cst.BinaryOperation) and isinstance(up.operator, (cst.Divide, cst.FloorDivide))
    return False


def adds_by_itself(flow: Flow, total: cst.CSTNode) -> bool:
    """Tell whether ``total`` is what a metric of Keras adds up: ``added.result()`` of a ``Sum()``."""
    if not calls_method(total, "result") or not isinstance(total.func, cst.Attribute):
        return False
    made = [o.node for o in flow.origins(total.func.value)]
    return bool(made) and all(isinstance(n, cst.Call) and flow.script.name_of(n.func).endswith(_ADDING) for n in made)


def is_plain(script: Script, node: cst.CSTNode, depth: int = 4) -> bool:
    """Tell whether ``node`` is surely a number of Python's or NumPy's, and no tensor: ``loss.item() * len(x)``."""
    match node:
        case cst.Integer() | cst.Float() | cst.Subscript(value=cst.Attribute(attr=cst.Name("shape"))):
            return True
        case cst.Call(func=cst.Name("float" | "int" | "len")) | cst.Call(
                func=cst.Attribute(attr=cst.Name("item" | "numpy")), args=[]):  # fmt: skip
            return True
        case cst.BinaryOperation(left=left, right=right):
            return is_plain(script, left, depth) and is_plain(script, right, depth)
        case cst.Name() if depth:
            made = [b.written for b in script.bindings_of(node)]
            return bool(made) and all(value is not None and is_plain(script, value, depth - 1) for value in made)
    return False


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
