"""``dlrun port``: a serial training script becomes a data-parallel one.

Facts are read once; passes, one a step, yield Edits and Doubts; one walk carries the Edits out.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port import facts_keras
from dlrun.port.edits import Doubt, Edit, apply
from dlrun.port.facts import Facts, Options
from dlrun.port.facts_keras import KerasFacts
from dlrun.port.facts_torch import Gradients
from dlrun.port.feeds import Feeds
from dlrun.port.flow import Flow
from dlrun.port.loops import Loops
from dlrun.port.passes import GRID, STEPS
from dlrun.port.reading import read
from dlrun.port.refusals import framework_of, imported, main_guard
from dlrun.port.report import Ported
from dlrun.port.script import Script
from dlrun.port.taint import Taint, chances, forwards

__all__ = ["Options", "Ported", "default_output", "port", "port_file"]


def port(
    source: str | bytes, options: Options | None = None, name: str = "script", folder: Path | None = None
) -> Ported:
    """Return the data-parallel version of ``source``, with what was changed and what was doubted.

    Args:
        source: a Python script, as text or as bytes (whose coding is kept).
        options: how the learning rate follows the ranks, and the like.
        name: what errors and the report call the script.
        folder: where its local modules lie, so that errors can name the one that trains.

    Raises:
        DlrunError: it does not parse, is ported or distributed already, has no training loop, or a required step
            finds no place. Never half a port.
    """
    script = read(source, name)
    framework = framework_of(script, name)
    facts: Facts | KerasFacts
    if framework == "keras":
        facts = facts_keras.read(Flow(script), options or Options(), name, main_guard(script))
    else:
        facts = facts_of(script, options or Options(), name, folder)
    found = run_passes(facts, [step.name for step in STEPS])
    edits = [f for f in found if isinstance(f, Edit)]
    doubts = [f for f in found if isinstance(f, Doubt)]
    _complete(facts, edits, name)
    module = _carried_out(script, edits, name)
    return Ported(name, script.module.code, module.code, script, tuple(edits), tuple(doubts), framework)


def facts_of(script: Script, options: Options, name: str, folder: Path | None = None) -> Facts:
    """Return what is known about ``script``; raises DlrunError where it is not one to port."""
    loops = Loops(Gradients(Flow(script)))
    if not loops.ends:
        raise no_loop(loops.gradients, name, folder)
    if (function := loops.unreached()) is not None:
        raise DlrunError(
            f"{name}:{script.line(function)}: nothing in this file calls {function.name.value}(), which trains.",
            "Port the script that calls it.",
        )
    feeds = Feeds(loops)
    if (reason := nothing_to_share(feeds, name)) is not None:
        raise reason
    return gather(loops, feeds, options)


def gather(loops: Loops, feeds: Feeds, options: Options) -> Facts:
    """Return the facts that were found, be they enough for a port or not."""
    script, kinds = loops.script, loops.kinds
    taken = "dl" in {n.value for n in script.nodes if isinstance(n, cst.Name)}
    return Facts(
        script=script,
        flow=loops.flow,
        kinds=kinds,
        options=options,
        framework="torch",
        alias="dl_comm" if taken else "dl",
        guard=main_guard(script),
        steps=loops.gradients.steps(),
        tops=loops.tops(),
        feeds=tuple(feeds.found.values()),
        carries=feeds.carries,
        permutations=tuple(feeds.permutations()),
        optimizers=loops.gradients.constructors(),
        loops=tuple(loops.training),
        counted=tuple((loop, feeds.counts(loop) if isinstance(loop, cst.For) else None) for loop in feeds.counted),
        full_batch=feeds.full_batch,
        local=Taint(script, kinds, forwards(script, kinds, lambda call: True)),
        unequal=Taint(script, kinds, [*forwards(script, kinds, lambda call: True), *chances(script)]),
        trained=Taint(script, kinds, forwards(script, kinds, loops.in_training)),
    )


def nothing_to_share(feeds: Feeds, name: str) -> DlrunError | None:
    """Return the error for a script whose samples cannot be dealt out to the ranks, or None."""
    script = feeds.script
    if feeds.carried is not None:
        return DlrunError(
            f"{name}:{script.line(feeds.carried)}: a hidden state is carried from batch to batch, so the batches form "
            "one stream and cannot be dealt out. Nothing was written.",
            "Give each rank a part of every stream (columns of the batchified data), or reset the state per batch.",
        )
    if feeds.graph is not None:
        return DlrunError(
            f"{name}:{script.line(feeds.graph)}: trains on one whole graph ({script.code(feeds.graph)}): its nodes "
            "hang together and are no samples to share. Nothing was written.",
            "Split the graph (mini-batches of neighbourhoods) before going to many ranks.",
        )
    if not feeds.found and not feeds.counted and not feeds.episodes:
        line = script.line(feeds.loops.ends[0])
        return DlrunError(
            f"{name}:{line}: found no samples to share among the ranks: the loop around this update runs over no "
            "DataLoader and draws nothing at random. Nothing was written.",
            "Every rank would compute the same update. Feed the loop from a DataLoader and port again.",
        )
    return None


def run_passes(facts: Facts | KerasFacts, order: Sequence[str]) -> list[Edit | Doubt]:
    """Return what the passes of the script's framework yield, each marked with its step."""
    passes = GRID[facts.framework]
    return [replace(found, step=step) for step in order if step in passes for found in passes[step](facts)]


