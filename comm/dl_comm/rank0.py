"""What rank 0 does for all: it prints, and it goes first."""

from __future__ import annotations

import builtins
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np

from dl_comm import CommError, _core
from dl_comm.generators import GENERATORS
from dl_comm.ranks import VALUES, is_rank0, world

P = ParamSpec("P")
R = TypeVar("R")


def print(*args: Any, **kwargs: Any) -> None:
    """``builtins.print`` on rank 0, nothing elsewhere. The arguments are evaluated on every rank."""
    if is_rank0():
        builtins.print(*args, **kwargs)


def tell(what: str) -> None:
    """Let rank 0 say ``what`` on stderr: what a script prints stays what it is."""
    if is_rank0():
        sys.stderr.write(f"dl_comm: {what}\n")
        sys.stderr.flush()


class Silence:
    """What ``rank0`` gives the other ranks: false, and whatever is done with it does nothing and gives it back.

    Attributes, calls, items, ``with``, iteration (which ends at once), formatting and arithmetic all work, so that
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

    def fileno(self) -> int:
        """Return the descriptor of a file that nobody sees: ``os.fsync(log.fileno())``, ``stdout=log``."""
        return _unseen()

    def __fspath__(self) -> str:
        raise TypeError(
            "only rank 0 has what names this path, as a writer's folder: give it to the others with "
            "dl.broadcast(), such as dl.broadcast(writer.log_dir)"
        )

    def __len__(self) -> int:
        return 0

    def __contains__(self, item: Any) -> bool:
        return False

    def __format__(self, how: str) -> str:
        return ""

    def __str__(self) -> str:
        return ""

    def __lt__(self, other: Any) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __add__(self, other: Any) -> Any:
        return self

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__

    def __bool__(self) -> bool:
        return False


@functools.cache
def _unseen() -> int:
    """Return the descriptor of this process's file without a name: /dev/null cannot be synchronised."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def is_plain(thing: Any) -> bool:
    """Tell whether ``thing`` is data, and no tensor or variable: an array, a number, a text, a list of these."""
    if isinstance(thing, (list, tuple)):
        return all(map(is_plain, thing))
    return isinstance(thing, (np.ndarray, Silence, *GENERATORS, *VALUES))


def rank0(function: Callable[P, R]) -> Callable[P, R | Any]:
    """Return a callable that calls ``function`` on rank 0 and returns a silent, false object elsewhere.

    ``dl.rank0(plt.savefig)("loss.png")``. The function must not communicate: the other ranks are not in it.
    """
    if is_rank0():
        return function

    def nothing(*args: P.args, **kwargs: P.kwargs) -> Any:
        return Silence()

    return nothing


_alone = False  # in a turn of its own, with the other ranks waiting


def is_alone() -> bool:
    """Tell whether this rank is in a turn of its own, with the others waiting, as under ``rank0_first``."""
    return _alone


@overload
def rank0_first() -> AbstractContextManager[None]: ...
@overload
def rank0_first(function: Callable[P, R]) -> Callable[P, R]: ...
def rank0_first(function: Callable[P, R] | None = None) -> Callable[P, R] | AbstractContextManager[None]:
    """Return a callable that calls ``function`` on rank 0, then on one rank of each node, then on the others.

    For downloads, caches and folders that the first to come makes and the others find, whether the disk is shared or
    the node's own: ``data = dl.rank0_first(MNIST)("data", download=True)``. Every rank gets its own result. When
    the function fails somewhere, the other ranks raise an error of the same class that names the rank, so that a script
    that goes on after it does so on all ranks; where there is no such class here, ``dl_comm.CommError``.

    Without a function, ``with dl.rank0_first():`` does the same with the lines below it. All ranks come by; in its turn
    a rank is alone, so nothing there may wait for the others, but for ``rank0_first`` itself, which then does not.
    """
    if function is None:
        return _turn()

    @functools.wraps(function)
    def ordered(*args: P.args, **kwargs: P.kwargs) -> R:
        with _turn():
            return function(*args, **kwargs)

    return ordered


@contextmanager
def _turn() -> Iterator[None]:
    """Wait for this rank's turn, and, after it, until all have had theirs."""
    global _alone
    here = world()
    if here.size == 1 or _alone:
        yield
        return
    turn = 0 if here.rank == 0 else 1 if here.localrank == 0 else 2
    for now in range(3):
        failure: Exception | None = None
        if now == turn:
            _alone = True
            try:
                yield
            except Exception as error:
                failure = error
            finally:
                _alone = False
        failures = [text for text in _core.allgather_bytes(_told(failure, here.rank).encode()) if text]
        if failure is not None:
            raise failure
        if failures:
            raise _again(*failures[0].decode().split("\n", 2))


def _told(failure: Exception | None, rank: int) -> str:
    """Return what the other ranks learn of ``failure``: the module and the name of its class, and its text."""
    if failure is None:
        return ""
    kind = type(failure)
    return f"{kind.__module__}\n{kind.__qualname__}\nrank0_first: rank {rank} failed first: {kind.__name__}: {failure}"


def _again(module: str, name: str, text: str) -> Exception:
    """Return an error of that class that says ``text``, or a CommError where there is none that can."""
    kind = getattr(sys.modules.get(module), name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        error = kind.__new__(kind)
        error.args = (text,)
        with suppress(Exception):
            if str(error):
                return error
    return CommError(text)
