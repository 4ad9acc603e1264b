"""Why a loop that evaluates stays whole, by what is written in it: it draws, has effects, or leaves early."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Evaluation, Facts
from dlrun.port.facts.taint import DRAWS
from dlrun.port.placement import stays_whole_tensorflow
from dlrun.port.program.script import argument, calls_method, children, dotted, walk

# Layers and transforms that draw, or keep statistics, and models that may hold such layers.
_LAYERS = re.compile(r"(^|\.)(\w*BatchNorm\w*|\w*Dropout\w*|RReLU|InstanceNorm\dd)$")
_MODELS = re.compile(
    r"^(torchvision\.models|timm|transformers|segmentation_models_pytorch|efficientnet_pytorch)\.|^torch\.hub\.load|"
    r"^torch\.nn\.(Transformer|MultiheadAttention)"
)
_RANDOM = re.compile(
    r"(^|\.)(Random(?!Sampler|State|Generator)\w*|AutoAugment|TrivialAugment\w*|RandAugment|AugMix|ColorJitter)$"
)
_SAMPLERS = re.compile(r"(^|\.)\w*RandomSampler$")
_DRAWN = ("random_", "normal_", "uniform_", "bernoulli_", "exponential_", "multinomial", "rsample", "sample")
_SHOWS = re.compile(
    r"^(matplotlib|cv2\.(imshow|imwrite)|IPython\.display|torchvision\.utils\.save_image|builtins\.input)"
)
_DEPTH = 6


def reason(facts: Facts, evaluation: Evaluation) -> str:
    """Return why each rank evaluates all of the batches; "" where nothing is known against a share."""
    loop, source = evaluation.loop, evaluation.source
    return (
        _leaves(facts, loop)
        or _effect(facts, loop)
        or _of_data(facts, source)
        or (stays_whole_tensorflow.of_pipeline(facts, source) if facts.framework == "tensorflow" else "")
        or _drawn(facts, loop)
        or _in_training_mode(facts, evaluation)
    )


def draws(facts: Facts, evaluation: Evaluation) -> bool:
    """Tell whether what the evaluation finds is another number on each rank, all of which evaluate all batches."""
    if facts.framework == "tensorflow" and stays_whole_tensorflow.of_pipeline(facts, evaluation.source):
        return True
    of_samples = _of_data(facts, evaluation.source)
    drawn = bool(_drawn(facts, evaluation.loop) or _in_training_mode(facts, evaluation)) or "random" in of_samples
    return drawn or any(_orders(facts, call) for call in _calls_behind(facts, evaluation.source))


def _bodies(facts: Facts, loop: cst.For) -> Iterator[cst.CSTNode]:
    """Yield the body of ``loop``, and of the functions and models that it runs.

    Of a model this is ``forward()``, and what bears a name that is read there, or in the loop: not what draws its first
    weights, and no ``sample()`` that is called elsewhere.
    """
    run = list(facts.flow.bodies(loop.body))
    yield from run
    methods = {f: f.body for model in _modules(facts) for f in walk(model) if isinstance(f, cst.FunctionDef)}
    read, todo = {"forward"}, run
    while todo:
        read |= {n.value for body in todo for n in walk(body) if isinstance(n, cst.Name)} - {"__init__"}
        todo = [methods.pop(f) for f in list(methods) if f.name.value in read]
        yield from todo


def _modules(facts: Facts) -> list[cst.ClassDef]:
    """Return the classes of the program that are models."""
    return [c for c in facts.script.of(cst.ClassDef) if facts.kinds.of_bases(facts.flow.bases(c)) == "module"]


def _leaves(facts: Facts, loop: cst.For) -> str:
    """Return how the loop may end early, or hand out what it makes batch by batch."""
    todo: list[tuple[cst.CSTNode, bool]] = [(loop.body, False)]
    while todo:
        node, inner = todo.pop()
        if isinstance(node, (cst.Return, cst.Yield)) or (isinstance(node, cst.Break) and not inner):
            return "it yields batch by batch" if isinstance(node, cst.Yield) else "it may end before its last batch"
        if isinstance(node, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            continue
        deeper = inner or isinstance(node, (cst.For, cst.While))
        todo += [(child, deeper) for child in children(node)]
    if loop.orelse is not None:
        return "it has an else branch"
    for up in facts.script.above(loop):
        if isinstance(up, cst.Try) and up.handlers:
            return "an exception in it is caught, on one rank perhaps"
        if isinstance(up, cst.FunctionDef) and up.asynchronous is not None:
            return "it runs asynchronously"
    return ""


def _effect(facts: Facts, loop: cst.For) -> str:
    """Return what is written or drawn in the loop."""
    from dlrun.port.steps.output.writes import called, writes

    for body in facts.flow.bodies(loop.body):
        for call in (n for n in walk(body) if isinstance(n, cst.Call)):
            name = called(facts, call)
            shows = _SHOWS.search(name) or name in ("torch.save", "torch.load")
            if shows or writes(facts, call, name):
                return f"{facts.script.code(call.func)}() has an effect of its own in it"
    return ""


def _of_data(facts: Facts, source: cst.BaseExpression) -> str:
    """Return what makes the samples of a loader other ones each time, or a stream."""
    for call in _calls_behind(facts, source):
        name = facts.script.name_of(call.func)
        if _RANDOM.search(name):
            return f"{name.rpartition('.')[2]} draws at random"
        if why := _of_class(facts, call):
            return why
    return ""


def _orders(facts: Facts, call: cst.Call) -> bool:
    """Tell whether a loader, or its sampler, draws an order by this rank's own generator."""
    shuffled = argument(call, "shuffle")
    drawn = (shuffled is not None and dotted(shuffled) != "False") or _SAMPLERS.search(facts.script.name_of(call.func))
    return bool(drawn) and argument(call, "generator") is None