def _carried_out(script: Script, edits: list[Edit], name: str) -> cst.Module:
    """Return the module with the edits done; raises DlrunError where that is no Python."""
    try:
        module = apply(script.module, edits, [step.name for step in STEPS])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(module.bytes, name, "exec", dont_inherit=True)
    except (SyntaxError, cst.CSTValidationError) as error:
        raise DlrunError(
            f"{name}: the edits do not fit together ({error}): nothing was written.",
            "This is a fault of dlrun: please report it with the script.",
        ) from None
    return module


def no_loop(gradients: Gradients, name: str, folder: Path | None = None) -> DlrunError:
    """Return the error for a script in which nothing trains: what was looked for, and where."""
    if folder is not None and (other := trains_elsewhere(gradients.script, folder)) is not None:
        return DlrunError(f"{name}: no training loop here; {other[0]}:{other[1]} holds one, in {other[2]}.",
                          "Bring the loop into this file, or port that file if it can run by itself.")  # fmt: skip
    script = gradients.script
    looked = f"Looked for `optimizer.step()` and for updates from `.grad` in {len(script.calls)} calls"
    if gradients.backwards:
        line = script.line(gradients.backwards[0])
        return DlrunError(f"{name}: gradients are computed (line {line}) but no step that uses them was found.",
                          f"{looked}; the update may be in another file: port that file.")  # fmt: skip
    return DlrunError(f"{name}: no training loop: no backward pass and no optimizer step.",
                      f"{looked}; the loop may be in a module that this file imports: port that file.")  # fmt: skip


def trains_elsewhere(script: Script, folder: Path) -> tuple[Path, int, str] | None:
    """Return file, line and function of the first optimizer step in a local module that ``script`` imports."""
    for target, _ in imported(script):
        parts = target.lstrip(".").split(".")
        for length in range(len(parts), 0, -1):
            file = folder.joinpath(*parts[:length]).with_suffix(".py")
            if not file.is_file():
                continue
            try:
                other = Gradients(Flow(read(file.read_bytes(), str(file))))
            except (DlrunError, OSError):
                break
            for call in [*(c for c, _ in other.step_calls), *other.updates]:
                function = other.script.function_of(call)
                where = f"{function.name.value}()" if isinstance(function, cst.FunctionDef) else "its top level"
                return file, other.script.line(call), where
            break
    return None


def _complete(facts: Facts | KerasFacts, edits: list[Edit], name: str) -> None:
    done = {edit.step for edit in edits}
    for step in STEPS:
        if step.required and step.name in GRID[facts.framework] and step.name not in done:
            line = facts.script.line(facts.steps[0].node if isinstance(facts, Facts) else facts.fits[0])
            raise DlrunError(
                f"{name}: found no place to {step.meaning} (step {step.name!r}) for the update in line {line}: "
                "nothing was written, half a port would train wrongly.",
                "Bring the training loop and the model it trains into one function, or port the file that calls it.",
            )


def port_file(path: Path | str, output: Path | str | None = None, options: Options | None = None) -> Ported:
    """Port the script at ``path`` and write the result in one act to ``output``, or beside it as ``<stem>_dist.py``.

    Raises:
        DlrunError: as ``port``, or the file cannot be read or written.
    """
    path = Path(path)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise DlrunError(f"{path}: cannot be read: {error.strerror}.", "Name the training script.") from None
    ported = port(source, options, str(path), path.parent)
    target = Path(output) if output else default_output(path)
    write(target, ported.module_bytes(), like=path)
    return replace(ported, path=target)


def default_output(path: Path) -> Path:
    """Return where the port of ``path`` is written unless the user says otherwise."""
    return path.with_name(f"{path.stem}_dist.py")


def write(target: Path, text: bytes, like: Path) -> None:
    """Write ``text`` to ``target`` in one act, with the permissions of the file ``like``."""
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            Path(temporary).chmod(like.stat().st_mode & 0o777)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DlrunError(f"{target}: cannot be written: {error.strerror}.", "Choose another place with -o.") from None
