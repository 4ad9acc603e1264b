"""Part of step "metrics": tests in a training loop that leave updates out, as of a batch that is too short."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, Feed, Step
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.insert import expression
from dlrun.port.program.script import dotted, names_in, walk
from dlrun.port.steps.counts.counters import feeds_of, innermost
from dlrun.port.steps.metrics.sizes import asks_place, asks_size, uneven

_SAME = (cst.Equal, cst.NotEqual)
_SIZES = ("shape", "ndim", "dtype", "device", "size", "dim", "numel", "is_cuda", "requires_grad")


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Let the ranks leave out a batch together; yield a doubt where the samples themselves decide.

    Before:
        for i in range(0, len(x), 8):
            batch = x[i : i + 8]
            if len(batch) < 2:
                continue
            model(batch).mean().backward()
            opt.step()

    After:
        for i in range(0, len(x), 8):
            batch = x[i : i + 8]
            if dl.total(bool(len(batch) < 2)) > 0:
                continue
            model(batch).mean().backward()
            opt.step()
    """
    yield from _short(facts)
    yield from list(_skips(facts))[:1]


@dataclass(frozen=True)
class Guard:
    """A test that may leave out the update ``step`` of one batch: in the ``loop`` over them, or in a function called
    there.

    ``out`` tells that the update is left out where the test holds; ``names`` hold samples there. Where it ``ends`` the
    loop, all later ones are left out, too.
    """

    step: Step
    loop: cst.For | cst.While
    node: cst.If
    out: bool
    names: frozenset[str]
    ends: bool = False


def _guards(facts: Facts) -> Iterator[Guard]:
    """Yield the tests that may leave out an update, from the loop over the batches inwards."""
    script = facts.script
    for step in facts.steps:
        for frames in _ways(facts, [step.node]) if step.closure is None else ():
            loop = innermost(facts, frames[0])
            assert isinstance(loop, (cst.For, cst.While))
            home: cst.For | cst.While | cst.FunctionDef = loop
            names = _of_batch(facts, loop)
            for at, frame in enumerate(frames):
                for node in (n for n in walk(home.body) if isinstance(n, cst.If) and innermost(facts, n) is home):
                    leaves = cst.Continue if home is loop else cst.Return
                    left = any(isinstance(n, leaves) and innermost(facts, n) is home for n in walk(node.body))
                    ends = any(isinstance(n, cst.Break) and innermost(facts, n) is loop for n in walk(node.body))
                    within = script.inside(frame, node)
                    if home is loop and isinstance(loop, cst.While) and _counts_updates(facts, loop, node, within):
                        continue
                    if within or ((left or ends) and script.order[node] < script.order[frame]):
                        out = not script.inside(frame, node.body)
                        yield Guard(step, loop, node, out, frozenset(names), ends and not left and not within)
                if at + 1 < len(frames):
                    assert isinstance(frame, cst.Call)
                    home = script.function_of(frames[at + 1])  # type: ignore[assignment]
                    names = _handed(facts, frame, home, names)  # type: ignore[arg-type]


def _counts_updates(facts: Facts, loop: cst.While, node: cst.If, within: bool) -> bool:
    """Tell whether the iterations that ``node`` keeps from updating do not bring ``loop`` nearer to its end.

    Where something is sharded, the ranks come to the end of their shares, and begin anew, at different times.
    """
    if facts.feeds:
        return False
    script = facts.script
    breaks = [n for n in walk(loop.body) if isinstance(n, cst.Break) and innermost(facts, n) is loop]
    ends = {
        name
        for n in breaks
        for up in script.above(n)
        if isinstance(up, cst.If) and script.inside(up, loop)
        for name in names_in(up.test)
    } | names_in(loop.test)
    changes = [n for n in walk(loop.body) if isinstance(n, (cst.Assign, cst.AugAssign)) and ends & _set_by(n)]
    after = [script.inside(n, node) if within else script.order[n] > script.order[node] for n in changes]
    return bool(after) and all(after)


def _set_by(node: cst.Assign | cst.AugAssign) -> set[str]:
    """Return the names, and those of attributes, that ``node`` gives a value."""
    targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
    return {name for target in targets for name in names_in(target)} - {"self"}


