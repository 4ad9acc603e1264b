"""Part of step "metrics": what no edit can settle, said with the line to write."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.computed import computed
from dlrun.port.facts.scalars import Scalars
from dlrun.port.facts.taint import without_gradients
from dlrun.port.feeds import nested
from dlrun.port.feeds.beside import keeps_order
from dlrun.port.passes import coupled, played, weighted
from dlrun.port.passes.counters import feeds_of, innermost, runs_inside
from dlrun.port.passes.returned import gets_shares
from dlrun.port.passes.writes import METHODS, WRITES
from dlrun.port.program.script import argument, calls_method, children, dotted, walk

# What a function is called that shows or keeps what it is given.
_SHOWS = re.compile(r"plot|show|draw|save|write|log|print|display|visuali", re.IGNORECASE)
# Packages of metrics.
_JUDGES = ("sklearn.metrics.", "scipy.stats.", "seqeval.metrics.", "torchmetrics.functional.",
           "torcheval.metrics.functional.")  # fmt: skip


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about a whole PyTorch script; each kind once."""
    yield from played.torch(facts)
    yield from _uneven_batches(facts)
    yield from _sums(facts)
    yield from coupled.both(facts)
    yield from weighted.torch(facts)
    yield from list(_in_pairs(facts))[:1]
    yield from of_all_samples(facts)
    if facts.options.batch == "global":
        yield from _batch_sizes(facts)


