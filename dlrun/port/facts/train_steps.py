"""The gradients that a Keras model's own ``train_step`` reads before its optimizer, which averages, applies them."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts.kinds_tensorflow import plain
from dlrun.port.facts.tape import TapeGradients
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import calls_method

_APPLIES = ("apply_gradients", "apply")
_PLAIN = ("builtins.zip", "builtins.list")


def read(flow: Flow) -> tuple[cst.Call, ...]:
    """Return the calls that compute gradients of updates which are clipped, measured or changed before these.

    They are to be averaged where they are made; what is only handed on, or added up, the optimizer averages.
    """
    script = flow.script
    if not any(plain(script.name_of(c.func)) == "tensorflow.GradientTape" for c in script.calls):
        return ()
    return tuple(call for call in TapeGradients(flow).averages if not _handed_on(flow, call))


def _handed_on(flow: Flow, value: cst.CSTNode) -> bool:
    """Tell whether ``value`` goes nowhere but to an optimizer, or into variables that add gradients up."""
    script, up = flow.script, flow.script.parents[value]
    if isinstance(up, cst.Arg):
        call = script.parents[up]
        if isinstance(call, cst.Call) and script.name_of(call.func) in _PLAIN:
            return _handed_on(flow, call)
        return isinstance(call, cst.Call) and any(calls_method(call, name) for name in _APPLIES)
    if isinstance(up, cst.Assign) and len(up.targets) == 1 and isinstance(up.targets[0].target, cst.Name):
        name, home = up.targets[0].target, script.function_of(up)
        uses = [n for n in script.of(cst.Name) if n.value == name.value and script.function_of(n) is home
                and not isinstance(script.parents[n], cst.AssignTarget)]  # fmt: skip
        return all(_handed_on(flow, use) for use in uses)
    if isinstance(up, cst.For) and value is up.iter and isinstance(up.body, cst.IndentedBlock):
        lines = [line.body[0] for line in up.body.body if isinstance(line, cst.SimpleStatementLine)]
        return len(lines) == len(up.body.body) and all(
            isinstance(n, cst.Expr) and isinstance(n.value, cst.Call) and calls_method(n.value, "assign_add")
            for n in lines)  # fmt: skip
    return False
