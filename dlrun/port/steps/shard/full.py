"""Part of step "shard": full batches, cut before the loop, and losses that are sums over their samples."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, Feed
from dlrun.port.facts.numbers.scalars import Scalars
from dlrun.port.facts.taint import Taint, without_gradients
from dlrun.port.facts.updates.reductions import Reductions
from dlrun.port.facts.updates.session import SessionGradients, runs_session
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import dotted, walk
from dlrun.port.steps.metrics import weighted

_DEPTH = 20


def arrays(facts: Facts, feed: Feed) -> Iterator[Edit | Doubt]:
    """Cut what each step takes whole: arrays that are taken side by side by one call, which compares their lengths.

    Before:
        for step in range(100):
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()

    After:
        x, y = dl.shard((x, y), batch="global")  # this rank's samples
        for step in range(100):
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
    """
    how = feed.gathered
    assert how is not None
    equal = how.means or not how.sums
    if feed.how == "array":
        why = "each rank takes every n-th sample"
        yield Edit(
            feed.node,
            why,
            lambda data: expression("torch/shard_array", {"data": data}, dl=facts.alias, drawn=feed.drawn, equal=equal),
        )
    else:
        yield from _cut(facts, feed, how, equal)
    if feed is next(f for f in facts.feeds if f.gathered is how):
        yield from judged(facts, feed, how)


def _cut(facts: Facts, feed: Feed, how: Reductions, equal: bool) -> Iterator[Edit | Doubt]:
    if not feed.names:  # what this loop takes is cut before another
        return
    own = {dotted(pick) for f in facts.feeds if f.gathered is how for pick in f.picks}
    groups = [[(_own(n) if n in own else n, n) for n in group] for group in how.together.groups(feed.names)]
    lines = statements("torch/shard_arrays", dl=facts.alias, groups=groups, drawn=feed.drawn, equal=equal)
    why = f"{', '.join(feed.names)}: each rank takes every n-th sample"
    if feed.before or isinstance(feed.node, (cst.For, cst.While)):
        yield Edit(feed.node, why, before=lines)
    else:
        yield Edit(facts.script.line_of(feed.node), why, after=lines)
    for pick in feed.picks:
        yield Edit(
            pick,
            "this rank's samples: elsewhere they stay whole",
            lambda name: cst.parse_expression(_own(dotted(name))),
        )
    mine = groups[0][0][0]
    for size in feed.sizes:
        yield Edit(
            size,
            "the shape is that of this rank's samples",
            lambda name: cst.Call(cst.Name("len"), [cst.Arg(cst.Name(mine))]),
        )
    if isinstance(feed.node, cst.Assign) and own and not feed.picks:  # drawn anew at times
        yield Edit(
            feed.node.value,
            "the samples of rank 0, of which each rank takes its share",
            lambda value: expression("torch/same", {"value": value}, dl=facts.alias),
        )
    else:
        yield Doubt(
            feed.node,
            f"{', '.join(feed.names)}: taken to hold one sample per entry of axis 0",
            "medium",
            name="sample-axis",
        )
    yield from _beside(facts, feed)


def _beside(facts: Facts, feed: Feed) -> Iterator[Doubt]:
    """Yield doubts where what the last step made of a rank's samples meets all of them: ``plt.plot(x, prediction)``."""
    script, picks = facts.script, set(feed.picks)
    loop = next((up for pick in feed.picks for up in script.above(pick) if up in facts.loops), None)
    if loop is None or not isinstance(facts, Facts):
        return
    scalar, home = Scalars(facts.kinds), script.function_of(loop)
    for node in script.nodes:
        sides = (
            [a.value for a in node.args]
            if isinstance(node, cst.Call)
            else ([node.left, node.right] if isinstance(node, cst.BinaryOperation) else [])
        )
        if len(sides) < 2 or script.function_of(node) is not home or script.order[node] < script.order[loop]:
            continue
        shown = isinstance(node, cst.Call) and script.name_of(node.func) == "builtins.print"
        names = [{n for n in walk(side) if isinstance(n, (cst.Name, cst.Attribute))} for side in sides]
        whole = [n for side in names for n in side if dotted(n) in feed.names and n not in picks]
        made = [
            n
            for side in names
            if side.isdisjoint(whole)
            for n in side
            if isinstance(n, cst.Name)
            and facts.local(n)
            and not scalar(n)
            and (bound := script.bindings_of(n))
            and all(script.inside(b.node, loop) for b in bound)
        ]
        if whole and made and not shown and not script.inside(node, loop):
            yield Doubt(
                node,
                f"{made[0].value} is of this rank's samples, and meets all of them in {dotted(whole[0])}",
                "high",
                f"compute {made[0].value} of all samples before this line",
                name="local-number",
            )
            return


