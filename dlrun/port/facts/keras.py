"""Reads a Keras script: which models are compiled and fitted, with which optimizers, callbacks and loops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.facts import Options, ScriptFacts
from dlrun.port.facts.models import train_steps
from dlrun.port.facts.models.keras_models import (
    FITS,
    compiles,
    is_holder,
    is_trained,
    loaded,
    nothing,
    receiver,
    trains,
    uncalled,
)
from dlrun.port.facts.models.kinds import Kinds, plays
from dlrun.port.facts.models.kinds_tensorflow import OPTIMIZER, plain
from dlrun.port.facts.updates.train_step_losses import is_train_step, undivided
from dlrun.port.feeds import keras_batches
from dlrun.port.feeds.full.wholes import GRAPH
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.feeds.positions import nested
from dlrun.port.feeds.positions.positions import moving, of_order, other_length
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, argument, calls_method, dotted, names_in, walk
from dlrun.port.refusals import main_guard
from dlrun.port.unshared import moves_over, whole_graph

_OWN = re.compile(r"^(?!optimizer$)\w*(optimizer|_opt|_optim)$")
_FLOWS = ("flow", "flow_from_directory", "flow_from_dataframe")
# What makes generators of a script's own.
GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
_DRAWS = re.compile(
    r"^(numpy\.random\.(randint|choice|permutation|shuffle)|random\.(choice|choices|sample|randint|randrange)|"
    r"tensorflow\.random\.shuffle)$"
)


@dataclass(frozen=True, eq=False)
class KerasFacts(ScriptFacts):
    """All that the passes of Keras decide on.

    ``compiled`` are the statements ``model.compile(...)`` with the model's text; ``loops`` the outermost ones whose
    batches the script draws at random itself, for ``train_on_batch``.
    """

    framework = "keras"
    compiled: tuple[tuple[cst.Call, str], ...]
    loaded: tuple[tuple[cst.CSTNode, str], ...]  # where models that are trained as a file had them get their names
    fits: tuple[cst.Call, ...]
    sharded: tuple[cst.For, ...]  # the loops that pick their batches by number
    iterated: tuple[cst.BaseExpression, ...]  # what loops run over, and generators they draw from, for their batches
    orders: tuple[cst.Call, ...]  # what draws an order of the samples while these loops run
    moved: tuple[tuple[cst.For | cst.While, tuple[str, ...]], ...]  # of ``loops``: arrays of which slices are moved on
    stateful: tuple[cst.Arg, ...]  # what makes layers hand their states on from batch to batch
    own: tuple[cst.BaseExpression, ...]  # optimizers that a model's own compile() takes beside ``optimizer``
    averages: tuple[cst.Call, ...]  # calls that compute gradients which a train_step() reads before they are applied


def read(script: Script, options: Options) -> KerasFacts:
    """Return the facts of a Keras script.

    Raises:
        DlrunError: no model is compiled and trained here, or one is trained in a way that is not ported yet.
    """
    flow = Flow(script)
    flow.callers(script.module)
    compiled = [c for c in script.calls if compiles(script, c) and not is_holder(flow, c)]
    trained = trains(flow)
    reused = tuple(loaded(flow, compiled, trained))
    if not (compiled or reused) or not trained:
        raise nothing(script, compiled, trained)
    for arg in (a for call in trained for a in call.args if a.keyword and a.keyword.value == "sample_weight"):
        if GRAPH.search(dotted(arg.value).rsplit(".", 1)[-1]):
            raise whole_graph(script, arg.value)
    whole = options.batch == "global"  # each step takes its part of a batch by itself
    kinds = Kinds(flow)
    if whole and (reason := _not_globally(script, kinds)) is not None:
        raise reason
    batches = [c for c in trained if calls_method(c, "train_on_batch") and not whole]
    drawn = tuple(dict.fromkeys(loop for c in batches for loop in _around(flow, c)))
    sharded = tuple(r for loop in drawn for r in _indexed(kinds, loop))
    picked = [loop for loop in drawn if any(script.inside(r, loop) for r in sharded)]
    iterated = tuple(
        n for loop in drawn for n in keras_batches.iterated(flow, loop) if not _is_sharded(script, n, sharded)
    )
    made = tuple(n for loop in drawn if loop not in picked for n in keras_batches.generators(flow, loop))
    parts = any(dotted(held).endswith(".optimizer") and dotted(held) != "self.optimizer" for held in _applying(script))
    stateful = tuple(
        arg
        for call in script.calls
        for arg in call.args
        if arg.keyword is not None and arg.keyword.value == "stateful" and dotted(arg.value) != "False"
    )
    if stateful and batches:
        raise DlrunError(
            f"{script.place(stateful[0])}: a stateful layer carries its state from batch to batch, and "
            "train_on_batch() gets them one by one: they form one stream and cannot be sharded. Nothing was written.",
            "Train with fit(x, y, shuffle=False), which goes through arrays, or with stateful=False.",
        )
    return KerasFacts(
        kinds=kinds,
        options=options,
        guard=main_guard(script, flow, trained),
        uncalled=uncalled(flow, trained),
        compiled=tuple((c, receiver(script, c)) for c in compiled if parts or is_trained(script, c, trained)),
        loaded=reused,
        fits=tuple(c for c in trained if calls_method(c, *FITS)),
        optimizers=tuple(c for c in script.calls if _is_optimizer(flow, c)),
        loops=tuple(loop for loop in drawn if not any(script.inside(r, loop) for r in (*sharded, *iterated))),
        sharded=sharded,
        iterated=(*iterated, *made),
        orders=tuple(dict.fromkeys(c for loop in (*drawn, *made) for c in keras_batches.orders(flow, loop))),
        moved=tuple(_moving(kinds, drawn, (*sharded, *iterated))),
        stateful=stateful,
        own=tuple(dict.fromkeys(_own_optimizers(flow, compiled))),
        averages=train_steps.read(flow),
    )


def _is_sharded(script: Script, node: cst.CSTNode, sharded: Iterable[cst.For]) -> bool:
    """Tell whether the loop over ``node`` is a part of one that picks its batches by number, or goes around one."""
    loop = next((up for up in script.above(node) if isinstance(up, cst.For)), node)
    return any(script.inside(loop, other) or script.inside(other, loop) for other in sharded)


def _not_globally(script: Script, kinds: Kinds) -> DlrunError | None:
    """Return why a model's batches cannot be divided: what no weights make that of the whole batch."""
    stateful = [a for c in script.calls for a in c.args if a.keyword is not None and a.keyword.value == "stateful"]
    steps = [f for f in script.of(cst.FunctionDef) if is_train_step(f)]
    own = [each for step in steps if (each := undivided(kinds, step)) is not None]
    found: list[tuple[cst.CSTNode, str]] = [
        *((node, f"steps of a model's own train_step(), {text}") for node, text in own),
        *((n, "batches that each rank makes by playing for itself") for n in script.of(cst.Assign) if plays(kinds, n)),
        *((arg, "states that go on from batch to batch") for arg in stateful if dotted(arg.value) != "False"),
    ]
    if not found:
        return None
    node, why = found[0]
    return DlrunError(
        f"{script.place(node)}: --batch global divides each batch that fit() or train_on_batch() gets, and here are "
        f"{why}. Nothing was written.",
        "Port it with --batch local.",
    )