def _calls_behind(facts: Facts, source: cst.BaseExpression) -> Iterator[cst.Call]:
    """Yield the calls that make ``source``, and what these are given."""
    seen: set[cst.CSTNode] = set()
    todo: list[tuple[cst.CSTNode, int]] = [(source, 0)]
    while todo:
        node, depth = todo.pop()
        for made in [o.node for o in facts.flow.origins(node)]:
            if made in seen or depth > _DEPTH or not isinstance(made, cst.BaseExpression):
                continue
            seen.add(made)
            for call in (n for n in walk(made) if isinstance(n, cst.Call)):
                yield call
                if facts.script.name_of(call.func) != "builtins.len":
                    todo += [(arg.value, depth + 1) for arg in call.args]
            if not isinstance(made, cst.Call):
                todo += [(n, depth + 1) for n in walk(made) if isinstance(n, cst.Name) and n is not made]


def _of_class(facts: Facts, call: cst.Call) -> str:
    """Return what a data set of the program's own does: it draws, or it is a stream."""
    made = facts.flow.definition(call.func)
    if not isinstance(made, cst.ClassDef):
        return ""
    bases = facts.flow.bases(made)
    if any(base.endswith("IterableDataset") for base in bases):
        return "its samples come from a stream, which may keep state"
    if not any(base.endswith(("Dataset", "Sampler")) or ".datasets." in base for base in bases):
        return ""
    for function in (f for f in walk(made) if isinstance(f, cst.FunctionDef) and f.name.value != "__init__"):
        for body in facts.flow.bodies(function.body):
            if drawn := _draw(facts, body):
                return f"{drawn} draws at random for a sample"
    return ""


