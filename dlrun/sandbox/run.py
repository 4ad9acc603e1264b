"""A sandboxed run, away from the user's files, as its launcher and its ranks see it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from dlrun.sandbox import loose, outside, place

FILES = "files"
OURS = str(Path(__file__).parent)


class Sandbox:
    """A place for a run in its run directory; around the run, a context that puts back and clears up afterwards.

    What the run wrote is left in ``run_dir/files``. Unless it is said that it has not ``failed``, so is all else: its
    traceback leads there.
    """

    def __init__(self, cwd: str, run_dir: Path) -> None:
        self.failed = True
        self._source, self._run_dir = Path(cwd or Path.cwd()).absolute(), run_dir.resolve()
        self._root = self._run_dir / FILES
        self.place = place.lay_out(self._source, self._root, self._run_dir.parent)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        outside.put_back(self._run_dir)
        if not self.failed:
            place.clear(self._source, self.place, self._root)
        for name in (FILES, outside.FOLDER):
            (self._run_dir / f"{name}.lock").unlink(missing_ok=True)


def enter(folder: str, script: str, run_dir: str, is_users: Callable[[str], bool]) -> str:
    """Go to the ``folder`` of this run, from the one that it looks like; return what ``script`` is called there.

    From now on the user's files are kept: ``is_users`` tells by a source file's name whether code is the user's.
    """
    source, here, runs = Path.cwd(), Path(folder), Path(run_dir)
    root = str(runs / FILES)
    if Path(script).is_absolute():
        script = str(place.in_place(Path(script).resolve(), source, here))
    os.chdir(here)

    def tell(name: str, how: str, was: str) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame and (frame.f_code.co_filename.startswith(OURS) or not is_users(frame.f_code.co_filename)):
            frame = frame.f_back
        for file in (name, was) if frame else ():
            if file and not file.startswith(root + os.sep):
                outside.keep(file, runs)

    loose.watch(root, tell)
    return script
