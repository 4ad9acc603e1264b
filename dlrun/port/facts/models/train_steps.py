"""The gradients that a Keras model's own ``train_step`` reads before its optimizer, which averages, applies them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.updates.tape import TapeGradients
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import calls_method, dotted, walk

_APPLIES = ("apply_gradients", "apply")
_TAPE = "tensorflow.GradientTape"
_PLAIN = ("builtins.zip", "builtins.list")


def read(flow: Flow) -> tuple[cst.Call, ...]:
    """Return the calls that compute gradients of updates which are clipped, measured or changed before these.

    They are to be averaged where they are made; what is only handed on, or added up, the optimizer averages. So it does
    what another tape goes on from, which follows no exchange with other ranks.
    """
    script = flow.script
    if not any(plain(script.name_of(c.func)) == _TAPE for c in script.calls):
        return ()
    made = TapeGradients(flow).averages
    return tuple(call for call in made if not _handed_on(flow, call) and not _watched(flow, call))


def _watched(flow: Flow, gradient: cst.Call) -> bool:
    """Tell whether another tape than its own watches while ``gradient`` is computed."""
    entered = [item for up in flow.script.above(gradient) if isinstance(up, cst.With) for item in up.items]
    tapes = [i for i in entered if isinstance(i.item, cst.Call) and plain(flow.script.name_of(i.item.func)) == _TAPE]
    names = {dotted(tape.asname.name) for tape in tapes if tape.asname is not None}
    return not names <= {dotted(gradient.func.value)} if isinstance(gradient.func, cst.Attribute) else False


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
        uses = [
            n
            for n in script.of(cst.Name)
            if n.value == name.value
            and script.function_of(n) is home
            and not isinstance(script.parents[n], cst.AssignTarget)
        ]
        return all(_handed_on(flow, use) for use in uses)
    if isinstance(up, cst.For) and value is up.iter and isinstance(up.body, cst.IndentedBlock):
        lines = [line.body[0] for line in up.body.body if isinstance(line, cst.SimpleStatementLine)]
        return len(lines) == len(up.body.body) and all(
            isinstance(n, cst.Expr) and isinstance(n.value, cst.Call) and calls_method(n.value, "assign_add")
            for n in lines
        )
    return False


def logged(flow: Flow, step: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
    """Yield the numbers in the dict that ``step`` returns to ``fit()``; nothing of what is no ``train_step``."""
    if step.name.value == "train_step":
        for returned in flow.returns(step):
            yield from _numbers(flow, step, returned)


def _numbers(flow: Flow, step: cst.FunctionDef, returned: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what the dict ``returned`` holds, as it is made or put in later."""
    if isinstance(returned, cst.Dict):
        for element in returned.elements:
            starred = isinstance(element, cst.StarredDictElement)
            yield from _numbers(flow, step, element.value) if starred else [element.value]
    elif isinstance(returned, cst.Call) and flow.script.name_of(returned.func) == "builtins.dict":
        yield from (a.value for a in returned.args if a.keyword is not None)
    elif isinstance(returned, cst.BinaryOperation):
        yield from _numbers(flow, step, returned.left)
        yield from _numbers(flow, step, returned.right)
    elif isinstance(returned, cst.Name):
        yield from _kept(flow, step, returned.value)


def _kept(flow: Flow, step: cst.FunctionDef, name: str) -> Iterator[cst.BaseExpression]:
    """Yield what is put into the dict ``name``: bound, set under a key, or by ``update()``."""
    for node in walk(step.body):
        if isinstance(node, cst.Assign):
            for target in (t.target for t in node.targets):
                if isinstance(target, cst.Name) and target.value == name and not _is_name(node.value, name):
                    yield from _numbers(flow, step, node.value)
                elif isinstance(target, cst.Subscript) and _is_name(target.value, name):
                    yield node.value
        elif isinstance(node, cst.AugAssign) and _is_name(node.target, name):
            yield from _numbers(flow, step, node.value)
        elif isinstance(node, cst.Call) and calls_method(node, "update") and _is_name(node.func.value, name):
            for arg in node.args:
                yield from [arg.value] if arg.keyword is not None else _numbers(flow, step, arg.value)


def _is_name(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name
