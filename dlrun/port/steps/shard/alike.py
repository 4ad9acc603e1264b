"""Part of step "shard": splits and orders that every rank draws from rank 0's random numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.feeds import samples
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import argument, dotted, walk
from dlrun.port.steps.shard import redrawn

# What draws each of its splits when it is asked for it.
_SPLITTERS = re.compile(r"^sklearn\.model_selection\.(\w*ShuffleSplit|Repeated\w*KFold)$")
_WHY = "all ranks draw this alike: the ranks share one order of one set of samples"
_ARRAYS = ("numpy.random.permutation", "torch.randperm", "numpy.random.choice")
_TENSORS = ("tensorflow.random.shuffle", "keras.random.shuffle", "tensorflow.keras.random.shuffle")


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Let all ranks draw splits and orders from rank 0's numbers, and go on with numbers of their own.

    Before:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters())
        for epoch in range(9):
            random.shuffle(pairs)
            for x, y in pairs:
                (model(x) - y).pow(2).mean().backward()
                opt.step()

    After:
        model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(model.parameters())
        for epoch in range(9):
            dl.reseed(alike=True)  # what follows all ranks draw alike, from rank 0's random numbers
            random.shuffle(pairs)
            dl.reseed()  # from here on each rank draws random numbers of its own
            for x, y in pairs:
                (model(x) - y).pow(2).mean().backward()
                opt.step()
    """
    lines: set[cst.CSTNode] = set()
    yield from _ahead(facts)
    if not facts.full_batch:
        yield from _orders(facts, lines)
        yield from _folds(facts)
    yield from redrawn.torch(facts, lines)


def _ahead(facts: Facts) -> Iterator[Edit | Doubt]:
    """Let each rank draw for itself what is drawn before a loop, and anew in it: the batch of the first step."""
    for statement, shares in facts.ahead:
        if shares:
            yield Doubt(
                statement,
                "drawn before the ranks draw for themselves: all begin with the same samples",
                "high",
                f"{facts.alias}.reseed() before this line, and below what all ranks share",
                name="same-samples",
            )
        else:
            yield Edit(
                facts.script.line_of(statement),
                "the first samples, too, are local",
                before=statements("torch/reseed", dl=facts.alias),
            )


def _orders(facts: Facts, lines: set[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Yield what lets all ranks draw orders of samples alike, and adds the ``lines`` that do."""
    done: set[cst.CSTNode] = set(facts.permutations)
    done |= {n for f in facts.feeds if f.how == "drawn" for call in (*f.picks, *f.draws) for n in walk(call)}
    apart = samples.makers(facts)  # maybe in the worker processes of a loader
    for call, goes_on in facts.orders:
        if call not in done and facts.script.function_of(call) not in apart:
            yield from drawn(facts, call, lines, goes_on)
    for call in facts.seeds:
        statement = facts.script.statement_of(call)
        if isinstance(statement, cst.Expr) and (line := facts.script.line_of(statement)) not in lines:
            lines.add(line)
            yield Edit(
                line,
                "seeded alike on all ranks, which would draw the same from here on",
                after=statements("torch/reseed", dl=facts.alias),
            )


def _folds(facts: Facts) -> Iterator[Edit]:
    """Let all ranks draw alike the next of several splits, which a loop draws when its turn ends: ``ShuffleSplit``."""
    tops = {top.loop for top in facts.tops}
    for loop in facts.loops:
        if not isinstance(loop, cst.For) or loop in tops or not facts.script.block_of(loop):
            continue
        calls = [n for n in walk(loop.iter) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)]
        made = [o.node for c in calls if c.func.attr.value == "split" for o in facts.flow.origins(c.func.value)]  # type: ignore[attr-defined]
        if any(
            isinstance(m, cst.Call)
            and _SPLITTERS.search(facts.script.name_of(m.func))
            and dotted(argument(m, "random_state") or cst.Name("None")) == "None"
            for m in made
        ):
            last = facts.script.line_of(facts.script.block_of(loop)[-1])
            yield Edit(last, _WHY, after=statements("torch/alike", dl=facts.alias))


def drawn(
    facts: ScriptFacts, call: cst.Call, lines: set[cst.CSTNode], goes_on: bool = True, why: str = _WHY
) -> Iterator[Edit | Doubt]:
    """Yield what lets all ranks draw ``call`` alike, once for each of the ``lines``; the training may then go on."""
    before, after = statements("torch/alike", dl=facts.alias), statements("torch/reseed", dl=facts.alias)
    statement = facts.script.statement_of(call)
    line = facts.script.line_of(statement)
    if line in lines:
        return
    lines.add(line)
    plain = isinstance(statement, (cst.Assign, cst.AnnAssign, cst.Expr, cst.AugAssign))
    if facts.framework == "tensorflow" and facts.script.name_of(call.func) in _TENSORS:
        yield Edit(call, why, lambda node: expression("torch/same", {"value": node}, dl=facts.alias))
    elif not goes_on and (plain or isinstance(statement, cst.Return)):
        yield Edit(line, why, before=before)
    elif plain:
        yield Edit(line, why, before=before, after=after)
    elif isinstance(facts, Facts) and _is_value(facts, call, statement):
        yield Edit(call, why, lambda node: expression("torch/same", {"value": node}, dl=facts.alias))
    else:
        yield Doubt(
            call,
            "each rank draws this in its own way, and the ranks then share no one order of one set of samples",
            "high",
            f"{facts.alias}.reseed(alike=True) before it, {facts.alias}.reseed() after it",
            name="order-differs",
        )


def _is_value(facts: Facts, call: cst.Call, statement: cst.CSTNode) -> bool:
    """Tell whether ``call`` draws a value that rank 0 can send: an array to be returned, or what a loop begins with."""
    name = facts.script.name_of(call.func)
    begins = isinstance(statement, cst.For) and facts.script.inside(call, statement.iter)
    return name in _ARRAYS if isinstance(statement, cst.Return) else begins and name.startswith(("random.", "numpy."))
