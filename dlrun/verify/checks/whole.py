"""Keep-the-global-batch: n ranks with B/n samples each must reproduce the serial training to rounding."""

from __future__ import annotations

import math
import re
from typing import Any

from dlrun.verify.checks.contents import read_otherwise
from dlrun.verify.checks.data import batch_factor, cut_later, training
from dlrun.verify.trace import Event, Run
from dlrun.verify.verdict import Check, distance, failed, passed, share_of_move, skipped, values

NAME = "same global batch"
NORM = "batch norm sees B/n samples instead of B"
AUGMENTED = "samples are changed at random as they are read, by each rank in its own way (augmentation)"
LISTED = "a batch sampler of the script's own makes the batches, which are sharded whole"
NOISE = "random numbers are drawn while training (dropout, noise)"
TODO = (
    "a loss that is no mean over the samples (a sum, a root or a ratio of such, one that compares samples or has a "
    "constant batch size in it) is another loss as a mean over ranks; so is one with numbers in it that each rank "
    "carries from step to step: dl.average() them"
)
ALONG = "; and what dl.shard() cuts has its samples along axis 0: of (time, batch), cut x.transpose(0, 1)"
FAR = 10.0  # times its own size: a parameter that moves further without batch norm tells nothing
# Optimizers whose steps are divided by the gradients' own size: rounding decides those of the smallest.
NORMALISES = re.compile(r"Ada|RMSprop|Rprop|Lion|LAMB|LARS|Sign|Shampoo|Muon|Novo", re.IGNORECASE)
GRADIENTS = {"float16": 5e-3, "bfloat16": 4e-2}  # how far rounding takes those of less precise numbers, relative
TOLERANCE = {"float64": 1e-6, "float32": 2e-3, "float16": 5e-2, "bfloat16": 1e-1}


def reason_against(serial: Run, n: int, divided: bool = False, alike: bool = False) -> str:
    """Return why n ranks cannot reproduce the serial parameters with the serial global batch; empty if they can.

    ``divided``: the port itself shards what every step takes, a full batch. ``alike``: what is drawn between the
    models' calls, such as a batch, is known to be the same on all ranks.
    """
    epochs, forwards = training(serial.root), list(serial.root.all("forward"))
    fed = set() if epochs else {_fed(event) for event in forwards}
    if not divided and not epochs and (not fed or 0 in fed):
        return "no DataLoader, feed_dict or fit() gives the batches"
    trained = {epoch.loader for epoch in epochs}
    made = [e for e in serial.root.all("loader") if e["loader"] in trained and e.facts.get("custom")]
    if any(event["sampler"] == "NoneType" for event in made):
        return LISTED
    sizes = {len(batch) for epoch in epochs for batch in epoch.batches if batch is not None} or fed
    if not divided and (not sizes or any(size % n for size in sizes)):
        return f"batches of {', '.join(map(str, sorted(sizes))) or 'unknown size'} do not divide by {n}"
    if any(event["drawn"] for event in serial.root.all("worker", "read")):
        return AUGMENTED
    if any(event["norm"] for event in forwards):
        return NORM
    drawn = any(event["drew"] for step in serial.root.steps for event in step.before if event.kind == "forward")
    between = not alike and any(step.drew for step in serial.root.steps)
    if drawn or between or any(event["noise"] for event in forwards):
        return NOISE
    return ""


def is_eager(run: Run) -> bool:
    """Whether no session runs the steps: in a graph, noise is not switched off."""
    return not any("fed" in event.facts for event in run.root.all("forward"))


def same_batches(serial: Run, run: Run) -> bool:
    """Whether the ranks' first batches together are the serial one; where no loader gives them, their rows."""
    one, others = training(serial.root), [training(trace) for trace in run.traces]
    if one and all(others) and not cut_later(run):
        together = [i for epochs in others for i in epochs[0].batches[0] or ()]
        return bool(together) and sorted(together) == sorted(one[0].batches[0] or ())
    return (not one or cut_later(run)) and batch_factor(serial, run) == 1


