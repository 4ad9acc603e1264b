"""Numbers that a function returns to who prints or divides them: ``correct, loss = train(loader)``."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import reaching

Returned = tuple[cst.Call, list[cst.BaseExpression]]  # a call, and what it may return for the name


def calls(facts: Facts, name: cst.Name) -> list[Returned]:
    """Return the calls from which alone ``name`` comes, each with what its functions return for it; () for others."""
    found: list[Returned] = []
    for binding in reaching(facts.script, name, facts.script.bindings_of(name)):
        call, at = binding.value, binding.path[0] if len(binding.path) == 1 else None
        targets = facts.flow.targets(call) if isinstance(call, cst.Call) else []
        ends = [end for target in targets for end in facts.flow.returns(target)]
        if isinstance(at, int):
            ends = [e.elements[at].value if isinstance(e, cst.Tuple) and at < len(e.elements) else e for e in ends]
        if not isinstance(call, cst.Call) or not ends or len(binding.path) > 1:
            return []
        found.append((call, ends))
    return found
