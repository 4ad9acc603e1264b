"""Is what is saved chosen by numbers that all ranks share?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from dlrun.verify.checks.draws import beside_draws
from dlrun.verify.trace import Run, Trace
from dlrun.verify.verdict import Check, failed, skipped

NAME = "choices"
Key = tuple[str, str, str]  # line, condition, operand
Use = tuple[float, str, int]


def choices(serial: Run, again: Run, run: Run, steady: Sequence[Run] = ()) -> Check | None:
    """Return a check that failed because rank 0 chooses what to save by a number of its own samples; None else.

    Whole numbers that never change, such as a rank's, and operands that two serial runs have differently, such as a
    time, choose nothing by samples. Where batch norm's statistics are local to each rank, an evaluation is, too. One
    that all ranks have alike in ``steady`` runs is of random numbers that each draws for itself.
    """
    before, after = _operands(serial.root), _operands(again.root)
    loose = {key[1:] for key, uses in before.items() if key in after and _plain(uses) != _plain(after[key])}
    loose |= {key[1:] for each in steady for key in _alike(each) if key[0] in beside_draws(each, "choice")}
    mine = _operands(run.root)
    for rank, trace in enumerate(run.traces[1:], 1):
        apart: list[tuple[int, Key, Use, Use]] = []  # of each operand, its first difference, and when that was
        for key, uses in _operands(trace).items():
            pairs = list(zip(mine.get(key, []), uses, strict=False))
            found = [(a, b) for a, b in pairs if a[0] != b[0] and not (math.isnan(a[0]) and math.isnan(b[0]))]
            changes = any(len({number for number, *_ in side}) > 1 for side in zip(*pairs, strict=True))
            known = changes or any(not number.is_integer() for a, b in found for number in (a[0], b[0]))
            if found and known and key[1:] not in loose:
                apart.append((found[0][0][2], key, *found[0]))
        if apart:
            _, key, one, other = min(apart)
            return _judged(key, one, other, rank)
    return None


def _judged(key: Key, one: Use, other: Use, rank: int) -> Check:
    ((x, statistics, _), (y, others, _)), (at, what, name) = (one, other), key
    finding = f"{name} in `{what}` at {at} is {x:.6g} on rank 0 and {y:.6g} on rank {rank}"
    if statistics != others:
        return skipped(NAME, f"{finding}: what is saved is chosen with rank 0's statistics of batch norm")
    todo = f"decide on what all ranks share: dl.average({name})"
    return failed(
        NAME,
        f"{finding}: rank 0 chooses what is saved by its own samples",
        todo,
        "rank-dependent-choice",
        where=at,
        rank=rank,
        size=abs(x - y),
    )


def _alike(run: Run) -> set[Key]:
    """Return the operands that all ranks have alike."""
    root, *others = (_operands(trace) for trace in run.traces)
    return {key for key, uses in root.items() if all(_plain(uses) == _plain(each.get(key, [])) for each in others)}


def _plain(uses: list[Use]) -> list[tuple[float, str]]:
    return [(number, statistics) for number, statistics, _ in uses]


def _operands(trace: Trace) -> dict[Key, list[Use]]:
    """Return the values of each operand, with a hash of batch norm's statistics at that time, and the iteration."""
    found: dict[Key, list[Use]] = defaultdict(list)
    for turn, event in enumerate(trace.all("choice")):
        for name, value in event["values"].items():
            found[event.at, event["what"], name].append((value, event["statistics"], turn))
    return found