def _own(name: str) -> str:
    """Return what a rank's share of ``name`` is called: ``own_x``, ``self.own_x``."""
    owner, dot, last = name.rpartition(".")
    return f"{owner}{dot}own_{last}"


def judged(facts: Facts, feed: Feed, how: Reductions) -> Iterator[Edit | Doubt]:
    """Yield the sums that come to stand for those over all samples, and doubts about what is no mean and no sum."""
    yield from _sums(facts, how)
    for node in how.odd:
        yield Doubt(
            node,
            "this is no mean or sum over the samples: the ranks' mean of it is not its value for all of them",
            "high",
            "let the loss be a mean over the samples, or train on one rank",
            name="loss-scale",
        )
    for node in how.weighted:
        yield Doubt(
            node,
            "samples count by the weights of their classes: a rank whose share weighs less counts alike",
            "medium",
            "sum the loss, and divide by the sum of all samples' weights",
            name="loss-scale",
        )
    if not how.gathered:
        yield Doubt(
            feed.node,
            "the loss is taken to be a mean over the samples: a sum would be 1/n of the serial one",
            "medium",
            f"{facts.alias}.partial_sum(loss) where it is a sum",
            name="loss-scale",
        )


def partial_sums(facts: Facts) -> set[cst.CSTNode]:
    """Return the losses, or calls for them, that become n times this rank's sum."""
    if weighs_batches(facts):
        return {found.node for found in batch_sums(facts) if isinstance(found, Edit)}
    gathered = {f.gathered for f in facts.feeds if f.gathered is not None}
    return {found.node for how in gathered for found in _sums(facts, how) if isinstance(found, Edit)}


def weighs_batches(facts: Facts) -> bool:
    """Tell whether gradients of PyTorch count by a rank's part of each global batch."""
    return facts.options.batch == "global" and not facts.full_batch and not hasattr(facts, "style")


def batch_sums(facts: Facts) -> Iterator[Edit | Doubt]:
    """Yield what makes losses that are sums over a rank's part of a global batch stand for those over the batch.

    Before:
        loss = vae_loss(model(x), x)  # which returns F.binary_cross_entropy(..., reduction="sum") + ...

    After:
        loss = dl.partial_sum(vae_loss(model(x), x))
    """
    how, seen = weighted.of_batches(facts), set[cst.CSTNode]()
    for loss in weighted.losses(facts):
        for value in _made_in_training(facts, loss):
            level = how.of(value)
            if level.sums and value not in seen:
                seen.add(value)
                wholes = [value] if level.kind == "mean" and _is_sum(facts, how, value) else level.sums
                for whole in dict.fromkeys(wholes):
                    if whole is value or _trains_only(facts, whole):
                        yield Edit(
                            whole,
                            "a sum over this rank's part of the batch: n times it is, in the mean, the sum over all",
                            lambda value: expression("torch/partial_sum", {"value": value}, dl=facts.alias),
                        )
                    else:
                        yield _unscaled(facts, whole)
    for node in how.unsure[:1]:
        yield Doubt(
            node,
            "this adds up one loss for each of many: of samples, it is 1/n of the serial one; of heads, it is right",
            "high",
            f"{facts.alias}.partial_sum(...) of it if it goes over samples",
            name="loss-scale",
        )


