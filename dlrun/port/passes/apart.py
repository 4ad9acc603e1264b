"""Part of step "metrics": where ranks that see other samples may part, or see the same ones, said with a line."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.computed import computed
from dlrun.port.feeds.positions import slides
from dlrun.port.passes.bounds import compared
from dlrun.port.passes.counters import Counters, attributes, counters, each_update, runs_inside, tells
from dlrun.port.passes.counts import is_length_of_share
from dlrun.port.passes.milestones import numbers
from dlrun.port.program.script import argument, dotted, names_in, walk

_GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
_SEEDS = ("numpy.random.seed", "random.seed", "torch.manual_seed")
_OWN_SEEDS = ("initial_seed", "get_worker_info", "get_rank")
_BESIDE = ("threading.Thread", "multiprocessing.Process", "torch.multiprocessing.Process")


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about ranks that part, or that do not; each kind once."""
    yield from list(_generators(facts))[:1]
    yield from list(_blind(facts))[:1]
    yield from list(_threads(facts))[:1]
    yield from list(_slides(facts))[:1]
    if not facts.keeps_steps:
        yield from list(_weights(facts))[:1]
        yield from list(_turns(facts))[:3]
    for call in facts.unseen[:1]:
        yield Doubt(call, "draws from what comes from out of sight: if it goes through the samples in one order, all "
                    "ranks take the same", "high", f"make it of iter({facts.alias}.shard(loader))")  # fmt: skip


def _slides(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a loop that draws samples goes through others in order, from one place on all ranks."""
    cut = {name for feed in facts.feeds for name in feed.names}
    for loop, _ in facts.counted:
        if isinstance(loop, (cst.For, cst.While)):
            for n in slides(facts.flow, loop, again=True):
                if dotted(n.value) not in cut:
                    name = dotted(n.value)
                    yield Doubt(n, f"{name}: all ranks take the same samples here, one slice after the other", "high",
                                f"{name} = {facts.alias}.shard({name}) before the loop")  # fmt: skip


def _generators(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a loop draws from a generator of the script's own, which has one seed on all ranks."""
    for loop in facts.loops:
        if not isinstance(loop, (cst.For, cst.While)) or runs_inside(facts, loop.body):
            continue
        for call, made in _seeded(facts, loop.body):
            seed = facts.script.code(made.args[0].value)
            yield Doubt(call, f"{dotted(call.func.value)} has one seed on all ranks, which draw the same here",  # type: ignore[attr-defined]
                        "high", f"{facts.script.code(made.func)}({seed} + {facts.alias}.get_rank()), for "
                        "what each rank shall draw for itself")  # fmt: skip


def _seeded(facts: Facts, body: cst.CSTNode) -> Iterator[tuple[cst.Call, cst.Call]]:
    """Yield the draws in ``body`` from generators of the script's own, with the call that makes and seeds each."""
    for call in (n for n in walk(body) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)):
        made = [o.node for o in facts.flow.origins(call.func.value)]  # type: ignore[attr-defined]
        seeded = [m for m in made if isinstance(m, cst.Call) and m.args
                  and facts.script.name_of(m.func) in _GENERATORS]  # fmt: skip
        if seeded:
            yield call, seeded[0]


