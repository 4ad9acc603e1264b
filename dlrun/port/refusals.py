"""What is not ported, and why: scripts that are distributed already, and scripts that have nothing to distribute."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.optional import Defaults, unused
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, dotted, names_in, walk

# Modules whose presence means that somebody else distributes the training, and how the tool is called.
_DISTRIBUTED = {
    "horovod": "Horovod",
    "accelerate": "Accelerate",
    "lightning.fabric": "Lightning Fabric",
    "lightning_fabric": "Lightning Fabric",
    "deepspeed": "DeepSpeed",
    "fairscale": "FairScale",
    "ignite.distributed": "Ignite's distributed launcher",
    "byteps": "BytePS",
    "colossalai": "Colossal-AI",
    "ray.train": "Ray Train",
    "torch_xla": "PyTorch/XLA",
    "dl_comm_cray": "the Cray PE DL Plugin",
    "ddl": "IBM DDL",
}
# Calls that neither draw random numbers nor use a GPU.
_SETTINGS = re.compile(
    r"^(argparse|builtins|logging|os|pathlib|sys|time|warnings|matplotlib|torch\.(cuda|backends|device|set_\w+))\.|"
    r"(^|\.)(\w*seed\w*|ArgumentParser|add_\w+|parse_\w+|set_defaults|update|getLogger|format|join)$|^torch\.device$"
)
_AS_IT_IS = "dlrun launch --torchrun -n 2 SCRIPT starts it as it is"
_TRANSLATED = {
    "Horovod": "dlrun port --from horovod SCRIPT translates its calls to dl_comm; or port the serial version.",
    "IBM DDL": "dlrun port --from ddl SCRIPT translates its calls to dl_comm; or port the serial version.",
}
# Names that only appear where ranks exist.
_RANKED = {
    "torch.distributed.init_process_group": "torch.distributed",
    "torch.multiprocessing.Process": "torch.multiprocessing",
    "torch.multiprocessing.spawn": "torch.multiprocessing",
    "torch.nn.parallel.DistributedDataParallel": "DistributedDataParallel",
    "torch.utils.data.distributed.DistributedSampler": "DistributedSampler",
    "torch.utils.data.DistributedSampler": "DistributedSampler",
    "torch.distributed.fsdp.FullyShardedDataParallel": "FullyShardedDataParallel",
}
_MESHED = re.compile(r"^torch\.distributed\.(\w+\.)*(init_device_mesh|init_rpc|parallelize_module|fully_shard)$")
_CONNECTED = ("Accelerate", *(tool for tool in _RANKED.values() if "processing" not in tool))
_TRAINERS = {
    "transformers.Trainer": "the Trainer of transformers",
    "transformers.Seq2SeqTrainer": "the Trainer of transformers",
    **{
        f"{package}.{name}": "Lightning"
        for package in ("lightning", "lightning.pytorch", "pytorch_lightning")
        for name in ("Trainer", "cli.LightningCLI")
    },  # not what scripts with loops of their own take: seed_everything
    "fastai": "fastai",
    "catalyst": "Catalyst",
    "ignite.engine": "Ignite",
    "skorch": "skorch",
    "rl.agents": "keras-rl",
}
_KERAS_DATA = ("datasets", "utils", "preprocessing", "backend", "config", "__version__")  # nothing that is trained


def imported(script: Script) -> list[tuple[str, cst.CSTNode]]:
    """Return the dotted names that the program imports, with the statements: the script's own first."""
    found = [
        (b.target, b.node)
        for s in set(script.scopes.values())
        for bs in s.names.values()
        for b in bs
        if b.how == "import"
    ]
    stars = [n for n in script.of(cst.ImportFrom) if isinstance(n.names, cst.ImportStar)]
    found.extend((script.code(n.module) if n.module else "", n) for n in stars)
    return sorted(found, key=lambda f: script.order[f[1]])


