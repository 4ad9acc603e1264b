"""Part of step "rate": what a large global batch asks for besides a scaled rate: warm-up, decay by epochs, LARS."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts, Top
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.insert import statements
from dlrun.port.steps.rate import epochs, unfit_options


def in_loops(facts: Facts) -> Iterator[Edit | Doubt]:
    """Yield what goes before the outermost loop, and what begins an epoch: PyTorch, and TensorFlow's tape loops.

    Raises:
        DlrunError: an option that was asked for has no sense or no place in this script.
    """
    if not unfit_options.words(facts):
        return
    unfit_options.refuse_in_loops(facts)
    options, dl = facts.options, facts.alias
    if options.lars:
        yield unsuited(facts, facts.optimizers[0] if facts.optimizers else facts.tops[0].loop)
    for top in facts.tops:
        for optimizer in top.optimizers:
            if options.lars:
                yield Edit(
                    top.loop,
                    "LARS (arXiv 1708.03888): a layer's rate follows its weights and its gradient",
                    before=statements("torch/lars", dl=dl, optimizer=optimizer),
                )
            if options.warmup_steps or options.warmup_epochs:
                steps = options.warmup_steps or f"{options.warmup_epochs} * {epochs.steps_of(facts, top)}"
                yield Edit(
                    top.loop,
                    "a rate that is n times as large begins small (arXiv 1706.02677)",
                    before=statements("torch/warmup", dl=dl, optimizer=optimizer, steps=steps),
                )
        if options.lr_decay is not None:
            yield from _decay(facts, top)


def unsuited(facts: ScriptFacts, node: cst.CSTNode) -> Doubt:
    """Return the doubt that goes with LARS."""
    return Doubt(
        node,
        "LARS takes 0.001 |w| / |g| of the rate: what suited SGD is mostly far too small",
        "medium",
        f"{facts.alias}.lr_scale(...) of a rate that is tried out, from about 1 up",
        name="rate-may-not-suit",
    )


def _decay(facts: Facts, top: Top) -> Iterator[Edit]:
    decay, (loop, epoch) = facts.options.lr_decay, epochs.loop_of(facts, top)
    assert decay is not None
    for optimizer in top.optimizers:
        yield Edit(
            facts.script.line_of(facts.script.block_of(loop)[0]),
            "the rate falls at these epochs",
            before=statements(
                "torch/decay", dl=facts.alias, optimizer=optimizer, epoch=epoch, at=decay.at, factor=decay.factor
            ),
        )


def callbacks(facts: KerasFacts) -> list[str]:
    """Return the callbacks that a model of Keras is distributed with, as text.

    Raises:
        DlrunError: an option that was asked for has no sense in this script.
    """
    options, dl = facts.options, facts.alias
    if unfit_options.words(facts):
        unfit_options.refuse_in_fit(facts)
    found = []
    if options.warmup_epochs or options.warmup_steps:
        found.append(f"{dl}.WarmUp({options.warmup_steps or f'epochs={options.warmup_epochs}'})")
    if options.lr_decay is not None:
        found.append(f"{dl}.Decay({options.lr_decay.at}, {options.lr_decay.factor})")
    return found
