"""``dlrun logs``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command()
@click.option("-r", "--rank", type=click.IntRange(0), help="The rank; the one that failed, else 0, unless said.")
@click.option("-n", "--lines", type=click.IntRange(1), help="Only the last so many lines.")
@click.argument("run", required=False)
def command(rank: int | None, lines: int | None, run: str | None) -> None:
    """Show what a rank wrote.

    RUN is a run directory; the latest one under dlrun-runs unless said.

    Of a run that was started again (--max-restarts) the last attempt; the others are RUN/attempt-1 and so on.

    Progress bars, which overwrite themselves, are shown as they last stood.
    """
    from dlrun.errors import DlrunError

    folder = Path(run) if run else latest(Path("dlrun-runs"))
    if not folder.is_dir():
        raise DlrunError(f"there is no run directory {folder}", "leave it out for the latest run in dlrun-runs")
    folder = last_attempt(folder)
    rank = failed(folder) if rank is None else rank
    log = folder / f"rank-{rank}.log"
    if not log.exists():
        ranks = sorted(int(p.stem[5:]) for p in folder.glob("rank-*.log") if p.stem[5:].isdecimal())
        there = f"it has those of ranks {ranks[0]} to {ranks[-1]}" if ranks else "it holds no rank-*.log"
        if len(ranks) == 1:
            there = f"it has that of rank {ranks[0]} alone"
        raise DlrunError(f"there is no log of rank {rank} in {folder}", there)
    text = folded(log.read_text(errors="replace"))
    click.echo(f"dlrun: {log}" + ("" if text else f" is empty: rank {rank} wrote nothing"), err=True)
    sys.stdout.write("".join(text.splitlines(keepends=True)[-(lines or 0) :]))


def folded(text: str) -> str:
    """Return ``text`` as a terminal would show it in the end: of what ``\\r`` overwrote, the last."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def failed(run: Path) -> int:
    """Return the rank that failed first; 0 where none has, or where a full disk has kept nothing of it."""
    try:
        return int(json.loads((run / "failure.json").read_text())["rank"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def last_attempt(run: Path) -> Path:
    """Return the folder of the last attempt of a run that may have had several, else the run's own."""
    attempts = [path for path in run.glob("attempt-*") if path.is_dir() and path.name[8:].isdecimal()]
    return max(attempts, key=lambda path: int(path.name[8:])) if attempts else run


def latest(runs: Path) -> Path:
    """Return the run directory that was made last."""
    from dlrun.errors import DlrunError

    found = [path for path in runs.glob("*") if (last_attempt(path) / "spec.json").exists()]
    if not found:
        hint = "dlrun launch makes them; a run elsewhere is shown by its folder: dlrun logs FOLDER"
        raise DlrunError(f"there are no runs in {runs.absolute()}", hint)
    return max(found, key=lambda path: path.stat().st_mtime)
