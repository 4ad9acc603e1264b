"""Part of step "metrics": what a training loop counts under tests of a rank's own samples."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.lists import turned
from dlrun.port.passes.counters import innermost, runs_inside
from dlrun.port.passes.counts import all_samples
from dlrun.port.passes.metrics import Metrics
from dlrun.port.passes.objects import loops_around
from dlrun.port.passes.shown import shows
from dlrun.port.program.script import Script, added, children, dotted, walk


def both(metrics: Metrics, decided: Collection[cst.CSTNode]) -> Iterator[Doubt]:
    """Yield a doubt where a count of a rank's own samples is read after the loop, as if it were that of all.

    ``if predicted == label: correct += 1``: n ranks have n counts, each of 1/n of the samples. Not so below tests of
    what all ranks have ``decided`` alike.
    """
    facts = metrics.facts
    if facts.full_batch:
        return
    for loop in facts.loops:
        assert isinstance(loop, (cst.For, cst.While))
        if runs_inside(facts, loop.body):
            continue
        for node in walk(loop.body):
            found = added(node)
            if found is None or not isinstance(found[1], cst.Integer) or innermost(facts, node) is not loop:
                continue
            name, tests = dotted(found[0]), (up.test for up in facts.script.above(node)
                                             if isinstance(up, cst.If) and facts.script.inside(up, loop))  # fmt: skip
            if name and any(_local(metrics, test, decided) for test in tests) and (lines := _read(facts, loop, name)):
                places = ", ".join(map(str, lines[:3]))
                yield Doubt(node, f"{name} counts among this rank's own samples, 1/n of all, and is read as a count of "
                            f"all in line {places}", "high", f"{facts.alias}.total({name}) there")  # fmt: skip


def divided(metrics: Metrics) -> Iterator[Doubt]:
    """Yield a doubt where sums over a rank's samples, kept by name, are divided by the number of all samples.

    ``sums[name] += loss.item() * len(x)``, and ``{name: value / len(data) for name, value in sums.items()}``.
    """
    facts, script, done = metrics.facts, metrics.script, set[str]()
    for loop in facts.loops if not facts.full_batch and facts.options.batch == "local" else ():
        assert isinstance(loop, (cst.For, cst.While))
        found = [] if runs_inside(facts, loop.body) else [n for n in walk(loop.body) if isinstance(n, cst.AugAssign)]
        for node in (n for n in found if isinstance(n.target, cst.Subscript) and isinstance(n.operator, cst.AddAssign)):
            name, value = dotted(node.target.value), node.value  # type: ignore[attr-defined]
            weighted = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Multiply)
            if not name or name in done or not weighted or not metrics.trained(value):
                continue
            for share in _shares(script, loop, node.target.value):  # type: ignore[attr-defined]
                if all_samples(facts, share.right) and share.left not in metrics.trained.cuts:
                    done.add(name)
                    yield Doubt(share, f"{name} adds up this rank's own samples, 1/n of all, and is divided by the "
                                "number of all", "high", f"{facts.alias}.total({script.code(share.left)})")  # fmt: skip
                    break


def whole(metrics: Metrics, told: Collection[cst.CSTNode]) -> Iterator[Doubt]:
    """Yield a doubt where a dict of sums over a rank's samples is shown or saved whole: ``json.dump(sums, file)``.

    Not so of those that are ``told`` as totals.
    """
    facts, script, done = metrics.facts, metrics.script, set[str]()
    for call in script.calls if not facts.full_batch and facts.options.batch == "local" else ():
        boxes = [n for n in walk(call) if isinstance(n, (cst.Name, cst.Attribute)) and _is_whole(script, n)]
        for box in (n for n in boxes if n not in told) if shows(metrics, call.func) else ():
            adds = [n for n in metrics.entries.grown(box) if loops_around(metrics, n) != [None]]
            if adds and metrics.trained(box) and box not in metrics.trained.cuts and script.code(box) not in done:
                name = script.code(box)
                done.add(name)
                why = f"{name} holds sums over this rank's own samples, 1/n of all, and is shown or saved whole"
                yield Doubt(box, why, "high", f"{facts.alias}.total() of each of them")


def _is_whole(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` stands for all that it holds: in a call, a text, a dict or a list."""
    up = script.parents[node]
    return isinstance(up, (cst.Arg, cst.FormattedStringExpression, cst.DictElement, cst.Element))


def _shares(script: Script, loop: cst.CSTNode, box: cst.BaseExpression) -> Iterator[cst.BinaryOperation]:
    """Yield what divides entries of ``box``, beside ``loop`` in its function: also by the names that a loop gives."""
    home = script.function_of(loop)
    for node in script.of(cst.BinaryOperation):
        if not isinstance(node.operator, cst.Divide) or script.function_of(node) is not home:
            continue
        names = [n for n in walk(node.left) if isinstance(n, (cst.Name, cst.Attribute))]
        bound = (b for n in names for b in script.bindings_of(n) if b.value is not None)
        boxes = [*names, *(over for b in bound if (over := turned(b.value, b.path)) is not None)]  # type: ignore[arg-type]
        if not script.inside(node, loop) and any(dotted(n) == dotted(box) for n in boxes):
            yield node


def _local(metrics: Metrics, test: cst.CSTNode, decided: Collection[cst.CSTNode]) -> bool:
    """Tell whether ``test`` asks for values of a rank's own, which are not averaged before."""
    if test in decided:
        return False
    if isinstance(test, (cst.Name, cst.Attribute, cst.Subscript, cst.Call)):
        return metrics.facts.local(test) and not metrics.is_averaged(test)
    return any(_local(metrics, part, decided) for part in children(test))


def _read(facts: Facts, loop: cst.CSTNode, name: str) -> list[int]:
    """Return the lines of the function, or module, around ``loop`` that read ``name`` outside of the loop."""
    script, home = facts.script, facts.script.function_of(loop)
    found = [n for n in script.of(cst.Name) if dotted(n) == name] if "." not in name else [
        n for n in script.of(cst.Attribute) if dotted(n) == name]  # fmt: skip
    reads = (n for n in found if not script.inside(n, loop) and script.function_of(n) is home
             and not is_target(script, n))  # fmt: skip
    return sorted({script.line(n) for n in reads})


def is_target(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is given a value, also beside others: ``best, count = 0, 0``."""
    up = script.parents[node]
    if isinstance(up, (cst.Element, cst.Tuple, cst.List)):
        return is_target(script, up)
    return isinstance(up, cst.AssignTarget) or (isinstance(up, cst.AugAssign) and up.target is node)