def _fed(event: Event) -> int:
    """Return the length that most arrays fed to a step have, as the tracer shards them; 0 of other inputs."""
    rows = event.facts.get("rows", {})
    lengths = [len(rows[name]) for name in event.facts.get("fed", ())]
    return max(lengths, key=lengths.count) if lengths and len(lengths) == len(rows) else 0


def carried_in(run: Run) -> str:
    """Return the name of what losses take from samples of earlier steps, the same on all ranks; empty of none."""
    entries = (entry for event in run.root.all("carried") for entry in event["tensors"].items())
    return next((name for name, entry in entries if not entry.get("own")), "")


def reproduces(
    serial: Run, run: Run, loud: Run | None = None, grown: bool = False, sums: bool = False, carried: str = ""
) -> Check:
    """Compare how far the parameters are apart with how far the serial ones have moved since the start.

    ``loud``: the serial run as it is, where these were made without dropout, and with batch norm's statistics as they
    are. ``grown``: the port itself leaves each rank the serial batch. ``sums``: the ranks' losses were added up.
    ``carried``: what losses take from earlier steps, known to be the same on all ranks.
    """
    n, worst, quiet = len(run.traces), 0.0, loud is not None
    if run.error or run.hung:
        said = f": {run.error[1]['type']}: {run.error[1]['message']}" if run.error else ""
        return skipped(NAME, f"the port does not run with a local batch of B/{n}{said}"[:200])
    start = serial.root.starts
    if quiet and _explodes(serial, start):
        return skipped(NAME, "the training goes astray without batch norm and dropout, which ranks have each their own")
    rounded = {event["type"] for event in serial.root.all("autocast")}
    for a, b in zip(serial.root.steps, run.root.steps, strict=False):
        ratio, i = max((share_of_move(p, q, o), i) for i, (p, q, o) in _triples(a.params, b.params, start[a.optimizer]))
        worst = max(worst, ratio)
        if ratio > max(TOLERANCE.get(name, 2e-3) for name in {a.params[i]["type"], *rounded}):
            parameter, size = serial.root.names[a.optimizer][i], distance(a.params[i], b.params[i])
            finding = f"{parameter} differs by {size:.1e} after step {a.number}, {ratio:.1%} of what it moved"
            if wrong := _other_rate(serial, run, a.number, finding):
                return wrong
            if reason := _no_fault(serial, run, a.number, quiet, grown, carried):
                return skipped(NAME, f"{finding}: {reason}")
            todo = TODO if training(serial.root) else TODO + ALONG
            return failed(
                NAME, finding, todo, "other-gradient", where=b.at, step=a.number, parameter=parameter, size=size
            )
    shares = f"x {size} samples" if (size := _size(run)) else "with their shares"
    said = f"{n} ranks {shares} reproduce the serial parameters to {worst:.0e} of their change"
    if loud is not None:
        said += _still(loud, serial)
    return passed(NAME, f"{said}, the parts of a loss that is a sum added up" if sums else said)


def _other_rate(serial: Run, run: Run, number: int, finding: str) -> Check | None:
    """Return a check that failed because a rate is another one than the serial one, though the global batch is not."""
    for a, b in zip(serial.root.steps[:number], run.root.steps, strict=False):
        x, y = next((pair for pair in zip(a.lr, b.lr, strict=False) if not math.isclose(*pair, rel_tol=1e-3)), (0, 0))
        if x != y:
            finding += f": with the serial global batch the learning rate of step {a.number} is {y:.4g}, not {x:.4g}"
            todo = "let what it follows count local steps: len() of the sharded loader, not of the one before"
            return failed(NAME, finding, todo, "other-rate", where=b.at, step=a.number)
    return None


def _still(loud: Run, quiet: Run) -> str:
    """Say what of the serial run, ``loud``, was switched off, and what the ranks were sharded."""
    forwards, divided = list(loud.root.all("forward")), quiet.root.first("noise")
    drawn = any(step.drew for step in loud.root.steps) or any(event["drew"] for event in forwards)
    off = ["dropout off"] if any(event["noise"] for event in forwards) or (drawn and not divided) else []
    off += ["batch norm's statistics fixed"] if any(event["norm"] for event in forwards) else []
    said = f", with {' and '.join(off)}" if off else ""
    return said + (", each with its samples' part of the noise" if divided else "")


