"""What kind of thing a PyTorch expression is: optimizer, module, loader, scheduler, scaler, writer, dataset."""

from __future__ import annotations

import re
from functools import cached_property

import libcst as cst

from dlrun.port.facts.spread import Spread
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import calls_method, dotted, names_in, walk

_OPTIMIZERS = re.compile(
    r"^(torch\.optim\.(?!lr_scheduler|swa_utils)(\w+\.)?[A-Z?]|torch_optimizer\.|apex\.optimizers\.|bitsandbytes\.optim\.|"
    r"transformers\.(optimization\.)?(AdamW|Adafactor)|timm\.optim\.|lion_pytorch\.|adabound\.|pytorch_optimizer\.)"
)
_BY_NAME = re.compile(r"(^|_|\.)(optim|optimizer|optimiser|opt|optims|optimizers|solver|trainer)(_?[a-zA-Z0-9]{0,10})$")
_OTHERS = re.compile(r"sched|scaler|sampler", re.IGNORECASE)  # these, too, keep a state
_SCHEDULE = re.compile(r"(Scheduler|_schedule_with_warmup|get_scheduler|^Warmup\w*Schedule)$")
_LOADERS = re.compile(r"(^|\.)(\w*DataLoader|BucketIterator|BPTTIterator)$")
_MODELS = re.compile(r"^(torchvision\.models\.|timm\.create_model|segmentation_models_pytorch\.|torch\.hub\.load$)")
_PRETRAINED = re.compile(
    r"^(transformers|diffusers|peft)\.(?!\w*(Tokenizer(Fast)?|Processor|Extractor|Config|Scheduler)\.)\w+"
    r"\.from_(pretrained|config)$"
)
_LOSS = re.compile(r"^torch\.nn\.(modules\.loss\.)?\w*(Loss|LossWithLogits)$")
_UPDATES = ("backward", "apply_gradients", "gradient", "minimize", "train_on_batch")
# Methods that only a module answers to; one call of them is enough to know an object of an imported class.
_MODULE_METHODS = {
    "parameters",
    "named_parameters",
    "state_dict",
    "load_state_dict",
    "modules",
    "children",
    "train",
    "eval",
}


