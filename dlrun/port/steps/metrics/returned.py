"""Numbers that a function returns to who prints or divides them: ``correct, loss = train(loader)``."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import reaching
from dlrun.port.program.script import walk

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


def _training(facts: Facts, choice: cst.If) -> cst.BaseExpression | None:
    """Return what is true where the one or the other block of ``choice`` makes gradients; None where neither does."""
    if _goes_back(facts, choice.body):
        return choice.test
    if isinstance(choice.orelse, cst.Else) and _goes_back(facts, choice.orelse.body):
        bare = isinstance(choice.test, (cst.Name, cst.Attribute)) or choice.test.lpar
        sides = {} if bare else {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
        return cst.UnaryOperation(cst.Not(), choice.test.with_changes(**sides))
    return None


def _goes_back(facts: Facts, block: cst.CSTNode) -> bool:
    """Tell whether ``block`` makes gradients, itself or in what it calls."""
    return any(
        isinstance(n, cst.Attribute) and n.attr.value == "backward"
        for body in facts.flow.bodies(block)
        for n in walk(body)
    )


def _runs(test: cst.BaseExpression) -> bool:
    return any(isinstance(n, cst.Call) for n in walk(test))


def _is_dealt(facts: Facts, loop: cst.For) -> bool:
    """Tell whether ``loop`` shards what it goes through itself, whatever it is handed: ``range(len(x))``."""
    return any(isinstance(f.node, cst.Call) and facts.script.inside(f.node, loop.iter) for f in facts.feeds)
