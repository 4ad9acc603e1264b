"""Part of step "metrics" for Keras: what a model's own ``train_step`` returns of what it has counted itself."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.models.train_steps import logged
from dlrun.port.insert import expression
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.rules import Row, of_function
from dlrun.port.placement.values import Kind, Place, power
from dlrun.port.program.script import walk

_MEANS = frozenset({"decayed", "mean"})
_SUMS = frozenset({"same", "entry", "summed", "reset", "scaled"})


def keras(facts: KerasFacts, run: Interpreter) -> Iterator[Edit | Doubt]:
    """Let a sum so far that a ``train_step`` returns be that of all ranks, where ``fit()`` shows their mean.

    Before:
        def train_step(self, data):
            self.seen.assign_add(tf.shape(data)[0])
            return {"seen": self.seen}

    After:
        def train_step(self, data):
            self.seen.assign_add(tf.shape(data)[0])
            return {"seen": dl.serial_steps(self.seen)}
    """
    done: set[cst.CSTNode] = set()
    for node in (n for step in facts.script.of(cst.FunctionDef) for n in logged(facts.flow, step)):
        kinds = {_summed(run, place) for place in run.stepped.get(node, ())}
        if node in done or not kinds - {False}:
            continue
        done.add(node)
        parts = _counts_in(run, node) if _bends(facts, node) else [node]
        if kinds == {True} and parts:
            for part in parts:
                yield Edit(
                    part,
                    "fit() shows the mean over the ranks: n times it is the sum over all",
                    lambda value: expression("torch/serial_steps", {"step": value}, dl=facts.alias),
                )
        else:
            why = "fit() shows the mean over the ranks of what each has kept of its own batches"
            yield Doubt(node, f"{facts.script.code(node)}: {why}", "medium", name="unknown-placement")


def _bends(facts: KerasFacts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is computed by a function, and may be no multiple of what it is computed from."""
    calls = [n for n in walk(node) if isinstance(n, cst.Call)]
    return any(of_function(plain(facts.script.name_of(call.func))) is not Row.KEEPS for call in calls)


def _counts_in(run: Interpreter, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what counts iterations, alike on all ranks, in ``node``; none where it is made of sums over samples."""
    read = [n for n in walk(node) if isinstance(n, (cst.Name, cst.Attribute)) and n in run.stepped]
    told = [n for n in read if any(_summed(run, place) is not False for place in run.stepped[n])]
    alike = all(place.kind is Kind.COUNT or place.counts for n in told for place in run.stepped[n])
    return [n for n in told if isinstance(n, (cst.Name, cst.Attribute))] if alike else []


def _summed(run: Interpreter, place: Place) -> bool | None:
    """Tell whether n times the ranks' mean is the serial number, or the mean itself (False); None: neither."""
    if place.kind in (Kind.SAME, Kind.ENTRY, Kind.RATIO, Kind.CLOCK):
        return False
    of_batches = place.kind is Kind.RUN and place.adds <= _SUMS - {"summed"}  # each adds a mean over its part
    if run.shards.parts and (of_batches or place.kind in (Kind.COUNT, Kind.INDEX)):
        return False
    if place.kind is Kind.RUN and place.adds & _MEANS and place.adds <= _MEANS | _SUMS:
        return False
    if place.kind is Kind.COUNT and power(place) == 1:
        return True
    sums = {"summed", "reset", "scaled"} if run.shards.parts else _SUMS
    return True if place.kind is Kind.RUN and place.at in run.from_zero and place.adds <= sums else None
