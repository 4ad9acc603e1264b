"""Part of step "shard": functions of Python from which TensorFlow takes samples, in threads of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.program.script import argument, calls_method, walk

_ORDERS = re.compile(r"^(numpy\.)?random\.(permutation|shuffle|sample|choices?)$")
_OTHERS = re.compile(r"(^|_)(test|val|valid|validation|eval|dev)", re.IGNORECASE)


def tensorflow(facts: TensorFlowFacts) -> Iterator[Doubt]:
    """Yield a doubt where such a function draws an order by numbers that each rank draws for itself.

    ``Dataset.from_generator(batches)`` with ``np.random.permutation(n)`` in ``batches``: TensorFlow runs it while the
    script trains, so that the ranks cannot agree on what it draws.
    """
    script = facts.script
    for call in (c for c in script.calls if calls_method(c, "from_generator")):
        line, made = script.statement_of(call), argument(call, "generator", 0)
        evaluates = isinstance(line, cst.Assign) and _OTHERS.search(script.code(line.targets[0].target))
        run = [] if made is None or evaluates else [*facts.flow.definitions(made), made]
        for body in (b for function in run for b in facts.flow.bodies(function)):
            for draw in (n for n in walk(body) if isinstance(n, cst.Call)):
                if _ORDERS.search(script.name_of(draw.func)):
                    yield Doubt(
                        draw,
                        "drawn in a function that TensorFlow takes samples from: each rank draws for "
                        "itself, and takes every n-th batch of another order",
                        "high",
                        "rng = np.random.default_rng(0), once before it, and draw from rng",
                        name="order-differs",
                    )
                    return
