"""Step "output" for Keras and TensorFlow: models, checkpoints, summaries and figures come from rank 0 alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.insert import expression
from dlrun.port.program.script import argument, calls_method, dotted
from dlrun.port.steps.output import checkpoints, downloads, drawn_names, handed_on, reads, stamps, stopping
from dlrun.port.steps.output import output as torch_output
from dlrun.port.steps.output.writes import MODELS

_LOADS = re.compile(r"keras\.datasets\.\w+\.load_data$|keras\.utils\.(get_file|data_utils\.get_file)$|get_file$")
_PLOTS = re.compile(
    r"keras\.(utils\.(vis_utils\.)?plot_model|(utils|preprocessing\.image)\.save_img|models\.save_model)$"
)
# Functions of TensorFlow that write, or print on every rank.
_WRITES = re.compile(
    r"tensorflow\.(saved_model\.(save|simple_save)|print|io\.(write_file|gfile\.(rmtree|remove|rename|copy)|write_graph)|"
    r"gfile\.(DeleteRecursively|Remove|Rename|Copy)|summary\.(create_file_writer|FileWriter(Cache\.get)?)|train\.write_graph|"
    r"keras\.backend\.print_tensor)$"
)
_OPENS = re.compile(r"tensorflow\.(io\.gfile\.GFile|gfile\.(GFile|Open|FastGFile))$")
# Hooks that write into a folder: the argument that names it, and what the other ranks get in its place.
_HOOKS = {
    "StepCounterHook": ("output_dir", 2, "tensorflow/rank0_path"),
    "SummarySaverHook": ("output_dir", 2, "tensorflow/rank0_path"),
    "ProfilerHook": ("output_dir", 2, "tensorflow/model_dir"),
    "CheckpointSaverHook": ("checkpoint_dir", 0, "tensorflow/model_dir"),
}
_SAVERS = ("save", "save_weights", "write", "export_saved_model", "export_savedmodel", "write_graph", "export")


def _files(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Yield what goes before any call that writes: which files and folders there are, and who reads them."""
    yield from downloads.both(facts)
    yield from stamps.names(facts)
    yield from drawn_names.names(facts)
    yield from stamps.folders(facts)
    yield from reads.back(facts)
    yield from handed_on.writers(facts)


def keras(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Save, plot and write on rank 0; download there first. Callbacks that write are distribute()'s to handle.

    Before:
        model.compile(opt)
        model.fit(x, y)
        model.save("model.keras")

    After:
        model.compile(opt)
        model.fit(x, y)
        dl.rank0(model.save)("model.keras")
    """
    yield from _files(facts)
    yield from stopping.keras(facts)
    script, dl = facts.script, facts.alias
    by_hand = {o.node for c in script.calls if calls_method(c, "set_model") for o in facts.flow.origins(c.func.value)}
    saves: list[cst.Call] = []
    for call in downloads.others(facts):
        name = script.name_of(call.func)
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        own = bool(method) and (not name or name[0] == ".") and not facts.flow.targets(call)
        if name.endswith("ModelCheckpoint"):
            saves.append(call)
        if (own and method in MODELS) or _PLOTS.search(name):
            saves.append(call)
            yield Edit(call.func, "rank 0 writes", lambda f: expression("torch/rank0", {"call": f}, dl=dl))
        elif own and _shows_model(facts, call):
            yield Edit(call.func, "rank 0 prints", lambda f: expression("torch/rank0", {"call": f}, dl=dl))
        elif name.endswith("callbacks.TensorBoard") and call in by_hand:
            yield Edit(call.func, "rank 0 writes", lambda f: expression("torch/rank0", {"call": f}, dl=dl))
        elif _LOADS.search(name):
            yield Edit(
                call.func,
                "rank 0 downloads, the others wait and read",
                lambda f: expression("torch/rank0_first", {"call": f}, dl=dl),
            )
        else:
            yield from torch_output.one(facts, call)
    yield from checkpoints.edits(facts, saves)


def tensorflow(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Save, log and plot on rank 0; what is read back is read by rank 0 first, once it has written it.

    Before:
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) - y)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
        checkpoint.save("weights")
        checkpoint.restore("weights-1")

    After:
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) - y)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
        dl.rank0(checkpoint.save)("weights")
        dl.rank0_first(checkpoint.restore)("weights-1")
    """
    yield from _files(facts)
    yield from stopping.tensorflow(facts)
    script, dl = facts.script, facts.alias
    saves: list[cst.Call] = []
    for call in downloads.others(facts):
        name = plain(script.name_of(call.func))
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if _WRITES.search(name) or _PLOTS.search(name) or (_OPENS.search(name) and _writing(call)):
            yield Edit(call.func, "rank 0 writes", lambda f: expression("torch/rank0", {"call": f}, dl=dl))
        elif method in _SAVERS and _is_saver(facts, call):
            saves.append(call)
            yield Edit(call.func, "rank 0 writes", lambda f: expression("torch/rank0", {"call": f}, dl=dl))
        elif _shows_model(facts, call):
            yield Edit(call.func, "rank 0 prints", lambda f: expression("torch/rank0", {"call": f}, dl=dl))
        elif name.startswith("tensorflow.") and (last := name.rsplit(".", 1)[-1]) in _HOOKS:
            word, position, instead = _HOOKS[last]
            if (folder := argument(call, word, position)) is not None and dotted(folder) != "None":
                yield Edit(folder, "this hook writes on rank 0", partial(_elsewhere, instead, dl))
        elif _LOADS.search(name) or name in _FETCHES:
            yield Edit(
                call.func,
                "rank 0 downloads, the others wait and read",
                lambda f: expression("torch/rank0_first", {"call": f}, dl=dl),
            )
        else:
            yield from torch_output.one(facts, call)
    yield from checkpoints.edits(facts, saves)


_FETCHES = (
    "tensorflow_datasets.load",
    "tensorflow.examples.tutorials.mnist.input_data.read_data_sets",
    "tensorflow.contrib.learn.datasets.load_dataset",
    "tensorflow_hub.load",
)


def _elsewhere(instead: str, dl: str, path: cst.BaseExpression) -> cst.BaseExpression:
    return expression(instead, {"path": path}, dl=dl)


def _is_saver(facts: TensorFlowFacts, call: cst.Call) -> bool:
    """Tell whether a method called save() or the like is one of a model, a checkpoint, a figure: not the script's."""
    assert isinstance(call.func, cst.Attribute)
    name = facts.script.name_of(call.func)
    if facts.flow.targets(call) or (name and not name.startswith(".") and call.func.attr.value != "save"):
        return False
    if call.func.attr.value == "write":  # Checkpoint.write(); a file's write() is inside its own open()
        return "checkpoint" in dotted(call.func.value).lower() or dotted(call.func.value).lower().endswith("ckpt")
    return not name.startswith("numpy.")


def _shows_model(facts: KerasFacts | TensorFlowFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` is ``model.summary()``, which prints by itself, past ``dl.print``."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "summary" or facts.flow.targets(call):
        return False
    whole = facts.script.parents[call]
    if isinstance(whole, cst.Arg):  # print(model.summary())
        printed = facts.script.parents[whole]
        return isinstance(printed, cst.Call) and dotted(printed.func) == "print"
    return isinstance(whole, cst.Expr)


def _writing(call: cst.Call) -> bool:
    mode = argument(call, "mode", 1)
    return isinstance(mode, cst.SimpleString) and any(c in str(mode.evaluated_value) for c in "wa+")
