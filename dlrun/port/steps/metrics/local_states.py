"""Part of step "metrics": tensors that move with local samples, such as the centers of classes, and weights that
the first batch makes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.taint import Taint, chances, leads_back
from dlrun.port.program.script import dotted, table_of, walk
from dlrun.port.steps.counts.counts import is_own
from dlrun.port.steps.metrics.environments import environments
from dlrun.port.steps.metrics.in_place import is_buffer, is_same, is_weight, moved, owner_of
from dlrun.port.steps.metrics.queues import fills, of_its_own

_MAKES = ("zeros", "ones", "rand", "randn", "full", "empty", "tensor", "zeros_like", "randn_like", "Parameter")


def torch(facts: Facts, serial: Collection[cst.CSTNode] = ()) -> Iterator[Doubt]:
    """Yield a doubt about each tensor that a rank moves with its own samples, and that training reads.

    Edits make the values ``serial`` the same on all ranks.
    """
    yield from list(_late(facts))[:1]
    done: set[object] = set()
    own = environments(facts)
    for node in facts.script.nodes:
        state = moved(facts, node)
        if state is None or (made := _kept(facts, state, node)) is None or any(v in serial for v in _values(node)):
            continue
        name, owner = facts.script.code(state), owner_of(facts, state)
        if owner in own or (
            facts.episodes and _stores(facts, state)
        ):  # each rank plays its own, and keeps what it has seen
            continue
        key: object = owner if owner is not None and made == "array" else name  # mean and variance are one
        if key not in done and _own(facts, node, state) and _read(facts, state, node):
            done.add(key)
            if fills(node) and not _adds(facts, node, state):
                yield of_its_own(node, name)
                continue
            yield Doubt(
                node,
                f"{name} moves with this rank's samples or chance: each rank trains with another {name}",
                "high",
                _line(facts, node, state, made),
            )


def _stores(facts: Facts, state: cst.BaseExpression) -> bool:
    """Tell whether entries of ``state`` are given other values than their own: a replay memory, a rollout."""
    entries = ((t.target, n.value) for n in facts.script.of(cst.Assign) for t in n.targets)
    return any(
        isinstance(entry, cst.Subscript)
        and is_same(facts, table_of(entry), state)
        and not any(n.deep_equals(entry) for n in walk(value) if isinstance(n, cst.Subscript))
        for entry, value in entries
    )


def _line(facts: Facts, node: cst.CSTNode, state: cst.BaseExpression, made: str) -> str:
    """Return what to write for ``state``, which is ``made`` as an array of NumPy's or a tensor.

    What others add is added without rounding on one rank, which leaves the serial bits.
    """
    name, dl = facts.script.code(state), facts.alias
    where = "before each update, to which all ranks come together" if facts.episodes else "after this line"
    added = f"{dl}.broadcast({name} + ({dl}.total({name} - was) - ({name} - was)))"
    if made == "array" and _adds(facts, node, state):
        return f"was = {name}.copy() before this line, and {name} = {added} after it"
    if made == "array":
        return f"{name} = {dl}.average({name}) {where}"
    data = f"{name}.data" if is_weight(facts, state) else name
    write = f"and {data}.copy_({dl}.average({name})) {where}"
    if _adds(facts, node, state):
        write = f"was = {name}.clone() before this line, and {data}.copy_({added}) after it"
    return f"{dl}.broadcast({name}) before the training, {write}"


def _adds(facts: Facts, node: cst.CSTNode, state: cst.BaseExpression) -> bool:
    """Tell whether the changes of the ranks add up: sums, and entries that each writes for its own samples."""
    if isinstance(node, cst.Assign):
        target = node.targets[0].target
        return isinstance(target, cst.Subscript) and facts.unequal(target.slice[0])
    mine = isinstance(node, cst.AugAssign) and isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign))
    if isinstance(facts, Facts) and any(_is_part_of_mean(facts, n) for n in walk(node)):
        return False  # means[epoch] += losses / len(loader)
    return mine and not any(is_same(facts, n, state) for value in _values(node) for n in walk(value))


def _is_part_of_mean(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is divided by the number of local batches."""
    divides = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide)
    return divides and is_own(facts, node.right)  # type: ignore[attr-defined]


