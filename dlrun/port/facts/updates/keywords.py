"""What calls are given by ``**``: the entries of a dict, or a function's own keyword arguments, handed on."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.updates.rates import text_of
from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import dotted


def starred(call: cst.Call) -> bool:
    """Tell whether ``call`` is given keyword arguments that are not written out there."""
    return any(arg.star == "**" for arg in call.args)


def keywords(facts: ScriptFacts, call: cst.Call) -> list[tuple[str, cst.BaseExpression]]:
    """Return the names and values that ``call`` is given by ``**options``, of a dict or a call of dict().

    Of a function that hands its own keyword arguments on, those of its calls: ``SAM(model.parameters(), SGD, lr=0.1)``.
    """
    found: list[tuple[str, cst.BaseExpression]] = []
    for given in (arg.value for arg in call.args if arg.star == "**"):
        for made in [*(origin.node for origin in facts.flow.origins(given)), *_of_callers(facts, given)]:
            given_so = [(text_of(key), value) for key, value in pairs(made) if key is not None]
            if not given_so and isinstance(made, cst.Call):
                given_so = [(a.keyword.value, a.value) for a in made.args if a.keyword is not None]
            found += [pair for pair in given_so if pair not in found]
    return found


def _of_callers(facts: ScriptFacts, given: cst.BaseExpression) -> list[cst.Call]:
    """Return the calls of the function whose own keyword arguments are ``given`` on, and of those that call it so."""
    found: dict[cst.Call, None] = {}
    for value in (todo := [given]):
        function = facts.script.function_of(value)
        own = function.params.star_kwarg if isinstance(function, cst.FunctionDef) else None
        if own is not None and own.name.value == dotted(value):
            new = [call for call in facts.flow.callers(function) if call not in found]
            found.update(dict.fromkeys(new))
            todo += [arg.value for call in new for arg in call.args if arg.star == "**"]
    return list(found)
