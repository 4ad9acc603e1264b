"""Lets each rank sleep a while before it touches a file, and between opening one to write and filling it.

What races then shows: a file that another rank has half written, or looks for a moment too early. Only paths below the
working folder count, and none of Python's own.
"""

import builtins
import io
import os
import random
import sys
import time
from pathlib import Path

_EVENTS = {
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "os.link", "os.symlink"),
    *("os.truncate", "shutil.rmtree", "shutil.move", "shutil.copyfile", "sqlite3.connect", "glob.glob"),
}


class Jitter:
    """Sleeps of random length, others on each rank and under each ``seed``."""

    def __init__(self, seed: str, longest: float = 0.15) -> None:
        rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("RANK", "0")
        self.chance = random.Random(f"{seed}/{rank}")
        self.longest, self.home, self.asleep = longest, f"{Path.cwd()}/", False

    def sleep(self, path: object) -> None:
        """Sleep, if ``path`` is one of the script's own files."""
        if self.asleep or not self._is_own(path):
            return
        self.asleep = True
        try:
            time.sleep(self.chance.choice((0.0, self.chance.random())) * self.longest)
        finally:
            self.asleep = False

    def _is_own(self, path: object) -> bool:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        whole = text if text.startswith("/") else f"{self.home}{text}"
        return bool(text) and whole.startswith(self.home) and not whole.endswith((".py", ".pyc", "__pycache__"))

    def install(self) -> None:
        """Have it happen from here on."""
        sys.addaudithook(self._heard)
        stat, opened = os.stat, builtins.open

        def looked(path, *args, **kwargs):
            self.sleep(path)
            return stat(path, *args, **kwargs)

        def filled(file, mode="r", *args, **kwargs):
            found = opened(file, mode, *args, **kwargs)
            if not set(mode).isdisjoint("wax+"):
                self.sleep(file)
            return found

        os.stat = looked
        builtins.open = io.open = filled

    def _heard(self, event: str, args: tuple) -> None:
        if event in _EVENTS and args:
            self.sleep(args[0])
