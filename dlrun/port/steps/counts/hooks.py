"""Part of step "steps" for TensorFlow: after how many steps each hooks and sessions save, show and end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.insert import expression
from dlrun.port.program.script import argument, calls_method, dotted

_ALONE = -1  # only by its keyword
# What counts steps, by the last word of a call: the keyword, and the position.
_COUNTS: dict[str, tuple[tuple[str, int], ...]] = {
    "CheckpointSaverHook": (("save_steps", 2),),
    "SummarySaverHook": (("save_steps", 0),),
    "ProfilerHook": (("save_steps", 0),),
    "StepCounterHook": (("every_n_steps", 0),),
    "LoggingTensorHook": (("every_n_iter", 1),),
    "StopAtStepHook": (("num_steps", 0), ("last_step", 1)),
    "SecondOrStepTimer": (("every_steps", 1),),
    "RunConfig": tuple((f"{what}_steps", _ALONE) for what in ("save_checkpoints", "save_summary", "log_step_count")),
    "MonitoredTrainingSession": tuple(
        (f"{what}_steps", _ALONE) for what in ("save_checkpoint", "save_summaries", "log_step_count")
    ),
}
_SHOWN = ("print", "format", "str", "info", "debug", "warning", "dump", "dumps", "write", "append", "pprint")


def tensorflow(facts: TensorFlowFacts, done: set[cst.CSTNode]) -> Iterator[Edit]:
    """Divide what hooks count; ``done`` is divided already.

    Before:
        tf.train.CheckpointSaverHook("out", save_steps=1000)

    After:
        tf.train.CheckpointSaverHook("out", save_steps=dl.steps(1000))
    """
    for call in facts.script.calls:
        name = plain(facts.script.name_of(call.func))
        for keyword, position in _COUNTS.get(name.rpartition(".")[2], ()) if name.startswith("tensorflow.") else ():
            count = argument(call, keyword, position)
            if count is not None and dotted(count) != "None" and count not in done:
                done.add(count)
                yield Edit(
                    count,
                    "it counts steps, and n ranks together take n batches a step",
                    lambda n: expression("torch/steps", {"count": n}, dl=facts.alias),
                )


def evaluated(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Make the global step serial that an Estimator's ``evaluate()`` returns, and reads from its checkpoint.

    Before:
        print(estimator.evaluate(test)["global_step"])

    After:
        print(dl.serial_steps(estimator.evaluate(test)["global_step"]))
    """
    assert facts.estimators is not None
    script, why = facts.script, "n ranks take n batches a step"
    made = [c for c in script.calls if calls_method(c, "evaluate") and facts.estimators.owns(c)]
    for node in script.nodes:
        if _is_step(facts, node, made):
            yield Edit(node, why, lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias))
        elif isinstance(node, cst.Arg) and _shows(script.parents[node]) and _comes_from(facts, node.value, made):
            text = f"{script.code(node.value)}: its global_step counts steps of n ranks, 1/n of the serial ones"
            yield Doubt(node.value, text, "medium", name="unknown-placement")


def _is_step(facts: TensorFlowFacts, node: cst.CSTNode, made: Sequence[cst.Call]) -> bool:
    """Tell whether ``node`` reads the global step: of what is ``made`` by evaluations, or of a checkpoint."""
    assert facts.estimators is not None
    if isinstance(node, cst.Subscript):
        index = node.slice[0].slice
        return isinstance(index, cst.Index) and _names_step(index.value) and _comes_from(facts, node.value, made)
    if not isinstance(node, cst.Call) or not node.args or not _names_step(node.args[0].value):
        return False
    if calls_method(node, "get_variable_value"):
        return facts.estimators.owns(node)
    return calls_method(node, "get", "pop") and _comes_from(facts, node.func.value, made)


def _names_step(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and node.evaluated_value == "global_step"


def _comes_from(facts: TensorFlowFacts, node: cst.BaseExpression, made: Sequence[cst.Call]) -> bool:
    return any(o.node in made for o in facts.flow.origins(node))


def _shows(call: cst.CSTNode) -> bool:
    """Tell whether ``call`` shows a whole dict: not so a text with names in braces, none of which is the step's."""
    if not isinstance(call, cst.Call):
        return False
    method = call.func if isinstance(call.func, cst.Attribute) else None
    text = method.value.evaluated_value if method is not None and isinstance(method.value, cst.SimpleString) else None
    word = method.attr.value if method is not None else dotted(call.func)
    return word in _SHOWN and (text is None or "global_step" in str(text))
