"""Step "metrics" of PyTorch: one reduction behind each loop over a shard; inside, what is shown and what decides."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache, partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.moving import of_numbers
from dlrun.port.insert import expression
from dlrun.port.placement import cadences, selected
from dlrun.port.placement.cadences import run_with
from dlrun.port.placement.evaluation import evaluations
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.known import shards_of_keras
from dlrun.port.placement.reduce import Reductions
from dlrun.port.placement.shown import Shown
from dlrun.port.placement.steered import Steered
from dlrun.port.placement.throughput import throughput
from dlrun.port.placement.values import Kind
from dlrun.port.placement.zeroed import zeroed
from dlrun.port.program.script import walk
from dlrun.port.steps.counts import moving
from dlrun.port.steps.counts.counters import this_included
from dlrun.port.steps.metrics import step_logs
from dlrun.port.steps.metrics.annealing import FOLLOWS


def interpreted(facts: Facts) -> Interpreter:
    """Return the abstract run of a script, done once."""
    return evaluations(facts).run


@lru_cache(maxsize=2)
def interpreted_keras(facts: KerasFacts) -> Interpreter:
    """Return the abstract run of a script with loops around ``train_on_batch()``, done once."""
    from dlrun.port.frameworks import keras

    return run_with(facts, shards_of_keras(facts, [e for e in keras.steps(facts) if isinstance(e, Edit)]))


def keras_numbers(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Make serial what loops around ``train_on_batch()`` leave, what is shown inside them, and what decides."""
    run = interpreted_keras(facts)
    reductions = Reductions(facts, run)
    _, shown = _read(facts, run, reductions)
    yield from reductions.edits()
    yield from zeroed(facts, run)
    yield from _smoothed(facts, run)
    yield from _begun(facts, run, shown)
    yield from step_logs.keras(facts, run)
    yield from shown


def _smoothed(facts: ScriptFacts, run: Interpreter, steers: Collection[cst.CSTNode] = ()) -> Iterator[Edit | Doubt]:
    """Let moving averages of what iterations find forget as in the serial run, n of whose iterations one stands for.

    Also those that edits make the same on all ranks, as what ``steers`` the training: a loss may be made of them.
    """
    if not run.shards.parts:
        yield from moving.of_numbers(facts, lambda n: n in steers or _decays(run, n), run.shards.divided)


def _begun(facts: ScriptFacts, run: Interpreter, shown: list[Edit | Doubt]) -> Iterator[Edit]:
    """Let what such an average is divided by while it is young follow the serial steps: ``1 - 0.9 ** (i + 1)``.

    Not what is ``shown``, which is made serial already.
    """
    done = {*run.shards.counted, *run.shards.divided, *(e.node for e in shown if isinstance(e, Edit))}
    if run.shards.parts:
        return
    kept = [average.old for average in of_numbers(facts, partial(_decays, run)) if average.old is not None]
    for power in facts.script.of(cst.BinaryOperation) if kept else ():
        if isinstance(power.operator, cst.Power) and any(power.left.deep_equals(old) for old in kept):
            for step in (n for n in walk(power.right) if isinstance(n, (cst.Name, cst.Attribute))):
                places = {value.place for value in run.seen.get(step, ())}
                if any(p.kind in (Kind.COUNT, Kind.INDEX) or (p.kind is Kind.RUN and p.counts) for p in places):
                    so_far = this_included(facts.script, step)
                    if so_far in done or step in done:
                        continue
                    yield Edit(so_far, FOLLOWS, lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias))


def _decays(run: Interpreter, node: cst.CSTNode) -> bool:
    places = [value.place for value in run.seen.get(node, ())]
    return bool(places) and all(p.kind is Kind.RUN and bool(p.adds & {"decayed", "lag"}) for p in places)


def numbers(facts: Facts) -> Iterator[Edit | Doubt]:
    """Make serial what loops over shards leave, what is shown inside them, and what decides."""
    run = interpreted(facts)
    if run.lost is not None:
        why = "the program is too large to be followed from here on: numbers shown later may be local to rank 0"
        yield Doubt(run.lost, why, "medium", name="lost-track")
    for node in list(run.guessed)[:1]:
        why = "it is taken for a mean over the samples: each rank computes it of its part of the batch"
        write = "port with --batch local, or compute it of what all ranks gathered, if it is none"
        yield Doubt(node, f"{facts.script.code(node)}: {why}", "low", write, name="unknown-placement")
    reductions = Reductions(facts, run)
    read, shown = _read(facts, run, reductions)
    yield from reductions.edits()
    yield from zeroed(facts, run)
    steered = list(Steered(facts, run, read, {e.node for e in shown if isinstance(e, Edit)}).edits())
    yield from steered
    yield from () if steered else read.weighed()
    yield from _coupled(facts, run)
    for node in list(run.by_samples)[:1]:
        why = "the gradient, by samples, of a mean over a rank's part of the batch: n times that of the serial mean"
        write = "port with --batch local, or take the gradient of a sum: torch.autograd.grad(out.sum(), x)"
        yield Doubt(node, why, "high", write, name="loss-scale")
    yield from throughput(facts, run)
    yield from _smoothed(facts, run, {e.node for e in steered if isinstance(e, Edit)})
    if not hasattr(facts, "style"):  # with a tape annealing does so
        yield from _begun(facts, run, shown)
    yield from selected.doubts(facts, partial(cadences.counts, run), run.shards)
    yield from shown


def _read(facts: ScriptFacts, run: Interpreter, reductions: Reductions) -> tuple[Shown, list[Edit | Doubt]]:
    """Return what reads the run, and what makes serial where it is shown."""
    read = Shown(facts, run, reductions)
    found = list(read.edits())
    if reductions.wanted:  # all of each snapshot is known now, and so the places in it
        read = Shown(facts, run, reductions)
        found = list(read.edits())
    return read, found


def _coupled(facts: Facts, run: Interpreter) -> Iterator[Doubt]:
    """Yield the doubt about a loss that is no mean over the samples: of ``pred - pred.mean()``, of the worst three."""
    from dlrun.port.steps.metrics import coupled, weighted

    if not run.shards.parts or run.shards.episodes:
        return
    if hasattr(facts, "style"):
        gathered = [feed.gathered for feed in facts.feeds if feed.gathered is not None]
        if any(how.odd or how.weighted or not how.gathered for how in gathered):
            return  # see ``full.judged``
    elif any((*coupled.torch(facts), *weighted.torch(facts))):
        return
    bent = {"spread", "local", "bent"}
    for call in [call for call, place in run.losses.items() if place.kind is Kind.ENTRY and place.adds & bent][:1]:
        means = "spread" in run.losses[call].adds
        made = "made of means over a rank's part of the batch" if means else "computed of a rank's part of the batch"
        why = f"the loss is {made}, and is no mean over the samples itself"
        write = "port with --batch local, or compute it of what all ranks gathered"
        yield Doubt(call, why, "medium", write, name="coupled-samples")


def is_reduced(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether what ``node`` changes is reduced behind the loop that changes it."""
    from dlrun.port.steps.metrics import environments

    if environments.uneven(facts) is not None:
        return False
    run = interpreted(facts)
    names = {n.value for n in walk(node) if isinstance(n, cst.Name)}
    return any(made.path.text in names for made in run.exits if made in run.used)
