"""What loops that count their batches need, above all those of sessions: bounds, and means over batches."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.numbers.computed import computed, leaves
from dlrun.port.facts.numbers.fetches import fetched
from dlrun.port.facts.numbers.fetches import parts as parts_of
from dlrun.port.facts.numbers.scalars import Scalars
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.updates.session import SessionGradients
from dlrun.port.insert import expression
from dlrun.port.program.script import argument, calls_method, dotted, walk
from dlrun.port.steps.counts import bounds, takes
from dlrun.port.steps.counts.counts import is_own
from dlrun.port.steps.counts.update_counts import steps_so_far

_PARTS = (cst.Modulo, cst.Divide, cst.FloorDivide)


def divided(facts: TensorFlowFacts) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yield the bounds of loops that count steps, where they are computed, and what in their bodies tells an epoch.

    And the counts of steps that become epochs, divided by one of these.
    """
    found: set[cst.CSTNode] = set()
    for value, why in bounds.bounds(facts):
        if any(is_own(facts, leaf) for leaf in leaves(facts.flow, value)):
            continue  # while at < len(share)
        made = [b.value for b in facts.script.bindings_of(value)] if isinstance(value, cst.Name) else []
        if made and found.issuperset(made):
            continue  # divided where it is computed, and read in a function
        for node in bounds.sources(facts, value):
            epochs = list(_epochs(facts, node))
            found.update(epochs or [node])
            yield from ((n, why) for n in epochs or [node])

    def own(count: cst.BaseExpression) -> bool:
        return not found.isdisjoint(computed(facts.flow, [count]).nodes)

    yield from (
        (count, "a count of steps, which a rank's steps of an epoch turn into epochs")
        for count in bounds.of_epochs(facts, own)
    )


