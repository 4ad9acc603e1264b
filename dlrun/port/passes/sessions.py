"""What loops that count their batches need, above all those of sessions: one start, bounds, and means over batches."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Step
from dlrun.port.facts_tensorflow import TensorFlowFacts
from dlrun.port.insert import expression, statements
from dlrun.port.passes import estimator
from dlrun.port.passes.sums import Sums
from dlrun.port.script import argument, dotted


def broadcast(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Yield the broadcast before the outermost loop, in the session that runs it; as a hook where it is monitored."""
    script = facts.script
    if facts.monitored:
        for call in facts.monitored:
            yield estimator.hooked(facts, call)
            folder = argument(call, "checkpoint_dir", 2)
            if folder is not None and dotted(folder) != "None":
                yield Edit(folder, "rank 0 restores and saves; the others get its variables",
                           lambda f: expression("tensorflow/rank0_path", {"path": f}, dl=facts.alias))  # fmt: skip
        return
    done: set[cst.CSTNode] = set()
    for step in facts.steps:
        assert isinstance(step.optimizer, cst.BaseExpression)
        loop = script.outermost_loop(step.node)
        session = script.code(step.optimizer)
        if loop is None:  # the run is in a function of its own: at the loop that calls it
            caller = next((c for c in facts.flow.callers(script.function_of(step.node))
                           if script.outermost_loop(c) is not None), None)  # fmt: skip
            loop = script.outermost_loop(caller) if caller is not None else None
            given = {script.code(a.value) for a in caller.args} if caller is not None else set()
            known = script.class_of(caller) is not None if caller is not None else False
            if session not in given and not (session.startswith("self.") and known) and not _shared(facts, step, loop):
                loop = None
        if loop is None:
            raise DlrunError(
                f"{script.place(step.node)}: found no loop around this run in which {session} can be named: "
                "nothing was written.",
                f"Bring the loop and the run into one function, or pass {session} under that name.",
            )
        if loop not in done and not any(script.inside(loop, other) for other in done):
            done.add(loop)
            if not facts.kinds.is_optimizer(step.optimizer):  # not train_step.run()
                lines = statements("tensorflow/broadcast_session", dl=facts.alias, session=session)
                yield Edit(loop, "all variables: the same on all ranks before the first step", before=lines)


def _shared(facts: TensorFlowFacts, step: Step, loop: cst.CSTNode | None) -> bool:
    """Tell whether the name of the session is one and the same at the run and at ``loop``."""
    if not isinstance(step.optimizer, cst.Name) or loop is None:
        return False
    there = facts.script.scopes[step.optimizer].lookup(step.optimizer.value)[1]
    return there is not None and facts.script.scopes[loop].lookup(step.optimizer.value)[1] is there


def sources(facts: TensorFlowFacts, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return where a bound is computed, if it is bound here: all that is divided by it then sees the same number."""
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
    uses = [n for n in script.nodes if isinstance(n, cst.Name) and n.value == name.value
            and not isinstance(script.parents[n], (cst.AssignTarget, cst.AugAssign, cst.Attribute))
            and script.scopes[n].lookup(n.value)[1] is scope]  # fmt: skip
    return all(
        any(isinstance(up, cst.Call) and script.name_of(up.func) == "builtins.print" for up in script.above(use))
        for use in uses
    )
