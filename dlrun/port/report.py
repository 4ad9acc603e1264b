"""What a port did: the coloured diff, and the steps and doubts by line, for people and for programs."""

from __future__ import annotations

import difflib
import inspect
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dlrun.port.edits import Doubt, Edit, Note, unchanged
from dlrun.port.program.script import Script

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_DANGERS = ("high", "medium", "low")


@dataclass(frozen=True)
class Part:
    """One file of a port, before and after; ``file`` is the script as it was named, or a path below its home."""

    file: str
    source: str
    text: str
    encoding: str

    def encoded(self) -> bytes:
        """Return the text in the coding of the source."""
        return self.text.encode(self.encoding)

    def diff(self, after: str, color: bool = False) -> str:
        """Return the unified diff from the serial to the ported text, which is called ``after``."""
        lines = difflib.unified_diff(
            self.source.splitlines(), self.text.splitlines(), self.file, after, lineterm="", n=2
        )
        return "".join(f"{_painted(line) if color else line}\n" for line in lines)


@dataclass(frozen=True, eq=False)
class Ported:
    """A ported script, and the Edits and Doubts it came from.

    ``modules`` are the local modules that need changes too. ``path`` is where the script was written, if it was.
    ``notes`` say what was left as it is.
    """

    name: str
    script_part: Part
    modules: tuple[Part, ...]
    script: Script
    edits: tuple[Edit, ...]
    doubts: tuple[Doubt, ...]
    framework: str
    contract: str
    path: Path | None = None
    notes: tuple[Note, ...] = ()

    @property
    def text(self) -> str:
        """The text of the ported script."""
        return self.script_part.text

    @property
    def folder(self) -> Path:
        """The folder below which the files of the port lie; that of the script, or the one above its packages."""
        above = len(self.script.home.inside.parts)
        return (self.path.absolute() if above else self.path).parents[above] if self.path else Path()

    @property
    def start(self) -> str:
        """The command that starts the port on 2 ranks."""
        if not self.path or not self.script.home.package:
            return f"dlrun launch -n 2 {shlex.quote(str(self.path))}"
        return f"cd {shlex.quote(str(self.folder))} && dlrun launch -n 2 -m {self.script.home.module(self.path)}"

    def diff(self, color: bool = False) -> str:
        """Return the unified diff from the serial to the ported script, and of its modules."""
        folder = self.folder
        mine = self.script_part.diff(str(self.path) if self.path else "ported", color)
        return mine + "".join(m.diff(str(folder / m.file) if self.path else "ported", color) for m in self.modules)

    def file_of(self, found: Edit | Doubt | Note) -> str:
        """Return the file in which ``found`` is."""
        return self.script.files[self.script.tree_of(found.node)]

    def part_of(self, found: Edit | Doubt | Note) -> tuple[int, int]:
        """Return what sorts edits and doubts: by file, the script first, then by line."""
        return list(self.script.files.values()).index(self.file_of(found)), self.line(found)

    def report(self, color: bool = False) -> str:
        """Return the steps that were done and the doubts that are left, by line, for a terminal."""
        width = max((len(e.step) for e in self.edits), default=0)
        out: list[str] = []
        for part in (self.script_part, *self.modules):
            edits = [e for e in self.edits if self.file_of(e) == part.file]
            doubts = sum(self.file_of(d) == part.file for d in self.doubts)
            counts = f"{len(edits)} edit{'s' * (len(edits) != 1)}, {doubts} doubt{'s' * (doubts != 1)}"
            out.append(_style(f"{part.file}: {counts}", color, bold=True))
            rows = Counter((self.line(e), e.step, e.why) for e in edits)
            for (line, step, why), times in sorted(rows.items()):
                often = f" ({times} places)" if times > 1 else ""
                out.append(f"  {line:>5}  {_style(f'{step:<{width}}', color, fg='green')}  {why}{often}")
        out.append(self.contract)
        untouched = len(self.script.files) - 1 - len(self.modules)
        if untouched:
            out.append(
                f"{untouched} local module{'s' if untouched > 1 else ''} read and left as they are"
                if untouched > 1
                else "1 local module read and left as it is"
            )
        out += [
            f"line {self.line(n)}: {n.why}" if self.file_of(n) == self.name else f"{self.script.place(n.node)}: {n.why}"
            for n in sorted(self.notes, key=self.part_of)
        ]
        if self.doubts:
            out.append(_style("To look at yourself, the most dangerous first:", color, bold=True))
        for doubt in ranked(self.doubts, self.part_of):
            fg = {"high": "red", "medium": "yellow", "low": "cyan"}[doubt.danger]
            file = f"{self.file_of(doubt)}:" if self.file_of(doubt) != self.name else ""
            place = f"{file}{self.line(doubt)}"
            out.append(f"  {place:>5}  {_style(doubt.danger, color, fg=fg)}  {doubt.why} [{doubt.name}]")
            if doubt.write:
                out.append(f"         write: {doubt.write}")
        return "\n".join(out) + "\n"

    def explain(self, step: str, meaning: str, how: str) -> str:
        """Return why ``step`` was done where it was done, below what it means and how it works."""
        out = [f"{step}: {meaning}.", "", *(f"  {line}".rstrip() for line in inspect.cleandoc(how).splitlines()), ""]
        places: list[Edit | Doubt] = [*self.edits, *self.doubts]
        return "\n".join(out) + "\n" + self._places([f for f in places if f.step == step])

    def explain_doubt(self, name: str) -> str:
        """Return what DOUBTS.md says of the doubt ``name``, and where this port has one."""
        return f"{name}\n\n{explained()[name]}\n\n" + self._places([d for d in self.doubts if d.name == name])

    def _places(self, found: Sequence[Edit | Doubt]) -> str:
        """Return where ``found`` is, and why, by line."""
        rows = ((self.script.place(f.node), f.why, self.script.code(f.node)) for f in sorted(found, key=self.part_of))
        return "".join(f"  {place}: {why}\n      {code.strip().splitlines()[0][:80]}\n" for place, why, code in rows)

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {
            "script": self.name,
            "output": str(self.path) if self.path else None,
            "contract": self.contract,
            "edits": [
                {"step": e.step, "file": self.file_of(e), "line": self.line(e), "why": e.why}
                for e in sorted(self.edits, key=lambda e: (self.part_of(e), e.step))
            ],
            "doubts": [
                {
                    "name": d.name,
                    "step": d.step,
                    "file": self.file_of(d),
                    "line": self.line(d),
                    "danger": d.danger,
                    "why": d.why,
                    "write": d.write,
                }
                for d in ranked(self.doubts, self.part_of)
            ],
            "doubts_by_name": dict(sorted(Counter(d.name for d in self.doubts).items())),
            "notes": [
                {"file": self.file_of(n), "line": self.line(n), "why": n.why}
                for n in sorted(self.notes, key=self.part_of)
            ],
            "files": [part.file for part in (self.script_part, *self.modules)],
        }

    def line(self, found: Edit | Doubt | Note) -> int:
        """Return the line of the serial text at which ``found`` is: of lines that go behind a statement, its last."""
        if isinstance(found, Edit) and found.after and not found.before and found.rewrite is unchanged:
            return self.script.last_line(found.node)
        return self.script.line(found.node)


def explained() -> dict[str, str]:
    """Return what the page DOUBTS.md says of each name of a doubt."""
    page = Path(__file__).with_name("DOUBTS.md").read_text(encoding="utf-8")
    sections = (part.partition("\n") for part in page.split("\n## ")[1:])
    return {title: text.strip() for title, _, text in sections}


def ranked(doubts: Sequence[Doubt], place: Callable[[Doubt], tuple[int, int]]) -> list[Doubt]:
    """Return the doubts, the most dangerous first, then by their ``place``."""
    return sorted(doubts, key=lambda d: (_DANGERS.index(d.danger), place(d)))


def _style(text: str, color: bool, **how: Any) -> str:
    return click.style(text, **how) if color else text


def _painted(line: str) -> str:
    if line.startswith(("+++", "---")):
        return click.style(line, bold=True)
    colour = _COLOURS.get(line[:1])
    return click.style(line, fg=colour) if colour else line