def of_sums(serial: Run, run: Run, check: Check) -> bool:
    """Whether parameters differ because the loss is a sum over samples, or is divided by a constant number of them.

    The mean over n ranks, of B/n samples each, is 1/n of it then. Of the B samples that each rank has as the port is,
    n times the rate makes up for that.
    """
    if check.step is None or check.fault != "other-gradient":
        return False
    times, apart = _times(serial, run, check.step)
    return apart < 1e-3 and math.isclose(times * len(run.traces), 1.0, rel_tol=1e-3)


def _times(serial: Run, run: Run, number: int) -> tuple[float, float]:
    """Return how many times the serial gradients those of a step are, and how far apart, relative, they are then."""
    serial_grads, grads = ([x for note in r.root.steps[number - 1].grads for x in values(note)] for r in (serial, run))
    square = sum(x * x for x in serial_grads) or 1.0
    times = sum(x * y for x, y in zip(serial_grads, grads, strict=False)) / square
    apart = sum((y - times * x) ** 2 for x, y in zip(serial_grads, grads, strict=False))
    return times, math.sqrt(apart / square) / (abs(times) or 1.0)


def _no_fault(serial: Run, run: Run, number: int, quiet: bool, grown: bool, carried: str) -> str:
    """Return why a difference after this step need not be a fault; empty where it is one.

    Losses that weigh samples, or compare those of a batch, are others of B/n samples, which a first step shows. What
    shows later alone is carried from step to step; a gradient that is a multiple of the serial one is no mean.
    """
    if _kind(serial, number) == "LBFGS" and number > len(serial.root.names):
        return "the first steps agree, and the line searches of L-BFGS make much of rounding"
    if serial.root.first("weighs"):
        return "the loss weighs the samples of a batch, and leaves some out"
    firsts = range(1, min(number, len(serial.root.names)) + 1)
    number = next((i for i in firsts if _times(serial, run, i)[1] >= 1e-3), number)  # Adam's first step hides it
    first = number in firsts
    if grown and carried and not first:
        return f"the loss depends on {carried} of earlier steps, which parts of a batch move otherwise"
    others = (first and grown) or (quiet and (first or serial.root.first("noise")))
    augmented = AUGMENTED if not serial.root.first("noise") and read_otherwise(serial, run) else ""
    if not (first or others):
        return augmented
    times, apart = _times(serial, run, number)
    near = max([1e-3, *(GRADIENTS.get(event["type"], 0.0) for event in serial.root.all("autocast"))])
    if apart < near:
        mine, other = (r.root.steps[number - 1] for r in (serial, run))
        kind = _kind(serial, number)
        excused = abs(times - 1) <= max(near, 1e-2) and mine.lr == other.lr and NORMALISES.search(kind)
        return f"the gradients agree to {apart:.0e}, and {kind} makes much of the smallest" if excused else ""
    if augmented:
        return augmented
    apart_by_loss = "the loss of a part of the batch is another one, as where it compares samples, or weighs them"
    return apart_by_loss if others else ""


def _kind(serial: Run, number: int) -> str:
    """Return the name of the optimizer that makes this step."""
    optimizer = serial.root.steps[number - 1].optimizer
    return next((str(e["type"]) for e in serial.root.all("optimizer") if e["optimizer"] == optimizer), "")


def _explodes(serial: Run, start: dict[int, Any]) -> bool:
    """Whether some parameter moves far away from where it was."""
    for step in serial.root.steps:
        for p, o in zip(step.params, start[step.optimizer], strict=False):
            moved = distance(p, o)
            if not moved <= FAR * max(map(abs, values(o)), default=0.0) + 1.0:
                return True
    return False


def _triples(a: Any, b: Any, c: Any) -> list[tuple[int, tuple[Any, Any, Any]]]:
    return list(enumerate(zip(a, b, c, strict=False)))


def _size(run: Run) -> int:
    epochs, forward = training(run.root), run.root.first("forward")
    size = len(epochs[0].batches[0] or ()) if epochs else _fed(forward) if forward else 0
    return -(-size // len(run.traces)) if epochs and cut_later(run) else size
