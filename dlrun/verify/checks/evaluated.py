"""What a script does with the numbers of an evaluation besides printing them: decides, saves, writes them to files."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from dlrun.verify.checks.output import NUMBER, Difference, same_line, shown
from dlrun.verify.trace import Run, Trace

ROUNDING = 1e-4  # relative: sums over ranks have another order


def differing(serial: Run, again: Run, identity: Run, run: Run) -> Difference | None:
    """Return the first number that rank 0 acts on, or saves, and that is another one on 1 rank; None of none.

    What two serial runs have differently, a time say, is left out.
    """
    return _acted_on(serial, again, identity, run) or _written(again, identity, run)


def _acted_on(serial: Run, again: Run, identity: Run, run: Run) -> Difference | None:
    one, two = _numbers(serial.root), _numbers(again.root)
    loose = {
        (key[1], name)
        for key in one
        for a, b in zip(one[key], two.get(key, []), strict=False)
        for name in a[1]
        if not _close(a[1][name], b[1].get(name, a[1][name]))
    }
    expected, found = _numbers(identity.root), _numbers(run.root)
    for key, uses in expected.items():
        for (at, x), (_, y) in zip(uses, found.get(key, []), strict=False):
            for name in x:
                if name in y and not _close(x[name], y[name]) and (key[1], name) not in loose:
                    mine, other = (f"{name} is {number:.6g} in {key[1]}" for number in (x[name], y[name]))
                    return Difference(mine, other, at)
    return None


def _numbers(trace: Trace) -> dict[tuple[str, str, tuple[int, int]], list[tuple[str, dict[str, float]]]]:
    """Return the numbers that conditions compare and that are saved, by (line, what, pass), each with its line."""
    found = defaultdict(list)
    for event, place in trace.in_passes("decision", "choice", "stored"):
        what = "what is saved" if event.kind == "stored" else f"`{event['what']}`"
        found[event.at, what, place].append((event.at, event["values"]))
    return found


def _close(x: float, y: float) -> bool:
    return x == y or (x != x and y != y) or abs(x - y) <= ROUNDING * max(abs(x), abs(y))


def _written(again: Run, identity: Run, run: Run) -> Difference | None:
    """Compare the lines of text files that differ in numbers alone."""
    for name, text in identity.texts.items():
        others = again.texts.get(name, "").splitlines()
        for i, (a, b) in enumerate(zip(text.splitlines(), run.texts.get(name, "").splitlines(), strict=False)):
            alike = NUMBER.sub("#", shown(a)) == NUMBER.sub("#", shown(b))
            if alike and not same_line(a, others[i] if i < len(others) else a, b, exact=False):
                at = next((e.at for e in identity.root.all("file") if Path(e["path"]).name == Path(name).name), "")
                return Difference(f"{name}: {shown(a).strip()}"[:150], f"{name}: {shown(b).strip()}"[:150], at)
    return None
