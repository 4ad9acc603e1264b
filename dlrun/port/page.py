"""The port as one HTML page: each file before and after, side by side, and why each line changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dlrun.port.edits import Doubt, Edit
from dlrun.port.report import Part, Ported, ranked
from dlrun.render import render

_CONTEXT = 4  # unchanged lines that are shown around a change; more are folded


@dataclass(frozen=True)
class Row:
    """One line of both sides: numbers (0: none there) and texts, whether they differ, and the notes that explain it.

    A row with ``folded`` stands for so many unchanged lines.
    """

    left: int
    before: str
    right: int
    after: str
    kind: str  # same, changed, added, removed, folded
    notes: tuple[tuple[str, str], ...] = ()
    folded: int = 0


def page(ported: Ported) -> str:
    """Return the page; it needs nothing from outside."""
    files = [
        {
            "name": part.file,
            "becomes": ported.path.name if ported.path and part is ported.script_part else f"{part.file}, ported",
            "rows": _folded(_noted(list(_rows(part, _notes(ported, part))))),
        }
        for part in (ported.script_part, *ported.modules)
    ]
    doubts = [
        {
            "file": ported.file_of(d),
            "line": ported.line(d),
            "danger": d.danger,
            "name": d.name,
            "why": d.why,
            "write": d.write,
        }
        for d in ranked(ported.doubts, ported.part_of)
    ]
    return render(
        "port/report.html.j2",
        name=ported.name,
        contract=ported.contract,
        files=files,
        doubts=doubts,
        edits=len(ported.edits),
    )


def _notes(ported: Ported, part: Part) -> dict[int, list[tuple[str, str]]]:
    """Return, for each line of the serial text, the steps that were done there and the doubts about it."""
    notes: dict[int, list[tuple[str, str]]] = {}
    everything: list[Edit | Doubt] = [*ported.edits, *ported.doubts]
    for found in everything:
        if ported.file_of(found) == part.file:
            label = f"doubt {found.danger}" if isinstance(found, Doubt) else found.step
            at_line = notes.setdefault(ported.line(found), [])
            if (label, found.why) not in at_line:
                at_line.append((label, found.why))
    return notes


def _rows(part: Part, notes: dict[int, list[tuple[str, str]]]) -> Iterator[Row]:
    before, after = part.source.splitlines(), part.text.splitlines()
    for tag, i, i_end, j, j_end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for k in range(max(i_end - i, j_end - j)):
            a, b = i + k, j + k
            left, right = (a + 1 if a < i_end else 0), (b + 1 if b < j_end else 0)
            kind = "same" if tag == "equal" else "changed" if left and right else "removed" if left else "added"
            yield Row(
                left,
                before[a] if left else "",
                right,
                after[b] if right else "",
                kind,
                tuple(notes.get(left, ())) if left else (),
            )


def _noted(rows: list[Row]) -> list[Row]:
    """Return ``rows`` with the notes of a line above what was inserted before that line."""
    for i, row in enumerate(rows):
        first = i
        while first and rows[first - 1].kind == "added" and not rows[first - 1].notes:
            first -= 1
        if row.notes and row.kind == "same" and first < i and not (first and rows[first - 1].notes):
            rows[first], rows[i] = replace(rows[first], notes=row.notes), replace(row, notes=())
    return rows


def _folded(rows: list[Row]) -> list[Row]:
    """Return ``rows`` with the long unchanged stretches folded."""
    near = {
        j
        for i, row in enumerate(rows)
        if row.kind != "same" or row.notes
        for j in range(i - _CONTEXT, i + _CONTEXT + 1)
    }
    shown: list[Row] = []
    for i, row in enumerate(rows):
        if i in near:
            shown.append(row)
        elif shown and shown[-1].folded:
            shown[-1] = Row(0, "", 0, "", "folded", folded=shown[-1].folded + 1)
        else:
            shown.append(Row(0, "", 0, "", "folded", folded=1))
    return shown