def _blind(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a data set draws its samples itself, whatever their number, from one seed on all ranks."""
    blind = [f for f in facts.flow.methods.get("__getitem__", []) if not facts.full_batch and _ignores(f)]
    for function in blind:
        for _, made in _seeded(facts, function.body):
            yield Doubt(made, f"{function.name.value}() draws a sample whatever its number, from one seed on all "
                        "ranks: they take the same samples", "high", f"{facts.script.code(made.func)}("
                        f"{facts.script.code(made.args[0].value)} + {facts.alias}.get_rank())")  # fmt: skip
    for loader in (c for c in facts.script.calls if blind and facts.kinds.of_call(c) == "loader"):
        begins = argument(loader, "worker_init_fn")
        begun = facts.flow.definition(begins) if begins is not None else None
        body = begun if isinstance(begun, cst.FunctionDef) else begins
        named = {facts.script.name_of(n.func) for n in walk(body) if isinstance(n, cst.Call)} if body else set()
        if named & set(_SEEDS) and not any(name.endswith(_OWN_SEEDS) for name in named):
            yield Doubt(loader, "the workers of all ranks get the same seeds here, and draw the same samples: the data "
                        "set draws them whatever their number", "high",
                        "leave worker_init_fn out: the workers of each rank get seeds of their own")  # fmt: skip


def _ignores(function: cst.FunctionDef) -> bool:
    """Tell whether ``function``, a ``__getitem__``, never reads the number that it is given."""
    names = [p.name.value for p in function.params.params[1:2]]
    return bool(names) and not names_in(function.body) & set(names)


def _threads(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where threads draw samples: those that begin before reseed() draw the same on all ranks."""
    for call in facts.script.calls:
        target = argument(call, "target", 1) if facts.script.name_of(call.func) in _BESIDE else None
        if target is None:
            continue
        local = facts.flow.definition(target)
        name = target.attr.value if isinstance(target, cst.Attribute) else ""
        run = [local] if isinstance(local, cst.FunctionDef) else facts.flow.methods.get(name, [])
        if any(_draws(facts, function) for function in run):
            kind = "thread" if facts.script.name_of(call.func) == "threading.Thread" else "process"
            yield Doubt(call, f"what this {kind} draws before the training loop is the same on all ranks: batches that "
                        "wait in a queue by then are, too", "high", f"call {facts.alias}.reseed() before the {kind} "
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


def _turns(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where the loss is made of something else from some step on: ``if step > 1000: weight = 0.1``."""
    known = numbers(facts, set(counters(facts)) | set(attributes(facts)))
    script = facts.script
    backwards = [c.func for c in script.calls if isinstance(c.func, cst.Attribute) and c.func.attr.value == "backward"]
    tested = [(node, *test) for node in script.nodes if isinstance(node, cst.If) for test in compared(node.test)
              if any(up in facts.loops for up in script.above(node))]  # fmt: skip
    counted = [(node, _count(facts, left, right, known)) for node, left, _, right in tested]
    asked = [(node, count) for node, count in counted if count is not None and _is_serial(facts, count)]
    made = set(computed(facts.flow, [func.value for func in backwards]).nodes) if asked else set()
    for node, count in asked:
        written = [n for n in walk(node) if isinstance(n, (cst.Assign, cst.AugAssign)) and n.value in made]
        kept = [n for n in written if "detach" not in script.code(n.value)  # where back-propagation is cut short
                and not _is_made_anew(facts, node, n, backwards)]  # fmt: skip
        if kept and not any(script.inside(step.node, node) for step in facts.steps):
            name = script.code(kept[0].targets[0].target if isinstance(kept[0], cst.Assign) else kept[0].target)
            yield Doubt(count, f"{name}, of which the loss is made, changes at this step, and n ranks take 1/n of the "
                        "steps: it comes n times later", "medium",
                        f"{facts.alias}.steps({script.code(count)})")  # fmt: skip


def _is_made_anew(
    facts: Facts, test: cst.If, node: cst.Assign | cst.AugAssign, backwards: Collection[cst.CSTNode]
) -> bool:
    """Tell whether what ``node`` gives a name after the loss is made is gone in the next turn: ``x = x.argmax(1)``."""
    script = facts.script
    loop = next(up for up in script.above(test) if up in facts.loops)
    target = node.target if isinstance(node, cst.AugAssign) else node.targets[0].target
    others = [b for b in script.bindings_of(target) if script.inside(b.node, loop) and not script.inside(b.node, test)]
    return bool(others) and any(
        script.inside(n, loop) and script.order[n] < script.order[test] for n in backwards)  # fmt: skip


def _count(
    facts: Facts, left: cst.BaseExpression, right: cst.BaseExpression, known: Counters
) -> cst.BaseExpression | None:
    """Return what the step's number is compared with: ``k`` in ``step > k``, ``step + 1 == k``, ``step % k == 0``."""
    if isinstance(left, cst.BinaryOperation):
        if isinstance(left.operator, cst.Modulo):
            return _count(facts, left.left, left.right, known) if isinstance(right, cst.Integer) else None
        one = isinstance(left.operator, (cst.Add, cst.Subtract)) and isinstance(left.right, cst.Integer)
        return _count(facts, left.left, right, known) if one else None
    return right if dotted(left) and (facts.script.function_of(left), dotted(left)) in known else None


def _is_serial(facts: Facts, count: cst.CSTNode) -> bool:
    """Tell whether ``count`` may be a number of serial steps, and not the first one, nor the rank's own."""
    first = isinstance(count, cst.Integer) and count.evaluated_value < 2
    return not first and not any(is_length_of_share(facts, n) for n in computed(facts.flow, [count]).nodes)  # type: ignore[list-item]


def _is_number(facts: Facts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a number that is kept for show, as a mean so far, and no part of a loss."""
    calls = [n.func for n in computed(facts.flow, [node]).nodes if isinstance(n, cst.Call)]
    return any(isinstance(func, cst.Attribute) and func.attr.value == "item" for func in calls)
