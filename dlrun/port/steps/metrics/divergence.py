"""Part of step "metrics": where ranks that see other samples may diverge, or see the same ones, said with a line."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.keras import GENERATORS
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.taint import losses
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.updates.rates import set_in_group
from dlrun.port.feeds.positions.positions import mentions, slides
from dlrun.port.insert import statements
from dlrun.port.program.script import argument, calls_method, dotted, names_in, table_of, walk
from dlrun.port.steps.counts.counters import runs_inside
from dlrun.port.steps.shard.unseeded import unseeded

_SEEDS = ("numpy.random.seed", "random.seed", "torch.manual_seed")
_OWN_SEEDS = ("initial_seed", "get_worker_info", "get_rank")
_BESIDE = ("threading.Thread", "multiprocessing.Process", "torch.multiprocessing.Process")


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about ranks that diverge, or that do not; each kind once."""
    yield from list(generators(facts))[:1]
    yield from list(_blind(facts))[:1]
    yield from list(_threads(facts))[:1]
    yield from list(_slides(facts))[:1]
    yield from list(_noise(facts))[:1]
    yield from list(_chosen(facts))[:1]
    if facts.early is not None:
        yield Doubt(
            facts.early,
            "drawn before the training, alike on all ranks, and anew at times alone: until then "
            "all ranks train on the same samples",
            "high",
            "one method that draws them, before the training, too; then port it again",
            name="same-samples",
        )
    for node in facts.evaluated[:1]:
        yield Doubt(
            node,
            "these batches, too, are sharded: what is computed of them is of this rank's share alone",
            "medium",
            f"{facts.alias}.average() of what is shown of it",
            name="local-number",
        )
    for call in facts.unseen[:1]:
        yield Doubt(
            call,
            "draws from what comes from out of sight: if it goes through the samples in one order, all "
            "ranks take the same",
            "high",
            f"make it of iter({facts.alias}.shard(loader))",
            name="same-samples",
        )


