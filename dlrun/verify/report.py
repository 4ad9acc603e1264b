"""How a verdict is shown on a terminal."""

from __future__ import annotations

import shutil
import textwrap

import click

from dlrun.verify.checks import choices, iterations, moving, reached, shown
from dlrun.verify.verdict import Check, Verdict

WIDTH = 20
REMARKS = (reached.NAME, shown.NAME, choices.NAME, moving.NAME, iterations.NAME)
MARKS = {"passed": ("✓", "green"), "failed": ("✗", "red"), "n/a": ("·", "bright_black"), "open": ("?", "yellow")}


def line(check: Check) -> str:
    """Return a check as one aligned paragraph; of a failed one also where it was seen and what to do."""
    mark, colour = MARKS[check.status]
    width = max(60, min(shutil.get_terminal_size((120, 24)).columns, 140)) - WIDTH - 5
    head = f"  {click.style(mark, fg=colour, bold=True)} {check.name:<{WIDTH}} "
    indent = "\n" + " " * (WIDTH + 5)
    body = textwrap.wrap(check.finding, width) or [""]
    if check.status == "n/a":
        return head + click.style(indent.join(body), fg="bright_black")
    if check.status == "passed":
        return head + indent.join(body)
    lines = [click.style(part, fg=colour) for part in body]
    if check.where:
        lines.append(f"at {click.style(check.where, bold=True)}")
    lines += textwrap.wrap(check.todo, width, initial_indent="> ", subsequent_indent="  ")
    return head + indent.join(lines)


def conclusion(verdict: Verdict, serial: str, port: str, ranks: int) -> str:
    """Return the last line: proved or not, and why."""
    passed = sum(check.status == "passed" for check in verdict.checks)
    if verdict.holds:
        left = [check.name for check in verdict.checks if check.status == "n/a" and check.name not in REMARKS]
        rest = f"; not applicable: {', '.join(left)}" if left else ""
        return click.style(verdict.word, fg="green" if verdict.proved else "yellow", bold=True) + (
            f"  {port} on {ranks} ranks does what {serial} does ({passed} checks passed{rest})"
        )
    faults = ", ".join(sorted(verdict.faults)) or "see above"
    return click.style("not proved", fg="red", bold=True) + f"  {port}: {faults}"
