"""Part of step "metrics": where ranks that see other samples may part, or see the same ones, said with a line."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.computed import computed
from dlrun.port.passes.counters import attributes, counters, each_update, innermost, runs_inside, tells
from dlrun.port.passes.counts import is_length_of_share
from dlrun.port.program.script import argument, dotted, names_in, walk

_GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
_SIZES = ("shape", "ndim", "dtype", "device", "size", "dim", "numel", "is_cuda", "requires_grad")


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about ranks that part, or that do not; each kind once."""
    yield from list(_skips(facts))[:1]
    yield from list(_generators(facts))[:1]
    yield from list(_threads(facts))[:1]
    if not facts.keeps_steps:
        yield from list(_weights(facts))[:1]
    for call in facts.unseen[:1]:
        yield Doubt(call, "draws from what comes from out of sight: if it goes through the samples in one order, all "
                    "ranks take the same", "high", f"make it of iter({facts.alias}.shard(loader))")  # fmt: skip


def _skips(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where the samples themselves decide whether a batch makes an update."""
    script = facts.script
    for step in facts.steps:
        loop = innermost(facts, step.node)
        if not isinstance(loop, cst.For) or loop not in facts.loops or step.closure is not None:
            continue
        names = _of_batch(facts, loop)
        for node in (n for n in walk(loop.body) if isinstance(n, cst.If) and innermost(facts, n) is loop):
            leaves = [n for n in walk(node.body) if isinstance(n, cst.Continue) and innermost(facts, n) is loop]
            skips = bool(leaves) and script.order[node] < script.order[step.node]
            holds = script.inside(step.node, node)
            if (skips or holds) and _asks(facts, node.test, names):
                yield Doubt(node, f"a rank's own samples decide whether it updates {step.what}: one that does not "
                            "leaves the others waiting, or is averaged with another batch of theirs", "high",
                            "leave such samples out of the data set, or multiply the loss by 0")  # fmt: skip


def _of_batch(facts: Facts, loop: cst.For) -> set[str]:
    """Return the names in ``loop`` that hold samples: its targets, but for a number of the batch, and parts of them."""
    target: cst.BaseExpression = loop.target
    if isinstance(target, cst.Tuple) and isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "enumerate":
        target = target.elements[-1].value
    dealt = any(facts.script.inside(feed.node, loop.iter) or feed.node in facts.flow.through(n)
                for feed in facts.feeds if feed.how in ("loader", "named", "iterable")
                for n in walk(loop.iter) if isinstance(n, (cst.Name, cst.Attribute, cst.Call)))  # fmt: skip
    names = names_in(target) if dealt else set()
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and not facts.local(n.value) and _asks(facts, n.value, names):
            names |= {m.value for t in n.targets for m in walk(t.target) if isinstance(m, cst.Name)}
    return names


def _asks(facts: Facts, test: cst.BaseExpression, names: set[str]) -> bool:
    """Tell whether ``test`` reads the values of samples, and not only how many there are, or of which kind."""
    for n in walk(test):
        if not isinstance(n, cst.Name) or n.value not in names:
            continue
        if isinstance(attribute := facts.script.parents[n], cst.Attribute) and attribute.attr is n:
            continue
        ups = [n, *(up for up in facts.script.above(n) if facts.script.inside(up, test))]
        sizes = any(isinstance(up, cst.Attribute) and up.attr.value in _SIZES for up in ups)
        calls = [up for up in ups if isinstance(up, cst.Call)]
        kind = any(facts.script.name_of(c.func) in ("builtins.len", "builtins.isinstance", "torch.is_tensor")
                   for c in calls)  # fmt: skip
        compared = [up for up in ups if isinstance(up, cst.Comparison)]
        known = any(isinstance(c.left, cst.SimpleString) or isinstance(c.comparisons[0].operator, (cst.Is, cst.IsNot))
                    for c in compared)  # fmt: skip
        if not sizes and not kind and not known:
            return True
    return False


def _generators(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a loop draws from a generator of the script's own, which has one seed on all ranks."""
    for loop in facts.loops:
        if not isinstance(loop, (cst.For, cst.While)) or runs_inside(facts, loop.body):
            continue
        for call in (n for n in walk(loop.body) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)):
            made = [o.node for o in facts.flow.origins(call.func.value)]  # type: ignore[attr-defined]
            seeded = [m for m in made if isinstance(m, cst.Call) and m.args
                      and facts.script.name_of(m.func) in _GENERATORS]  # fmt: skip
            if seeded:
                seed = facts.script.code(seeded[0].args[0].value)
                yield Doubt(call, f"{dotted(call.func.value)} has one seed on all ranks, which draw the same here",  # type: ignore[attr-defined]
                            "high", f"{facts.script.code(seeded[0].func)}({seed} + {facts.alias}.get_rank()), for "
                            "what each rank shall draw for itself")  # fmt: skip


def _threads(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where threads draw samples: those that begin before reseed() draw the same on all ranks."""
    for call in facts.script.calls:
        target = argument(call, "target", 1) if facts.script.name_of(call.func) == "threading.Thread" else None
        if target is None:
            continue
        local = facts.flow.definition(target)
        name = target.attr.value if isinstance(target, cst.Attribute) else ""
        run = [local] if isinstance(local, cst.FunctionDef) else facts.flow.methods.get(name, [])
        if any(_draws(facts, function) for function in run):
            yield Doubt(call, "what this thread draws before the training loop is the same on all ranks: batches that "
                        "wait in a queue by then are, too", "high", f"call {facts.alias}.reseed() before the thread "
                        "starts")  # fmt: skip


def _draws(facts: Facts, function: cst.FunctionDef, depth: int = 3) -> bool:
    """Tell whether ``function`` draws at random, or from an iterator."""
    for call in (n for n in walk(function.body) if isinstance(n, cst.Call)):
        name = facts.script.name_of(call.func)
        if name.startswith(("random.", "numpy.random.")) or name == "builtins.next":
            return True
        if depth and any(_draws(facts, inner, depth - 1) for inner in facts.flow.targets(call)):
            return True
    return False


def _weights(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a part of the loss gets a weight that follows the steps so far: the annealing of a VAE."""
    reads = tells(facts, set(counters(facts)) | set(attributes(facts)))
    for node in facts.script.nodes:
        if not (isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply)):
            continue
        for weight, part in ((node.left, node.right), (node.right, node.left)):
            if not facts.local(part) or facts.local(weight) or not each_update(facts, node) or _is_number(facts, part):
                continue
            made = computed(facts.flow, [weight], reads)
            grows = any(isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Divide) for n in made.nodes)
            if made.reads and grows and not any(is_length_of_share(facts, n) for n in made.nodes):
                read = facts.script.code(made.reads[0])
                yield Doubt(weight, "this weight follows the steps so far, of which n ranks take 1/n: it changes n "
                            "times more slowly", "medium",
                            f"{facts.alias}.serial_steps({read}) in place of {read}")  # fmt: skip


def _is_number(facts: Facts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a number that is kept for show, as a mean so far, and no part of a loss."""
    calls = [n.func for n in computed(facts.flow, [node]).nodes if isinstance(n, cst.Call)]
    return any(isinstance(func, cst.Attribute) and func.attr.value == "item" for func in calls)
