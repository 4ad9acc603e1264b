"""What kind of thing a TensorFlow or Keras expression is: optimizer, model, data set, loss, metric, writer."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import calls_method, dotted

OPTIMIZER = re.compile(
    r"^((keras|tensorflow|tensorflow_addons|keras_contrib)\.(api\.)?(optimizers|optimizer_v\d)\."
    r"((?!schedules|learning_rate)\w+\.)*(?!get$|serialize|deserialize)\w+|"
    r"tensorflow\.(contrib\.)?(train|opt|optimizer_v2)\.(experimental\.)?\w*Optimizer\w*|"
    r"[\w.]+\.optimizers\.(SGD|RMSprop|Ada(m|mW|max|grad|delta)|Nadam))$"  # which a library hands on
)
_DATA = re.compile(
    r"^(tensorflow\.data\.|tensorflow_datasets\.load$|keras\.(utils|preprocessing)\.\w+_dataset_from_directory$)"
)
_MODEL = re.compile(
    r"^keras\.(Sequential|Model|models\.\w+|applications\.[\w.]+|engine\.\w+\.Model)$|^tensorflow_hub\.|"
    r"^keras\.layers\.(?!Input$)[A-Z]"
)
_WRITER = re.compile(r"^tensorflow\.(summary\.(create_file_writer|FileWriter(Cache\.get)?)|train\.SummaryWriter)$")
# Methods of a tf.data.Dataset that give another one.
_PIPELINE = {
    "apply",
    "batch",
    "bucket_by_sequence_length",
    "cache",
    "concatenate",
    "enumerate",
    "filter",
    "flat_map",
    "interleave",
    "map",
    "padded_batch",
    "prefetch",
    "ragged_batch",
    "rebatch",
    "repeat",
    "shard",
    "shuffle",
    "skip",
    "take",
    "take_while",
    "unbatch",
    "unique",
    "window",
    "with_options",
    "zip",
    "as_numpy_iterator",
    "ignore_errors",
}
_WEIGHTS = ("trainable_variables", "trainable_weights")  # which only models and layers have
_NAMED = re.compile(r"(^|_|\.)(optim|optimizer|optimiser|opt|solver|trainer)(_?[a-zA-Z0-9]{0,10})$")


def plain(name: str) -> str:
    """Return a qualified name as of TensorFlow 1 and of Keras alone: ``tensorflow.keras.losses.MSE`` is ``keras``'s."""
    for prefix in ("tensorflow.compat.v1", "tensorflow.compat.v2", "tensorflow._api.v2"):
        if name.startswith(prefix + "."):
            name = "tensorflow" + name[len(prefix) :]
    for prefix in ("tensorflow.python.keras", "tensorflow.keras", "tf_keras"):
        if name.startswith(prefix + "."):
            name = "keras" + name[len(prefix) :]
    return name


class TensorFlowKinds(Kinds):
    """Tells the kind of an expression, as ``Kinds`` does for PyTorch."""

    def __init__(self, flow: Flow) -> None:
        """Note which foreign objects are used as modules anywhere in the script."""
        self._busy: set[cst.CSTNode] = set()
        super().__init__(flow)
        for node in self.script.nodes:
            if isinstance(node, cst.Attribute) and node.attr.value in _WEIGHTS:
                made = (origin.node for origin in flow.origins(node.value))
                self._used_as_module.update(n for n in made if not (isinstance(n, cst.Call) and self._is_of_ours(n)))

    def _is_of_ours(self, call: cst.Call) -> bool:
        """Tell whether ``call`` makes what may have ``trainable_variables`` by itself: no model of a library."""
        local = self.flow.definition(call.func)
        return self.flow.is_plain(local) or isinstance(local, cst.FunctionDef)

    def of_call(self, call: cst.Call) -> str:
        """Return the kind of what ``call`` makes, or an empty string."""
        if kind := super().of_call(call):
            return kind
        chained = calls_method(call, *_PIPELINE)
        if not chained or call in self._busy:  # data = data.batch(8) comes back to itself
            return ""
        self._busy.add(call)
        try:
            assert isinstance(call.func, cst.Attribute)
            return "loader" if self.of(call.func.value) == "loader" else ""
        finally:
            self._busy.discard(call)

    def of(self, node: cst.CSTNode) -> str:
        """Return the kind of the value of ``node``; a list or dict of variables or layers counts as a module."""
        if kind := super().of(node):
            return kind
        for origin in self.flow.origins(node):
            if origin.node is not node and isinstance(origin.node, (cst.List, cst.Tuple, cst.Dict)) and origin.whole:
                parts = [e.value for e in origin.node.elements]
                if parts and all(isinstance(p, cst.Call) and self.of_call(p) == "module" for p in parts):
                    return "module"
        return ""

    def _of_name(self, name: str) -> str:
        name = plain(name)
        last = name.rsplit(".", 1)[-1]
        if ".schedules." in name:
            return "schedule"
        if OPTIMIZER.search(name):
            return "optimizer"
        if _DATA.search(name):
            return "loader"
        if _WRITER.search(name):
            return "writer"
        if re.search(r"^(keras|tensorflow)\.losses\.[A-Z]\w+[a-z]\w*$", name):
            return "loss"
        if re.search(r"^(keras|tensorflow)\.metrics\.[A-Z]\w+$", name):
            return "metric"
        if _MODEL.search(name) or re.search(r"^tensorflow\.(Variable|get_variable)$", name):
            return "module"
        return "tape" if last == "GradientTape" else ""

    def of_bases(self, bases: list[str]) -> str:
        """Return the kind of an instance of a class with these foreign bases."""
        for base in map(plain, bases):
            last = base.rsplit(".", 1)[-1]
            if base.startswith("keras.optimizers") and ".schedules." not in base:
                return "optimizer"
            if last == "Loss":
                return "loss"
            if last in ("Metric", "Mean"):
                return "metric"
            if last in ("Model", "Layer", "Module", "Sequential") or base.startswith("keras.layers."):
                return "module"
        return ""

    def is_optimizer(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is an optimizer; where its origin is out of sight, by its name."""
        kind = self.of(node)
        if kind:
            return kind == "optimizer"
        named = _NAMED.search(dotted(node.value if isinstance(node, cst.Subscript) else node))
        if named is None or named.group(2) != "trainer":
            return named is not None
        made = [o.node.func for o in self.flow.origins(node) if isinstance(o.node, cst.Call)]
        return not any(isinstance(self.flow.definition(func), cst.ClassDef) for func in made)  # one that fits

    def is_tape(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is a GradientTape."""
        kind = self.of(node)
        return kind == "tape" or (not kind and "tape" in dotted(node).lower())
