"""Which trial comes next, and what the trials prove. Pure functions of the outcomes so far.

Three stages. `grid`: every combination once. `halving`: the better half is measured again, with twice the repeats,
until one challenger is left (successive halving: Jamieson and Talwalkar, arXiv 1502.07943). `final`: the challenger
against the default in pairs, measured one right after the other, either one first alternately. Only the final pairs
are judged: the challenger was picked because it looked good, so the measurements that picked it prove nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from dlrun.tune.space import Settings, Space

GRID, HALVING, FINAL = "grid", "halving", "final"
MOST_COMBINATIONS = 48
SEARCH_SHARE = 0.6  # of the budget; the rest belongs to the proof
LEAST_GAIN = 0.01  # less than 1 % is no gain, however sure
LOOKS = (10, 14, 19, 25, 32)  # final pairs after which the judge looks
CHANCE = 0.01  # to call noise a gain, all looks together


@dataclass(frozen=True)
class Trial:
    """Settings to be measured once, in a stage; `turn` counts the trials of that stage."""

    settings: Settings
    stage: str
    turn: int


@dataclass(frozen=True)
class Outcome:
    """What a trial gave: its value (None when it failed, then `error` says how), its samples and what it cost.

    `value` is what is compared, in seconds or whatever the metric counts; `cost` is the wall time in seconds.
    """

    trial: Trial
    value: float | None
    cost: float
    samples: tuple[float, ...] = ()
    error: str = ""
    facts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Goal:
    """What a search is after, and how long it may take: seconds of trials."""

    budget: float
    maximize: bool = False

    def better(self, a: float, b: float) -> float:
        """By how much `a` is better than `b`; negative when it is worse."""
        return a - b if self.maximize else b - a


@dataclass(frozen=True)
class Verdict:
    """'gain', 'no gain' or 'not clear', about the challenger; gains are shares of the default's value.

    `low` and `high` bound the gain with the certainty that the claim has; `pairs` were measured.
    """

    kind: str
    challenger: Settings | None
    gain: float = 0.0
    low: float = -math.inf
    high: float = math.inf
    pairs: int = 0


def propose(space: Space, outcomes: Sequence[Outcome], goal: Goal) -> Trial | None:
    """The next trial; None when all is said or the budget is spent."""
    spent = sum(o.cost for o in outcomes)
    if spent >= goal.budget:
        return None
    final = [o for o in outcomes if o.trial.stage == FINAL]
    if not final and spent < SEARCH_SHARE * goal.budget:
        trial = _search(space, outcomes, goal)
        if trial is not None:
            return trial
    best = challenger(space, outcomes, goal)
    return None if best is None else propose_pair(space, best, outcomes, goal)


def propose_pair(space: Space, best: Settings, outcomes: Sequence[Outcome], goal: Goal) -> Trial | None:
    """The next trial of the final between the default and `best`; None when it is decided or the budget is spent."""
    final = [o for o in outcomes if o.trial.stage == FINAL]
    decided = len(final) >= 2 * max(LOOKS) or judge(space, outcomes, goal, best).kind != "not clear"
    if sum(o.cost for o in outcomes) >= goal.budget or decided:
        return None
    pair, second = divmod(len(final), 2)
    first_is_default = pair % 2 == 0
    return Trial(space.default if first_is_default != bool(second) else best, FINAL, len(final))


def _search(space: Space, outcomes: Sequence[Outcome], goal: Goal) -> Trial | None:
    """The next trial of the grid or of the halving; None when one challenger is left."""
    grid = space.grid(MOST_COMBINATIONS)
    seen = [o for o in outcomes if o.trial.stage == GRID]
    if len(seen) < len(grid):
        return Trial(grid[len(seen)], GRID, len(seen))
    measured = [o for o in outcomes if o.trial.stage == HALVING]
    at, repeats = 0, 1
    alive = ranking(space, seen, goal)
    while len(alive) > 2:
        alive = alive[: math.ceil(len(alive) / 2)]
        turns = [space.default, *(alive * repeats)]
        if len(measured) < at + len(turns):
            turn = len(measured)
            return Trial(turns[turn - at], HALVING, turn)
        seen += measured[at : at + len(turns)]
        at, repeats = at + len(turns), repeats * 2
        alive = [s for s in ranking(space, seen, goal) if s in alive]
    return None


def values(outcomes: Sequence[Outcome]) -> dict[Settings, list[float]]:
    """The values measured with each settings, in the order of their first trials; failed trials give none."""
    found: dict[Settings, list[float]] = {}
    for outcome in outcomes:
        of_these = found.setdefault(outcome.trial.settings, [])
        if outcome.value is not None:
            of_these.append(outcome.value)
    return found


def ranking(space: Space, outcomes: Sequence[Outcome], goal: Goal) -> list[Settings]:
    """Settings other than the default, best median first; those that ever failed are out."""
    failed = {o.trial.settings for o in outcomes if o.error} | {space.default}
    medians = {s: statistics.median(v) for s, v in values(outcomes).items() if v and s not in failed}
    return sorted(medians, key=lambda s: medians[s], reverse=goal.maximize)


def challenger(space: Space, outcomes: Sequence[Outcome], goal: Goal) -> Settings | None:
    """Who meets the default in the final: fixed with its first pair, else the best of those measured often enough.

    Enough is half as often as any: the rest were left behind, and a time that ran out amid a round decides nothing.
    """
    for outcome in outcomes:
        if outcome.trial.stage == FINAL and outcome.trial.settings != space.default:
            return outcome.trial.settings
    early = [o for o in outcomes if o.trial.stage != FINAL]
    order, measured = ranking(space, early, goal), values(early)
    most = max((len(measured[s]) for s in order), default=0)
    return next((s for s in order if 2 * len(measured[s]) >= most), None)


def parts(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """The outcomes of the search, and those of the final: the two may measure different things."""
    search = [o for o in outcomes if o.trial.stage != FINAL]
    return search, [o for o in outcomes if o.trial.stage == FINAL]


def noise(outcomes: Sequence[Outcome]) -> float | None:
    """How much repeats of the same settings differ: their standard deviation as a share of the value, pooled.

    Of the final alone, where it has begun.
    """
    outcomes = parts(outcomes)[1] or outcomes
    squares, freedom = 0.0, 0
    for repeats in values(outcomes).values():
        middle = abs(statistics.fmean(repeats)) if repeats else 0.0
        if len(repeats) > 1 and middle:
            squares += statistics.variance(repeats) / middle**2 * (len(repeats) - 1)
            freedom += len(repeats) - 1
    return math.sqrt(squares / freedom) if freedom else None


@cache
def walsh_rank(pairs: int, chance: float) -> int:
    """Which of the ordered means of two differences bounds the typical difference: the k-th from either end.

    Wilcoxon's signed-rank distribution without ties: of the 2^pairs ways to sign the ranks 1 to pairs, those whose
    positive ranks sum to less than k are at most the share `chance`. 0 where so few pairs can prove nothing.
    """
    ways = [1]  # ways[t]: subsets of the ranks so far with the sum t
    for rank in range(1, pairs + 1):
        longer = ways + [0] * rank
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    seen, rank = 0, 0
    while (seen + ways[rank]) / 2**pairs <= chance:
        seen += ways[rank]
        rank += 1
    return rank


def bounds(differences: Sequence[float], chance: float) -> tuple[float, float, float]:
    """(low, middle, high) of the typical difference; it lies beyond each bound with that chance (Hodges-Lehmann)."""
    means = sorted((a + b) / 2 for i, a in enumerate(differences) for b in differences[i:])
    rank = walsh_rank(len(differences), chance)
    if rank == 0:
        return -math.inf, statistics.median(means), math.inf
    return means[rank - 1], statistics.median(means), means[-rank]


def judge(space: Space, outcomes: Sequence[Outcome], goal: Goal, best: Settings | None = None) -> Verdict:
    """What the final pairs prove about the challenger, which is `best` where that is given."""
    best = best or challenger(space, outcomes, goal)
    final = [o for o in outcomes if o.trial.stage == FINAL]
    theirs = [o.value for o in final if o.trial.settings == space.default]
    ours = [o.value for o in final if o.trial.settings != space.default]
    if best is None or None in ours:
        return Verdict("no gain", best)
    pairs = [(a, b) for a, b in zip(theirs, ours, strict=False) if a is not None and b is not None]
    verdict = Verdict("not clear", best, pairs=len(pairs))
    for count in (look for look in LOOKS if look <= len(pairs)):
        scale = abs(statistics.median(a for a, _ in pairs[:count])) or 1.0
        gains = [goal.better(b, a) / scale for a, b in pairs[:count]]
        low, gain, high = bounds(gains, CHANCE / len(LOOKS))
        kind = "gain" if low > 0 and gain >= LEAST_GAIN else "no gain" if high < LEAST_GAIN else "not clear"
        verdict = Verdict(kind, best, gain, low, high, count)
        if kind != "not clear":
            break
    return verdict
