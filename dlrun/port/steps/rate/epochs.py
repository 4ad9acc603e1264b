"""Part of step "rate": which loop's iterations are epochs, and how many steps of this rank an epoch has."""

from __future__ import annotations

import builtins

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.facts import Facts, Feed, Top
from dlrun.port.program.script import dotted, walk
from dlrun.port.steps.counts.counters import runs_inside


def loop_of(facts: Facts, top: Top) -> tuple[cst.For, str]:
    """Return the loop whose iterations are epochs, within ``top``, and the number of its iteration from 0, as text.

    Raises:
        DlrunError: there is none, or its iterations have no number.
    """
    script = facts.script
    outer = [n for n in walk(top.loop) if n in facts.loops and runs_inside(facts, n.body)]  # type: ignore[attr-defined]
    found = [n for n in outer if not any(m is not n and script.inside(m, n) for m in outer)]
    if len(found) != 1:
        raise _none(facts, top, "found no loop over epochs with its optimizer in sight")
    loop = found[0]
    counts = [n for n in walk(loop.iter) if isinstance(n, cst.Call) and _counts(n)] if isinstance(loop, cst.For) else []
    plain = [a.value for a in counts[0].args if a.keyword is None] if len(counts) == 1 else []
    if not isinstance(loop, cst.For) or not isinstance(loop.target, cst.Name) or not 1 <= len(plain) <= 2:
        raise _none(facts, top, "the epochs have no number: `for epoch in range(...)` would give them one")
    if not script.block_of(loop):
        raise _none(facts, top, "the loop over the epochs is on one line")
    name = loop.target.value
    origins = facts.flow.origins(plain[0]) if len(plain) == 2 else ()
    begins = {o.node.value for o in origins if isinstance(o.node, cst.Integer)}
    return loop, name if begins in (set(), {"0"}) else f"{name} - {min(begins)}" if len(begins) == 1 else name


def steps_of(facts: Facts, top: Top) -> str:
    """Return how many steps an epoch has on this rank, as an expression that is valid before ``top``.

    Raises:
        DlrunError: nothing there tells.
    """
    script = facts.script
    inner = [loop for loop in facts.loops if not runs_inside(facts, loop.body)]
    if len(inner) != 1 or any(loop is inner[0] for loop, _ in facts.counted):
        raise _none(facts, top, "found no one loop over the batches of an epoch; --warmup-steps N would do")
    loop = inner[0]
    whole = next((f for f in facts.feeds if isinstance(loop, cst.For) and script.inside(f.node, loop.iter)), None)
    if whole is not None:
        batches, names = f"{facts.alias}.steps(len({script.code(whole.node)}))", _names(facts, whole.node)
        known = script.function_of(loop) is script.function_of(top.loop) and _has_length(facts, whole)
    else:
        loaders = [f for f in facts.feeds if f.how in ("loader", "named")]
        name = _name_before(facts, loaders[0], top) if len(loaders) == 1 else ""
        batches, names, known = f"len({name})", [name], bool(name)
    if not known or any(_bound_within(facts, name, top.loop) for name in names):
        raise _none(
            facts, top, "the number of batches of an epoch is not known before this loop; --warmup-steps N would do"
        )
    every = _accumulates(facts, loop)
    return f"({batches} // {script.code(every)})" if every is not None else batches


def _counts(call: cst.Call) -> bool:
    return dotted(call.func).rsplit(".", 1)[-1] in ("range", "trange", "xrange")


def _names(facts: Facts, node: cst.CSTNode) -> list[str]:
    """Return the variables in ``node``, without the names of attributes."""
    names = [n for n in walk(node) if isinstance(n, cst.Name)]
    return [n.value for n in names if getattr(facts.script.parents[n], "attr", None) is not n]


def _has_length(facts: Facts, feed: Feed) -> bool:
    """Tell whether len() works on what is iterated: a range, or something with a name that no generator makes."""
    if isinstance(feed.node, cst.Call):
        return _counts(feed.node)
    made = [facts.flow.definition(o.node.func) for o in facts.flow.origins(feed.node) if isinstance(o.node, cst.Call)]
    yields = any(f is not None and facts.flow.yields(f) for f in made)
    return feed.how in ("iterable", "indices") and not yields


def _name_before(facts: Facts, feed: Feed, top: Top) -> str:
    """Return the name that a loader has before ``top``; an empty text if it has none."""
    if feed.names:
        return feed.names[0]
    scope = facts.script.scopes[top.loop]
    for place in dict.fromkeys((scope, scope.root)):
        for name, bindings in place.names.items():
            if any(b.value is feed.node and not b.path and b.how == "assign" for b in bindings):
                return name
    return ""


def _bound_within(facts: Facts, name: str, loop: cst.CSTNode) -> bool:
    bindings = facts.script.scopes[loop].lookup(name)[0]
    if not bindings:
        return not hasattr(builtins, name)
    return any(facts.script.inside(b.node, loop) for b in bindings)


def _accumulates(facts: Facts, loop: cst.CSTNode) -> cst.BaseExpression | None:
    """Return k where the weights are updated every k batches: ``if (i + 1) % k == 0``."""
    for step in facts.steps:
        for up in facts.script.above(step.node):
            if up is loop:
                break
            for n in walk(up.test) if isinstance(up, cst.If) else ():
                if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo):
                    return n.right
    return None


def _none(facts: Facts, top: Top, reason: str) -> DlrunError:
    asked = [
        word
        for word, value in (("--warmup-epochs", facts.options.warmup_epochs), ("--lr-decay", facts.options.lr_decay))
        if value
    ]
    what = " and ".join(asked)
    return DlrunError(
        f"{facts.script.place(top.loop)}: {what}: {reason}. Nothing was written.", f"Port it without {what}."
    )
