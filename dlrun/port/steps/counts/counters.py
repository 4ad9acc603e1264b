"""Part of step "steps": which names and attributes count the updates so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Set
from functools import cache, lru_cache

import libcst as cst

from dlrun.port.facts import Facts, Feed, ScriptFacts
from dlrun.port.facts.numbers.computed import Tells
from dlrun.port.feeds.iterated import BARS
from dlrun.port.feeds.positions import nested
from dlrun.port.program.reaching import reaching
from dlrun.port.program.script import Script, added, calls_method, dotted, names_in, numbered, walk

Counters = set[tuple[cst.CSTNode, str]]  # functions and names, classes and attributes
_DEPTH = 4


@lru_cache(maxsize=2)
def counters(facts: Facts) -> Set[tuple[cst.CSTNode, str]]:
    """Return the functions and names of what goes up by 1 with every update."""
    return dict.fromkeys(_counters(facts)).keys()


def _counters(facts: Facts) -> Iterator[tuple[cst.CSTNode, str]]:
    for loop in facts.loops:
        assert isinstance(loop, (cst.For, cst.While))
        if not takes_batches(facts, loop):
            continue
        for n in walk(loop.body):
            found = added(n) if is_one_more(n) else None
            counts = [found[0]] if found is not None else list(_renewed(facts, n))
            for count in counts if counts and innermost(facts, n) is loop and not _at_times(facts, n, loop) else ():
                yield from held(facts, count)
        if (number := number_of(facts, loop) or position_of(facts, loop)) is not None:
            yield from held(facts, number)


def _renewed(facts: Facts, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what goes up by 1 in the new object of ``node``: ``state = replace(state, step=state.step + 1)``."""
    made = node.value if isinstance(node, cst.Assign) else None
    if isinstance(made, cst.Call) and (
        calls_method(made, "_replace") or facts.script.name_of(made.func) == "dataclasses.replace"
    ):
        for arg in made.args:
            match arg.value:
                case cst.BinaryOperation(left=cst.Attribute(attr=cst.Name(name)) as count, operator=cst.Add()):
                    if arg.keyword is not None and arg.keyword.value == name and is_one(arg.value.right):
                        yield count


