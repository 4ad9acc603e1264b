"""``dlrun logs``."""

from __future__ import annotations

import heapq
import json
import sys
import time
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import click

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")
_PACE_S = 0.2


@click.command()
@click.option("-r", "--rank", type=click.IntRange(0), help="The rank; the one that failed, else 0, unless said.")
@click.option("-n", "--lines", type=click.IntRange(1), help="Only the last so many lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on showing what is written, until the run has ended.")
@click.option("--all", "all_", is_flag=True, help="All ranks by time, each line with its rank; with -f as they write.")
@click.argument("run", required=False)
def command(rank: int | None, lines: int | None, follow: bool, all_: bool, run: str | None) -> None:
    """Show what a rank wrote, or with --all what every rank did.

    RUN is a run directory, or a --log-dir, whose latest is then meant; dlrun-runs unless said.

    Of a run that was started again (--max-restarts) the last attempt; the others are RUN/attempt-1 and so on.

    Progress bars, which overwrite themselves, are shown as they last stood.
    """
    from dlrun.errors import DlrunError

    if all_ and rank is not None:
        raise click.UsageError("--all shows every rank, and -r one: give one of them")
    folder = Path(run) if run else latest(Path("dlrun-runs"))
    if not folder.is_dir():
        raise DlrunError(f"there is no run directory {folder}", "leave it out for the latest run in dlrun-runs")
    if not holds_run(folder) and any(holds_run(path) for path in folder.glob("*")):
        folder = latest(folder)
    folder = last_attempt(folder)
    rank = failed(folder) if rank is None else rank
    texts: dict[int, _Growing] = {}
    begun = first = False
    while True:
        over = not follow or (folder / "launcher.log").exists()
        ranks = _ranks(folder)
        wanted = ranks if all_ else [rank] if rank in ranks else []
        if over and not wanted:
            raise DlrunError(f"there is no log of rank {rank} in {folder}", _which(ranks))
        texts.update({each: _Growing(folder, each) for each in wanted if each not in texts})
        if texts and not begun:
            wrote = any(text.path.stat().st_size for text in texts.values())
            nothing = "no rank wrote anything" if all_ else f" is empty: rank {rank} wrote nothing"
            told = "" if wrote or follow else f": {nothing}" if all_ else nothing
            click.echo(f"dlrun: {folder if all_ else texts[rank].path}{told}", err=True)
            begun = first = True
        news = list(heapq.merge(*(text.news(whole=over) for text in texts.values()), key=lambda line: line.when))
        _show(news[-(lines or 0) :] if first else news, all_)
        first = first and not news
        if over:
            return
        time.sleep(_PACE_S)


def _ranks(folder: Path) -> list[int]:
    """Return the ranks that have a log here; while a run starts there are fewer than it has ranks."""
    return sorted(int(path.stem[5:]) for path in folder.glob("rank-*.log") if path.stem[5:].isdecimal())


def _which(ranks: list[int]) -> str:
    """Return a sentence on which logs there are."""
    if len(ranks) == 1:
        return f"it has that of rank {ranks[0]} alone"
    return f"it has those of ranks {ranks[0]} to {ranks[-1]}" if ranks else "it holds no rank-*.log"


class _Line(NamedTuple):
    """A line of a rank's log, and when it began to be written, in seconds since 1970 (0 where that is not known)."""

    when: float
    rank: int
    text: str


def _show(lines: list[_Line], labelled: bool) -> None:
    """Write the lines, each with its rank where they are ``labelled``, in a colour of its own on a terminal."""
    coloured = sys.stdout.isatty()
    for line in lines:
        label = f"[{line.rank}] " if labelled else ""
        if label and coloured:
            label = click.style(label, fg=_COLOURS[line.rank % len(_COLOURS)])
        sys.stdout.write(label + line.text + ("\n" if labelled and not line.text.endswith("\n") else ""))
    sys.stdout.flush()


class _Growing:
    """A log that may grow while it is shown, and the times at which it did."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path, self.times, self.rank = folder / f"rank-{rank}.log", folder / f"rank-{rank}.times", rank
        self.read = 0

    def news(self, whole: bool) -> list[_Line]:
        """Return the lines that are new, the earliest first; ``whole``: an unfinished one, too."""
        with self.path.open("rb") as file:
            file.seek(self.read)
            data = file.read()
        if not whole:
            data = data[: data.rfind(b"\n") + 1]
        if not data:
            return []
        offsets, stamps = self._times()
        found, latest = [], 0.0
        for line in _lines(data):
            at = bisect_right(offsets, self.read) - 1
            latest = max(latest, stamps[at] if at >= 0 else 0.0)  # a clock may be set back
            found.append(_Line(latest, self.rank, folded(line.decode(errors="replace"))))
            self.read += len(line)
        return found

    def _times(self) -> tuple[list[int], list[float]]:
        """Return at which bytes of the log something was written, and when; nothing where that was not noted."""
        from dlrun.rank.log import TIMES

        try:
            data = self.times.read_bytes()
        except OSError:
            return [], []
        pairs = list(TIMES.iter_unpack(data[: len(data) // TIMES.size * TIMES.size]))
        return [offset for _, offset in pairs], [when for when, _ in pairs]


def _lines(data: bytes) -> list[bytes]:
    """Return the lines of ``data``, each with its end; a carriage return ends none."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]] + [last for last in [data.rpartition(b"\n")[2]] if last]


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


def holds_run(folder: Path) -> bool:
    """Return whether this is the folder of a run."""
    return (last_attempt(folder) / "spec.json").exists()


def latest(runs: Path) -> Path:
    """Return the run directory that was made last."""
    from dlrun.errors import DlrunError

    found = [path for path in runs.glob("*") if holds_run(path) and not path.is_symlink()]
    if not found:
        hint = "dlrun launch makes them; a run elsewhere is shown by its folder: dlrun logs FOLDER"
        raise DlrunError(f"there are no runs in {runs.absolute()}", hint)
    return max(found, key=lambda path: path.stat().st_mtime)