def _is_optimizer(flow: Flow, call: cst.Call) -> bool:
    foreign = not isinstance(flow.definition(call.func), cst.ClassDef)
    return foreign and bool(OPTIMIZER.search(plain(flow.script.name_of(call.func))))


def _applying(script: Script) -> list[cst.BaseExpression]:
    """Return the optimizers with which the script's own methods apply gradients."""
    return [c.func.value for c in script.calls if calls_method(c, "apply_gradients", "minimize")]


def _own_optimizers(flow: Flow, compiled: Iterable[cst.Call]) -> Iterator[cst.BaseExpression]:
    """Yield what models apply gradients with in methods of their own, beside ``self.optimizer``.

    What their compile() or __init__() takes, what these make, and what has a name outside of the model.
    """
    given = (argument(c, "optimizer", -1 if flow.targets(c) else 0) for c in compiled)
    averaging = {o.node for value in given if value is not None for o in flow.origins(value)}
    for call in compiled:
        yield from (a.value for a in call.args if a.keyword is not None and _OWN.search(a.keyword.value))
    for held in _applying(flow.script):
        if dotted(held) == "self.optimizer":
            continue
        if not re.fullmatch(r"self\.\w+", dotted(held)):
            behind = (o.node for o in flow.origins(held) if o.node not in averaging)
            yield from (n for n in behind if isinstance(n, cst.Call) and _is_optimizer(flow, n))
            continue
        for binding in flow.script.kept_bindings(held):
            made, home = binding.written, flow.script.function_of(binding.node)
            if isinstance(made, cst.Call):
                yield made
            elif isinstance(made, cst.Name) and isinstance(home, cst.FunctionDef):
                handed = (flow.argument(c, home, made.value) for c in flow.callers(home))
                yield from (value for value in handed if value is not None)


