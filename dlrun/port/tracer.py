"""Runs a PyTorch script for a few optimizer steps and writes where its objects are made and what happens where.

    python tracer.py RESULT STEPS SCRIPT [ARGS...]

Started by ``dlrun.port.observing``, as a program of its own. RESULT gets one JSON line a place: what happened there,
how often, the file, and the position of the call in it. Files that ``torch.save`` would write are not written.
"""

from __future__ import annotations

import builtins
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from dlrun.package import home_of

Position = tuple[int, int, int, int]  # line and column of the beginning and of the end; columns -1: not known


class Places:
    """What happened where, counted; only the process that made it counts, not its workers."""

    def __init__(self, result: str, steps: int, folder: str) -> None:
        self.result, self.steps, self.folder = result, steps, folder
        self.process = os.getpid()
        self.found: dict[tuple[str, str, Position], int] = {}
        self.stepped = 0

    def frame(self, made: Any = None) -> FrameType | None:
        """Return the innermost frame of the user's own code, outside of the constructors of ``made``."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            own = frame.f_code.co_filename.startswith(self.folder) and "site-packages" not in frame.f_code.co_filename
            building = made is not None and frame.f_code.co_name == "__init__" and _builds(frame, made)
            if own and not building:
                return frame
            frame = frame.f_back
        return None

    def note(self, what: str, frame: FrameType | None) -> None:
        """Count that ``what`` happened in ``frame``."""
        if frame is None or os.getpid() != self.process:
            return
        key = (what, frame.f_code.co_filename, _position(frame))
        self.found[key] = self.found.get(key, 0) + 1

    def write(self, why: str) -> None:
        """Write all places, and why the run ended."""
        if os.getpid() != self.process:
            return
        lines: list[dict[str, Any]] = [{"ended": why, "steps": self.stepped}]
        lines += [{"what": w, "file": f, "at": p, "times": n} for (w, f, p), n in self.found.items()]
        Path(self.result).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _builds(frame: FrameType, made: Any) -> bool:
    """Tell whether ``frame`` builds ``made`` or, if that is a module, any module: parts are made inside of wholes."""
    import torch

    first = frame.f_code.co_varnames[:1]
    mine = frame.f_locals.get(first[0]) if first else None
    return mine is made or (isinstance(made, torch.nn.Module) and isinstance(mine, torch.nn.Module))


def _position(frame: FrameType) -> Position:
    if hasattr(frame.f_code, "co_positions"):  # since Python 3.11
        positions = list(frame.f_code.co_positions())
        line, end, column, end_column = positions[frame.f_lasti // 2]
        if line is not None and end is not None and column is not None and end_column is not None:
            return line, column, end, end_column
    return frame.f_lineno, -1, frame.f_lineno, -1


def _before(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Let ``owner.name`` call ``act`` with its arguments first."""
    plain = getattr(owner, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        act(*args)
        return plain(*args, **kwargs)

    called.__name__ = name
    setattr(owner, name, called)


def watch(places: Places) -> None:
    """Put the hooks in place."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader

    def noting(what: str, made: bool = False) -> Callable[..., None]:
        return lambda *args: places.note(what, places.frame(args[0] if made and args else None))

    _before(torch.nn.Module, "__init__", noting("module", True))
    _before(torch.optim.Optimizer, "__init__", noting("optimizer", True))
    _before(DataLoader, "__init__", noting("loader", True))
    _before(DataLoader, "__iter__", noting("iterate"))
    _before(torch.Tensor, "backward", noting("backward"))
    _before(torch.autograd, "backward", noting("backward"))
    _before(builtins, "print", noting("print"))
    torch.save = lambda *args, **kwargs: places.note("save", places.frame())

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        places.note("step", places.frame())
        if os.getpid() == places.process:
            places.stepped += 1
            if places.stepped >= places.steps:
                places.write("steps")
                sys.stdout.flush()
                os._exit(0)

    register_optimizer_step_post_hook(after)


def main() -> None:
    """Run the script under the hooks."""
    result, steps, script = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).resolve()
    sys.argv = [sys.argv[3], *sys.argv[4:]]
    home = home_of(script, script.read_bytes())
    sys.path[0] = str(home.folder)
    places = Places(result, steps, str(home.folder) + os.sep)
    watch(places)
    try:
        if home.package:
            runpy.run_module(home.module(script), run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        places.write(f"exit {error.code}")
        raise
    except BaseException as error:
        places.write(f"{type(error).__name__}: {str(error)[:200]}")
        raise
    places.write("end")


if __name__ == "__main__":
    main()
