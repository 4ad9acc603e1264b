"""``dlrun port``: a serial training script becomes a data-parallel one.

Facts are read once; passes, one a step, yield Edits and Doubts; one walk carries the Edits out.

program/      a script as one program: its trees and names, who calls whom, where values come from
facts/        what is known about it: what makes gradients and what uses them, its loops, kinds and rates
feeds/        where its batches come from, and so how the ranks share them
frameworks/   what is particular to one: the steps of Keras, of tapes and sessions, of Estimators
steps/        a folder a step: what is written, and what is doubted
translation/  scripts that are distributed already, by Horovod or DDL
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port import observed
from dlrun.port.edits import Doubt, Edit, apply
from dlrun.port.facts import Facts, Options, ScriptFacts
from dlrun.port.facts import keras as facts_keras
from dlrun.port.facts import tensorflow as facts_tensorflow
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.models.kinds import plays
from dlrun.port.facts.taint import Taint, chances, forwards, made_of
from dlrun.port.facts.torch import Gradients
from dlrun.port.feeds import Feeds, drawn_batches, local_samples, samples
from dlrun.port.feeds.ahead import drawn_ahead
from dlrun.port.feeds.evaluations import evaluations
from dlrun.port.feeds.full.one_batch import in_one_batch
from dlrun.port.feeds.positions import cuts
from dlrun.port.observing import Observed
from dlrun.port.program.flow import Flow
from dlrun.port.program.reading import read
from dlrun.port.program.script import Script, walk
from dlrun.port.refusals import framework_of, main_guard
from dlrun.port.remarks import remarks
from dlrun.port.report import Part, Ported
from dlrun.port.steps import GRID, STEPS
from dlrun.port.steps.counts import resumed
from dlrun.port.steps.metrics import evaluation
from dlrun.port.steps.start import start
from dlrun.port.translation import translated
from dlrun.port.translation.libraries import LIBRARIES
from dlrun.port.unshared import not_globally, nothing_to_share
from dlrun.port.untrained import no_loop

__all__ = ["Options", "Ported", "port"]


def port(
    source: str | bytes,
    options: Options | None = None,
    name: str = "script",
    path: Path | None = None,
    seen: Observed | None = None,
) -> Ported:
    """Return the data-parallel version of ``source``, with what was changed and what was doubted.

    Args:
        source: a Python script, as text or as bytes (whose coding is kept).
        options: how the learning rate follows the ranks, and the like.
        name: what errors and the report call the script.
        path: where the script lies, if its local imports are to be followed; the modules that need changes come
            back as ``modules``.
        seen: what a run of the script showed (PyTorch).

    Raises:
        DlrunError: it does not parse, is ported or distributed already, has no training loop, or a required step
            finds no place. Never half a port.
    """
    options = options or Options()
    script = read(source, name, path)
    if options.origin:
        return _translated(script, options)
    facts = _read(script, options, seen)
    found = run_passes(facts, [step.name for step in STEPS])
    edits = [f for f in found if isinstance(f, Edit)]
    doubts = [f for f in found if isinstance(f, Doubt)]
    if isinstance(facts, Facts) and facts.framework == "torch":
        edits.extend(resumed.counts(facts, list(edits)))
    if seen is not None and isinstance(facts, Facts) and facts.framework == "torch":
        doubts.extend(observed.differences(facts, seen, edits))
    _complete(facts, edits)
    told = list(remarks(script))
    edits.extend(f for f in told if isinstance(f, Edit))
    doubts.extend(f for f in told if isinstance(f, Doubt))
    apart = any(script.tree_of(e.node) is not script.module for e in edits)
    if apart:  # they come out in a folder of their own
        edits.extend(replace(e, step="start") for e in start.own_first(script))
    modules: list[Part] = []
    for tree, file in script.files.items():
        mine = [e for e in edits if script.tree_of(e.node) is tree]
        shows = apart and tree is not script.module and start.prints(facts, tree)
        if not mine and tree is not script.module and not shows:
            continue
        after = _carried_out(tree, file, mine)
        if shows or (tree is not script.module and f"{facts.alias}." in after.code):
            joined = [replace(e, step="start") for e in start.into_module(facts, tree)]
            edits.extend(joined)
            after = _carried_out(tree, file, [*mine, *joined])
        after = start.above_uses(after, facts.alias)
        modules.append(Part(file, script.text_of(tree), after.code, tree.encoding))
    contract = facts.contract if isinstance(facts, Facts) else options.contract
    return Ported(
        name,
        modules[0],
        tuple(modules[1:]),
        script,
        tuple(edits),
        tuple(doubts),
        facts.framework,
        contract,
        notes=tuple(evaluation.notes(facts)) if isinstance(facts, Facts) else (),
    )


def _read(script: Script, options: Options, seen: Observed | None) -> ScriptFacts:
    """Return what is known about ``script``, whatever its framework."""
    framework = framework_of(script)
    if seen is not None:
        script.seen = seen.by_call(script)
    if framework == "keras" and facts_tensorflow.trains_by_hand(script):
        framework = "tensorflow"
    if framework == "torch":
        return facts_of(script, options)
    if options.batch == "global":
        options = replace(options, lr_scaling="none")
    return facts_keras.read(script, options) if framework == "keras" else facts_tensorflow.read(script, options)


def _translated(script: Script, options: Options) -> Ported:
    """Return the script with another library's calls translated."""
    translation, found = translated(script, LIBRARIES[options.origin])
    edits = [f for f in found if isinstance(f, Edit)]
    doubts = [f for f in found if isinstance(f, Doubt)]
    after = _carried_out(script.module, script.name, edits)
    part = Part(script.name, script.text_of(script.module), after.code, script.module.encoding)
    contract = f"does what it did with {translation.library.name}: its shards, rates and steps stay"
    return Ported(script.name, part, (), script, tuple(edits), tuple(doubts), translation.framework, contract)


