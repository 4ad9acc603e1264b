"""Files and folders that a command writes at its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class NewFile(click.Path):
    """An option's file that is to be written: that its folder takes it is made sure before the work, not after."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the file's path; it is a usage error where it could not be written."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"There is no folder '{path.parent}'.", param, ctx)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            self.fail(f"File '{path}' cannot be written.", param, ctx)
        return path


class NewFolder(click.Path):
    """An option's folder that is to be filled, and made where it is not there: that it can be is made sure first."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the folder's path; it is a usage error where nothing could be written there."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        there = next(p for p in (path, *path.absolute().parents) if p.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            self.fail(f"Folder '{path}' cannot be written.", param, ctx)
        return path