def framework_of(script: Script) -> str:
    """Return the framework that trains: "torch", "keras" or "tensorflow".

    Raises:
        DlrunError: the script is ported or distributed already, or trains with something else.
    """
    imports = imported(script)
    own = [(target, node) for target, node in imports if script.tree_of(node) is script.module]
    heads = {target.split(".")[0] for target, _ in imports}
    for target, node in imports:
        if target == "dl_comm" or target.startswith("dl_comm."):
            line = f"line {script.line(node)}" if (target, node) in own else script.place(node)
            raise DlrunError(
                f"{script.name}: already ported: {line} imports {target}. Nothing was written.",
                "Port the serial script it came from.",
            )
    defaults = Defaults(script)
    for node, tool in _distributing(script, own):
        if not _optional(script, node, defaults):
            raise _distributed(script, node, tool)
    for node in script.nodes:
        if isinstance(node, (cst.Name, cst.Attribute)) and not isinstance(script.parents.get(node), cst.Attribute):
            full = script.name_of(node)
            if full in _TRAINERS and not isinstance(script.parents.get(node), cst.ImportAlias):
                raise DlrunError(
                    f"{script.place(node)}: {_TRAINERS[full]} runs the training loop; none to port here.",
                    f"It brings its own way to run on many ranks: {_AS_IT_IS}.",
                )
    for target, node in own:
        for module, tool in _TRAINERS.items():
            if (target + ".").startswith(module + ".") and not any(h == "torch" for h in heads):
                raise DlrunError(f"{script.place(node)}: {tool} runs the training loop; there is none to port here.")
    for node in script.nodes:
        how = _strategy(script.name_of(node)) if isinstance(node, cst.Attribute) else ""
        if how.startswith("tf.contrib.") and script.tree_of(node) is not script.module:
            how = ""  # an Estimator takes one as an argument, which can be left out
        if (how or _enters_strategy(node)) and not defaults.is_off(node):
            raise _distributed(script, node, how or "a strategy of tf.distribute")
    for call in script.calls:
        if _makes_updates(script, call):
            raise DlrunError(
                f"{script.place(call)}: {script.code(call.func)}() makes updates that Keras runs out of sight, "
                "where no rank can average. Nothing was written.",
                "Compile a model and call train_on_batch(), or apply the gradients of a tf.GradientTape.",
            )
    return _trained_with(script, [target for target, _ in own]) or _trained_with(script, [t for t, _ in imports], True)


def _distributing(script: Script, own: list[tuple[str, cst.CSTNode]]) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what stands for ranks of another's making, with its name: imports among ``own``, and what is used."""
    for target, node in own:
        for module, tool in _DISTRIBUTED.items():
            if target == module or target.startswith(module + "."):
                yield node, tool
    for node in script.nodes:
        if isinstance(node, (cst.Name, cst.Attribute)) and not isinstance(script.parents.get(node), cst.Attribute):
            full = script.name_of(node)
            if tool := _RANKED.get(full) or ("torch.distributed" if _MESHED.search(full) else ""):
                yield node, tool


def _optional(script: Script, node: cst.CSTNode, defaults: Defaults) -> bool:
    """Tell whether ``node`` distributes nothing: an import that nothing uses, an option that is off by default."""
    if isinstance(node, (cst.Import, cst.ImportFrom)):
        starts = any(n.value == "ddl" for n in walk(node) if isinstance(n, cst.Name))  # by being imported
        return not starts and unused(script, node, defaults)
    imported = any(isinstance(up, (cst.Import, cst.ImportFrom)) for up in script.above(node))
    return imported or _is_aside(script, node) or defaults.is_off(node)


def optional(script: Script) -> list[tuple[cst.CSTNode, str]]:
    """Return what would distribute the training if an option were on that is off by default, with its name."""
    own = [(target, node) for target, node in imported(script) if script.tree_of(node) is script.module]
    found = [
        (node, tool)
        for node, tool in _distributing(script, own)
        if not any(isinstance(up, (cst.Import, cst.ImportFrom)) for up in (node, *script.above(node)))
    ]
    return [(node, tool) for node, tool in found if script.tree_of(node) is script.module]


def _is_aside(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is in a function of a module that nothing uses but the module run as a script itself."""
    functions = [up for up in script.above(node) if isinstance(up, cst.FunctionDef)]
    home = script.tree_of(node)
    if home is script.module or not functions or script.class_of(node) is not None:
        return False
    whole = functions[-1]
    named = (n for n in script.named(whole.name.value) if not script.inside(n, whole))
    uses = [n for n in named if any(b.node is whole for b in script.bindings_of(n))]
    return all(script.tree_of(n) is home and (_under_guard(script, n) or _is_aside(script, n)) for n in uses)


def _makes_updates(script: Script, call: cst.Call) -> bool:
    """Tell whether ``call`` is ``optimizer.get_updates(...)``, for ``K.function``, and not in a method of that name."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    return name == "get_updates" and not any(
        isinstance(up, cst.FunctionDef) and up.name.value == name for up in script.above(call)
    )


def _under_guard(script: Script, node: cst.CSTNode) -> bool:
    tests = [up.test for up in script.above(node) if isinstance(up, cst.If)]
    return any("__main__" in script.code(test) for test in tests)