class Kinds:
    """Tells the kind of an expression from where its value comes from, and from how it is used."""

    def __init__(self, flow: Flow) -> None:
        """Note which foreign objects are used as modules anywhere in the script."""
        self.flow = flow
        self.script = flow.script
        self._used_as_module: set[cst.CSTNode] = set()
        for call in self.script.calls:
            func = call.func
            if isinstance(func, cst.Attribute) and func.attr.value in _MODULE_METHODS:
                keeps_state = func.attr.value in ("state_dict", "load_state_dict")
                if keeps_state and (_BY_NAME.search(name := dotted(func.value)) or _OTHERS.search(name)):
                    continue
                if func.attr.value in ("train", "eval", "children") and (call.args or not dotted(func.value)):
                    continue
                for origin in flow.origins(func.value):
                    made = origin.node if isinstance(origin.node, cst.Call) else None
                    if made is None or not flow.is_plain(flow.definition(made.func)):  # an environment has train(), too
                        self._used_as_module.add(origin.node)

    @cached_property
    def spread(self) -> Spread:
        """Where the values of the program go."""
        return Spread(self.flow)

    @cached_property
    def module_calls(self) -> list[cst.Call]:
        """The calls of modules: ``model(x)``, ``self.block(h)``."""
        return [call for call in self.script.calls if self.of(call.func) == "module"]

    def names(self, func: cst.CSTNode) -> list[str]:
        """Return the qualified names that the callee ``func`` may have, through tables and ``getattr``."""
        name = self.script.name_of(func)
        if name and not name.startswith("."):
            return [name]
        if isinstance(func, cst.Call) and self.script.name_of(func.func) == "builtins.getattr" and len(func.args) > 1:
            return [f"{self.script.name_of(func.args[0].value)}.?"]
        found = []
        for origin in self.flow.origins(func):
            node = origin.node
            if node is func:
                if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Attribute):
                    found.append(f"{self.script.name_of(node.value.value)}.?")  # models.__dict__[arch](...)
                elif calls_method(node, "get") and len(node.args) > 1:
                    found.extend(self.names(node.args[1].value))  # params.get("optimizer", Adam)(...)
            elif isinstance(node, cst.Call):
                found.extend(self.names(node) if node is not func else [])
            else:
                found.append(self.script.name_of(node))
        return found

    def of_call(self, call: cst.Call) -> str:
        """Return the kind of what ``call`` makes, or an empty string."""
        local = self.flow.definition(call.func)
        if isinstance(local, cst.ClassDef):
            return self.of_bases(self.flow.bases(local))
        for name in self.names(call.func):
            if kind := self._of_name(name):
                return kind
        return next((k for k in ("optimizer", "loader", "module") if k in self.script.seen.get(call, ())), "")

    def gives_class(self, made: cst.CSTNode) -> bool:
        """Tell whether ``made`` comes to a class and not to an object of it: ``params.get("optimizer", Adam)``."""
        if calls_method(made, "get", "pop", "setdefault") and len(made.args) > 1:
            default = made.args[1].value
            called = isinstance(default, cst.Call)
            return not called and any(self._of_name(name) == "optimizer" for name in self.names(default))
        return isinstance(made, cst.Call) and self.script.name_of(made.func) == "builtins.getattr"

    def _of_name(self, name: str) -> str:
        last = name.rsplit(".", 1)[-1]
        if _OPTIMIZERS.search(name):
            return "optimizer"
        if "lr_scheduler" in name or _SCHEDULE.search(last):
            return "scheduler"
        if last == "GradScaler":
            return "scaler"
        if _LOADERS.search(name):
            return "loader"
        if last in ("SummaryWriter", "Logger") or name in ("wandb.init", "neptune.init_run", "comet_ml.Experiment"):
            return "writer"
        if name.startswith("torchvision.datasets."):
            return "dataset"
        if _LOSS.search(name):
            return "loss"
        if _MODELS.search(name) or _PRETRAINED.search(name) or re.search(r"^torch\.nn\.[A-Z]\w+$", name):
            return "module"
        if last in ("AveragedModel", "DataParallel"):
            return "module"
        return "env" if name.startswith(("gym.", "gymnasium.")) else ""

    def of_bases(self, bases: list[str]) -> str:
        """Return the kind of an instance of a class with these foreign bases."""
        for base in bases:
            last = base.rsplit(".", 1)[-1]
            if base.startswith("torch.optim.") and "lr_scheduler" not in base:
                return "optimizer"
            if "lr_scheduler" in base or last in ("_LRScheduler", "LRScheduler"):
                return "scheduler"
            if last.endswith("Loss"):
                return "loss"
            if last in ("Module", "ModuleList", "Sequential") or base.startswith(("torch.nn.", "torchvision.models.")):
                return "module"
            if last.endswith("DataLoader"):
                return "loader"
            if last.endswith("Dataset") or base.startswith("torchvision.datasets."):
                return "dataset"
        return ""

    def of(self, node: cst.CSTNode) -> str:
        """Return the kind of the value of ``node``; an empty string where nothing tells."""
        origins = self.flow.origins(node)
        for origin in origins:  # what makes it tells more than how a part of the same checkpoint is used
            if isinstance(origin.node, cst.Call) and origin.whole and (kind := self.of_call(origin.node)):
                return kind
        used = [o.node for o in origins if o.node in self._used_as_module]
        return "module" if any(isinstance(n, (cst.Call, cst.Name, cst.Attribute, cst.Param)) for n in used) else ""

    def is_optimizer(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is an optimizer; where its origin is out of sight, by its name."""
        kind = self.of(node)
        if kind:
            return kind == "optimizer"
        if any(isinstance(o.node, cst.Call) and self.flow.definition(o.node.func) for o in self.flow.origins(node)):
            return False
        name = dotted(node.value if isinstance(node, cst.Subscript) else node)
        return bool(name and _BY_NAME.search(name)) and "sched" not in name


def plays(kinds: Kinds, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` steps an environment: ``state, reward, done, info = env.step(action)``."""
    if not isinstance(node, cst.Assign):
        return False
    target, part = node.targets[0].target, isinstance(node.value, cst.Subscript)
    call = node.value.value if isinstance(node.value, cst.Subscript) else node.value
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step":
        return False
    several = part or (isinstance(target, cst.Tuple) and 3 <= len(target.elements) <= 5)
    named = [a.keyword.value for a in call.args if a.keyword is not None]
    if len(named) > 1 and not any("act" in name for name in named):
        return False  # decoder.step(time=t, inputs=x, state=s)
    return several and bool(call.args) and kinds.of(call.func.value) in ("", "env") and not _learns(kinds, node, call)


def _learns(kinds: Kinds, node: cst.Assign, call: cst.Call) -> bool:
    """Tell whether ``node`` runs a training step of the script's own: ``loss, pred, seen = self.step(x, y)``.

    It updates, in what it calls, too, or returns a loss, of which the caller takes gradients.
    """
    own = [target.body for target in kinds.flow.targets(call)]
    mine = isinstance(call.func, cst.Attribute) and dotted(call.func.value) == "self"
    bodies = dict.fromkeys(each for body in own for each in kinds.flow.bodies(body, 3))
    inside = [n for body in bodies for n in walk(body) if isinstance(n, cst.Call)]
    if any(calls_method(n, *_UPDATES) for n in inside) or (mine and any(kinds.of(n.func) == "module" for n in inside)):
        return True
    given = names_in(node.targets[0].target)
    around = walk(kinds.script.function_of(node)) if own else ()
    return any(calls_method(n, "backward") and dotted(n.func.value) in given for n in around)


def ends(kinds: Kinds, tested: cst.BaseExpression) -> bool:
    """Tell whether ``tested`` goes by what an environment tells of an episode's end: each rank's ends by itself."""
    match tested:
        case cst.BooleanOperation(left=left, right=right) | cst.BinaryOperation(left=left, right=right):
            return ends(kinds, left) or ends(kinds, right)
        case cst.Name():
            bound = kinds.script.bindings_of(tested)
            told = any(plays(kinds, b.node) and b.path[:1] not in ((), (0,), (1,)) for b in bound)
            return told or any(
                isinstance(b.value, (cst.BooleanOperation, cst.BinaryOperation)) and ends(kinds, b.value)
                for b in bound
                if b.how == "assign" and not b.path
            )
    return False


def to_an_end(kinds: Kinds, loop: cst.CSTNode) -> bool:
    """Tell whether ``loop`` plays an episode until it is over: another number of iterations on each rank."""
    if not isinstance(loop, (cst.For, cst.While)):
        return False
    inside = list(walk(loop.body))
    played = [n for n in inside if isinstance(n, cst.Assign) and plays(kinds, n)]
    own = [
        n
        for n in inside
        if isinstance(n, (cst.Assign, cst.Break))
        and next(u for u in kinds.script.above(n) if isinstance(u, (cst.For, cst.While))) is loop
    ]
    test = names_in(loop.test) if isinstance(loop, cst.While) else set[str]()
    done = any(test & names_in(n.targets[0].target) for n in played)
    ends = isinstance(loop, cst.While) or any(isinstance(n, cst.Break) for n in own)
    return done or (ends and any(n in own for n in played))
