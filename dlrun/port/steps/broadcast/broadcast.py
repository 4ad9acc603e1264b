"""Step "broadcast": all ranks begin from rank 0's weights and optimizer state."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import statements
from dlrun.port.program.script import dotted, walk

_SEEDS = re.compile(r"(^|\.)(manual_seed|seed_everything|set_seed)$")


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Put broadcast() right before the outermost training loop: after weights are made, loaded and moved.

    Before:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters(), momentum=0.9)
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()

    After:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters(), momentum=0.9)
        dl.broadcast(model, opt)  # every rank starts from rank 0's state
        dl.reseed()  # from here on each rank draws random numbers of its own
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
    """
    yield from at_tops(facts, "torch", f"{facts.alias}.broadcast")
    if not any(_SEEDS.search(dotted(call.func)) for call in facts.script.calls):
        yield from _evaluated_first(facts)


def _evaluated_first(facts: Facts) -> Iterator[Edit]:
    """Begin alike before loops over shards, too, that stand before the training: an evaluation of what is untrained."""
    from dlrun.port.placement.torch import interpreted

    sharded = [loop for loop in interpreted(facts).sharded if loop not in facts.loops]
    for top in facts.tops:
        block = facts.script.block(top.loop)
        before = block[: block.index(top.loop)] if top.loop in block else []
        for i, line in enumerate(before):
            if not any(_runs(facts, line, loop) for loop in sharded):
                continue
            things = [thing for thing in top.things if not any(_binds(later, thing) for later in before[i:])]
            if things and not any(_loads(line, thing) for thing in things):
                begin, *_ = statements("torch/broadcast", dl=facts.alias, things=things)
                why = f"{', '.join(things)}: the same on all ranks before they share an evaluation"
                yield Edit(facts.script.line_of(line), why, before=(begin,))
            break


def _runs(facts: Facts, line: cst.CSTNode, loop: cst.CSTNode, depth: int = 3) -> bool:
    """Tell whether ``line`` holds ``loop``, or calls a function that does."""
    if isinstance(line, (cst.FunctionDef, cst.ClassDef)):
        return False
    if facts.script.inside(loop, line):
        return True
    calls = [n for n in walk(line) if isinstance(n, cst.Call)] if depth else []
    called = dict.fromkeys(target for call in calls for target in facts.flow.targets(call))
    bodies = [f.body for f in called if not facts.flow.yields(f)]  # a generator runs when it is gone through
    return any(_runs(facts, body, loop, depth - 1) for body in bodies)


def _loads(line: cst.CSTNode, thing: str) -> bool:
    """Tell whether ``line`` sets ``thing`` to what a file holds, alike on all ranks, before it evaluates."""
    calls = [n for n in walk(line) if isinstance(n, cst.Call)]
    return any(dotted(call.func) == f"{thing}.load_state_dict" for call in calls)


def _binds(line: cst.CSTNode, thing: str) -> bool:
    """Tell whether ``line`` binds the name ``thing``, or one that it is an attribute of."""
    names = {thing, thing.split(".")[0]} if not thing.startswith("self.") else {thing}
    targets = [n.target for n in walk(line) if isinstance(n, cst.AssignTarget)]
    return any(dotted(part) in names for target in targets for part in (target, *walk(target)))


def at_tops(facts: Facts, framework: str, broadcast: str) -> Iterator[Edit | Doubt]:
    """Yield the lines before each outermost training loop; what is made on a condition is ``broadcast`` on the same."""
    for top in facts.tops:
        begin, *rest = statements(f"{framework}/broadcast", dl=facts.alias, things=top.things)
        asked = [some for some in top.conditional if some.again]
        also = [
            statements(
                "broadcast_made", broadcast=broadcast, test=facts.script.code(some.test.test), things=some.things
            )
            for some in asked
        ]
        things = ", ".join((*top.things, *(thing for some in asked for thing in some.things)))
        lines = (begin, *(line for made in also for line in made), *rest)
        yield Edit(top.loop, f"{things}: the same on all ranks before the first step", before=lines)
        for some in (some for some in top.conditional if not some.again):
            names = ", ".join(some.things)
            yield Doubt(
                some.test,
                f"{names}: made on a condition, and not broadcast: where chance makes them, each "
                "rank begins with others",
                "high",
                f"{broadcast}({names}) at the end of what this condition leads to",
                name="ranks-diverge",
            )
