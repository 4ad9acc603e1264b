"""Part of step "steps" for Keras: after how many batches each callbacks save or write."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.numbers.computed import Tells
from dlrun.port.program.script import argument, dotted, walk
from dlrun.port.steps.counts import windows
from dlrun.port.steps.counts.conditions import asked, divided, fewer, rests_of
from dlrun.port.steps.counts.keras.schedules import number_of_batch, of_batches
from dlrun.port.steps.counts.update_counts import bare

_SAVERS = {"ModelCheckpoint": "save_freq", "BackupAndRestore": "save_freq", "TensorBoard": "update_freq"}
_WHY = "it counts batches between saves, and each rank sees 1/n of them"


def keras(facts: KerasFacts, counts: Tells) -> Iterator[Edit | Doubt]:
    """Divide the batches between saves, with n ranks 1/n of the serial ones; what ``counts`` tells counts batches.

    Before:
        model.compile(opt)
        model.fit(x, y, callbacks=[keras.callbacks.ModelCheckpoint("net.keras", save_freq=1000)])

    After:
        model.compile(opt)
        model.fit(x, y, callbacks=[keras.callbacks.ModelCheckpoint("net.keras", save_freq=dl.steps(1000))])
    """
    for every in dict.fromkeys(_of_savers(facts)):
        made = [o.node for o in facts.flow.origins(every)]
        if any(isinstance(n, cst.SimpleString) for n in made):
            continue  # "epoch"
        if all(isinstance(n, (cst.Integer, cst.BinaryOperation)) for n in made):
            yield fewer(facts, every, _WHY)
        else:
            code = facts.script.code(every)
            yield Doubt(
                every,
                f"{code} may count batches between saves, of which each rank sees 1/n",
                "medium",
                f"{facts.alias}.steps({code}), if it does",
            )
    yield from shown(facts, counts)


def shown(facts: ScriptFacts, counts: Tells) -> Iterator[Edit]:
    """Divide likewise after how many batches each the script's own callbacks save or show something."""
    for every in dict.fromkeys(_of_callbacks(facts, counts)):
        yield fewer(facts, every, _WHY)


def _of_savers(facts: KerasFacts) -> Iterator[cst.BaseExpression]:
    """Yield after how many batches each Keras' own callbacks save, or write what they see."""
    for call in facts.script.calls:
        keyword = _SAVERS.get(dotted(call.func).rsplit(".", 1)[-1])
        every = argument(call, keyword) if keyword is not None else None
        if every is not None:
            yield every


def _of_callbacks(facts: ScriptFacts, counts: Tells) -> Iterator[cst.BaseExpression]:
    """Yield what the script's own callbacks divide a count of batches by: to know when to save, or to show."""
    for node in facts.script.of(cst.If):
        if not of_batches(facts, node):
            continue
        paces = {every for n in walk(node.test) if isinstance(n, cst.BaseExpression) for _, every in divided(n)}
        for count, every in asked(facts.flow, node.test):
            told = bare(facts, count)
            seen = counts(told) or dotted(told).endswith("optimizer.iterations") or _is_number(facts, told)
            if every in paces and seen:
                yield every
                yield from rests_of(facts.script, every)
                around = facts.script.class_of(node) or facts.script.function_of(node)
                yield from windows.means(facts, around, [node], every)  # losses[-10:]


def _is_number(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is the number of a batch in its epoch, which Keras gives the method."""
    function = facts.script.function_of(node)
    named = number_of_batch(facts, function) if isinstance(function, cst.FunctionDef) else None
    return isinstance(node, cst.Name) and node.value == named
