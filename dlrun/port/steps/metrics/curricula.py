"""Part of step "metrics": decisions that outlast a batch, and by which training goes on: a curriculum's next level."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.taint import losses
from dlrun.port.facts.updates.rates import sets_groups_rate


def trained_by(facts: Facts) -> frozenset[cst.CSTNode]:
    """Return what the batches, the losses and the rates of the training are made of."""
    values = losses(facts.script)
    values += [loop.iter for loop in facts.loops if isinstance(loop, cst.For)]
    values += [n.value for n in facts.script.of(cst.Assign) if sets_groups_rate(facts, n)]
    return frozenset(computed(facts.flow, values).nodes)
