"""What differs between the port and the serial script because it is of the last batch alone, or of gradients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from dlrun.verify.checks.numbers import Compared, Key, Number, Numbers, Pair, alike, is_fold
from dlrun.verify.checks.output import close
from dlrun.verify.trace import Run


def averaged(found: Compared, run: Run) -> Compared:
    """Return what is left of differences, where the port shows the mean of what each rank has of its last batch.

    The last rank's is that of the serial script's last one, and so the number that the serial script shows.
    """
    calls = [list(trace.returns("average")) for trace in run.traces]
    means = [
        (mean, local)
        for first, last in zip(calls[0], calls[-1], strict=False)
        if (mean := first.facts.get("mean")) is not None and (local := last.facts.get("local")) is not None
    ]

    def follows(pair: Pair) -> bool:
        return any(
            close(pair.port.digits, f"{mean:.12g}") and close(pair.serial.digits, f"{local:.12g}")
            for mean, local in means
        )

    other = tuple(pair for pair in found.other if not follows(pair))
    return replace(found, same=found.same + len(found.other) - len(other), other=other)


def _positions(found: Compared, turned: Sequence[Numbers]) -> set[Key]:
    """Return the places of what moves with the batch, whichever it is, as the part of an epoch: of the ranks' first."""
    n, keys = len(turned), defaultdict[Key, list[Pair]](list)
    for pair in found.other:
        keys[pair.key].append(pair)

    def moves(pair: Pair) -> bool:
        ones = [ones for numbers in turned if pair.turn < len(ones := numbers.get(pair.key, ()))]
        alike_in_all = len(ones) == n and all(alike(each[pair.turn].digits, pair.serial.digits) for each in ones)
        return alike_in_all and any(
            one.within and n * (pair.port.batches - 1) < one.batches <= pair.serial.batches
            for one in ones[0]
            if alike(one.digits, pair.port.digits)
        )

    several = {key: pairs for key, pairs in keys.items() if len({pair.port.digits for pair in pairs}) > 1}
    return {key for key, pairs in several.items() if all(map(moves, pairs))}


def explained(found: Compared, turned: Sequence[Numbers]) -> Compared:
    """Return what is left of differences, where the serial script shows other numbers by the order of batches.

    ``turned``: its numbers with each of the n batches that the ranks take together as the last. A number of one batch
    is that of another one then, and the port shows their mean. Whether what it shows else, such as a norm of the mean
    gradient, is right is open.
    """
    other, loose, same = list[Pair](), list(found.loose), found.same
    folds = (len(turned), 1 / len(turned))
    positions = _positions(found, turned)
    same += sum(pair.key in positions for pair in found.other)
    for pair in (pair for pair in found.other if pair.key not in positions):
        numbers = _singles(pair, turned)
        mean = f"{math.fsum(number.value for number in numbers) / len(numbers):.12g}"
        if len(numbers) == len(turned) and close(pair.port.digits, mean):
            same += 1
        elif not all(alike(pair.serial.digits, number.digits) for number in numbers) and not any(
            is_fold(pair.port.value, float(mean), f) for f in folds
        ):
            loose.append(pair)
        else:
            other.append(pair)
    own = _of_one_rank(loose, turned)
    loose = [pair for pair in loose if pair.key not in own]
    other += [pair for pair in found.other if pair.key in own and pair not in other]
    return replace(found, same=same, other=tuple(other), loose=tuple(loose))


def _singles(pair: Pair, turned: Sequence[Numbers]) -> list[Number]:
    """Return the serial script's numbers in the place of a pair, each with another batch as the last."""
    return [each[pair.key][pair.turn] for each in turned if len(each.get(pair.key, ())) > pair.turn]


def _of_one_rank(pairs: Sequence[Pair], turned: Sequence[Numbers]) -> set[Key]:
    """Return the places where the port shows throughout what the serial script does of one rank's batches.

    An extreme of the ranks' numbers, too, is one of them: so it must be neither the least nor the greatest each time.
    """
    found = set[Key]()
    for key in {pair.key for pair in pairs} if len(turned) > 1 else ():
        shown = [(pair.port, _singles(pair, turned)) for pair in pairs if pair.key == key]
        if key[0] == "decided" or any(len(numbers) < len(turned) for _, numbers in shown):
            continue
        one = any(all(alike(port.digits, numbers[i].digits) for port, numbers in shown) for i in range(len(turned)))
        ends = [all(port.value == end(x.value for x in numbers) for port, numbers in shown) for end in (min, max)]
        near = any(alike(a.digits, b.digits) for _, numbers in shown for a, b in pairwise(numbers))
        found |= {key} if one and not any(ends) and not near else set()
    return found


def of_gradients(found: Compared, own: Numbers, turned: Sequence[Numbers], accumulated: bool = False) -> Compared:
    """Return what is left of differences, where ranks show the serial script's numbers with ``own`` gradients.

    As a sum of the norms of gradients: that of a mean over ranks is another number than the mean of theirs. Of a number
    of one batch, it is one of those of the serial script's n, ``turned``. Where gradients are ``accumulated`` over
    batches, no rank has those of a serial step: what the ranks' own gradients change, and is no n-fold, stays open.
    """
    folds = (len(turned), 1 / len(turned))

    def follows(pair: Pair, numbers: Sequence[Number]) -> bool:
        every = own.get(pair.key, ())
        here = [number for number in every if number.batches == pair.port.batches]
        if len(here) > 1 and pair.turn < len(every):  # rows of a file, all of them written in the end
            here = [every[pair.turn]]
        return any(alike(number.digits, mine.digits) for number in numbers for mine in here)

    def stays_open(pair: Pair) -> bool:
        here = own.get(pair.key, ())
        changed = pair.turn < len(here) and not alike(here[pair.turn].digits, pair.port.digits)
        return accumulated and changed and not any(is_fold(pair.port.value, pair.serial.value, f) for f in folds)

    other = tuple(pair for pair in found.other if not follows(pair, [pair.serial]))
    loose = tuple(pair for pair in found.loose if not follows(pair, _singles(pair, turned)))
    same = found.same + len(found.other) - len(other) + len(found.loose) - len(loose)
    left = tuple(pair for pair in other if stays_open(pair))
    other = tuple(pair for pair in other if pair not in left)
    return replace(found, same=same, other=other, loose=(*loose, *left))
