"""What loops that count their batches need, above all those of sessions: bounds, and means over batches."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.passes.sums import Sums


def sources(facts: TensorFlowFacts, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return where a bound is computed, if it is bound here: all that is divided by it then sees the same number."""
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
        sides = (value.left, value.right)  # range(1, batches + 1)
        named = [side for side in sides if isinstance(side, cst.Name)]
        if len(named) == 1 and any(isinstance(side, cst.Integer) for side in sides):
            found = sources(facts, named[0])
            return found if found != named else [value]
    if isinstance(value, cst.Name):
        bindings, scope = facts.script.scopes[value].lookup(value.value)
        values = [b.value for b in bindings if b.how == "assign" and not b.path and b.value is not None]
        if values and len(values) == len(bindings):
            here = scope is facts.script.scopes[value]
            if here or (len(values) == 1 and isinstance(values[0], cst.Integer)):
                return values
    return [value]


def parts(facts: TensorFlowFacts) -> Iterator[Doubt]:
    """Yield a doubt where a mean is added up of ``loss / batches``, and ``batches`` counts those of all ranks."""
    sums = Sums(facts)
    for node in facts.script.nodes:
        if not (isinstance(node, cst.AugAssign) and isinstance(node.value, cst.BinaryOperation)):
            continue
        part = node.value
        if not isinstance(part.operator, cst.Divide) or not facts.trained(part.left):
            continue
        loop = next((u for u in facts.script.above(node) if isinstance(u, (cst.For, cst.While))), None)
        text = sums.text(part.right)
        totalled = text in sums.bounds(node) and _only_shown(facts, node.target)
        if loop in facts.loops and loop not in dict(facts.counted) and not totalled:
            yield Doubt(node, f"each rank adds up its share of the batches only, and divides by {text}", "medium",
                        f"{facts.alias}.steps({text}) in place of {text}")  # fmt: skip


def _only_shown(facts: TensorFlowFacts, name: cst.CSTNode) -> bool:
    """Tell whether ``name`` is read in calls of print() only, where its total over the ranks is shown."""
    if not isinstance(name, cst.Name):
        return False
    script, scope = facts.script, facts.script.scopes[name].lookup(name.value)[1]
    uses = [n for n in script.of(cst.Name) if n.value == name.value
            and not isinstance(script.parents[n], (cst.AssignTarget, cst.AugAssign, cst.Attribute))
            and script.scopes[n].lookup(n.value)[1] is scope]  # fmt: skip
    return all(
        any(isinstance(up, cst.Call) and script.name_of(up.func) == "builtins.print" for up in script.above(use))
        for use in uses
    )