def _is_sum(facts: Facts, how: Reductions, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether ``node`` is made of sums over the batch alone: a penalty beside them must not count n times."""
    if depth > _DEPTH:
        return False
    inner: list[cst.BaseExpression] = []
    match node:
        case _ if node in how.of(node).sums:
            return True
        case cst.BinaryOperation(operator=cst.Add() | cst.Subtract()):
            inner = [node.left, node.right]
        case cst.BinaryOperation(operator=cst.Multiply() | cst.Divide()):
            inner = [side for side in (node.left, node.right) if how.of(side).kind == "mean"]
        case cst.UnaryOperation():
            inner = [node.expression]
        case cst.Name():
            inner = [value for value in _made_in_training(facts, node) if value is not node]
        case cst.Call():
            inner = [r for target in facts.flow.targets(node) for r in facts.flow.returns(target)]
    return bool(inner) and all(_is_sum(facts, how, part, depth + 1) for part in inner)


def _unscaled(facts: Facts, total: cst.BaseExpression) -> Doubt:
    """Return the doubt about a sum beside means, in a function that evaluates, too."""
    return Doubt(
        total,
        "this part of a loss is a sum over the batch: the ranks' mean of it is 1/n of the serial one",
        "high",
        f"{facts.alias}.partial_sum(...) of it where it trains, or a mean",
        name="loss-scale",
    )


def _made_in_training(facts: Facts, loss: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the expressions that ``loss`` stands for: those that are added up, but for what is made of itself."""
    bound = facts.script.bindings_of(loss) if isinstance(loss, cst.Name) else []
    values = []
    for binding in bound:
        added = isinstance(binding.node, cst.AugAssign) and isinstance(binding.node.operator, cst.AddAssign)
        if binding.how != "assign" or binding.path or binding.value is None:
            return [loss]
        itself = any(isinstance(n, cst.Name) and n.value == binding.name for n in walk(binding.value))
        if not itself and (added or not isinstance(binding.node, cst.AugAssign)):
            values.append(binding.value)
    return values or [loss]


def _sums(facts: Facts, how: Reductions) -> Iterator[Edit | Doubt]:
    """Yield what makes sums over a rank's samples stand for those over all.

    Before:
        loss = (model(x) - y).pow(2).sum()

    After:
        loss = dl.partial_sum((model(x) - y).pow(2).sum())
    """
    judged = {node for f in facts.feeds[: _at(facts, how)] if f.gathered is not None for node in f.gathered.sums}
    for node in (n for n in how.sums if n not in judged):
        places = [node] if _trains_only(facts, node) else _calls_that_train(facts, node)
        if not places:
            raise DlrunError(
                f"{facts.script.place(node)}: this loss is a sum, here and where it evaluates: the mean over n ranks "
                "would be 1/n of the serial gradient. Nothing was written.",
                "Let it be a mean over the samples, or return it alone from a function that the training loop calls.",
            )
        for place in places:
            yield Edit(
                place,
                "a sum over this rank's samples: n times it is, in the mean, the sum over all",
                lambda value: expression("torch/partial_sum", {"value": value}, dl=facts.alias),
            )
    if how.sums and _fed_elsewhere(facts, how):
        yield Doubt(
            how.sums[0],
            "runs that evaluate this sum get n times that of the data they feed",
            "medium",
            "divide what they return by the number of ranks",
            name="loss-scale",
        )
    if how.sums and how.means:
        yield Doubt(
            how.sums[0],
            "a loss of sums and means: exact where n divides the number of samples; elsewhere "
            "some are repeated for the means, and the sums count them up to n times",
            "high",
            "let all be means, or launch n that divides the samples",
            name="loss-scale",
        )


def _fed_elsewhere(facts: Facts, how: Reductions) -> bool:
    """Tell whether runs of a session evaluate a sum with what is not cut."""
    gradients, summed = getattr(facts, "gradients", None), Taint(facts.script, facts.kinds, how.sums)
    known = {*facts.runs, *(step.node for step in facts.steps)}
    others = [c for c in facts.script.calls if c not in known and runs_session(c) and c.args]
    if not isinstance(gradients, SessionGradients):
        return False
    cut = {f.node for f in facts.feeds if f.how == "array"}
    for run in facts.runs if cut else ():  # of a batch of its own, which nothing cuts
        fed = [value for _, value in gradients.fed_pairs(run)]
        others += [run] if fed and run.args and cut.isdisjoint(fed) else []
    return any(summed(run.args[0].value) for run in others)


def _at(facts: Facts, how: Reductions) -> int:
    return next(i for i, f in enumerate(facts.feeds) if f.gathered is how)


def _calls_that_train(facts: Facts, total: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the calls in training loops of the function that returns ``total`` and nothing else."""
    function = facts.script.function_of(total)
    if not isinstance(function, cst.FunctionDef):
        return []
    for value in facts.flow.returns(function):
        bound = facts.script.bindings_of(value) if isinstance(value, cst.Name) else []
        if value is not total and [b.value for b in bound] != [total]:
            return []
    return [call for call in facts.flow.callers(function) if _trains_only(facts, call)]


def _trains_only(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` runs in training loops alone, where gradients are taken."""
    if without_gradients(facts.script, node):
        return False  # an evaluation between two epochs
    graph = getattr(facts, "style", "") == "session"  # what is built is evaluated by runs
    if graph or any(up in facts.loops for up in facts.script.above(node)):
        return True
    if any(node is step.node for step in facts.steps if step.closure is not None):
        return True
    function = facts.script.function_of(node)
    calls = facts.flow.callers(function) if isinstance(function, cst.FunctionDef) else []
    return bool(calls) and all(_trains_only(facts, call) for call in calls if call is not node)
