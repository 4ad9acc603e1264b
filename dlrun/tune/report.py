"""What a search found, for eyes: one table sorted by gain with the default marked, a verdict in a sentence, a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlrun.bench.result import percentile
from dlrun.bench.table import aligned, seconds_as_text, significant
from dlrun.progress import span
from dlrun.tune.search import FINAL, LOOKS, Goal, Outcome, Verdict, judge, noise, parts, values
from dlrun.tune.space import Settings, Space, as_text


@dataclass(frozen=True)
class Measure:
    """What was measured: a script's `metric` ("": seconds), of `what`; of `proof` in the final, if that is another."""

    metric: str = ""
    what: str = ""
    proof: str = ""

    def shown(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:.6g}" if self.metric else seconds_as_text(value)

    def apart(self, outcomes: Sequence[Outcome]) -> list[tuple[str, Sequence[Outcome]]]:
        """(title, outcomes) of what may be compared with each other."""
        search, final = parts(outcomes)
        if not self.proof or not search:
            return [(self.proof, outcomes)]
        if not any(o.facts for o in search):  # the search measured steps, too
            return [(self.proof, outcomes)]
        return [(self.what, search), *([(self.proof, final)] if final else [])]


def gains(space: Space, outcomes: Sequence[Outcome], goal: Goal) -> dict[Settings, float]:
    """Settings -> by which share of the default's median their median is better, best first."""
    medians = {s: statistics.median(v) for s, v in values(outcomes).items() if v}
    base = medians.get(space.default)
    if not base:
        return dict.fromkeys(medians, 0.0)
    found = {s: goal.better(m, base) / abs(base) for s, m in medians.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def tables(space: Space, outcomes: Sequence[Outcome], goal: Goal, measure: Measure) -> str:
    """A table for each thing that was measured."""
    verdict = judge(space, outcomes, goal)
    apart = measure.apart(outcomes)
    note = "the verdict rests on pairs measured alternately; the other gains are single looks at a machine in motion"
    found = [(f"{title}\n" if len(apart) > 1 else "") + table(space, of, goal, measure, verdict) for title, of in apart]
    return "\n\n".join(found) + "\n" + note


def table(space: Space, outcomes: Sequence[Outcome], goal: Goal, measure: Measure, verdict: Verdict) -> str:
    """One row per settings: gain, median, worst 5 % of the samples, bus bandwidth, how often measured, how sure."""
    measured = values(outcomes)
    final = any(o.trial.stage == FINAL for o in outcomes)
    rows = []
    for settings, gain in gains(space, outcomes, goal).items():
        of_these = [o for o in outcomes if o.trial.settings == settings and o.value is not None]
        samples = [s for o in of_these for s in o.samples] or measured[settings]
        rates = [fact for o in of_these for name, fact in o.facts if name == "bus_bandwidth"]
        judged = verdict.kind if final else "challenger"
        mark = "default" if settings == space.default else judged if settings == verdict.challenger else ""
        rows.append(
            (
                as_text(settings),
                "" if settings == space.default else f"{100 * gain:+.1f} %",
                measure.shown(statistics.median(measured[settings])),
                measure.shown(percentile(samples, 5 if goal.maximize else 95)),
                f"{significant(statistics.median(rates) / 1e9)}" if rates else "",
                str(len(of_these)),
                mark,
            )
        )
    failed = {o.trial.settings: o.error for o in outcomes if o.error}
    rows += [(as_text(s), "failed", "", "", "", "", error[:60]) for s, error in failed.items() if not measured[s]]
    worst = "worst 5 %" if measure.metric else "p95"
    return aligned(("settings", "gain", "median", worst, "bus GB/s", "runs", "verdict"), rows)


def sentence(space: Space, outcomes: Sequence[Outcome], goal: Goal) -> str:
    """The verdict in words, with its numbers."""
    verdict = judge(space, outcomes, goal)
    spread = noise(outcomes)
    about = f"; repeats of the same settings differ by {100 * spread:.1f} %" if spread is not None else ""
    count = f"{verdict.pairs} pair{'s' * (verdict.pairs != 1)}"
    if verdict.challenger is None:
        if {o.trial.settings for o in outcomes} <= {space.default}:
            return f"only the default was measured: the budget of {span(goal.budget)} is spent; give a larger --budget"
        return f"nothing to compare with the default: all others failed{about}"
    name = as_text(verdict.challenger)
    range_ = f"{100 * verdict.low:+.1f} % to {100 * verdict.high:+.1f} %"
    if verdict.kind == "gain":
        return f"{name} is better than the default by {100 * verdict.gain:.1f} % ({range_}, {count}{about})"
    if verdict.pairs < min(LOOKS):
        least = min(LOOKS)
        pairs = sum(o.cost for o in parts(outcomes)[1]) / max(1, verdict.pairs) * least
        more = f"; a verdict takes {least} pairs or more, here {span(pairs)}: give a larger --budget" if pairs else ""
        return f"not clear: time ran out after {count} of {name} and the default; keep the default{about}{more}"
    if verdict.kind == "no gain":
        return f"no gain: {name} against the default is {range_} ({count}{about}); keep the default"
    return f"not clear: {name} against the default is {range_} after {count}; keep the default{about}"


def draw(space: Space, outcomes: Sequence[Outcome], goal: Goal, path: Path, measure: Measure) -> list[Path]:
    """Write SVG and PNG: every single value of every settings, best settings on top, the default's median as a line."""
    from dlrun.bench.plot import pyplot, save

    plt = pyplot()
    apart = measure.apart(outcomes)
    lengths = [max(1, len(gains(space, of, goal))) for _, of in apart]
    inches = (8, 1.2 * len(apart) + 0.6 + 0.28 * sum(lengths))
    shape = {"figsize": inches, "height_ratios": lengths, "squeeze": False, "layout": "constrained"}
    figure, panels = plt.subplots(len(apart), **shape)
    verdict = judge(space, outcomes, goal)
    for (panel,), (title, of) in zip(panels, apart, strict=True):
        medians = [statistics.median(v) for v in values(of).values() if v]
        unit, size = ("us", 1e6) if max(medians, default=1.0) < 1e-3 else ("ms", 1e3)
        _values(panel, space, of, goal, 1.0 if measure.metric else size, verdict)
        measured = measure.metric or f"{title or 'time of one allreduce of all gradients'}, {unit}"
        panel.set_xlabel(f"{measured}; a dot is a run, a bar the median")
    named = as_text(verdict.challenger) if verdict.challenger else "nothing"
    figure.suptitle(f"{verdict.kind}: {named}", fontsize=10)
    written = save(figure, path)
    plt.close(figure)
    return written


def _values(panel: Any, space: Space, outcomes: Sequence[Outcome], goal: Goal, size: float, verdict: Verdict) -> None:
    """One line of points for each settings."""
    order, measured = list(gains(space, outcomes, goal)), values(outcomes)
    for place, settings in enumerate(reversed(order)):
        winner = settings == verdict.challenger
        colour = "#000000" if settings == space.default else "#0072B2" if winner else "#999999"
        points = [value * size for value in measured[settings]]
        panel.plot(points, [place] * len(points), ".", color=colour, alpha=0.5)
        panel.plot(statistics.median(points), place, "|", color=colour, markersize=14, markeredgewidth=2)
        if settings == space.default:
            panel.axvline(statistics.median(points), color="black", linewidth=0.8, linestyle=":")
    panel.set_yticks(range(len(order)), [as_text(s) for s in reversed(order)], fontsize=8)
    panel.set_ylim(-0.6, len(order) - 0.4)
    panel.grid(axis="x", alpha=0.3, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