def _trained_with(script: Script, imports: list[str], last: bool = False) -> str:
    """Return the framework among ``imports``; where there is none, an empty string (or, if ``last``, the error)."""
    name, heads = script.name, {target.split(".")[0] for target in imports}
    handed_on = heads.isdisjoint(("torch", "tensorflow")) and any(t.endswith(".keras") for t in imports)  # by a library
    of_keras = any(t.startswith(("tensorflow.keras", "tensorflow.python.keras")) for t in imports)
    if "keras" in heads or handed_on or of_keras:
        return "torch" if "torch" in heads and _torch_trains(script) else "keras"
    other = not heads.isdisjoint(("tensorflow", "tf_keras"))
    called = {c.func.attr.value for c in script.calls if isinstance(c.func, cst.Attribute)} if other else set()
    trains = "backward" not in called and not called.isdisjoint(("minimize", "apply_gradients"))  # with TensorFlow
    if ("torch" in heads or "torchvision" in heads) and not trains:
        return "torch"
    if other:
        if any(script.name_of(n).startswith("tensorflow.keras.") for n in script.of(cst.Attribute)):
            return "keras"
        return "tensorflow"
    if not last:
        return ""
    if "jax" in heads:
        raise DlrunError(
            f"{name}: trains with jax, which dlrun port does not know.", "It ports PyTorch, Keras and TensorFlow."
        )
    known = ", ".join(sorted(h for h in heads if h)) or "nothing"
    raise DlrunError(
        f"{name}: no framework found: it imports {known}.", "Name a script that imports torch, keras or tensorflow."
    )


def _torch_trains(script: Script) -> bool:
    """Tell whether a loop of PyTorch's trains in a script that imports Keras; raises where it trains Keras's models."""
    called = [c.func for c in script.calls if isinstance(c.func, cst.Attribute)]
    compiled = any(f.attr.value == "compile" and script.name_of(f) in ("", ".compile") for f in called)
    backward = next((f for f in called if f.attr.value == "backward"), None)
    if backward is None or compiled:
        return False
    for node in script.nodes:
        outermost = isinstance(node, (cst.Name, cst.Attribute)) and not isinstance(script.parents[node], cst.Attribute)
        of_keras = re.match(r"(tensorflow\.(python\.)?)?keras\.(\w+)", script.name_of(node) if outermost else "")
        if of_keras and of_keras[3] not in _KERAS_DATA:
            raise DlrunError(
                f"{script.place(backward)}: a loop of PyTorch's trains what Keras makes ({script.code(node)}): Keras's "
                "random numbers and optimizers are out of reach of dl_comm.torch. Nothing was written.",
                "Train it with compile() and fit(), or build it from torch.nn and torch.optim.",
            )
    return True


def _strategy(name: str) -> str:
    """Return which of TensorFlow's own ways to distribute ``name`` is, or an empty string."""
    ways = ("tensorflow.distribute.", "tensorflow.contrib.distribute.")
    found = name.startswith(ways) or name == "tensorflow.keras.utils.multi_gpu_model"
    return f"tf.{name.removeprefix('tensorflow.')}" if found and name.endswith(("Strategy", "_model")) else ""


def _enters_strategy(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` enters a strategy from out of sight, as ``with strategy.scope():`` does."""
    entered = node.item if isinstance(node, cst.WithItem) else None
    name = dotted(entered.func if isinstance(entered, cst.Call) else entered).lower() if entered is not None else ""
    return "strategy" in name and name.endswith("scope")


def _distributed(script: Script, node: cst.CSTNode, tool: str) -> DlrunError:
    how = "parallel" if "processing" in tool else "distributed"
    serial = f"{_AS_IT_IS}; or port its serial version." if tool in _CONNECTED else "Port its serial version instead."
    return DlrunError(
        f"{script.place(node)}: already {how}, with {tool}. Nothing was written.", _TRANSLATED.get(tool, serial)
    )


def main_guard(script: Script, flow: Flow | None = None, trains: Iterable[cst.CSTNode] = ()) -> cst.If | None:
    """Return the last ``if __name__ == "__main__"`` of the module that does more than import.

    None where what ``trains`` is run from outside it: the ranks must have met by then.
    """
    guards = [s for s in script.module.body if isinstance(s, cst.If) and _is_guard(s)]
    blocks = [g for g in guards if isinstance(g.body, cst.IndentedBlock)]
    frames = (frame for node in trains for frame in flow.frames(node)) if flow is not None and blocks else ()
    starts = (
        frame
        for frame in frames
        if script.tree_of(frame) is script.module and isinstance(script.function_of(frame), cst.Module)
    )
    return None if not blocks or any(not script.inside(frame, blocks[-1]) for frame in starts) else blocks[-1]


def works_before(script: Script, guard: cst.If) -> bool:
    """Tell whether lines outside of ``guard`` and of all functions may draw random numbers, or use a GPU.

    Settings do not, nor does reading the command line.
    """
    lines = (s for s in script.module.body if s is not guard and not isinstance(s, (cst.FunctionDef, cst.ClassDef)))
    return any(
        isinstance(n, cst.Call)
        and isinstance(script.function_of(n), cst.Module)
        and not _SETTINGS.search(script.name_of(n.func) or dotted(n.func))
        for s in lines
        for n in walk(s)
    )


def _is_guard(statement: cst.If) -> bool:
    names = names_in(statement.test)
    texts = {n.value.strip("\"'") for n in walk(statement.test) if isinstance(n, cst.SimpleString)}
    return "__name__" in names and "__main__" in texts
