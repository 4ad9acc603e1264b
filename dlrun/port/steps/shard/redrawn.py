"""Part of step "shard": weights and gradients that training changes by chance, which all ranks must draw alike."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.taint import draws
from dlrun.port.facts.updates.rates import is_group
from dlrun.port.facts.updates.weights import ASSIGNS, CHANGES, RESETS, changes_weights, is_weight
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import calls_method, dotted, names_in, walk
from dlrun.port.steps.gradients.gradients import rank_0_draws

_WHY = "weights or settings that change by chance: all ranks draw this alike, or their models diverge"
_INSIDE = ("normal_", "uniform_", "bernoulli_", "exponential_", "log_normal_", "cauchy_", "random_")
_INIT = re.compile(r"^torch\.nn\.init\.(xavier|kaiming|orthogonal|normal|uniform|trunc_normal|sparse)\w*$")
# Layers that begin with weights drawn at random.
_LAYERS = re.compile(
    r"^torch\.nn\.(modules\.\w+\.)?((Lazy)?(Linear|Bilinear|Conv\w+)|Embedding\w*|LSTM|GRU|RNN|"
    r"\w+Cell|MultiheadAttention|Transformer\w*)$"
)
_CLIPS = re.compile(r"(^|\.)clip_(grad_(norm|value)_?|by_(global_norm|norm|value))$")
_BY_TENSORFLOW = ("tensorflow.random.", "tensorflow.compat.v1.random.")
_OBJECTS = ("__init__", "forward", "__getitem__")  # run where objects are made, compute or are asked for samples
_DEPTH = 3


def torch(facts: Facts, done: set[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Let all ranks draw alike what changes weights or gradients while training, beside the lines that are ``done``.

    Noise on weights (Langevin dynamics) and on gradients, layers that begin anew, layers that are added.

    Before:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters())
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            for p in model.parameters():
                p.data.add_(0.01 * torch.randn_like(p))

    After:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters())
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            dl.reseed(alike=True)  # what follows all ranks draw alike, from rank 0's random numbers
            for p in model.parameters():
                p.data.add_(0.01 * torch.randn_like(p))
            dl.reseed()  # from here on each rank draws random numbers of its own
    """
    yield from _chosen(facts)
    changes = (change for n in facts.script.nodes for change in _changes(facts, n))
    found = (place for change in (*changes, *_noise(facts)) for place in _places(facts, change))
    for node in found:
        if not _while_training(facts, node):
            continue
        if isinstance(node, cst.Call) and facts.script.name_of(node.func).startswith(_BY_TENSORFLOW):
            if node not in done:
                done.add(node)
                yield _sent(facts, node)
            continue
        line = _line(facts, node)
        if any(facts.script.inside(line, other) or line is other for other in done):
            continue
        done.add(line)
        if any(isinstance(up, cst.If) and facts.unequal(up.test) for up in facts.script.above(line)):
            yield Doubt(
                line,
                f"{_WHY}, below a condition that differs between them",
                "high",
                "dl.broadcast(model) where every rank comes by".replace("dl", facts.alias),
                name="ranks-diverge",
            )
            continue
        yield Edit(
            line,
            _WHY,
            before=statements("torch/alike", dl=facts.alias),
            after=statements("torch/reseed", dl=facts.alias),
        )


def _noise(facts: Facts) -> Iterator[cst.CSTNode]:
    """Yield what is drawn for gradients that are averaged, before they are applied: ``[g + noise for g in grads]``."""
    applied = [c.args[0].value for c in facts.script.calls if calls_method(c, "apply_gradients") and c.args]
    names = {name for given in applied for name in names_in(given)}
    for line in facts.script.of(cst.Assign) if names else ():
        if dotted(line.targets[0].target) in names:
            yield from _drawn(facts, line.value, 0)


def _sent(facts: Facts, draw: cst.Call) -> Edit | Doubt:
    """Return what makes a draw of TensorFlow's one on all ranks: rank 0 sends it, but not within a graph."""
    function = facts.script.function_of(draw)
    graph = isinstance(function, cst.FunctionDef) and any(
        "function" in dotted(d.decorator) for d in function.decorators
    )
    if graph:
        cure = "draw it before, and hand in what rank 0 has: dl.broadcast(noise)".replace("dl", facts.alias)
        return Doubt(draw, _WHY, "high", cure, name="ranks-diverge")
    return Edit(draw, _WHY, lambda call: expression("torch/same", {"value": call}, dl=facts.alias))


