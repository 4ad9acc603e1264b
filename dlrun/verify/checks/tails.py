"""An epoch's last samples, which n ranks do not share evenly: do numbers differ by no more than what pads a share?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dlrun.verify.checks.data import batches_a_step, training
from dlrun.verify.checks.numbers import RATES, alike, compared, is_rate, numbers_of, varying
from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check, failed, passed, unjudged

NAME = "uneven tail"
EPOCHS = 2
WEIGHS = 3  # times its part of an epoch's batches: how far the mean of a last one, of fewer samples, takes that of all


@dataclass(frozen=True)
class Tail:
    """Of loaders that are cut to ``few`` batches of each rank and the tail: steps of an epoch; ``spare`` samples."""

    few: int
    serial: int
    ranks: int
    spare: int


def tail_of(serial: Run, n: int, few: int) -> Tail | None:
    """Return what of an epoch's samples n ranks do not share in whole batches; None of nothing, or if not known."""
    first = next(iter(training(serial.root)), None)
    if first is None or not first.complete or first.samples is None or batches_a_step(serial.root) > 1:
        return None
    every, size = len(first.samples), len(first.batches[0] or ())
    spare = every % (n * size)
    drops = any(e.facts.get("drop_last") for e in serial.root.all("loader") if e["loader"] == first.loader)
    if not spare or every < n * size:
        return None
    total = min(every, n * few * size + spare)
    steps = len(serial.root.steps) // sum(step.optimizer == 0 for step in serial.root.steps)
    share = total // n if drops else math.ceil(total / n)
    alone, share = (each // size if drops else math.ceil(each / size) for each in (total, share))
    return Tail(few, EPOCHS * alone * steps, EPOCHS * share * steps, spare)


def tails(serial: Run, run: Run, alone: Run, tail: Tail, again: Sequence[Run]) -> Check:
    """Compare what runs show between epochs that keep their tails, of the same parameters.

    ``alone``, the port on 1 rank, goes through the serial batches: each number is the serial one. On n ranks whole
    numbers may differ by as many samples, or batches, as make the ranks' shares equal, and means by what the last
    batch, of other samples there, weighs.
    """
    if wrong := _otherwise(serial, alone, again):
        return wrong
    n, same, apart = len(run.traces), 0, list[str]()
    most = WEIGHS * EPOCHS / tail.serial
    rates = [{f"{lr:.4g}" for step in each.root.steps for lr in step.lr} for each in (serial, run)]
    mine, theirs, loose = numbers_of(serial), numbers_of(run), varying([numbers_of(each) for each in again])
    for key, ones in mine.items():
        if key in loose or key[2].startswith(RATES) or ones[0].rows > EPOCHS:
            continue
        ones, twos = ([x for x in each if not x.within] for each in (ones, theirs.get(key, ())))
        apart += [ones[0].text] if key[0] == "shown" and len(ones) > len(twos) else []  # a best one may come elsewhere
        for turn, (one, two) in enumerate(zip(ones, twos, strict=False), 1):
            whole = one.value.is_integer() and two.value.is_integer()
            if is_rate(one, rates[0]) and is_rate(two, rates[1]):
                continue  # judged by itself
            near = abs(one.value - two.value) < n * turn if whole else math.isclose(one.value, two.value, rel_tol=most)
            same += near or alike(one.digits, two.digits)
            apart += [] if near or alike(one.digits, two.digits) else [f"{one.text} / {two.text}"]
    so = f"the last {tail.spare} samples of an epoch make no batch on each of {n} ranks"
    if apart:
        more = f" and {len(set(apart)) - 1} more" if len(set(apart)) > 1 else ""
        return unjudged(NAME, f"{so}; with them {apart[0][:150]!r}{more} differs by more than what pads a share")
    return passed(NAME, f"{so}; with them {same} numbers are the serial script's but for what pads a share")


def _otherwise(serial: Run, alone: Run, again: Sequence[Run]) -> Check | None:
    """Tell of a number that 1 rank has otherwise with a last batch of fewer samples; None of none."""
    found = compared(serial, alone, 1, again).other
    if not found:
        return None
    one, two = found[0].serial, found[0].port
    finding = (
        f"with a last batch of fewer samples 1 rank has {two.text[:70]!r}, and the serial script {one.text[:70]!r}"
    )
    todo = (
        "count what a batch has, not batch_size; and divide by the batches, or the samples, as the serial script does"
    )
    return failed(NAME, finding, todo, "shown-otherwise", where=two.at if ":" in two.at else "")
