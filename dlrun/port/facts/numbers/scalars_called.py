"""Which functions of Python, NumPy, PyTorch and scikit-learn surely return one number; rates of optimizers."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from dlrun.port.program.flow import Flow
from dlrun.port.program.script import dotted, walk

_GROUPS = ("groupby", "rolling", "resample", "expanding", "ewm")  # of pandas

_FUNCTIONS = {
    "builtins.float",
    "builtins.int",
    "builtins.len",
    "builtins.sum",
    "builtins.round",
    "builtins.abs",
    "numpy.mean",
    "numpy.average",
    "numpy.sum",
    "numpy.sqrt",
    "numpy.exp",
    "math.sqrt",
    "math.exp",
    "math.log",
    "statistics.mean",
    "time.time",
    "time.perf_counter",
    "random.random",
    "random.uniform",
    "random.randint",
    "random.betavariate",
}
# Of NumPy: one number of all that they are given, if they are told no axis.
ALL = {f"numpy.{which}" for which in ("max", "min", "amax", "amin", "median", "percentile", "quantile", "std", "var")}
# Of NumPy: of each number that they are given one.
_EACH = {
    f"numpy.{which}"
    for which in (
        "abs",
        "absolute",
        "log",
        "log2",
        "log10",
        "square",
        "clip",
        "minimum",
        "maximum",
        "float32",
        "float64",
        "round",
        "around",
        "sign",
    )
}
_MAKES = ("torch.zeros", "torch.ones", "torch.empty")
_DRAWS = ("numpy.random.beta", "numpy.random.uniform")  # one number, with no more than its two parameters


def of_library(call: cst.Call, name: str, number: Callable[[cst.CSTNode], bool]) -> bool | None:
    """Tell whether ``call`` of the function ``name`` returns one number; None where that is not known here.

    ``number`` tells whether an expression is one.
    """
    if name.startswith("sklearn.metrics.") and name.endswith(("_score", "_error", "_loss")):
        return True
    if name in _FUNCTIONS or (name.endswith((".reduce_mean", ".reduce_sum", ".count_nonzero")) and len(call.args) == 1):
        return True
    if name in ("builtins.max", "builtins.min"):
        only = call.args[0].value if len(call.args) == 1 else None
        each = [only.elt] if isinstance(only, (cst.GeneratorExp, cst.ListComp)) else []
        values = each if only is not None else [a.value for a in call.args]
        return bool(values) and all(number(value) for value in values)
    if name in ALL:  # np.percentile(errors, 95)
        return len(call.args) == 1 or (
            len(call.args) == 2 and not call.args[1].keyword and number(call.args[1].value) and name.endswith("ile")
        )
    if name in _EACH:
        return bool(call.args) and all(number(a.value) for a in call.args)
    first = call.args[0].value if call.args else None
    if name in _MAKES and isinstance(first, cst.Tuple) and not first.elements:
        return True  # torch.zeros(())
    if name == "torch.tensor" and isinstance(first, (cst.Integer, cst.Float)):
        return True
    if name in _DRAWS and len(call.args) == 2 and not any(a.keyword for a in call.args):
        return True
    return None


def is_rate(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a learning rate: ``opt.param_groups[0]["lr"]``, ``scheduler.get_last_lr()[0]``."""
    box = node.value if isinstance(node, cst.Subscript) else None
    if isinstance(box, cst.Subscript):
        return dotted(box.value).endswith("param_groups")
    return isinstance(box, cst.Call) and dotted(box.func).endswith((".get_last_lr", ".get_lr"))


def of_table(flow: Flow, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a table of pandas, or is grouped: the mean of such is a number for each of many."""
    grouped = any(isinstance(n, cst.Attribute) and n.attr.value in _GROUPS for n in walk(node))
    made = [o.node for o in flow.origins(node)]
    return grouped or any(isinstance(n, cst.Call) and flow.script.name_of(n.func).startswith("pandas.") for n in made)