def _epochs(facts: TensorFlowFacts, count: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the steps of an epoch in ``count``, ``epochs * batches``, and in what asks for its end.

    ``if step % batches == 0:`` and ``step // batches``.
    """
    if not isinstance(count, cst.BinaryOperation) or not isinstance(count.operator, cst.Multiply):
        return
    code = facts.script.code
    parted = [n for loop in facts.loops for n in walk(loop.body) if isinstance(n, cst.BinaryOperation)]
    for factor in (count.left, count.right):
        turns = [n for n in parted if isinstance(n.operator, cst.Modulo) and code(n.right) == code(factor)]
        if turns and dotted(factor):
            yield factor
            steps = {code(n.left) for n in turns}
            yield from dict.fromkeys(
                n.right
                for n in parted
                if isinstance(n.operator, _PARTS) and code(n.left) in steps and code(n.right) == code(factor)
            )
            return


def resumed(facts: TensorFlowFacts) -> Iterator[Edit]:
    """Yield what finds where a run goes on from the steps that it has counted, which are local: of a data set, and
    the epoch and the batch.

    ``start = int(step / batches)`` before ``for epoch in range(start, epochs):`` and, in it, ``range(begin, batches)``.
    """
    code, dl = facts.script.code, facts.alias
    sharded = [feed.node for feed in facts.feeds if feed.how in ("positions", "indices")]
    why = "a run that goes on has counted local steps"
    for loop in facts.loops:
        outer = next((up for up in facts.script.above(loop) if up in facts.loops), None)
        ranges = [up.iter for up in (loop, outer) if isinstance(up, cst.For) and isinstance(up.iter, cst.Call)]
        if len(ranges) != 2 or any(len(call.args) != 2 for call in ranges):
            continue
        starts, batches = [call.args[0].value for call in ranges], ranges[0].args[1].value
        made = [b.value for start in starts for b in facts.script.bindings_of(start) if b.value is not None]
        parts = [
            n
            for value in made
            for n in walk(value)
            if isinstance(n, cst.BinaryOperation)
            and isinstance(n.operator, (*_PARTS, cst.Multiply))
            and code(n.right) == code(batches)
        ]
        for part in parts:
            yield Edit(part.right, why, lambda n: expression("torch/steps", {"count": n}, dl=dl))
        if parts and ranges[0] in sharded:
            yield Edit(starts[0], why, lambda n: expression("torch/serial_steps", {"step": n}, dl=dl))
    yield from takes.resumed(facts, steps_so_far(facts))


def shares(facts: TensorFlowFacts) -> Iterator[Doubt]:
    """Yield doubts about a dict that is cut where it stands: what it holds, and runs that make more than numbers."""
    cut = {feed.node for feed in facts.feeds if feed.how == "array" and not isinstance(feed.node, cst.List)}
    if not cut or not isinstance(facts.gradients, SessionGradients):
        return
    pairs = [pair for run, _ in facts.gradients.step_calls for pair in facts.gradients.fed_pairs(run)]
    known = {value for placeholder, value in pairs if _by_sample(facts, placeholder, value)}
    unsure = sorted(cut - known, key=lambda node: facts.script.order[node])
    if unsure:
        names = ", ".join(dict.fromkeys(map(facts.script.code, unsure)))
        yield Doubt(unsure[0], f"{names}: taken to hold one sample per entry of axis 0", "medium")
    number = Scalars(facts.kinds, facts.runs)
    for run in facts.runs:
        fed = cut & {value for _, value in facts.gradients.fed_pairs(run)}
        line = facts.script.statement_of(run)
        alone = isinstance(line, cst.Expr) and line.value is run
        if fed and not alone and not all(map(number, parts_of(fetched(run)))):
            yield Doubt(
                run, "this is of this rank's samples alone", "high", "feed it whole arrays, in a dict of its own"
            )


def _by_sample(facts: TensorFlowFacts, placeholder: cst.BaseExpression, value: cst.BaseExpression) -> bool:
    """Tell whether ``placeholder``, as it is written, takes any number of samples along axis 0, and ``value`` has them.

    So is one of shape ``[None, 4]``, and one of labels, ``tf.int32, [None]``; not one of ``[None]`` numbers, which may
    be what layers keep, nor one that may begin with an axis of times.
    """
    script, flow = facts.script, facts.flow
    made = [o.node for o in flow.origins(value)]
    if any(isinstance(n, cst.Call) and dotted(n.func).rpartition(".")[2] == "expand_dims" for n in made):
        return False
    order = [a for call in script.calls if (a := argument(call, "time_major")) is not None]
    times = any(dotted(a) != "False" for a in order)
    graph = [o.node for o in flow.origins(placeholder)]
    for node in graph:
        shape = argument(node, "shape", 1) if isinstance(node, cst.Call) else None
        kind = argument(node, "dtype", 0) if isinstance(node, cst.Call) else None
        if not isinstance(shape, (cst.List, cst.Tuple)) or kind is None:
            return False
        sizes = [dotted(e.value) for e in shape.elements]
        counts = re.search(r"int\d+$", dotted(kind)) is not None
        if sizes[:1] != ["None"] or (len(sizes) < 2 and not counts) or (times and sizes[1:2] == ["None"]):
            return False
    return bool(graph)


def logged(facts: TensorFlowFacts) -> Iterator[Doubt]:
    """Yield a doubt where a hook logs, or a summary holds, what a local session computed."""
    for call in facts.script.calls if not facts.full_batch else ():
        if calls_method(call, "add_summary") and call.args and _is_own(facts, call.args[0].value):
            yield Doubt(
                call,
                "this summary holds numbers of rank 0's samples",
                "low",
                f"{facts.alias}.average(loss) in place of loss where the graph makes the summary, if all ranks "
                "run it at the same steps",
            )
            return
        if facts.script.name_of(call.func).endswith(".LoggingTensorHook"):
            yield Doubt(
                call,
                "each rank logs numbers of its own samples; those of rank 0 are seen",
                "low",
                f"{facts.alias}.average(loss) in place of loss, and every_n_iter, which counts alike on all ranks",
            )
            return


def hooked(facts: TensorFlowFacts) -> Iterator[Doubt]:
    """Yield a doubt where a hook of the script keeps, counts or shows what it sees of a session's runs."""
    hooks = [cls for cls in facts.script.of(cst.ClassDef) if _is_hook(facts, cls)]
    for method in (facts.flow.method(cls, "after_run") for cls in hooks if not facts.full_batch):
        params = [p.name.value for p in method.params.params] if method is not None else []
        if method is None or len(params) < 3:
            continue
        reads = any(isinstance(n, cst.Name) and n.value == params[2] for n in walk(method.body))
        counts = (n.target for n in walk(method.body) if isinstance(n, cst.AugAssign))
        if reads or any(dotted(target).startswith(f"{params[0]}.") for target in counts):
            yield Doubt(
                method,
                "sees this rank's runs alone, 1/n of the serial ones: what it keeps and shows is local to rank 0",
                "medium",
                f"{facts.alias}.average() of numbers that it sees, where all ranks come by; {facts.alias}.steps() of "
                "what it divides its count by",
                name="unknown-placement",
            )


def _is_hook(facts: TensorFlowFacts, cls: cst.ClassDef) -> bool:
    return any(base.endswith(".SessionRunHook") for base in facts.flow.bases(cls))


def _is_own(facts: TensorFlowFacts, summary: cst.BaseExpression) -> bool:
    """Tell whether a run in training made ``summary`` of what it is fed, or of what the graph draws for itself."""
    gradients = facts.gradients
    runs = [o.node for o in facts.flow.origins(summary) if calls_method(o.node, "run", "eval")]
    fed = [n for n in runs if isinstance(gradients, SessionGradients) and gradients.fed_pairs(n)]
    inside = any(up in facts.loops for n in runs for up in facts.script.above(n))
    return bool(runs) and (facts.local(summary) if fed or facts.fed else inside)
