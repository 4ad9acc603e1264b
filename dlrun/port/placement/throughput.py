"""Samples per second by the size of a batch: all ranks take their batches in that time, and rank 0 shows its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import expression
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.values import Kind
from dlrun.port.program.script import argument, calls_method, walk

_RANKS = re.compile(r"(get_nranks|world_?size|num_replicas|hvd\.size|num_processes)\b")


def throughput(facts: Facts, run: Interpreter) -> Iterator[Edit]:
    """Yield n times the number of samples that ``10 * batch_size / took`` counts: the size is what a loader is given.

    Before:
        for x, y in DataLoader(data, batch_size):
            opt.step()
            print(batch_size / (time.time() - start), "samples/s")

    After:
        for x, y in dl.shard(DataLoader(data, batch_size)):
            opt.step()
            print(dl.get_nranks() * batch_size / (time.time() - start), "samples/s")
    """
    script = facts.script
    if facts.keeps_steps or facts.options.origin or _RANKS.search(facts.script.text):
        return
    sizes = {script.code(size) for size in _sizes(facts)}
    for node in script.of(cst.BinaryOperation):
        if not isinstance(node.operator, cst.Divide) or not _is_factor(node.left) or not _trains(facts, node):
            continue
        counts, took = run.seen.get(node.left, ()), run.seen.get(node.right, ())
        same = bool(counts) and all(v.place.kind is Kind.SAME and not v.reduced for v in counts)
        if not same or not any(v.place.kind is Kind.CLOCK for v in took):
            continue
        sized = any(isinstance(n, (cst.Name, cst.Attribute)) and script.code(n) in sizes for n in walk(node.left))
        if sized and not _between(facts, run, node):
            yield Edit(
                node.left,
                "the samples of all ranks in this time, not rank 0's alone",
                lambda count: expression("torch/of_all_ranks", {"count": count}, dl=facts.alias),
            )


def _sizes(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the batch sizes that loaders and pipelines are given."""
    for call in facts.script.calls:
        name = facts.script.name_of(call.func)
        size = argument(call, "batch_size", 1) if name.endswith("DataLoader") else argument(call, "batch_size")
        if size is None and calls_method(call, "batch") and call.args:
            size = call.args[0].value
        if size is not None:
            yield size


def _is_factor(node: cst.BaseExpression) -> bool:
    """Tell whether n times ``node`` can be written without parentheses around it."""
    return not isinstance(node, cst.BinaryOperation) or isinstance(node.operator, cst.Multiply) or bool(node.lpar)


def _trains(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether the innermost loop around ``node`` runs updates."""
    loop = next((up for up in facts.script.above(node) if isinstance(up, (cst.For, cst.While))), None)
    return loop in facts.loops


def _between(facts: Facts, run: Interpreter, node: cst.BinaryOperation) -> bool:
    """Tell whether the samples are those of the iterations between two: ``if i % K == 0: print(K * size / took)``.

    n ranks take K of them together.
    """
    code = facts.script.code
    factors = {code(n) for n in walk(node.left) if isinstance(n, cst.BaseExpression)}
    tests = [up.test for up in facts.script.above(node) if isinstance(up, cst.If)]
    return any(n in run.shards.divided and code(n) in factors for test in tests for n in walk(test))
