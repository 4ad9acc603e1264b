"""What rank 0 does for all: it prints, writes files, goes first."""

from __future__ import annotations

import builtins
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from dl_comm import CommError, _core
from dl_comm.torch.ranks import barrier, is_rank0, world

P = ParamSpec("P")
R = TypeVar("R")


def print(*args: Any, **kwargs: Any) -> None:
    """``builtins.print`` on rank 0, nothing elsewhere. The arguments are evaluated on every rank."""
    if is_rank0():
        builtins.print(*args, **kwargs)


class Silence:
    """What ``rank0`` gives the other ranks: false, and whatever is done with it does nothing and gives it back.

    Attributes, calls, items, ``with`` and iteration (which ends at once) all work, so that
    ``writer = dl.rank0(SummaryWriter)("runs")`` can be used on every rank.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __setattr__(self, name: str, value: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False


def rank0(function: Callable[P, R]) -> Callable[P, R | Any]:
    """Return a callable that calls ``function`` on rank 0 and returns a silent, false object elsewhere.

    ``dl.rank0(plt.savefig)("loss.png")``. The function must not communicate: the other ranks are not in it.
    """
    if is_rank0():
        return function

    def nothing(*args: P.args, **kwargs: P.kwargs) -> Any:
        return Silence()

    return nothing


def rank0_first(function: Callable[P, R]) -> Callable[P, R]:
    """Return a callable that calls ``function`` on rank 0, then on one rank of each node, then on the others.

    For downloads, caches and folders that the first to come makes and the others find, whether the disk is shared or
    the node's own: ``data = dl.rank0_first(MNIST)("data", download=True)``. Every rank gets its own result. When
    the function fails somewhere, the ranks still waiting raise ``dl_comm.CommError`` with that rank's error.
    """

    @functools.wraps(function)
    def ordered(*args: P.args, **kwargs: P.kwargs) -> R:
        here = world()
        if here.size == 1:
            return function(*args, **kwargs)
        turn = 0 if here.rank == 0 else 1 if here.localrank == 0 else 2
        for now in range(3):
            failure: Exception | None = None
            try:
                if now == turn:
                    result = function(*args, **kwargs)
            except Exception as error:
                failure = error
            said = f"rank {here.rank} failed first: {type(failure).__name__}: {failure}" if failure else ""
            failures = [text.decode() for text in _core.allgather_bytes(said.encode()) if text]
            if failure is not None:
                raise failure
            if failures:
                raise CommError(f"rank0_first: {failures[0]}")
        return result

    return ordered


def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """``torch.save`` on rank 0; the other ranks return at once.

    A file named by a path appears complete or not at all: it is written into a temporary folder beside it, under its
    own name (the bytes are those of ``torch.save``), and then moved into place. A file object is written directly.
    Call ``load``, or ``barrier``, before another rank reads the file.
    """
    if not is_rank0():
        return
    target = Path(os.path.realpath(f)) if isinstance(f, (str, os.PathLike)) else None
    if target is None or (target.exists() and not target.is_file()) or not target.parent.is_dir():
        # A file object, a device or pipe, or a path that cannot be written: torch.save's own behaviour and errors.
        torch.save(obj, f, *args, **kwargs)
        return
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=target.parent) as folder:
        written = Path(folder, target.name)
        torch.save(obj, written, *args, **kwargs)
        if target.exists():
            written.chmod(target.stat().st_mode & 0o7777)
        written.replace(target)


def load(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Wait for all ranks, then ``torch.load`` on every one of them: what rank 0 saved before is complete.

    The arguments are ``torch.load``'s. All ranks must call it.
    """
    barrier()
    return torch.load(f, *args, **kwargs)