def of_all_samples(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about predictions for samples that were dealt out, and judged; one a function."""
    script = facts.script
    judged: dict[tuple[cst.CSTNode, bool], list[cst.Call]] = {}
    for call in _judging(facts):
        judged.setdefault((script.function_of(call), _of_whole(facts, call)), []).append(call)
    write = f"leave the loader of this evaluation whole, without {facts.alias}.shard: every rank then sees all of it"
    for call in list(_saving(facts))[:1]:
        yield Doubt(call, "what is saved here was gathered over a rank's share: rank 0's holds 1/n of the samples",
                    "medium", write)  # fmt: skip
    for (_, whole), calls in judged.items():
        names = list(dict.fromkeys(dotted(call.func).rsplit(".", 1)[-1] for call in calls))
        sees = f"{', '.join(names)} {'sees' if len(names) == 1 else 'see'} this rank's samples alone"
        if whole:
            yield Doubt(calls[0], f"{sees}, beside what the data set holds of all: they are taken for others", "high",
                        write)  # fmt: skip
        else:
            yield Doubt(calls[0], f"{sees}: the mean over the ranks is near that of all samples, not equal to it",
                        "medium", write)  # fmt: skip


def _in_pairs(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about loops that take from several loaders in their order, batches of different sizes."""
    drawn = [loop for loop, _ in facts.counted]
    for loop in facts.loops:
        feeds = list(facts.feeds) if loop in drawn else feeds_of(facts, loop) if isinstance(loop, cst.For) else []
        made = [o.node for feed in feeds for o in facts.flow.origins(feed.node)]
        loaders = [n for n in made if isinstance(n, cst.Call) and facts.kinds.of_call(n) == "loader"]
        sizes = {facts.script.code(size) if (size := argument(c, "batch_size", 1)) is not None else "1": c
                 for c in loaders if keeps_order(c)}  # fmt: skip
        if len(sizes) > 1:
            yield Doubt(list(sizes.values())[1], f"loaders that keep their order give batches of {' and '.join(sizes)} "
                        "to one step: a rank's shares hold other samples of the one than of the other, and what "
                        "belongs together comes apart", "high", "one loader, of pairs")  # fmt: skip


def _judging(facts: Facts) -> Iterator[cst.Call]:
    """Yield the calls that judge predictions: of scikit-learn and the like, and of what a training loop gathers."""
    script = facts.script
    lists = _gathered(facts)
    for call in script.calls:
        judges = script.name_of(call.func).startswith(_JUDGES) and any(map(facts.trained, call.args))
        judges = judges and not _between_epochs(facts, call)
        last = dotted(call.func).rsplit(".", 1)[-1]
        for arg in call.args if facts.flow.targets(call) and not _SHOWS.search(last) else ():
            loop = lists.get((script.function_of(call), dotted(arg.value)))
            judges = judges or (loop is not None and not script.inside(call, loop))
        if judges:
            yield call


def _between_epochs(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` judges what a model makes beside the batches, once an epoch: of samples that all hold."""
    made = computed(facts.flow, [arg.value for arg in call.args]).nodes
    loops = [innermost(facts, n) for n in made if isinstance(n, cst.Call) and facts.kinds.of(n.func) == "module"]
    return bool(loops) and all(
        isinstance(loop, (cst.For, cst.While)) and loop in facts.loops and runs_inside(facts, loop.body)
        for loop in loops)  # fmt: skip


def _of_whole(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` is also given something of a data set, all of which every rank holds."""
    return any(isinstance(n, cst.Attribute) and (n.attr.value == "dataset" or facts.kinds.of(n.value) == "dataset")
               for arg in call.args for n in walk(arg))  # fmt: skip


def _saving(facts: Facts) -> Iterator[cst.Call]:
    """Yield the calls that write a file of what a training loop gathers, if its function goes through shares alone."""
    lists, scalar = _gathered(facts), _scalars(facts)

    def held(node: cst.CSTNode, depth: int = 2) -> Iterator[cst.Name]:
        if (isinstance(node, cst.Call) and (facts.flow.targets(node) or facts.script.name_of(node.func).startswith(
                _JUDGES))) or scalar(node):  # fmt: skip
            return  # made of the samples, and not they
        for b in facts.script.bindings_of(node) if isinstance(node, cst.Name) and depth else ():
            yield from held(b.value, depth - 1) if b.value is not None and b.how == "assign" else ()
        yield from [node] if isinstance(node, cst.Name) else (name for n in children(node) for name in held(n, depth))

    for call in (c for c in facts.script.calls if _writes(facts, c)):
        function = facts.script.function_of(call)
        loops = [lists.get((function, n.value)) for part in children(call) for n in held(part)]
        if any(loop is not None and not facts.script.inside(call, loop) for loop in loops) and all(
                gets_shares(facts, c) for c in facts.flow.callers(function)):  # fmt: skip
            yield call


def _writes(facts: Facts, call: cst.Call) -> bool:
    name = facts.script.name_of(call.func)
    return bool(WRITES.search(name)) or name == "torch.save" or dotted(call.func).rsplit(".", 1)[-1] in METHODS


def _gathered(facts: Facts) -> dict[tuple[cst.CSTNode, str], cst.For]:
    """Return the training loops that fill lists with predictions, by the function and the name of the list."""
    nodes = [*facts.script.calls, *facts.script.of(cst.AugAssign)]
    return {(facts.script.function_of(loop), name): loop for n in nodes for loop, name in _gathers(facts, n)
            if not runs_inside(facts, loop.body)}  # fmt: skip


def _scalars(facts: Facts) -> Scalars:
    return Scalars(facts.kinds, [*(step.node for step in facts.steps), *facts.runs])


def _gathers(facts: Facts, node: cst.CSTNode) -> Iterator[tuple[cst.For, str]]:
    """Yield the training loop and the list that ``node`` fills in it with predictions, and not with single numbers."""
    match node:
        case cst.Call(func=cst.Attribute(value=into, attr=cst.Name("append" | "extend")), args=[cst.Arg(value=value)]):
            pass
        case cst.AugAssign(target=into, operator=cst.AddAssign(), value=cst.Call(func=cst.Attribute(
                attr=cst.Name("tolist"))) | cst.Call(func=cst.Name("list")) as value):  # fmt: skip
            pass
        case _:
            return
    loop = next((up for up in facts.script.above(node) if isinstance(up, (cst.For, cst.While))), None)
    parts = [e.value for e in value.elements] if isinstance(value, (cst.List, cst.Tuple)) else [value]
    name = dotted(into.value if isinstance(into, cst.Subscript) else into)  # tracker["found"], too
    if isinstance(loop, cst.For) and loop in facts.loops and facts.trained(value) and name:
        yield from () if all(map(_scalars(facts), parts)) else [(loop, name)]  # [step, loss.item()]


def _uneven_batches(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a batch has as many updates as it has parts: slices of a volume, chunks of a text."""
    for loop in facts.loops:
        if nested.uneven(facts.kinds, loop):
            yield Doubt(loop, "a rank whose batch has fewer parts makes fewer updates, and leaves the others waiting "
                        "for ever", "high", "give all batches as many parts, or update once for a batch")  # fmt: skip
            return


def _sums(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a loss is a sum over a global batch: the mean over ranks is 1/n of it."""
    if facts.full_batch or facts.options.batch == "local":
        return
    for node in facts.script.nodes:
        sums = isinstance(node, cst.Arg) and node.keyword is not None and (
            (node.keyword.value == "reduction" and "sum" in facts.script.code(node.value))
            or (node.keyword.value == "size_average" and facts.script.code(node.value) == "False")
        )  # fmt: skip
        if sums and not without_gradients(facts.script, node):
            yield Doubt(node, "this loss is a sum: the ranks' mean is 1/n of the serial gradient (Adam does not mind)",
                        "high", f"multiply the loss by {facts.alias}.get_nranks()")  # fmt: skip
            return
    for step in facts.steps:
        for call in _summed(facts, step.node):
            yield Doubt(call, "if this loss is a sum over the batch, the ranks' mean is 1/n of the serial gradient",
                        "high", f"multiply the loss by {facts.alias}.get_nranks()")  # fmt: skip
            return


def _summed(facts: Facts, node: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the sums over whole tensors in the loops around ``node`` that lead to a loss."""
    function = facts.script.function_of(node)
    for call in facts.script.calls:
        summed = calls_method(call, "sum")
        if summed and not call.args and facts.script.function_of(call) is function:
            user = facts.script.parents[call]
            if isinstance(user, (cst.Assign, cst.BinaryOperation)) or (
                isinstance(user, cst.Attribute) and user.attr.value == "backward"
            ):
                yield call


def _batch_sizes(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a training loop uses the batch size itself: each rank's batches are 1/n of it."""
    for feed in facts.feeds:
        size = argument(feed.node, "batch_size", 1) if isinstance(feed.node, cst.Call) else None
        if not isinstance(size, (cst.Name, cst.Attribute)):
            continue
        for node in facts.script.nodes:
            if not isinstance(node, type(size)) or dotted(node) != dotted(size):
                continue
            inside = any(facts.script.inside(node, loop.body) for loop in facts.loops)
            if inside and not facts.script.inside(node, feed.node):
                yield Doubt(node, f"{dotted(size)} is the global batch; a rank's batch is 1/n of it", "medium",
                            "take the size from the batch itself: x.size(0)")  # fmt: skip
                return
