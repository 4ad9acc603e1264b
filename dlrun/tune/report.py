"""What a search found, for eyes: one table sorted by gain with the default marked, a verdict in a sentence, a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from dlrun.bench.result import percentile
from dlrun.bench.table import aligned, seconds_as_text, significant
from dlrun.tune.search import LOOKS, Goal, Outcome, judge, noise, values
from dlrun.tune.space import Settings, Space, as_text


def shown(value: float, metric: str) -> str:
    """A value with its unit: seconds unless a metric of the script is what is compared."""
    return f"{value:.6g}" if metric else seconds_as_text(value)


def gains(space: Space, outcomes: Sequence[Outcome], goal: Goal) -> dict[Settings, float]:
    """Settings -> by which share of the default's median their median is better, best first."""
    medians = {s: statistics.median(v) for s, v in values(outcomes).items() if v}
    base = medians.get(space.default)
    if not base:
        return dict.fromkeys(medians, 0.0)
    found = {s: goal.better(m, base) / abs(base) for s, m in medians.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def table(space: Space, outcomes: Sequence[Outcome], goal: Goal, metric: str = "") -> str:
    """One row per settings: gain, median, p95 of the samples, bus bandwidth, how often measured, how sure."""
    verdict = judge(space, outcomes, goal)
    measured = values(outcomes)
    rows = []
    for settings, gain in gains(space, outcomes, goal).items():
        of_these = [o for o in outcomes if o.trial.settings == settings and o.value is not None]
        samples = [s for o in of_these for s in o.samples] or measured[settings]
        rates = [fact for o in of_these for name, fact in o.facts if name == "bus_bandwidth"]
        mark = "default" if settings == space.default else verdict.kind if settings == verdict.challenger else ""
        rows.append((
            as_text(settings), "" if settings == space.default else f"{100 * gain:+.1f} %",
            shown(statistics.median(measured[settings]), metric),
            shown(percentile(samples, 5 if goal.maximize else 95), metric),
            f"{significant(statistics.median(rates) / 1e9)}" if rates else "", str(len(of_these)), mark,
        ))  # fmt: skip
    failed = {o.trial.settings: o.error for o in outcomes if o.error}
    rows += [(as_text(s), "failed", "", "", "", "", error[:60]) for s, error in failed.items() if not measured[s]]
    note = "the verdict rests on pairs measured in turns; the other gains are single looks at a machine in motion"
    head = ("settings", "gain", "median", "worst 5 %", "bus GB/s", "runs", "verdict")
    return aligned(head, rows) + "\n" + note


def sentence(space: Space, outcomes: Sequence[Outcome], goal: Goal) -> str:
    """The verdict in words, with its numbers."""
    verdict = judge(space, outcomes, goal)
    spread = noise(outcomes)
    about = f"; repeats of the same settings differ by {100 * spread:.1f} %" if spread is not None else ""
    count = f"{verdict.pairs} pairs"
    if verdict.challenger is None:
        return f"nothing to compare with the default{about}"
    name = as_text(verdict.challenger)
    range_ = f"{100 * verdict.low:+.1f} % to {100 * verdict.high:+.1f} %"
    if verdict.kind == "gain":
        return f"{name} is better than the default by {100 * verdict.gain:.1f} % ({range_}, {count}{about})"
    if verdict.pairs < min(LOOKS):
        return f"not clear: time ran out after {count} of {name} and the default; keep the default{about}"
    if verdict.kind == "no gain":
        return f"no gain: {name} against the default is {range_} ({count}{about}); keep the default"
    return f"not clear: {name} against the default is {range_} after {count}; keep the default{about}"


def draw(space: Space, outcomes: Sequence[Outcome], goal: Goal, path: Path, metric: str = "") -> list[Path]:
    """Write SVG and PNG: every single value of every settings, best settings on top, the default's median as a line."""
    from dlrun.bench.plot import pyplot, save

    plt = pyplot()
    order = list(gains(space, outcomes, goal))
    measured = values(outcomes)
    verdict = judge(space, outcomes, goal)
    figure, panel = plt.subplots(figsize=(8, 1.4 + 0.28 * len(order)), layout="constrained")
    for place, settings in enumerate(reversed(order)):
        winner = settings == verdict.challenger
        colour = "#000000" if settings == space.default else "#0072B2" if winner else "#999999"
        points = [v if metric else v * 1e3 for v in measured[settings]]
        panel.plot(points, [place] * len(points), ".", color=colour, alpha=0.5)
        panel.plot(statistics.median(points), place, "|", color=colour, markersize=14, markeredgewidth=2)
        if settings == space.default:
            panel.axvline(statistics.median(points), color="black", linewidth=0.8, linestyle=":")
    panel.set_yticks(range(len(order)), [as_text(s) for s in reversed(order)], fontsize=8)
    panel.set_xlabel(metric or "time of one allreduce of all gradients, ms")
    panel.set_title(f"{verdict.kind}: {as_text(verdict.challenger) if verdict.challenger else 'nothing'}", fontsize=10)
    panel.grid(axis="x", alpha=0.3, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
    written = save(figure, path)
    plt.close(figure)
    return written
