"""Part of step "shard": generators of the script's own that it does not seed, which begin otherwise in each process."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.keras import GENERATORS
from dlrun.port.feeds import samples
from dlrun.port.insert import expression
from dlrun.port.program.script import dotted

_ORDERS = ("permutation", "permuted", "shuffle")


def torch(facts: ScriptFacts) -> Iterator[Edit]:
    """Let all ranks draw alike from a generator that splits the data, or makes them, or brings them into an order.

    What a generator draws in the training loop alone is noise, of which each rank has its own anyway.

    Before:
        import numpy as np
        rng = np.random.default_rng()
        order = rng.permutation(len(x))
        loader = DataLoader(Subset(data, order[:800]), shuffle=True)
        for x, y in loader:
            (model(x) - y).pow(2).mean().backward()
            opt.step()

    After:
        import numpy as np
        rng = dl.broadcast(np.random.default_rng())
        order = rng.permutation(len(x))
        loader = DataLoader(Subset(data, order[:800]), shuffle=True)
        for x, y in loader:
            (model(x) - y).pow(2).mean().backward()
            opt.step()
    """
    for call in unseeded(facts):
        yield Edit(
            call,
            "rank 0's random numbers: all ranks split the data alike, or make them, or order them",
            lambda made: expression("torch/same", {"value": made}, dl=facts.alias),
        )


def unseeded(facts: ScriptFacts) -> list[cst.Call]:
    """Return the calls that make generators without a seed, of which draws before the training have to be alike."""
    script = facts.script
    made = [c for c in script.calls if script.name_of(c.func) in GENERATORS and _is_bare(c)]
    apart = samples.makers(facts) if made else set()
    found: list[cst.Call] = []
    for call in made:
        uses = [
            n
            for n in script.of(cst.Attribute)
            if isinstance(script.parents[n], cst.Call) and any(o.node is call for o in facts.flow.origins(n.value))
        ]
        if script.function_of(call) not in apart and any(_is_alike(facts, n, apart) for n in uses):
            found.append(call)
    return found


def _is_bare(call: cst.Call) -> bool:
    return all(dotted(arg.value) == "None" for arg in call.args)


def _is_alike(facts: ScriptFacts, draw: cst.Attribute, apart: set[cst.FunctionDef]) -> bool:
    """Tell whether ``draw`` is of an order in training, or runs outside of it."""
    if facts.script.function_of(draw) in apart:
        return False
    return draw.attr.value in _ORDERS or not in_training(facts, draw)


def in_training(facts: ScriptFacts, node: cst.CSTNode, depth: int = 4) -> bool:
    """Tell whether training loops run ``node``, or nothing is seen to run it."""
    if any(up in facts.loops for up in facts.script.above(node)):
        return True
    function = facts.script.function_of(node)
    if not isinstance(function, cst.FunctionDef) or not depth:
        return isinstance(function, cst.FunctionDef)
    calls = facts.flow.callers(function)
    return all(in_training(facts, call, depth - 1) for call in calls)