def held(facts: ScriptFacts, count: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield where ``count`` is known, and what it is called there: ``step``, ``state["step"]``, ``checkpoint.step``.

    That is the function, or the module, to which its first name belongs, and what makes the object that holds it, by
    whatever name; of ``self.step`` it is the class.
    """
    owner = count.value if isinstance(count, (cst.Attribute, cst.Subscript)) else None
    classes = facts.flow.classes(owner) if owner is not None and isinstance(count, cst.Attribute) else []
    if classes:
        yield from ((cls, count.attr.value) for cls in classes)  # type: ignore[attr-defined]
        return
    first, name = count, count_name(facts, count)
    while isinstance(first, (cst.Attribute, cst.Subscript)):
        first = first.value
    if not isinstance(first, cst.Name) or not name:
        return
    if (scope := facts.script.scope_of(first)) is not None:
        yield scope.node, name
        if owner is first:
            yield from ((o.node, name.removeprefix(first.value)) for o in facts.flow.origins(first) if o.whole)


def count_name(facts: ScriptFacts, count: cst.CSTNode) -> str:
    """Return what a count is called, ``step``, ``self.step`` or ``state["step"]``; of another expression nothing."""
    index = count.slice[0].slice if isinstance(count, cst.Subscript) and dotted(count.value) else None
    keyed = isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)
    return facts.script.code(count) if keyed else dotted(count)


def _at_times(facts: Facts, node: cst.CSTNode, loop: cst.CSTNode) -> bool:
    """Tell whether ``node`` runs in some iterations of ``loop`` alone, beside its updates, as where it counts hits."""
    above = [up for up in facts.script.above(node) if facts.script.inside(up, loop)]
    if any(isinstance(up, cst.ExceptHandler) and not _updates(facts, up) for up in above):
        return True
    tests = [up for up in above if isinstance(up, cst.If) and dotted(up.test) != "self.training"]
    return any(not _updates(facts, up) and _varies(facts, up.test, loop) for up in tests)


def _varies(facts: Facts, test: cst.BaseExpression, loop: cst.CSTNode) -> bool:
    """Tell whether ``test`` may differ between iterations of ``loop``: not so one of the epoch's number."""
    if any(isinstance(n, (cst.Call, cst.Attribute, cst.Subscript)) for n in walk(test)):
        return True
    return any(
        facts.script.inside(b.node, loop) or b.node is loop
        for n in walk(test)
        if isinstance(n, cst.Name)
        for b in facts.script.bindings_of(n)
    )


def _sometimes(facts: Facts, node: cst.CSTNode, depth: int = _DEPTH) -> bool:
    """Tell whether ``node`` runs in some iterations alone of its loop, or of that in which its function is called."""
    around = innermost(facts, node)
    if around is None or _at_times(facts, node, around):
        return around is not None
    calls = facts.flow.callers(around) if depth and isinstance(around, cst.FunctionDef) else []
    return any(_sometimes(facts, call, depth - 1) for call in calls)


def _updates(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether running ``node`` may make an update."""
    bodies = facts.flow.bodies(node, drawn=True)
    return any(facts.script.inside(step.node, body) for step in facts.steps for body in bodies)


def number_of(facts: Facts, loop: cst.For | cst.While) -> cst.Name | None:
    """Return ``i`` in ``for i, batch in enumerate(loader, 1)``, also behind a progress bar, or zipped with a range."""
    over = loop.iter if isinstance(loop, cst.For) and isinstance(loop.target, cst.Tuple) else None
    while isinstance(over, cst.Call) and dotted(over.func).rsplit(".", 1)[-1] in BARS and over.args:
        over = over.args[0].value
    at = _numbers(facts, over) if isinstance(over, cst.Call) else None
    named = loop.target.elements[at].value if at is not None else None  # type: ignore[union-attr]
    return named if isinstance(named, cst.Name) else None


def position_of(facts: Facts, loop: cst.For | cst.While) -> cst.Name | None:
    """Return ``k`` in ``for k in range(0, len(x), 8):`` where local positions have a name of their own."""
    named = isinstance(loop, cst.For) and isinstance(loop.target, cst.Name)
    sharded = named and any(feed.how == "positions" for feed in feeds_of(facts, loop))  # type: ignore[arg-type]
    return loop.target if sharded else None  # type: ignore[union-attr, return-value]


def _numbers(facts: Facts, over: cst.Call) -> int | None:
    """Return which of the values that ``over`` goes through together is their number; None if there is none."""
    name = facts.script.name_of(over.func)
    if name == "builtins.zip":
        parts = [n.value for n in over.args]
        return next(
            (
                k
                for k, n in enumerate(parts)
                if isinstance(n, cst.Call) and dotted(n.func).rsplit(".", 1)[-1] in ("range", "xrange", "count")
            ),
            None,
        )
    if name == "builtins.enumerate" or numbered(over):
        return 0 if all(isinstance(a.value, cst.Integer) for a in over.args[1:]) else None
    return None


def feeds_of(facts: Facts, loop: cst.For) -> list[Feed]:
    """Return the feeds of which ``loop`` takes its batches."""
    parts = spelled(facts.script, loop.iter)
    iterated = [n for part in parts for n in walk(part) if isinstance(n, (cst.Name, cst.Attribute, cst.Call))]
    return [
        feed
        for feed in getattr(facts, "feeds", ())
        if facts.script.inside(feed.node, loop) or any(feed.node in facts.flow.through(n) for n in iterated)
    ]


def spelled(script: Script, iterated: cst.BaseExpression) -> tuple[cst.BaseExpression, ...]:
    """Return what a loop runs over, and what the names in it are bound to: ``pairs = zip(range(10), loader)``."""
    names = [n for n in walk(iterated) if isinstance(n, cst.Name)]
    bound = [b.value for n in names for b in reaching(script, n) or script.bindings_of(n) if b.how == "assign"]
    return (iterated, *(value for value in bound if value is not None))


def runs_inside(facts: ScriptFacts, body: cst.CSTNode) -> bool:
    """Tell whether running ``body`` runs another training loop: then its iterations are epochs, not batches."""
    return any(facts.script.inside(loop, b) for loop in facts.loops for b in facts.flow.bodies(body, drawn=True))


def takes_batches(facts: Facts, loop: cst.For | cst.While) -> bool:
    """Tell whether each iteration of ``loop`` is a step, be it one in which a critic has several updates of its own."""
    if not runs_inside(facts, loop.body):
        return True
    inner = [n for n in facts.loops if n is not loop and facts.script.inside(n, loop.body)]
    fed = [feed.node for feed in getattr(facts, "feeds", ())]
    parts = (isinstance(n, cst.For) and nested.around(facts.kinds, n) is loop for n in inner)
    if inner and all(parts) and not any(facts.script.inside(f, n) for f in fed for n in inner):
        return True  # they go through the parts of its batch
    if not any(innermost(facts, step.node) is loop for step in facts.steps):
        return False
    return any(known is loop for known, _ in facts.counted) or (
        isinstance(loop, cst.For)
        and any(
            facts.script.inside(feed.node, loop.iter) or not facts.script.inside(feed.node, loop)
            for feed in feeds_of(facts, loop)
        )
    )


def innermost(facts: Facts, node: cst.CSTNode) -> cst.CSTNode | None:
    """Return the innermost loop or function around ``node``."""
    return next((u for u in facts.script.above(node) if isinstance(u, (cst.For, cst.While, cst.FunctionDef))), None)


def each_update(
    facts: Facts,
    node: cst.CSTNode,
    depth: int = _DEPTH,
    which: Callable[[Iterable[bool]], bool] = all,
    often: bool = False,
) -> bool:
    """Tell whether ``node`` runs once with every batch: in the loop over them, or in a function called there.

    Of the calls of the function ``all`` are there, or, for ``any``, one is. ``often``: it may run more than once.
    """
    around = innermost(facts, node)
    while isinstance(around, cst.For) and (
        facts.flow.runs_each(around)  # for handler in handlers: handler(step)
        or (often and around not in facts.loops)  # for name, part in losses.items(): part *= weights[name](step)
    ):
        around = innermost(facts, around)
    if isinstance(around, (cst.For, cst.While)):
        return around in facts.loops and takes_batches(facts, around)
    calls = callers(facts, around) if around is not None and depth else []
    return bool(calls) and which(each_update(facts, call, depth - 1, which, often) for call in calls)


def callers(facts: ScriptFacts, function: cst.CSTNode) -> list[cst.Call]:
    """Return the calls that run ``function``; of a module's ``forward`` those of the module, too."""
    calls = facts.flow.callers(function)
    owner = facts.script.class_of(function)
    if not isinstance(function, cst.FunctionDef) or function.name.value != "forward" or owner is None:
        return calls
    made = [c for c in facts.kinds.module_calls if owner in facts.flow.classes(c.func)]
    return list(dict.fromkeys((*calls, *made)))


def attributes(facts: Facts) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the classes and attributes of what goes up by 1 with every update: ``self.done += 1``."""
    for (owner, name), bindings in facts.script.attributes.items():
        adds = [b.node for b in bindings if is_one_more(b.node)]
        if adds and all(_with_each_update(facts, n) for n in adds):
            yield owner, name


def passes(facts: Facts) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the classes and attributes of what goes up by 1 with every update, and with other batches, too.

    ``self.done += 1`` in the ``forward`` of a model that is also evaluated.
    """
    for (owner, name), bindings in facts.script.attributes.items():
        adds = [b.node for b in bindings if is_one_more(b.node)]
        some = [n for n in adds if each_update(facts, n, which=any) and not _with_each_update(facts, n)]
        if some and not any(_sometimes(facts, n) for n in some):
            yield owner, name


def _with_each_update(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` runs once with every update: in the training loop, or below ``if self.training:``."""
    trains = any(isinstance(up, cst.If) and dotted(up.test) == "self.training" for up in facts.script.above(node))
    return each_update(facts, node, which=any if trains else all) and not _sometimes(facts, node)


def variables(facts: Facts) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what TensorFlow counts up in a variable with every update: ``done.assign_add(1)``."""
    for call in facts.script.calls:
        if calls_method(call, "assign_add") and len(call.args) == 1:
            one, owner = call.args[0].value, call.func.value
            if is_one(one) and each_update(facts, call):
                yield from held(facts, owner)


def is_one_more(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` adds 1: ``step += 1``, ``step = step + 1``."""
    found = added(node)
    return found is not None and is_one(found[1])


def is_one(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is written as 1, or 1.0."""
    return isinstance(node, (cst.Integer, cst.Float)) and node.evaluated_value == 1


def this_included(script: Script, read: cst.BaseExpression) -> cst.BaseExpression:
    """Return the steps so far, this one included, where ``read`` is those before it: ``step + 1``; else ``read``.

    Of n serial steps that one of n ranks stands for that is the last, and the bound of a warm-up is reached. Not so of
    ``rate / (1 + step)``, which begins with ``rate``, nor beside the steps before: ``(1 + step) / (10 + step)``.
    """
    top: cst.CSTNode = read
    while isinstance(up := script.parents[top], (cst.BaseExpression, cst.Arg)):
        top = up
    alike = [n for n in walk(top) if type(n) is type(read) and n.deep_equals(read)]
    return script.parents[read] if all(_is_last(script, n) for n in alike) else read  # type: ignore[return-value]


def _is_last(script: Script, read: cst.CSTNode) -> bool:
    """Tell whether 1 is added to ``read``, and nothing divided by that."""
    below = more = script.parents[read]
    if not isinstance(more, cst.BinaryOperation) or not isinstance(more.operator, cst.Add):
        return False
    while isinstance(up := script.parents[below], (cst.BinaryOperation, cst.UnaryOperation)):
        how = up.operator if isinstance(up, cst.BinaryOperation) and up.right is below else None
        if isinstance(how, cst.Divide):
            return False
        if isinstance(how, cst.Power):
            break  # 1 - 0.9 ** (step + 1)
        below = up
    return is_one(more.left if more.right is read else more.right)


def tells(facts: Facts, known: Collection[tuple[cst.CSTNode, str]]) -> Tells:
    """Return what tells whether a node reads one of the counts that are ``known``."""

    picks = {n for feed in facts.feeds if feed.how == "positions" for n in feed.picks}
    ends = [n for end in facts.script.of(cst.Return) for n in walk(end) if isinstance(n, cst.Name)]
    returned = {n for n in ends if any(place in known for place in held(facts, n))}

    @cache
    def reads(node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)):
            mine = node not in picks and any(place in known for place in held(facts, node))
            mine = mine and not _is_position(facts, node)
            return mine or (node not in picks and _is_given(facts, node, returned))
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):  # epoch * len(loader) + i
            sides = (node.left, node.right)
            return any(map(reads, sides)) and any(batches_before(facts, side) is not None for side in sides)
        return False

    return reads


def _is_position(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is the serial number of a batch in a loop over a share of them, whatever another counts."""
    bound = reaching(facts.script, node) if isinstance(node, cst.Name) else None
    loops = [b.node for b in bound or () if isinstance(b.node, cst.For)]
    sharded = [loop for loop in loops if any(feed.how == "indices" for feed in feeds_of(facts, loop))]
    return bool(loops) and len(sharded) == len(bound or ())


def _is_given(facts: Facts, node: cst.CSTNode, returned: Collection[cst.CSTNode]) -> bool:
    """Tell whether ``node`` is given one of the names ``returned`` by functions: ``step, best = train(step)``."""
    if not returned or not isinstance(node, cst.Name):
        return False
    called = any(isinstance(b.value, cst.Call) for b in facts.script.bindings_of(node))
    return called and any(n in returned for n in facts.flow.through(node))


def batches_before(facts: ScriptFacts, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the batches of an epoch in ``node``, where that counts those of all epochs before: ``epoch * batches``."""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
        return None
    around = {name for up in facts.script.above(node) if isinstance(up, cst.For) for name in names_in(up.target)}
    for epoch, batches in ((node.left, node.right), (node.right, node.left)):
        names = {n.value for n in walk(epoch) if isinstance(n, cst.Name)}
        counts = any("epoch" in name.lower() for name in names) or bool(names & around)
        if counts and not isinstance(batches, (cst.Integer, cst.Float)):
            return batches
    return None