def facts_of(script: Script, options: Options) -> Facts:
    """Return what is known about ``script``; raises DlrunError where it is not one to port."""
    loops = Loops(Gradients(Flow(script)))
    if not loops.ends:
        raise no_loop(loops.gradients)
    feeds = Feeds(loops)
    if (reason := nothing_to_share(feeds)) is not None:
        raise reason
    if in_one_batch(feeds):
        options = replace(options, batch="global")
    if options.batch == "global":
        cuts.divide(feeds)
        drawn_batches.divide(feeds)
        if (reason := not_globally(feeds)) is not None:
            raise reason
    return gather(loops, feeds, options)


def gather(loops: Loops, feeds: Feeds, options: Options) -> Facts:
    """Return the facts that were found, be they enough for a port or not."""
    script, kinds = loops.script, loops.kinds
    samples, everywhere = [*local_samples.samples(feeds)], forwards(script, kinds, lambda call: True)
    answers = [n.value for n in script.of(cst.Assign) if feeds.episodes and plays(kinds, n)]
    apart = [*everywhere, *chances(script), *samples, *local_samples.numbers(feeds), *answers]
    made = made_of(script, Taint(script, kinds, samples), loops.in_training)
    made += answers
    cut = set(local_samples.cut(feeds))
    made += forwards(script, kinds, lambda call: not cut.isdisjoint(walk(call)))
    return Facts(
        kinds=kinds,
        options=options,
        guard=main_guard(script, loops.flow, loops.ends),
        uncalled=loops.unreached(),
        steps=loops.gradients.steps(),
        by_hand=loops.gradients.by_hand(),
        tops=feeds.orders.tops,
        feeds=tuple(feeds.found.values()),
        states=tuple(feeds.carried.by_loop.values()),
        carries=tuple(feeds.carried.sharded),
        lengths=tuple(dict.fromkeys(feeds.uses.lengths(feeds.found.values())) if options.batch == "local" else ()),
        sampled=tuple(samples),
        permutations=tuple(feeds.permutations()),
        orders=tuple(feeds.late_orders()),
        unseen=tuple(feeds.unseen),
        evaluated=tuple(feeds.evaluated),
        paced=tuple(feeds.paced),
        early=feeds.early,
        ahead=() if feeds.full_batch else tuple(drawn_ahead(feeds)),
        seeds=() if feeds.episodes else tuple(feeds.orders.seeds()),
        optimizers=loops.gradients.constructors(),
        loops=tuple(loops.turning),
        accumulating=tuple(loops.accumulating),
        innermost=tuple(feeds.innermost),
        parts=tuple(loops.parts),
        evaluations=() if feeds.episodes else tuple(evaluations(feeds)),
        counted=feeds.ranges(),
        full_batch=feeds.full_batch,
        episodes=feeds.episodes,
        local=Taint(script, kinds, [*everywhere, *made]),
        unequal=Taint(script, kinds, apart),
        trained=Taint(script, kinds, [*forwards(script, kinds, loops.in_training), *made]),
    )


def run_passes(facts: ScriptFacts, order: Sequence[str]) -> list[Edit | Doubt]:
    """Return what the passes of the script's framework yield, each marked with its step."""
    passes = GRID[facts.framework]
    found = [replace(found, step=step) for step in order if step in passes for found in passes[step](facts)]
    edited = {edit.node: edit for edit in found if isinstance(edit, Edit)}
    found = [f for f in found if isinstance(f, Edit) or not _is_done(facts, f, edited.get(f.node))]
    if not isinstance(facts, Facts) or facts.framework != "torch":
        return found
    apart = samples.makers(facts)
    return [f for f in found if f.step not in ("metrics", "output") or facts.script.function_of(f.node) not in apart]


def _is_done(facts: ScriptFacts, doubt: Doubt, edit: Edit | None) -> bool:
    """Tell whether another step's edit writes what a doubt would have a person write: ``dl.steps(100)``."""
    return edit is not None and bool(doubt.write) and doubt.write.startswith(facts.script.code(edit.rewrite(edit.node)))


def _carried_out(tree: cst.Module, name: str, edits: list[Edit]) -> cst.Module:
    """Return the module with the edits done; raises DlrunError where that is no Python."""
    try:
        module = apply(tree, edits, [step.name for step in STEPS])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(module.bytes, name, "exec", dont_inherit=True)
    except (SyntaxError, cst.CSTValidationError) as error:
        raise DlrunError(
            f"{name}: the edits do not fit together ({error}): nothing was written.",
            "This is a fault of dlrun: please report it with the script.",
        ) from None
    return module


def _complete(facts: ScriptFacts, edits: list[Edit]) -> None:
    done = {edit.step for edit in edits}
    for step in STEPS:
        if step.required and step.name in GRID[facts.framework] and step.name not in done:
            place = facts.script.place(facts.loops[0]) if facts.loops else facts.script.name
            raise DlrunError(
                f"{place}: found no place to {step.meaning} (step {step.name!r}) for the training: "
                "nothing was written, half a port would train wrongly.",
                "Bring the training loop and the model it trains into one function, or port the file that calls it.",
            )
