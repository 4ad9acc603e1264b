"""Part of step "metrics": numbers of earlier steps that weigh the terms of a loss."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.computed import reaching
from dlrun.port.facts.taint import Taint
from dlrun.port.passes.apart import chosen
from dlrun.port.passes.counters import runs_inside
from dlrun.port.passes.metrics import Metrics
from dlrun.port.passes.moved import is_same, tensor_of
from dlrun.port.passes.own_states import runs_in
from dlrun.port.passes.queues import fills, of_its_own
from dlrun.port.program.script import dotted, walk

_KEEPS = ("append", "extend", "appendleft")


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Average what balances the terms of later losses, or each rank would train with weights of its own.

    Before:
        model, seen = torch.nn.Linear(2, 1), 1.0
        for x, y in loader:
            error = (model(x) - y).pow(2).mean()
            seen = 0.9 * seen + 0.1 * error.item()
            (error / seen + model.bias.abs().mean()).backward()
            opt.step()

    After:
        model, seen = torch.nn.Linear(2, 1), 1.0
        for x, y in loader:
            error = (model(x) - y).pow(2).mean()
            seen = dl.average(0.9 * seen + 0.1 * error.item())
            (error / seen + model.bias.abs().mean()).backward()
            opt.step()
    """
    if metrics.facts.episodes:
        return  # what is played between two updates, such as rewards and values, is a rank's own
    kept = [k for k in _kept(metrics) if metrics.plain(k[2]) and not metrics.graded(k[2])]
    left = []
    for node, box, value in sorted(kept, key=lambda k: len(_loops(metrics, k[0]))):
        if not metrics.scalar(value) or not metrics.all_ranks(node):
            left.append((node, box, value))
        elif metrics.plain(value) and metrics.leads_back(value):
            yield Edit(value, "weighs later losses: the same on all ranks", metrics.wrapped)
            metrics.cut([value])
    if metrics.facts.episodes:
        return  # what a rank's own environment is in
    samples = list(chosen(metrics.facts))
    for node, box, value in left:  # of which no number that is averaged by now is made
        if any(metrics.script.inside(made, node) for made in samples) or _deals(metrics, value):
            continue
        if metrics.plain(value) and metrics.leads_back(value, samples):
            name = metrics.script.code(box)
            if isinstance(box, cst.Subscript) and metrics.facts.unequal(box.slice[0]):
                continue  # entries of its own samples: own_states tells
            if fills(node):
                yield of_its_own(node, dotted(tensor_of(box) or box))
                continue
            mean = f"{metrics.facts.alias}.average({metrics.script.code(value)})"
            write = mean if isinstance(node, cst.Call) else f"{name} = {metrics.facts.alias}.average({name})"
            yield Doubt(node, f"{name}, which weighs later losses, is made of this rank's own samples", "high",
                        f"{write} where all ranks come to it")  # fmt: skip


def fed(metrics: Metrics) -> Iterator[Edit]:
    """Yield the means of what a session fetched and a script makes numbers of, which later runs feed into the loss."""
    given = [value for _, value in getattr(metrics.facts, "fed", ())]
    if not given or metrics.facts.episodes:
        return
    for node, _, value in _kept(metrics):
        if not metrics.unequal(value) or not metrics.scalar(value) or not metrics.all_ranks(node):
            continue
        follows = Taint(metrics.script, metrics.facts.kinds, [value], metrics.trained.cuts)
        if any(follows(n) for n in given):
            yield Edit(value, "fed into later losses: the same on all ranks", metrics.wrapped)
            metrics.cut([value])


def _kept(metrics: Metrics) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, cst.BaseExpression]]:
    """Yield what training keeps of one step for later ones: the line, where to, and the value."""
    for node in metrics.script.nodes:
        match node:
            case cst.Assign(targets=[cst.AssignTarget(target=box)], value=value):
                pass
            case cst.AugAssign(target=box, value=value):
                pass
            case cst.Call(func=cst.Attribute(value=box, attr=cst.Name(how)), args=[cst.Arg(value=value)]):
                if how not in _KEEPS:
                    continue
            case _:
                continue
        state = tensor_of(box)
        if state is not None and not _is_handed_on(metrics, box) and _is_carried(metrics, node, state, value):
            yield node, box, value


def _deals(metrics: Metrics, value: cst.BaseExpression) -> bool:
    """Tell whether ``value`` is a loader or a sampler, which only goes by weights: of these others tell."""
    return isinstance(value, cst.Call) and metrics.script.name_of(value.func).startswith("torch.utils.data.")


def _is_handed_on(metrics: Metrics, box: cst.BaseExpression) -> bool:
    """Tell whether ``box`` is the hidden state of a rank's own stretch: ``state = detach(state)``."""
    made = (n.targets[0].target for n in metrics.facts.states if isinstance(n, cst.Assign))
    return any(is_same(metrics.facts, n, box) for target in made for n in walk(target) if isinstance(n, cst.Name))


def _is_carried(metrics: Metrics, node: cst.CSTNode, box: cst.BaseExpression, value: cst.BaseExpression) -> bool:
    """Tell whether what ``node`` puts into ``box`` is there in later steps, too."""
    facts, script = metrics.facts, metrics.script
    loop = next(iter(_loops(metrics, node)), None)
    if loop is None and (isinstance(box, cst.Name) or not runs_in(facts, node)):
        return False  # of one call of a function
    if isinstance(loop, (cst.For, cst.While)) and runs_inside(facts, loop.body):
        return not _ends_inside(metrics, node, box, loop)  # else through an epoch
    around = loop or script.function_of(node)
    places = [n for n in script.of(type(box)) if is_same(facts, n, box) and n is not box]
    if not any(not script.inside(n, around) for n in places):
        return False
    first = min((n for n in (box, *places) if script.inside(n, around)), key=lambda n: script.order[n])
    line = script.statement_of(first)
    if line is loop:
        return False  # what it takes of each batch
    sure = isinstance(line, cst.Assign) and line in script.block_of(around)
    anew = sure and not any(is_same(facts, n, box) for n in walk(line.value))  # type: ignore[attr-defined]
    return not anew or loop is None


def _ends_inside(metrics: Metrics, node: cst.CSTNode, box: cst.BaseExpression, loop: cst.CSTNode) -> bool:
    """Tell whether nothing outside of a loop in ``loop`` sees what ``node`` calls ``box`` there: of an evaluation."""
    script = metrics.script
    inner = next(up for up in script.above(node) if isinstance(up, (cst.For, cst.While)))
    if inner is loop or not isinstance(box, cst.Name) or not isinstance(node, cst.Assign):
        return False
    uses = [n for n in script.of(cst.Name) if is_same(metrics.facts, n, box) and not script.inside(n, inner)]
    uses = [n for n in uses if not isinstance(script.parents[n], cst.AssignTarget)]
    return not any(b.node is node for n in uses for b in reaching(script, n, script.bindings_of(n)))


def _loops(metrics: Metrics, node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the training loops around ``node``, innermost first."""
    return [up for up in metrics.script.above(node) if up in metrics.facts.loops]
