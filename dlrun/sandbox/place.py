"""A folder for a run that looks like the user's: folders of its own, Python files as copies, others as links."""

from __future__ import annotations

import filecmp
import os
import shutil
from contextlib import suppress
from pathlib import Path

from dlrun.package import home_of

ABOVE = 2  # levels above the working folder to which a script may point, as "../data" does
ENTRIES = 5000  # of one folder that are linked one by one; a larger one is linked as a whole
LOGS = "dlrun-runs"  # those of earlier launches, which grow in number: linked as a whole


def lay_out(source: Path, root: Path, without: Path) -> Path:
    """Make ``root`` look like the folder some levels above ``source``; return where ``source`` is in there.

    ``without`` is left out, wherever it lies.
    """
    place = surroundings(source, root, without)
    scratch(source, place, without)
    return place


def in_place(script: Path, source: Path, place: Path) -> Path:
    """Return where the script lies in the place: what it writes beside its ``__file__`` ends up there, too.

    One that lies elsewhere, in what is left out, or in a package that begins above, runs from its own place.
    """
    if not script.is_relative_to(source) or not home_of(script, script.read_bytes()).folder.is_relative_to(source):
        return script
    copy = place / script.relative_to(source)
    return copy if copy.is_file() and copy.resolve().is_relative_to(place) else script


def surroundings(source: Path, root: Path, without: Path) -> Path:
    """Make ``root`` look like the folder some levels above ``source``, by links; return where ``source`` is to be.

    That is made by ``scratch``. ``without`` is left out, and a folder of too many entries is left empty.
    """
    root.mkdir()
    above = [folder for folder in source.parents if folder != folder.parent][:ABOVE]
    for folder in reversed(above):
        inner = source.relative_to(folder).parts[0]
        for entry in folder.iterdir() if 0 <= _entries(folder) <= ENTRIES else ():
            if entry.name != inner and entry.resolve() != without:
                (root / entry.name).symlink_to(entry)
        root /= inner
        if folder != source.parent:
            root.mkdir()
    return root if above else root / "here"


def scratch(source: Path, target: Path, without: Path) -> None:
    """Make ``target`` look like ``source``: folders of its own, Python files as copies, others as links.

    New files end up in ``target``. A link that is written to is replaced by a copy first (``loose``), a link that is
    removed or renamed is only a link: the user's checkpoints survive. ``without`` is left out.
    """
    target.mkdir()
    budget = ENTRIES

    def fill(here: Path, there: Path) -> None:
        nonlocal budget
        for entry in sorted(here.iterdir()):
            if entry.resolve() == without:
                continue
            copy = there / entry.name
            own = entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(".") and entry.name != LOGS
            size = _entries(entry) if own else 1
            if own and 0 <= size <= budget and not (entry / "pyvenv.cfg").exists():
                budget -= size
                copy.mkdir()
                fill(entry, copy)
            elif entry.suffix == ".py" and entry.is_file():
                shutil.copy2(entry, copy)
            else:
                copy.symlink_to(entry)

    fill(source, target)


def clear(source: Path, place: Path, root: Path) -> None:
    """Leave what a run wrote in ``root`` alone: the links to the user's files go, unchanged copies and empty folders.

    ``root`` goes, too, where the run wrote nothing.
    """
    for name, folders, files in os.walk(root, topdown=False):
        folder = Path(name)
        for entry in (folder / file for file in (*files, *folders)):
            if entry.is_symlink():
                to = entry.readlink()
                of_ours = to.is_absolute() and not to.is_relative_to(root)
            else:
                of_ours = entry.parent.name == "__pycache__" or _is_copy(entry, source, place)
            if of_ours:
                entry.unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def _is_copy(file: Path, source: Path, place: Path) -> bool:
    if file.suffix != ".py" or not file.is_file() or not file.is_relative_to(place):
        return False
    original = source / file.relative_to(place)
    return original.is_file() and filecmp.cmp(file, original, shallow=False)


def _entries(folder: Path) -> int:
    """Return how many entries a folder has, -1 where it cannot be read."""
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return -1