def _late(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a model gets weights while it computes, by when they were broadcast."""
    for node in facts.script.nodes:
        target = node.targets[0].target if isinstance(node, cst.Assign) else None
        if not isinstance(node, cst.Assign) or not isinstance(target, cst.Attribute) or dotted(target.value) != "self":
            continue
        made = isinstance(node.value, cst.Call) and (
            facts.kinds.of_call(node.value) == "module" or facts.script.name_of(node.value.func) == "torch.nn.Parameter"
        )
        owner = facts.script.class_of(node)
        if made and owner is not None and _is_module(facts, owner) and _in_forward(facts, node):
            name = facts.script.code(target)
            yield Doubt(
                node,
                f"{name} is made while the model computes, on each rank by its own chance: what was "
                "broadcast before lacks it",
                "high",
                f"{facts.alias}.broadcast({name}) after this line, or run a batch through the model before "
                "the optimizer is made",
            )


def _kept(facts: Facts, state: cst.BaseExpression, node: cst.CSTNode) -> str | None:
    """Return what ``state``, which ``node`` moves, is made as once, before training: beside the loop, or in a model."""
    script, owner = facts.script, owner_of(facts, state)
    if not isinstance(state, cst.Attribute):
        made = {
            b.node: kind
            for b in script.bindings_of(state)
            if b.written is not None and (kind := _makes(facts, b.written))
        }
        homes = {script.function_of(loop) for loop in facts.loops}
        inner = any(up in facts.loops for up in script.above(node))  # not of one call of a function
        once = inner and all(
            script.function_of(n) in homes and not any(up in facts.loops for up in script.above(n)) for n in made
        )
        return next(iter(made.values()), None) if once else None
    if is_buffer(facts, state):
        return "tensor"
    if owner is None or not (not owner.bases or _is_module(facts, owner)):
        return None
    bindings = script.attributes.get((owner, state.attr.value), ())
    made = {b.node: kind for b in bindings if b.written is not None and (kind := _makes(facts, b.written))}
    return None if any(runs_in(facts, n) for n in made) else next(iter(made.values()), None)


def _is_module(facts: Facts, owner: cst.ClassDef) -> bool:
    return facts.kinds.of_bases(facts.flow.bases(owner)) == "module"


def _makes(facts: Facts, value: cst.CSTNode) -> str:
    """Tell whether ``value`` makes a tensor, ``torch.zeros(10, 2).cuda()``, or an array."""
    while isinstance(value, cst.Call):
        library, _, name = facts.script.name_of(value.func).rpartition(".")
        if library.split(".")[0] in ("torch", "numpy") and name in _MAKES:
            return "tensor" if library.startswith("torch") else "array"
        value = value.func.value if isinstance(value.func, cst.Attribute) else value.func
    return ""


def _own(facts: Facts, node: cst.CSTNode, state: cst.BaseExpression) -> bool:
    """Tell whether every update runs ``node``, with values that are local, and not from gradients."""
    if any(isinstance(n, cst.Attribute) and n.attr.value == "grad" for n in walk(node)):
        return False
    noise = facts.script.code(node).startswith(f"{facts.script.code(state)}.copy_(") and is_buffer(facts, state)
    if _in_forward(facts, node):
        return any(_of_inputs(facts, [] if noise else chances(facts.script))(n) for n in _values(node))
    own = facts.local if noise else facts.unequal  # noise that is drawn anew is each rank's by right
    return runs_in(facts, node) and (facts.episodes or any(own(n) for n in _values(node)))


def _of_inputs(facts: Facts, drawn: Collection[cst.CSTNode]) -> Taint:
    """Return what models compute from their inputs, or of what is ``drawn``."""
    inputs = [
        n
        for n in facts.script.nodes
        if isinstance(n, cst.Name)
        and n.value != "self"
        and any(b.how == "param" and _is_forward(facts.script.function_of(b.node)) for b in facts.script.bindings_of(n))
    ]
    return Taint(facts.script, facts.kinds, [*inputs, *drawn])


def _is_forward(function: cst.CSTNode) -> bool:
    return isinstance(function, cst.FunctionDef) and function.name.value == "forward"


def _in_forward(facts: Facts, node: cst.CSTNode, depth: int = 3) -> bool:
    """Tell whether a model runs ``node`` while it computes, also in a method that ``forward`` calls."""
    function = facts.script.function_of(node)
    if _is_forward(function) or not depth or not isinstance(function, cst.FunctionDef):
        return _is_forward(function)
    return function.name.value != "__init__" and any(
        _in_forward(facts, call, depth - 1) for call in facts.flow.callers(function)
    )


def runs_in(facts: ScriptFacts, node: cst.CSTNode, functions: Collection[cst.CSTNode] = (), depth: int = 4) -> bool:
    """Tell whether a training loop, or one of ``functions``, runs ``node``, also in a function that it calls."""
    function = facts.script.function_of(node)
    if function in functions or any(up in facts.loops for up in facts.script.above(node)):
        return True
    callers = facts.flow.callers(function) if depth and isinstance(function, cst.FunctionDef) else []
    return any(runs_in(facts, call, functions, depth - 1) for call in callers)


def _values(node: cst.CSTNode) -> list[cst.CSTNode]:
    if isinstance(node, (cst.AugAssign, cst.Assign)):
        return [node.value]
    return [a.value for n in walk(node) if isinstance(n, cst.Call) for a in n.args]


def _read(facts: Facts, state: cst.BaseExpression, update: cst.CSTNode) -> bool:
    """Tell whether training reads ``state`` elsewhere: in a forward pass, or in what gradients are made of."""
    script = facts.script
    name = state.attr.value if isinstance(state, cst.Attribute) else None
    reads = [
        n
        for n in script.nodes
        if not script.inside(n, update)
        and (is_same(facts, n, state) if name is None else isinstance(n, cst.Attribute) and n.attr.value == name)
        and not (isinstance(up := script.parents[n], cst.Call) and up.func is n)
    ]
    for node in reads:
        function = script.function_of(node)
        if isinstance(function, cst.FunctionDef) and function.name.value in ("forward", "__call__"):
            return True
    itself = [
        n for n in reads if (kept := moved(facts, script.statement_of(n))) is not None and is_same(facts, kept, state)
    ]
    return leads_back(Taint(script, facts.kinds, [n for n in reads if n not in itself]))
