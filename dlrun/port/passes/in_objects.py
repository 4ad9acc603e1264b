"""Part of step "metrics": tables and counts of a rank's samples that objects of the script's own keep."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.taint import Taint
from dlrun.port.passes import counts
from dlrun.port.passes.metrics import Metrics
from dlrun.port.passes.objects import Held, Key, held_by, key_of, loops_around
from dlrun.port.program.script import Script, added, walk

_WHY = "counted among a rank's own samples: the sum over the ranks"


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Add up over the ranks, where it is read, what methods count among the samples that a training loop hands them.

    Before:
        class Stats:
            def __init__(self):
                self.right = {}

            def add(self, label):
                self.right[label] = self.right.get(label, 0) + 1

        stats = Stats()
        for x, y in loader:
            loss(model(x), y).backward()
            opt.step()
            for label in y.tolist():
                stats.add(label)
        print(stats.right)

    After:
        class Stats:
            def __init__(self):
                self.right = {}

            def add(self, label):
                self.right[label] = self.right.get(label, 0) + 1

        stats = Stats()
        for x, y in loader:
            loss(model(x), y).backward()
            opt.step()
            for label in y.tolist():
                stats.add(label)
        print(dl.total(stats.right))
    """
    if metrics.facts.full_batch or metrics.facts.episodes:
        return
    held = held_by(metrics)
    wanted = {key for key, each in held.items() if each.is_of_samples}
    for each in held.values():
        divides = any(metrics.script.inside(n, share.right) for n in each.reads for share in _shares(metrics, n))
        wanted |= {each.key} if divides and each.depends else set()
    for _ in held:
        wanted |= {key for key in wanted for n in held[key].reads for key in _beside(metrics, held, n)}
    while odd := {key for key in wanted if not held[key].fits or not _alone(metrics, held, wanted, held[key])}:
        wanted -= odd
    reads = [n for key in wanted for n in held[key].reads]
    if reads:
        yield from (Edit(n, _WHY, metrics.totalled) for n in reads)
        metrics.cut(reads)
    yield from (each.doubt() for key, each in held.items() if each.is_of_samples and each.reads and key not in wanted)


def _shares(metrics: Metrics, read: cst.CSTNode, depth: int = 3) -> Iterator[cst.BinaryOperation]:
    """Yield the divisions of which ``read`` is a part: also one by one, by a name, or by what a function returns."""
    script = metrics.script
    for up in script.above(read):
        match up:
            case cst.BinaryOperation(operator=cst.Divide() | cst.FloorDivide()):
                yield up
            case cst.CompFor() | cst.For() if script.inside(read, up.iter):
                body = up.body if isinstance(up, cst.For) else script.parents[up]
                yield from (n for n in walk(body) if isinstance(n, cst.BinaryOperation)
                            and isinstance(n.operator, cst.Divide))  # fmt: skip
            case cst.Assign() if depth:
                names = [n for t in up.targets for n in walk(t) if isinstance(n, cst.Name)]
                uses = (use for name in names for use in script.names_of(name.value, script.scope_of(name)))
                yield from (share for use in uses if use not in names for share in _shares(metrics, use, depth - 1))
            case cst.Return() if depth and isinstance(function := script.function_of(up), cst.FunctionDef):
                calls = metrics.facts.flow.callers(function)
                yield from (share for call in calls for share in _shares(metrics, call, depth - 1))
            case cst.BaseCompoundStatement():
                return


def _beside(metrics: Metrics, held: dict[Key, Held], read: cst.CSTNode) -> Iterator[Key]:
    """Yield what else is a part of the divisions around ``read``."""
    for share in _shares(metrics, read):
        for n in walk(share):
            key = key_of(metrics, n) if isinstance(n, cst.Attribute) else None
            if key in held:
                yield key


def _alone(metrics: Metrics, held: dict[Key, Held], wanted: Collection[Key], each: Held) -> bool:
    """Tell whether nothing else of a rank's own is a part of the divisions around what reads ``each``."""
    shares = {share for read in each.reads for share in _shares(metrics, read)}
    reads = {n for key in wanted for n in held[key].reads}
    if not shares:
        return True
    own = Taint(metrics.script, metrics.facts.kinds, metrics.local.seeds, {*metrics.local.cuts, *reads})
    parts = [n for share in shares for n in walk(share) if n not in reads and not _is_base(metrics.script, n)]
    return not any(own(n) or _counts(metrics, n) for n in parts) and not any(
        counts.is_own(metrics.facts, share.right) for share in shares)  # fmt: skip


def _is_base(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is no number: what an attribute is of, what is called."""
    up = script.parents[node]
    return not isinstance(node, (cst.Name, cst.Attribute, cst.Call)) or isinstance(up, cst.Attribute) or (
        isinstance(up, cst.Call) and up.func is node)  # fmt: skip


def _counts(metrics: Metrics, node: cst.CSTNode) -> bool:
    """Tell whether training loops add to ``node``, be it a number of batches."""
    bound = metrics.facts.flow.bindings(node) if isinstance(node, (cst.Name, cst.Attribute)) else ()
    return any(added(b.node) is not None and loops_around(metrics, b.node) != [None] for b in bound)
