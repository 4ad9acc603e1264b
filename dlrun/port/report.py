"""What a port did: the coloured diff, and the steps and doubts by line, for people and for programs."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dlrun.port.edits import Doubt, Edit
from dlrun.port.script import Script

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_DANGERS = ("high", "medium", "low")


@dataclass(frozen=True, eq=False)
class Ported:
    """A ported script: the text, and the Edits and Doubts it came from. ``path`` is where it was written, if it was."""

    name: str
    source: str
    text: str
    script: Script
    edits: tuple[Edit, ...]
    doubts: tuple[Doubt, ...]
    framework: str
    path: Path | None = None

    def module_bytes(self) -> bytes:
        """Return the text in the coding of the source."""
        return self.text.encode(self.script.module.encoding)

    def diff(self, color: bool = False) -> str:
        """Return the unified diff from the serial to the ported script."""
        after = str(self.path) if self.path else "ported"
        lines = difflib.unified_diff(
            self.source.splitlines(), self.text.splitlines(), self.name, after, lineterm="", n=2
        )
        return "".join(f"{_painted(line) if color else line}\n" for line in lines)

    def report(self, color: bool = False) -> str:
        """Return the steps that were done and the doubts that are left, by line, for a terminal."""
        out = [_style(f"{self.name}: {len(self.edits)} edits, {len(self.doubts)} doubts", color, bold=True)]
        width = max((len(e.step) for e in self.edits), default=0)
        for edit in sorted(self.edits, key=lambda e: (self._line(e), e.step)):
            step = _style(f"{edit.step:<{width}}", color, fg="green")
            out.append(f"  {self._line(edit):>5}  {step}  {edit.why}")
        if self.doubts:
            out.append(_style("To look at yourself, the most dangerous first:", color, bold=True))
        for doubt in sorted(self.doubts, key=lambda d: (_DANGERS.index(d.danger), self._line(d))):
            fg = {"high": "red", "medium": "yellow", "low": "cyan"}[doubt.danger]
            out.append(f"  {self._line(doubt):>5}  {_style(doubt.danger, color, fg=fg)}  {doubt.why}")
            if doubt.write:
                out.append(f"         write: {doubt.write}")
        return "\n".join(out) + "\n"

    def explain(self, step: str, meaning: str, how: str) -> str:
        """Return why ``step`` was done where it was done, below what it means and how it works."""
        out = [f"{step}: {meaning}.", "", *(f"  {line}".rstrip() for line in inspect.cleandoc(how).splitlines()), ""]
        places: list[Edit | Doubt] = [*self.edits, *self.doubts]
        for found in sorted((f for f in places if f.step == step), key=self._line):
            text = self.script.code(found.node).strip().splitlines()[0][:80]
            out.append(f"  {self.name}:{self._line(found)}: {found.why}\n      {text}")
        return "\n".join(out) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {
            "script": self.name,
            "output": str(self.path) if self.path else None,
            "edits": [
                {"step": e.step, "line": self._line(e), "why": e.why}
                for e in sorted(self.edits, key=lambda e: (self._line(e), e.step))
            ],
            "doubts": [
                {"step": d.step, "line": self._line(d), "danger": d.danger, "why": d.why, "write": d.write}
                for d in sorted(self.doubts, key=lambda d: (_DANGERS.index(d.danger), self._line(d)))
            ],
        }

    def _line(self, found: Edit | Doubt) -> int:
        return self.script.line(found.node)


def _style(text: str, color: bool, **how: Any) -> str:
    return click.style(text, **how) if color else text


def _painted(line: str) -> str:
    if line.startswith(("+++", "---")):
        return click.style(line, bold=True)
    colour = _COLOURS.get(line[:1])
    return click.style(line, fg=colour) if colour else line
