"""Part of step "steps": learning rates that the script computes from a count of steps itself, and sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import expression
from dlrun.port.passes.counts import all_samples, from_length
from dlrun.port.program.script import dotted, walk

Counters = set[tuple[cst.CSTNode, str]]  # functions and the names in them that go up by 1 with every update


def told(
    facts: Facts, resets: Iterable[cst.BaseExpression], counters: Counters, divided: set[cst.CSTNode]
) -> Iterator[Edit | Doubt]:
    """Tell a function of the count of steps, as in ``group["lr"] = rate_at(step)``, of the steps of all ranks.

    A rate that is also computed from a count that is ``divided`` already, or from a length, is left as it is. One that
    is written out beside the counter is doubted.
    """
    done: set[cst.CSTNode] = set()
    for reset in resets:
        for value in _values(facts, reset):
            calls = [n for n in walk(value) if isinstance(n, cst.Call) and _tells(facts, n, counters)]
            for call in calls:
                function = facts.flow.definition(call.func)
                if call not in done and function and not _follows(facts, function.body, divided):
                    done.add(call)
                    yield Edit(call.func, "it is told the steps of all ranks, n times the rank's own",
                               lambda f: expression("torch/steps", {"count": f}, dl=facts.alias))  # fmt: skip
            counted = [n for n in walk(value) if not calls and _counts(facts, n, counters)]
            if counted and value not in done and not _follows(facts, value, divided):
                done.add(value)
                step, code = facts.script.code(counted[0]), facts.script.code(value)
                yield Doubt(value, f"the rate follows {step}, which counts steps, and n ranks take 1/n of them", "high",
                            f"{facts.alias}.steps(lambda {step}: {code})({step})")  # fmt: skip


def _values(facts: Facts, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return ``value``, and what it is assigned before where it is a name."""
    if not isinstance(value, cst.Name):
        return [value]
    bindings = facts.script.scopes[value].lookup(value.value)[0]
    return [b.value for b in bindings if b.how == "assign" and b.value is not None and not b.path]


def _tells(facts: Facts, call: cst.Call, counters: Counters) -> bool:
    """Tell whether ``call`` gives a function of this program the count of steps, and nothing else."""
    alone = len(call.args) == 1 and call.args[0].keyword is None and not call.args[0].star
    local = isinstance(facts.flow.definition(call.func), cst.FunctionDef)
    return alone and local and _counts(facts, call.args[0].value, counters)


def _counts(facts: Facts, node: cst.CSTNode, counters: Counters) -> bool:
    return isinstance(node, cst.Name) and (facts.script.function_of(node), dotted(node)) in counters


def _follows(facts: Facts, tree: cst.CSTNode, divided: set[cst.CSTNode]) -> bool:
    """Tell whether ``tree`` reads a count that follows the number of ranks already."""
    for n in walk(tree):
        bindings = facts.script.scopes[n].lookup(n.value)[0] if isinstance(n, cst.Name) else []
        if n in divided or any(b.value in divided for b in bindings):
            return True
    return from_length(facts, tree) and not all_samples(facts, tree)
