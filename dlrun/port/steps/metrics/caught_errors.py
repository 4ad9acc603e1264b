"""Part of step "metrics": updates that an error leaves out, on the rank whose batch raises it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.program.script import names_in

_EXPECTED = ("StopIteration", "KeyboardInterrupt", "OutOfRangeError")  # of all ranks, or of a user


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a rank whose batch raises goes on with the next: ``except RuntimeError: continue``."""
    for node in facts.script.of(cst.Try):
        step = next((step for step in facts.steps if facts.script.inside(step.node, node.body)), None)
        if step is None or not any(up in facts.loops for up in facts.script.above(node)):
            continue
        for handler in node.handlers:
            named = names_in(handler.type) if handler.type is not None else {"any error"}
            if named.isdisjoint(_EXPECTED) and not _ends(facts, handler.body):
                yield Doubt(
                    node,
                    f"a rank whose batch raises {' or '.join(sorted(named))} leaves out its update of "
                    f"{step.what}: the others wait, or are averaged with its next batch",
                    "high",
                    "raise it, and the job ends and tells which rank it was",
                )
                return


def _ends(facts: Facts, body: cst.BaseSuite) -> bool:
    """Tell whether ``body`` ends the training, and not only under a test."""
    last = body.body[-1] if body.body else None
    for line in last.body if isinstance(last, cst.SimpleStatementLine) else ():
        call = line.value if isinstance(line, cst.Expr) else None
        exits = isinstance(call, cst.Call) and facts.script.name_of(call.func).endswith("exit")
        if exits or isinstance(line, (cst.Raise, cst.Break, cst.Return)):
            return True
    return False
