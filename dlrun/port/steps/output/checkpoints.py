"""Part of step "output": checkpoints that rank 0 writes and all ranks read back; where they lie, rank 0 says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.torch import LOOPS
from dlrun.port.insert import expression
from dlrun.port.program.script import dotted
from dlrun.port.steps.output.writes import goes_on, is_checkpoint

_LATEST = ("tensorflow.train.latest_checkpoint", "tensorflow.train.get_checkpoint_state")
_METHODS = ("restore", "load_weights")
_READS = re.compile(
    r"\.load_model$|^tensorflow\.(saved_model\.load|train\.(load_checkpoint|load_variable|list_variables|NewCheckpointReader))$"
)
_KEPT = ("latest_checkpoint", "checkpoints")  # what a CheckpointManager knows of what it has saved


def edits(facts: KerasFacts | TensorFlowFacts, saves: Sequence[cst.Call]) -> Iterator[Edit]:
    """Let all ranks read what rank 0 has written: after it, and by the path that it knows.

    Before:
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "saved", max_to_keep=3)
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) - y)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
            manager.save()
        checkpoint.restore(manager.latest_checkpoint)

    After:
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "saved", max_to_keep=3)
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) - y)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
            dl.rank0(manager.save)()
        dl.rank0_first(checkpoint.restore)(dl.broadcast(manager.latest_checkpoint))
    """
    script, dl = facts.script, facts.alias
    read: set[cst.CSTNode] = set()
    for call in script.calls:
        why = ""
        if plain(script.name_of(call.func)) in _LATEST:
            why = "rank 0 first: it may be removing or writing checkpoints"
        elif _restores(facts, call):
            read.update(o.node for arg in call.args for o in facts.flow.origins(arg.value))
            why = "rank 0 first: it has written what all read" if _may_follow(facts, call, saves) else ""
        if why:
            yield Edit(call.func, why, lambda f: expression("torch/rank0_first", {"call": f}, dl=dl))
    read.update(call for call in saves if dotted(call.func).rpartition(".")[2].islower() and goes_on(script, call))
    known = [n for n in script.of(cst.Attribute) if n.attr.value in _KEPT and _is_manager(facts, n.value)]
    for node in [*(call for call in saves if call in read), *(n for n in known if _may_follow(facts, n, saves))]:
        yield Edit(
            node,
            "rank 0 alone has saved: it tells the others where",
            lambda n: expression("torch/same", {"value": n}, dl=dl),
        )


def _restores(facts: KerasFacts | TensorFlowFacts, call: cst.Call) -> bool:
    name = plain(facts.script.name_of(call.func))
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    own = name[:1] in ("", ".") and method in _METHODS
    if method == "read" and isinstance(call.func, cst.Attribute):
        own = is_checkpoint(facts, call.func.value)
    return bool(own or _READS.search(name)) and not facts.flow.targets(call)


def _is_manager(facts: KerasFacts | TensorFlowFacts, node: cst.BaseExpression) -> bool:
    made = [o.node for o in facts.flow.origins(node)]
    return any(isinstance(m, cst.Call) and facts.script.name_of(m.func).endswith(".CheckpointManager") for m in made)


def _may_follow(facts: KerasFacts | TensorFlowFacts, node: cst.CSTNode, saves: Sequence[cst.CSTNode]) -> bool:
    """Tell whether ``node`` may run after one of ``saves``: where no function runs both, that is not known."""
    script = facts.script
    for save in saves:
        here = [
            (a, b)
            for a in facts.flow.frames(node)
            for b in facts.flow.frames(save)
            if script.function_of(a) is script.function_of(b)
        ]
        loops = ({up for up in script.above(a) if isinstance(up, LOOPS)} & set(script.above(b)) for a, b in here)
        if not here or any(script.order[b] < script.order[a] for a, b in here) or any(loops):
            return True
    return False
