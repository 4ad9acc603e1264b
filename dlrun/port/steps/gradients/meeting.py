"""Part of step "gradients": tests by which ranks may come to an update at other times, or leave the training alone."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.models.kinds import to_an_end
from dlrun.port.program.script import dotted, walk
from dlrun.port.steps.metrics import environments

_FILLS = ("append", "appendleft", "push", "add", "extend", "store", "remember", "put", "insert", "cache", "record")


def doubts(facts: Facts) -> Iterator[Doubt]:
    """Yield the first test of each kind that may let one rank update, or leave, without the others.

    All ranks come to the test together; what it says is local.
    """
    yield from list(_by_what_was_played(facts))[:1]


def _by_what_was_played(facts: Facts) -> Iterator[Doubt]:
    """Yield tests of what episodes fill, whose lengths are local: ``if len(memory) > 300: opt.step()``."""
    if not facts.episodes or environments.uneven(facts) is not None:  # which is told already
        return
    grown = _grown(facts)
    for test in dict.fromkeys(t for step in facts.steps for t in _tests(facts, step.node)):
        names = {dotted(n) for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute))}
        if grown & names:
            code = facts.script.code(test)
            yield Doubt(
                test,
                f"{code}: each rank's episodes come to this at another time, and those that update wait for the others",
                "high",
                f"if {facts.alias}.total(float(not ({code}))) == 0:",
                name="may-hang",
            )


def _grown(facts: Facts) -> set[str]:
    """Return the names of what grows while an episode is played to its end."""
    found: set[str] = set()
    for loop in (n for n in facts.script.nodes if isinstance(n, (cst.For, cst.While)) and to_an_end(facts.kinds, n)):
        for node in (n for body in facts.flow.bodies(loop.body) for n in walk(body)):
            match node:
                case cst.Call(func=cst.Attribute(value=owner, attr=cst.Name(how))) if how in _FILLS:
                    found.add(dotted(owner))
                case cst.AugAssign(target=target, operator=cst.AddAssign()):
                    found.add(dotted(target))
    return found - {""}


def _tests(facts: Facts, step: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the tests around ``step``, and those before it that leave its function or iteration, in callers, too."""
    script = facts.script
    for frame in facts.flow.frames(step):
        home = script.function_of(frame)
        for node in (n for n in walk(home) if isinstance(n, cst.If) and script.function_of(n) is home):
            leaves = any(isinstance(n, (cst.Return, cst.Continue)) for n in walk(node.body))
            around = script.inside(frame, node)
            beside = any(up is script.suite(node) for up in script.above(frame))
            if around or (leaves and beside and script.order[node] < script.order[frame]):
                yield node.test