def _chosen(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where the samples that are sharded were chosen, or made, by what a model computed."""
    for made in chosen(facts):
        yield Doubt(
            made,
            "a model chose or made these samples: where dropout, BatchNorm or local batches "
            "had a part in it, each rank shards another set",
            "medium",
            f"chosen = {facts.alias}.broadcast(chosen) where they are chosen",
            name="ranks-diverge",
        )


def chosen(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the samples that are sharded and were made of what a rank computed."""
    for feed in facts.feeds:
        made = feed.node.args[0].value if isinstance(feed.node, cst.Call) and feed.node.args else None
        if feed.how == "indices":  # range(0, len(hard), 16)
            made = next((n for n in walk(feed.node) if isinstance(n, cst.Name) and facts.local(n)), None)
        if feed.how == "iterable" and isinstance(feed.node, cst.BaseExpression):
            made = feed.node
        if feed.how in ("loader", "indices", "iterable") and made is not None and facts.local(made):
            yield made


def _slides(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a loop that draws samples, or is fed, goes through others from one place on all ranks."""
    cut = {name for feed in facts.feeds for name in feed.names}
    counted, trained = [loop for loop, _ in facts.counted], set[cst.CSTNode]()
    fed = [] if facts.keeps_steps else [loop for loop in facts.loops if not runs_inside(facts, loop.body)]
    for loop in dict.fromkeys((*counted, *fed)):
        if isinstance(loop, (cst.For, cst.While)):
            for n in (*slides(facts.flow, loop, again=True), *_by_tables(facts, loop)):
                if loop not in counted:
                    trained = trained or set(_trained_by(facts))
                name = dotted(table_of(n.value))
                if name not in cut and (loop in counted or n in trained):
                    yield Doubt(
                        n,
                        f"{name}: all ranks take the same samples here, one slice after the other",
                        "high",
                        f"{name} = {facts.alias}.shard({name}) before the loop",
                        name="same-samples",
                    )


def _noise(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a loop adds to all samples, in every iteration, noise whose shape is written as a number."""
    script = facts.script
    for loop, _ in facts.counted:
        picked = {dotted(n.value) for n in walk(loop) if isinstance(n, cst.Subscript)}
        for n in walk(loop):
            sides = (n.left, n.right) if isinstance(n, cst.BinaryOperation) else ()
            for x, other in (sides, sides[::-1]) if sides else ():
                if not isinstance(x, cst.Name) or x.value in picked or facts.kinds.of(x):
                    continue
                made = [value for value in _assigned(facts, x) if not script.inside(value, loop)]
                numbers = {
                    script.code(m) for m in computed(facts.flow, made).nodes if isinstance(m, (cst.Integer, cst.Name))
                }
                for draw, size in _sized(facts, other) if numbers else ():
                    if script.code(size) in numbers and script.inside(draw, loop):
                        yield Doubt(
                            draw,
                            f"every rank takes all of {x.value} at each step, with draws of its own: n "
                            "ranks do not share the samples, they average n draws for each",
                            "medium",
                            f"torch.randn_like({x.value}), torch.rand(len({x.value}), 1) and so on, and port "
                            "again: then it is sharded",
                            name="not-shared",
                        )


def _sized(facts: Facts, node: cst.CSTNode) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """Yield the draws of which ``node`` is made, each with how many it draws: 400 of ``torch.randn(400, 2)``."""
    for made in (m for n in walk(node) for m in ([n] if isinstance(n, cst.Call) else _assigned(facts, n))):
        if isinstance(made, cst.Call) and facts.script.name_of(made.func) in ("torch.randn", "torch.rand"):
            first = made.args[0].value if made.args else None
            first = first.elements[0].value if isinstance(first, cst.Tuple) and first.elements else first
            if isinstance(first, cst.Name) or (isinstance(first, cst.Integer) and first.evaluated_value > 1):
                yield made, first


def _assigned(facts: Facts, node: cst.CSTNode) -> list[cst.BaseExpression]:
    bound = facts.script.bindings_of(node) if isinstance(node, cst.Name) else []
    made = [b.written if b.written is not None else b.value for b in bound if b.how == "assign"]
    return [value for value in made if value is not None]


def _by_tables(facts: Facts, loop: cst.For | cst.While) -> Iterator[cst.Subscript]:
    """Yield the slices of what is made before ``loop`` at positions that a table keeps: ``x[k][at[k] : at[k] + n]``."""
    targets: list[tuple[cst.CSTNode, cst.CSTNode]]
    targets = [(n.target, n) for n in walk(loop.body) if isinstance(n, cst.AugAssign)]
    targets += [(t.target, n.value) for n in walk(loop.body) if isinstance(n, cst.Assign) for t in n.targets]
    moved = {
        root
        for t, by in targets
        if isinstance(t, cst.Subscript) and (root := dotted(table_of(t))) and mentions(by, {root.split(".")[-1]})
    }
    for n in walk(loop.body) if moved else ():
        bounds = [e for e in n.slice if isinstance(e.slice, cst.Slice)] if isinstance(n, cst.Subscript) else []
        placed = any(isinstance(m, cst.Subscript) and dotted(table_of(m)) in moved for e in bounds for m in walk(e))
        if placed and isinstance(n, cst.Subscript) and not isinstance(facts.script.parents[n], cst.AssignTarget):
            of = table_of(n.value)
            if dotted(of) and not any(facts.script.inside(b.node, loop) for b in facts.script.bindings_of(of)):
                yield n


def generators(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a loop draws from a generator of the script's own, which has one seed on all ranks."""
    alike = {call for feed in facts.feeds for call in feed.alike}
    for loop in facts.loops:
        if not isinstance(loop, (cst.For, cst.While)) or runs_inside(facts, loop.body):
            continue
        for body in (loop.body, *_called(facts, loop.body)):
            for call in (c for c, _ in seeded_draws(facts, body) if c not in alike):
                yield _alike(facts, call, dotted(call.func.value))  # type: ignore[attr-defined]
        for call in (n for n in walk(loop.body) if isinstance(n, cst.Call)):
            given = argument(call, "generator") if facts.kinds.of_call(call) != "loader" else None
            if (
                given is not None
                and call not in alike
                and any(_is_generator(facts, o.node) for o in facts.flow.origins(given))
            ):
                yield _alike(facts, call, facts.script.code(given))


def own_generators(facts: ScriptFacts, loop: cst.For | cst.While) -> Iterator[Edit | Doubt]:
    """Yield what lets each rank draw its own from the generators, seeded alike, that ``loop`` draws batches from."""
    done: set[str] = set()
    for body in (loop.body, *_called(facts, loop.body)):
        for call, made in seeded_draws(facts, body):
            held = call.func.value  # type: ignore[attr-defined]
            name, line = dotted(held), facts.script.statement_of(made)
            if name in done:
                continue
            done.add(name)
            here = isinstance(held, cst.Name) and facts.script.function_of(line) is facts.script.function_of(loop)
            if here and not facts.script.inside(line, loop):
                yield Edit(
                    loop,
                    f"{name}: other numbers on each rank",
                    before=statements("keras/reseed_own", dl=facts.alias, name=name),
                )
            else:
                yield _alike(facts, call, name)


def _called(facts: ScriptFacts, body: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the functions that ``body`` asks for samples: not those whose turns the ranks take, which draw alike."""
    turns = {feed.node for feed in getattr(facts, "feeds", ()) if feed.how == "turns"}
    found: dict[cst.CSTNode, None] = {}
    todo: list[cst.CSTNode] = [body]
    while todo:
        for call in (n for n in walk(todo.pop()) if isinstance(n, cst.Call) and n.func not in turns):
            new = [f.body for f in facts.flow.targets(call) if f.body not in found]
            found.update(dict.fromkeys(new))
            todo += new
    return list(found)


def _alike(facts: ScriptFacts, call: cst.Call, name: str) -> Doubt:
    return Doubt(
        call,
        f"{name} has one seed on all ranks, which draw the same here",
        "high",
        f"{facts.alias}.reseed({name}) before the loop, for what each rank shall draw for itself",
        name="same-samples",
    )


def _is_generator(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` makes a generator of PyTorch's, seeded or not: without a seed it begins alike, too."""
    if calls_method(node, "manual_seed"):
        node = node.func.value
    return isinstance(node, cst.Call) and facts.script.name_of(node.func) == "torch.Generator"


def seeded_draws(facts: ScriptFacts, body: cst.CSTNode) -> Iterator[tuple[cst.Call, cst.Call]]:
    """Yield the draws in ``body`` from generators of the script's own, with the call that makes and seeds each.

    Also from those that get rank 0's state.
    """
    alike = unseeded(facts)
    for call in (n for n in walk(body) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)):
        made = [o.node for o in facts.flow.origins(call.func.value)]  # type: ignore[attr-defined]
        seeded = [
            m
            for m in made
            if isinstance(m, cst.Call) and (m.args or m in alike) and facts.script.name_of(m.func) in GENERATORS
        ]
        if seeded:
            yield call, seeded[0]


def _blind(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a data set draws its samples itself, whatever their number, from one seed on all ranks."""
    blind = [f for f in facts.flow.methods.get("__getitem__", []) if not facts.full_batch and _ignores(f)]
    for function in blind:
        for made in (m for _, m in seeded_draws(facts, function.body) if m.args):
            yield Doubt(
                made,
                f"{function.name.value}() draws a sample whatever its number, from one seed on all "
                "ranks: they take the same samples",
                "high",
                f"{facts.script.code(made.func)}({facts.script.code(made.args[0].value)} + {facts.alias}.get_rank())",
                name="same-samples",
            )
    for loader in (c for c in facts.script.calls if facts.kinds.of_call(c) == "loader" and not facts.full_batch):
        begins = argument(loader, "worker_init_fn")
        begun = facts.flow.definition(begins) if begins is not None else None
        body = begun if isinstance(begun, cst.FunctionDef) else begins
        named = {facts.script.name_of(n.func) for n in walk(body) if isinstance(n, cst.Call)} if body else set()
        if named & set(_SEEDS) and not any(name.endswith(_OWN_SEEDS) for name in named):
            samples = " samples: the data set draws them whatever their number" if blind else " noise beside samples"
            yield Doubt(
                loader,
                f"the workers of all ranks get the same seeds here, and draw the same{samples}",
                "high" if blind else "low",
                "leave worker_init_fn out: the workers of each rank get seeds of their own",
                name="same-samples",
            )


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
            yield Doubt(
                call,
                f"what this {kind} draws before the training loop is the same on all ranks: batches that "
                "wait in a queue by then are, too",
                "high",
                f"call {facts.alias}.reseed() before the {kind} starts",
                name="same-samples",
            )


def _draws(facts: Facts, function: cst.FunctionDef) -> bool:
    """Tell whether ``function`` draws at random, or from an iterator."""
    inside = (n for body in facts.flow.bodies(function.body, 3) for n in walk(body) if isinstance(n, cst.Call))
    names = (facts.script.name_of(call.func) for call in inside)
    return any(name.startswith(("random.", "numpy.random.")) or name == "builtins.next" for name in names)


def _trained_by(facts: Facts) -> frozenset[cst.CSTNode]:
    """Return what the batches, the losses and the rates of the training are made of."""
    values = losses(facts.script)
    values += [loop.iter for loop in facts.loops if isinstance(loop, cst.For)]
    values += [rate for n in facts.script.nodes if (rate := set_in_group(facts, n)) is not None]
    return frozenset(computed(facts.flow, values).nodes)


def rates(facts: TensorFlowFacts) -> Iterator[Doubt]:
    """Yield a doubt where an optimizer asks a function for its rate that makes it of what local samples left.

    ``Adam(self.rate)``, of ``return 0.1 * self.balance``: each rank moves its weights by another rate.
    """
    for made in facts.optimizers:
        given = argument(made, "learning_rate", 0) or argument(made, "lr")
        asked = facts.flow.definition(given) if given is not None and not isinstance(given, cst.Call) else None
        if isinstance(given, cst.Attribute) and asked is None:
            owners = facts.flow.classes(given.value)
            asked = next((f for cls in owners if (f := facts.flow.method(cls, given.attr.value)) is not None), None)
        ends = [given.body] if isinstance(given, cst.Lambda) else []
        for end in facts.flow.returns(asked) if isinstance(asked, cst.FunctionDef) else ends:
            if any(facts.unequal(n) for n in walk(end)):
                yield Doubt(
                    end,
                    "the rate is made of numbers of this rank's samples: each rank moves its weights by another",
                    "high",
                    f"{facts.alias}.average() of these numbers where they are kept, and all ranks come by",
                    name="ranks-diverge",
                )
                return