def _draw(facts: Facts, body: cst.CSTNode) -> str:
    """Return a call in ``body`` that draws random numbers; not under ``if self.training``."""
    for call in (n for n in walk(body) if isinstance(n, cst.Call)):
        name = facts.script.name_of(call.func)
        drawn = name.startswith((*DRAWS, "torch.normal", "torch.multinomial", "torch.poisson"))
        drawn = drawn or (calls_method(call, *_DRAWN) and (not name or name.startswith(".")))
        drawn = drawn or (name.startswith("torch.nn.functional.") and "dropout" in name and not _follows_mode(call))
        drawn = drawn or bool(_RANDOM.search(name)) or stays_whole_tensorflow.drawn(facts, call)
        if drawn and not _in_training(facts, call):
            return facts.script.code(call.func)
    return ""


def _follows_mode(call: cst.Call) -> bool:
    """Tell whether ``F.dropout(x, p, training)`` goes by the mode of its model."""
    return len(call.args) > 2 or any(a.keyword is not None and a.keyword.value == "training" for a in call.args)


def _in_training(facts: Facts, call: cst.CSTNode) -> bool:
    """Tell whether ``call`` is under a test of the mode of its model."""
    tests = [up.test for up in facts.script.above(call) if isinstance(up, (cst.If, cst.IfExp))]
    return any(
        isinstance(n, (cst.Name, cst.Attribute)) and "train" in facts.script.code(n) for t in tests for n in walk(t)
    )


def _drawn(facts: Facts, loop: cst.For) -> str:
    for body in _bodies(facts, loop):
        if drawn := _draw(facts, body):
            return f"{drawn}() draws at random"
    return ""


def _in_training_mode(facts: Facts, evaluation: Evaluation) -> str:
    """Return which layers are in training mode, where nothing puts their model into evaluation mode before."""
    if facts.framework == "tensorflow":
        return stays_whole_tensorflow.training_mode(facts, evaluation)
    layer = _layer(facts)
    if not layer or evaluation.mode:
        return ""
    # Where the loop trains, too, what stands before the call tells, not what stands before the loop.
    trains = evaluation.loop in facts.loops
    known = evaluation.mode is None and _set_before(facts, evaluation.source if trains else evaluation.loop, 4)
    return "" if known else f"{layer} is in training mode"


def _layer(facts: Facts) -> str:
    for call in facts.script.calls:
        for name in facts.kinds.names(call.func):
            dropout = any(a.keyword is not None and a.keyword.value.startswith(("dropout", "drop_")) for a in call.args)
            if _LAYERS.search(name) or _MODELS.search(name) or (name.startswith("torch.nn.") and dropout):
                return name.rpartition(".")[2]
    return ""


def _set_before(facts: Facts, node: cst.CSTNode, depth: int) -> bool:
    """Tell whether a model is put into evaluation mode before ``node``, in its function or by all that call it."""
    function = facts.script.function_of(node)
    order = facts.script.order
    modes = [c for c in facts.script.calls if facts.script.function_of(c) is function and order[c] < order[node]]
    modes = [c for c in modes if calls_method(c, "eval", "train")]
    before = [c for c in modes if not _apart(facts, c, node)]
    if before:
        last = max(before, key=lambda c: order[c])
        return _evaluates(facts, last)
    if not isinstance(function, cst.FunctionDef) or not depth:
        return False
    callers = facts.flow.callers(function)
    return bool(callers) and all(_set_before(facts, c, depth - 1) for c in callers)


def _apart(facts: Facts, call: cst.Call, node: cst.CSTNode) -> bool:
    """Tell whether ``call`` stands under a test or in a loop under which ``node`` is not."""
    for up in facts.script.above(call):
        if isinstance(up, cst.FunctionDef):
            break
        if isinstance(up, (cst.If, cst.Else, cst.While)) and not facts.script.inside(node, up):
            return True
    return False


def _evaluates(facts: Facts, call: cst.Call) -> bool:
    if calls_method(call, "eval"):
        return True
    given = call.args[0].value if call.args else None
    return isinstance(given, cst.Name) and given.value == "False"
