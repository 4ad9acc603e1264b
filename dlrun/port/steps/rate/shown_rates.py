"""Part of step "rate": rates that a script also tells, scaled where they are computed: what is told is what is used."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.updates.rates import sets_groups_rate
from dlrun.port.program.script import dotted

_TELLS = re.compile(
    r"(^|\.)(print|info|debug|warning|log|write|append|add_scalar|add_scalars|set_postfix|set_description|format|"
    r"log_metrics?|log_value|scalar|dict|update|round|float|str)$"
)
_AROUND = (cst.Arg, cst.DictElement, cst.Dict, cst.List, cst.Element, cst.FormattedStringExpression, cst.Tuple)


def source(facts: Facts, rate: cst.BaseExpression) -> cst.BaseExpression:
    """Return what computes the ``rate`` that is given to an optimizer, where it is told as well; else ``rate`` itself.

    Before:
        for epoch in range(9):
            lr = 0.1 * 0.5**epoch
            for group in opt.param_groups:
                group["lr"] = lr
            print("lr", lr)

    After:
        for epoch in range(9):
            lr = dl.lr_scale(0.1 * 0.5**epoch)
            for group in opt.param_groups:
                group["lr"] = lr
            print("lr", lr)
    """
    made = _computed_once(facts, rate)
    if made is None:
        return rate
    told = [use for use in _uses(facts, rate) if not _sets(facts, use)]
    return made if told and all(_is_told(facts, use) for use in told) else rate


def _computed_once(facts: Facts, rate: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the one value of a name, of the function in which it is used."""
    bindings = facts.script.bindings_of(rate) if isinstance(rate, cst.Name) else []
    if len(bindings) != 1 or bindings[0].how != "assign" or bindings[0].path:
        return None
    home = facts.script.function_of(bindings[0].node)
    return bindings[0].value if home is facts.script.function_of(rate) else None


def _uses(facts: Facts, rate: cst.CSTNode) -> list[cst.Name]:
    """Return where a variable is read."""
    if not isinstance(rate, cst.Name):
        return []
    names = facts.script.names_of(rate.value, facts.script.scope_of(rate))
    parents = facts.script.parents
    return [n for n in names if not facts.script.is_part(n) and not isinstance(parents[n], cst.AssignTarget)]


def _sets(facts: Facts, use: cst.CSTNode) -> bool:
    line = facts.script.parents[use]
    return isinstance(line, cst.Assign) and line.value is use and sets_groups_rate(facts, line)


def _is_told(facts: Facts, use: cst.CSTNode, returned: bool = True) -> bool:
    """Tell whether ``use`` only shows the rate, or hands it to a caller that only shows it."""
    up = facts.script.parents[use]
    if isinstance(up, cst.Return) and returned:
        home = facts.script.function_of(use)
        calls = facts.flow.callers(home) if isinstance(home, cst.FunctionDef) else []
        return bool(calls) and all(_result_is_told(facts, call) for call in calls)
    for up in facts.script.above(use):
        if isinstance(up, cst.Call) and not _TELLS.search(dotted(up.func)):
            return False
        if isinstance(up, (cst.FormattedString, cst.Call)) and _ends(facts, up):
            return True
        percent = isinstance(up, cst.BinaryOperation) and isinstance(up.operator, cst.Modulo)
        if not percent and not isinstance(up, (*_AROUND, cst.FormattedString, cst.Call)):
            return False
    return False


def _ends(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a text, or a statement of its own."""
    return isinstance(node, cst.FormattedString) or isinstance(facts.script.parents[node], cst.Expr)


def _result_is_told(facts: Facts, call: cst.Call) -> bool:
    """Tell whether what ``call`` returns is not used, or only shown, also by a name."""
    line = facts.script.parents[call]
    if isinstance(line, cst.Expr):
        return True
    if not isinstance(line, cst.Assign) or line.value is not call or len(line.targets) != 1:
        return _is_told(facts, call, returned=False)
    target = line.targets[0].target
    return isinstance(target, cst.Name) and all(_is_told(facts, use, returned=False) for use in _uses(facts, target))
