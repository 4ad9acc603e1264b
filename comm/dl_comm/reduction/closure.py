"""The variables that a function shares with the function around it, by name."""

from __future__ import annotations

from types import FunctionType
from typing import Any


class closure:  # noqa: N801 - reads as a question about a function
    """``closure(add).total``: the variable ``total`` that ``add`` shares with the function that made it.

    It may be read and set: behind a loop over a shard, ``dl.closure(add).total = dl.total(dl.closure(add).total)``.
    Raises ``AttributeError`` where ``add`` has no such variable.
    """

    def __init__(self, function: FunctionType) -> None:
        names = function.__code__.co_freevars
        object.__setattr__(self, "_cells", dict(zip(names, function.__closure__ or (), strict=True)))

    def __getattr__(self, name: str) -> Any:
        return self._cell(name).cell_contents

    def __setattr__(self, name: str, value: Any) -> None:
        self._cell(name).cell_contents = value

    def _cell(self, name: str) -> Any:
        cells = self.__dict__["_cells"]
        if name not in cells:
            raise AttributeError(f"closure() found no variable {name!r} around the function; it has {', '.join(cells)}")
        return cells[name]
