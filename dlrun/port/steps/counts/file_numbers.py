"""Part of step "steps" for TensorFlow: the numbers of steps in the names of checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.numbers.computed import Tells, computed
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.program.script import argument, calls_method, dotted, walk
from dlrun.port.steps.counts.update_counts import steps_so_far

# What numbers its files by the global step, by the last word of a call: whether it needs a folder to do so.
_NUMBERED = {
    "CheckpointSaverHook": "",
    "MonitoredTrainingSession": "checkpoint_dir",
    "Estimator": "model_dir",
    "RunConfig": "model_dir",
}


def read_back(facts: ScriptFacts) -> Iterator[cst.Call]:
    """Yield what makes a number of a checkpoint's name: ``int(tf.train.latest_checkpoint(d).split("-")[-1])``."""
    for call in facts.script.calls:
        if facts.script.name_of(call.func) == "builtins.int" and call.args:
            made = computed(facts.flow, [call.args[0].value]).nodes
            if any(dotted(n).endswith((".model_checkpoint_path", "latest_checkpoint")) for n in made):
                yield call


def numbers_read(facts: ScriptFacts) -> Iterator[cst.Call]:
    """Yield those numbers of local steps themselves, and not what is made of them: ``int(counter / batches)``."""
    back = list(read_back(facts))
    for call in back:
        made = computed(facts.flow, [call.args[0].value]).nodes
        if not any(other in made for other in back if other is not call):
            yield call


def tensorflow(facts: TensorFlowFacts, serial: Collection[cst.CSTNode] = ()) -> Iterator[Doubt]:
    """Yield a doubt at the first file whose name holds the global step, of which n ranks take 1/n.

    Those of ``serial`` are made serial where they are given.
    """
    if facts.keeps_steps:
        return
    counts, back = steps_so_far(facts), set(read_back(facts)) if facts.style == "session" else set()
    for call in facts.script.calls:
        folder = _NUMBERED.get(plain(facts.script.name_of(call.func)).rpartition(".")[2])
        step = argument(call, "global_step", 2) if calls_method(call, "save") else None
        kept = step is not None and counts(step) and not any(n in serial for n in walk(step))
        if _holds_count(facts, call, counts):
            text = "its checkpoints hold the steps of n ranks, 1/n of the serial ones"
            yield Doubt(call, text, "low", name="local-number")
            return
        if call in back or kept or (folder is not None and (not folder or argument(call, folder) is not None)):
            text = "the names of its files hold the steps of n ranks, 1/n of the serial ones"
            yield Doubt(call, text, "low", name="local-number")
            return


def _holds_count(facts: TensorFlowFacts, call: cst.Call, counts: Tells) -> bool:
    """Tell whether ``call`` makes a checkpoint that holds a count of steps: ``Checkpoint(step=tf.Variable(0))``."""
    if not plain(facts.script.name_of(call.func)).endswith("train.Checkpoint"):
        return False
    given = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    read = [n for n in facts.script.of(cst.Attribute) if n.attr.value in given and counts(n)]
    of_this = (any(o.node is call for o in facts.flow.origins(n.value)) for n in read)
    return any(map(counts, given.values())) or any(of_this)