def _changes(facts: Facts, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield ``node`` if it changes weights or gradients by chance, or makes weights; or what was drawn for that."""
    target, values = node, list[cst.BaseExpression]()
    match node:
        case cst.Call(func=cst.Attribute(value=target, attr=cst.Name(how)), args=args):
            name = facts.script.name_of(node.func)
            begins = (how in RESETS and _may_draw(facts, node)) or _INIT.search(name) or _makes(facts, node, name)
            anew = how == "apply" and bool(args) and _resets(facts, args[0].value)
            if begins or anew or (how in _INSIDE and is_weight(facts, target)):
                yield node
            values = [arg.value for arg in args] if how in (*CHANGES, *ASSIGNS) else []
            steers = (
                _CLIPS.search(name) or how == "set_weights" or facts.kinds.of_call(node) in ("optimizer", "scheduler")
            )
            for given in (arg.value for arg in args if steers):
                yield from _drawn(facts, given)
        case cst.Call() if _makes(facts, node, facts.script.name_of(node.func)):
            yield node
        case cst.AugAssign(target=target, value=value):
            values = [value]
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript() | cst.Attribute() as target)], value=value):
            values = [value]
    if values and isinstance(target, cst.Subscript):
        values += [e.slice.value for e in target.slice if isinstance(e.slice, cst.Index)]
    if values and (is_weight(facts, target) or _is_setting(facts, target)):
        yield from (drawn for value in values for drawn in _drawn(facts, value))


def _is_setting(facts: Facts, target: cst.CSTNode) -> bool:
    """Tell whether ``target`` is a setting of an optimizer: ``group["lr"]``, ``optimizer.learning_rate``."""
    if isinstance(target, cst.Attribute):
        return target.attr.value == "learning_rate" or facts.kinds.of(target.value) == "optimizer"
    return isinstance(target, cst.Subscript) and is_group(facts, target.value)


def _chosen(facts: Facts) -> Iterator[Edit]:
    """Let rank 0 draw whether weights or gradients change: ``if random.random() < 0.1: layer.reset_parameters()``."""
    updates = [step.node for step in facts.steps]
    drawn: set[cst.CSTNode] = set()
    for test in facts.script.of(cst.If):
        if any(facts.script.inside(node, test) for node in updates) or not _while_training(facts, test):
            continue  # rank 0 draws for these anyway
        if any(_touches(facts, n) for n in walk(test.body)):
            yield from rank_0_draws(facts, test.body, "the weights", drawn)


def _touches(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` changes weights or gradients."""
    return changes_weights(facts, node) or (isinstance(node, cst.Call) and any(_changes(facts, node)))


def _may_draw(facts: Facts, call: cst.Call) -> bool:
    """Tell whether what ``call`` resets may begin at random: not so where the script's own method copies weights."""
    bodies = [target.body for target in facts.flow.targets(call)]
    inner = [n for body in bodies for n in walk(body) if isinstance(n, cst.Call)]
    return not bodies or any(
        _INIT.search(facts.script.name_of(n.func))
        or any(draws(facts.script, n))
        or (isinstance(n.func, cst.Attribute) and n.func.attr.value in (*RESETS, *_INSIDE, "apply"))
        for n in inner
    )


def _makes(facts: Facts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call`` makes a layer with weights, or a module of the script's own."""
    own = facts.flow.definition(call.func)
    module = isinstance(own, cst.ClassDef) and facts.kinds.of_bases(facts.flow.bases(own)) == "module"
    return bool(_LAYERS.search(name)) or (module and _weighs(facts, own))  # type: ignore[arg-type]


def _weighs(facts: Facts, cls: cst.ClassDef) -> bool:
    """Tell whether objects of ``cls`` begin with weights, drawn there or out of sight: no mere wrappers of others."""
    foreign = {name for name in facts.flow.bases(cls) if not name.startswith("torch.nn.")}
    own = [cls, *(base for b in cls.bases if isinstance(base := facts.flow.definition(b.value), cst.ClassDef))]
    return bool(foreign) or any(
        isinstance(n, cst.Call) and (any(draws(facts.script, n)) or any(_changes(facts, n)))
        for each in own
        for n in walk(each.body)
    )


def _resets(facts: Facts, given: cst.BaseExpression) -> bool:
    """Tell whether the function ``given`` begins weights anew."""
    made = facts.flow.definition(given)
    body = made.body if isinstance(made, cst.FunctionDef) else given
    return any(isinstance(n, cst.Call) and any(_changes(facts, n)) for n in walk(body))


def _drawn(facts: Facts, value: cst.BaseExpression, depth: int = _DEPTH) -> Iterator[cst.CSTNode]:
    """Yield what is drawn at random in ``value``, also for a name before: ``noise = torch.randn_like(p)``."""
    yield from draws(facts.script, value)
    calls = (n for n in walk(value) if isinstance(n, cst.Call))
    yield from (c for c in calls if facts.script.name_of(c.func).startswith(_BY_TENSORFLOW))
    for n in walk(value) if depth else ():
        for b in facts.script.bindings_of(n) if isinstance(n, cst.Name) else ():
            if b.value is not None and b.how == "assign":
                yield from _drawn(facts, b.value, depth - 1)


def _places(facts: Facts, node: cst.CSTNode, depth: int = _DEPTH) -> Iterator[cst.CSTNode]:
    """Yield ``node``, or where what it makes is asked for: the calls of a function that returns it."""
    function = facts.script.function_of(node)
    if not isinstance(function, cst.FunctionDef) or not isinstance(facts.script.statement_of(node), cst.Return):
        yield from [] if isinstance(function, cst.FunctionDef) and function.name.value in _OBJECTS else [node]
    elif depth:
        yield from (place for call in facts.flow.callers(function) for place in _places(facts, call, depth - 1))


def _line(facts: Facts, node: cst.CSTNode) -> cst.CSTNode:
    """Return the line to draw alike: ``node``'s, or the loop over weights, or the ``with``, that it stands in."""
    script = facts.script
    line = script.line_of(script.statement_of(node))
    for up in script.above(line):
        if isinstance(up, (cst.For, cst.With)) and up not in facts.loops:
            line = up
        elif isinstance(up, (cst.For, cst.While, cst.FunctionDef, cst.Module)):
            break
    return line


def _while_training(facts: Facts, node: cst.CSTNode, depth: int = _DEPTH) -> bool:
    """Tell whether ``node`` runs after the weights were made alike, in the training's outermost loop."""
    tops = [top.loop for top in facts.tops]
    if any(up in tops for up in facts.script.above(node)):
        return True
    function = facts.script.function_of(node)
    calls = facts.flow.callers(function) if depth and isinstance(function, cst.FunctionDef) else []
    return any(_while_training(facts, call, depth - 1) for call in calls)