def _ways(facts: Facts, frames: list[cst.CSTNode], depth: int = 2) -> Iterator[list[cst.CSTNode]]:
    """Yield ``frames``, the last of them an update, with the calls from a loop that trains down to it before them."""
    home = innermost(facts, frames[0])
    if isinstance(home, (cst.For, cst.While)) and home in facts.loops:
        yield frames
    elif isinstance(home, cst.FunctionDef) and depth:
        for call in facts.flow.callers(home):
            yield from _ways(facts, [call, *frames], depth - 1)


def _handed(facts: Facts, call: cst.Call, function: cst.FunctionDef, names: set[str]) -> set[str]:
    """Return the names in ``function`` that hold samples, where ``names`` do at its ``call``."""
    found: set[str] = set()
    for param in function.params.params:
        given = facts.flow.argument(call, function, param.name.value)
        if given is not None and not facts.local(given) and _asks(facts, given, names):
            found.add(param.name.value)
    return _grown(facts, function.body, found)


def _skips(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where the samples themselves decide whether a batch makes an update."""
    for guard in _guards(facts):
        test = guard.node.test
        if guard.ends:
            continue
        if _asks(facts, test, guard.names) or _is_nothing(facts, test) or _leaves_out_long(facts, test, guard.out):
            yield Doubt(
                guard.node,
                f"local samples decide whether it updates {guard.step.what}: one that does "
                "not leaves the others waiting, or is averaged with another batch of theirs",
                "high",
                "leave such samples out of the data set, or multiply the loss by 0",
                name="may-hang",
            )


def _is_nothing(facts: Facts, test: cst.BaseExpression) -> bool:
    """Tell whether ``test`` compares what a model has made of local samples with 0: ``if loss == 0:``."""
    return any(
        isinstance(n, cst.Comparison)
        and facts.local(n.left)
        and isinstance(n.comparisons[0].operator, _SAME)
        and isinstance(n.comparisons[0].comparator, (cst.Integer, cst.Float))
        for n in walk(test)
    )


def _leaves_out_long(facts: Facts, test: cst.BaseExpression, out: bool) -> bool:
    """Tell whether ``test`` leaves out what is longer than something: no batch, but a sample, as of 50 words."""
    for n in (n for n in walk(test) if isinstance(n, cst.Comparison)):
        up = facts.script.parents[n]
        holds = out != (isinstance(up, cst.UnaryOperation) and isinstance(up.operator, cst.Not))
        large, small = n.left, n.comparisons[0].comparator
        if isinstance(n.comparisons[0].operator, (cst.LessThan, cst.LessThanEqual)):
            large, small = small, large
        elif not isinstance(n.comparisons[0].operator, (cst.GreaterThan, cst.GreaterThanEqual)):
            continue
        if asks_size(facts, large if holds else small):
            return True
    return False


def _short(facts: Facts) -> Iterator[Edit]:
    """Yield the tests for batches that are too short, or empty, where those of the ranks may differ in length."""
    for guard, differs in _by_size(facts):
        if differs:
            yield Edit(
                guard.node.test,
                "the ranks' batches may differ in length: all leave one out where one rank does",
                partial(_together, facts, guard.out),
            )


def together(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the tests for short batches that all ranks answer alike: by themselves, or by the edits of this step."""
    return (guard.node.test for guard, _ in _by_size(facts))


def _by_size(facts: Facts) -> Iterator[tuple[Guard, bool]]:
    """Yield what leaves out batches by how long they are, and whether those of the ranks may differ in that."""
    done: set[cst.CSTNode] = set()
    for guard in _guards(facts):
        test = guard.node.test
        feeds = _feeds(facts, guard.loop)
        cut = _masked(facts, guard)
        differs = cut or any(uneven(facts, feed, _is_none(test)) for feed in feeds)
        if test in done or not (feeds or differs):
            continue
        counts = asks_size(facts, test) and not _leaves_out_long(facts, test, guard.out)
        if isinstance(guard.loop, cst.For) and asks_place(facts, test, guard.loop, feeds):
            counts = True
        if counts and not _asks(facts, test, guard.names):
            done.add(test)
            yield guard, differs


def _is_none(test: cst.BaseExpression) -> bool:
    """Tell whether ``test`` asks whether there are any samples at all: ``len(x) == 0``, ``not len(x)``."""
    if isinstance(test, cst.UnaryOperation):
        return isinstance(test.operator, cst.Not) and isinstance(test.expression, cst.Call)
    number = test.comparisons[0].comparator if isinstance(test, cst.Comparison) else None
    return isinstance(number, cst.Integer) and number.evaluated_value == 0


def _feeds(facts: Facts, loop: cst.For | cst.While) -> list[Feed]:
    """Return what gives ``loop`` its batches, also where a function returns that beside others."""
    if isinstance(loop, cst.While):
        return []
    named = [n for n in walk(loop.iter) if isinstance(n, (cst.Name, cst.Attribute))]
    made = {o.node for n in named for o in facts.flow.origins(n)}
    return feeds_of(facts, loop) or [f for f in facts.feeds if isinstance(f.node, cst.Assign) and f.node.value in made]


def _together(facts: Facts, out: bool, test: cst.BaseExpression) -> cst.BaseExpression:
    """Return the test for all ranks: it leaves a batch ``out`` where it holds on one, or where it fails on one."""
    if not out and not test.lpar:
        test = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return expression("torch/any_rank" if out else "torch/every_rank", {"test": test}, dl=facts.alias)


def _masked(facts: Facts, guard: Guard) -> bool:
    """Tell whether the batch that is tested was cut down to some of its samples before: ``x = x[t < most]``."""
    body = guard.loop.body
    called = {f for call in walk(body) if isinstance(call, cst.Call) for f in facts.flow.targets(call)}
    for node in computed(facts.flow, [guard.node.test]).nodes:
        near = facts.script.inside(node, body) or facts.script.function_of(node) in called
        index = node.slice[0].slice if near and isinstance(node, cst.Subscript) else None
        if isinstance(index, cst.Index) and any(
            isinstance(n, cst.Comparison) for o in facts.flow.origins(index.value) for n in walk(o.node)
        ):
            return True
    return False


def _of_batch(facts: Facts, loop: cst.For | cst.While) -> set[str]:
    """Return the names in ``loop`` that hold samples: its targets, but for a number of the batch, and parts of them."""
    if isinstance(loop, cst.While):
        drawn = [
            n
            for n in walk(loop.body)
            if isinstance(n, cst.Assign)
            and isinstance(n.value, cst.Call)
            and facts.script.name_of(n.value.func) == "builtins.next"
        ]
        return _grown(facts, loop.body, {name for n in drawn for name in _set_by(n)})
    target: cst.BaseExpression = loop.target
    if isinstance(target, cst.Tuple) and isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "enumerate":
        target = target.elements[-1].value
    sharded = any(
        facts.script.inside(feed.node, loop.iter) or feed.node in facts.flow.through(n)
        for feed in facts.feeds
        if feed.how in ("loader", "named", "iterable")
        for n in walk(loop.iter)
        if isinstance(n, (cst.Name, cst.Attribute, cst.Call))
    )
    return _grown(facts, loop.body, names_in(target) if sharded else set())


def _grown(facts: Facts, body: cst.CSTNode, names: set[str]) -> set[str]:
    """Return ``names``, which hold samples, with those that ``body`` computes from them."""
    for n in walk(body):
        if isinstance(n, cst.Assign) and not facts.local(n.value) and _asks(facts, n.value, names):
            names |= {m.value for t in n.targets for m in walk(t.target) if isinstance(m, cst.Name)}
    return names


def _asks(facts: Facts, test: cst.BaseExpression, names: Collection[str]) -> bool:
    """Tell whether ``test`` reads the values of samples, and not only how many there are, or of which kind."""
    for n in walk(test):
        if not isinstance(n, cst.Name) or n.value not in names:
            continue
        if isinstance(attribute := facts.script.parents[n], cst.Attribute) and attribute.attr is n:
            continue
        ups = [n, *(up for up in facts.script.above(n) if facts.script.inside(up, test))]
        sizes = any(isinstance(up, cst.Attribute) and up.attr.value in _SIZES for up in ups)
        calls = [up for up in ups if isinstance(up, cst.Call)]
        kind = any(
            facts.script.name_of(c.func) in ("builtins.len", "builtins.isinstance", "torch.is_tensor") for c in calls
        )
        compared = [up for up in ups if isinstance(up, cst.Comparison)]
        known = any(
            isinstance(c.left, cst.SimpleString) or isinstance(c.comparisons[0].operator, (cst.Is, cst.IsNot))
            for c in compared
        )
        if not sizes and not kind and not known:
            return True
    return False