def _around(flow: Flow, call: cst.Call, depth: int = 4) -> list[cst.For | cst.While]:
    """Return the outermost loops that come to ``call``, a train_on_batch(), in its function or in callers of that.

    Raises DlrunError where there is none.
    """
    loop, function = flow.script.outermost_loop(call), flow.script.function_of(call)
    if loop is not None:
        return [loop]
    callers = flow.callers(function) if depth and isinstance(function, cst.FunctionDef) else []
    found = [loop for c in callers if c is not call for loop in _around(flow, c, depth - 1)]
    if not found and depth == 4 and isinstance(function, cst.FunctionDef):
        raise DlrunError(
            f"{flow.script.place(call)}: no loop in sight calls {function.name.value}(), which trains by "
            "train_on_batch(): found no samples to share among the ranks. Nothing was written.",
            "Port the script with the loop; where a base class has it, call the method in the class that defines it.",
        )
    return found


def _moving(
    kinds: Kinds, loops: Iterable[cst.For | cst.While], shared: Sequence[cst.CSTNode]
) -> Iterator[tuple[cst.For | cst.While, tuple[str, ...]]]:
    """Yield the loops around train_on_batch() that move slices on, and of which arrays; ``shared``: what others read.

    Raises DlrunError where such a loop's batches come neither from there, nor at random, nor from an environment.
    """
    script, flow = kinds.script, kinds.flow
    for loop in loops:
        if any(script.inside(r, loop) for r in shared) or keras_batches.generators(flow, loop):
            continue
        if any(plays(kinds, n) for n in walk(loop.body)):
            continue  # each rank makes samples of its own
        if names := _moved(script, loop):
            if (length := other_length(flow, loop, list(names))) is not None:
                raise moves_over(script, length)
            yield loop, names
        elif not any(_draws(flow, n) for n in walk(loop.body) if isinstance(n, cst.Call)):
            raise DlrunError(
                f"{script.place(loop)}: train_on_batch() gets batches that this loop neither draws at random nor "
                "picks by number: found no samples to share. Nothing was written.",
                "Slice the arrays with dl_comm.keras.shard(...) before the loop, or use fit().",
            )


def _draws(flow: Flow, call: cst.Call, depth: int = 2) -> bool:
    """Tell whether ``call`` draws samples: at random, or the next batch of images that Keras has shuffled."""
    script, method = flow.script, call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    held = call.func.value if isinstance(call.func, cst.Attribute) else None
    makers = [o.node for o in flow.origins(held)] if held is not None else []
    own = any(isinstance(n, cst.Call) and script.name_of(n.func) in GENERATORS for n in makers)
    if own or _DRAWS.search(script.name_of(call.func)):
        return True
    iterator = call.args[0].value if script.name_of(call.func) == "builtins.next" and call.args else None
    if method == "next" and isinstance(call.func, cst.Attribute):
        iterator = call.func.value
    for origin in flow.origins(iterator) if iterator is not None else ():
        made = origin.node
        if calls_method(made, *_FLOWS):
            given = {a.keyword.value: dotted(a.value) for a in made.args if a.keyword is not None}
            return given.get("shuffle") != "False" and "seed" not in given
    inner = [n for t in flow.targets(call) for n in walk(t.body) if isinstance(n, cst.Call)] if depth else []
    return any(_draws(flow, n, depth - 1) for n in inner)


def _moved(script: Script, loop: cst.For | cst.While) -> tuple[str, ...]:
    """Return the arrays, made before ``loop``, of which it takes slices at positions that it moves on."""
    sliced = [
        n.value.value
        for n in walk(loop.body)
        if isinstance(n, cst.Subscript)
        and isinstance(n.value, cst.Name)
        and any(isinstance(e.slice, cst.Slice) for e in n.slice)
    ]
    names = [name for name in dict.fromkeys(sliced) if moving(loop, name)]
    names = of_order(loop, names) or names
    made = [b for name in names for b in script.scopes[loop].lookup(name)[0]]
    return () if any(script.inside(b.node, loop) for b in made) else tuple(names)


def _indexed(kinds: Kinds, outer: cst.For | cst.While) -> list[cst.For]:
    """Return the loops around train_on_batch() that run over numbers, which pick the samples."""
    script, iterated = kinds.script, Iterated(kinds.flow)
    known: list[cst.For] = []
    found: list[cst.For] = []
    for loop in [n for n in walk(outer) if isinstance(n, cst.For)]:
        own = [c for c in walk(loop.body) if calls_method(c, "train_on_batch")]
        direct = any(next(u for u in script.above(c) if isinstance(u, (cst.For, cst.While))) is loop for c in own)
        names = names_in(loop.target)
        picks = any(
            isinstance(n, cst.SubscriptElement) and any(isinstance(m, cst.Name) and m.value in names for m in walk(n))
            for n in walk(loop.body)
        )
        around = any(script.inside(loop, up) for up in known)  # a part of one of their turns
        if direct and picks and iterated.counts(iterated.of(loop)) and not around:
            known.append(loop)
            blocks = nested.around(kinds, loop) or loop
            if iterated.numbers(iterated.of(blocks)):
                found.append(blocks)
    return found
