"""Train on many ranks from a notebook, or a Python prompt: the function of a cell runs on each of them.

::

    from dlrun.notebook import launch

    def train(epochs):
        import dl_comm.torch as dl
        ...
        return losses

    losses = launch(train, args=(3,), n=2)

The ranks are processes of their own, started as ``dlrun launch`` starts them: what the notebook has loaded, a GPU that
it uses, and other cells' results are not theirs. The function and what it refers to go to them by value, with
cloudpickle (pip install "dlrun[notebook]"): pickle cannot send a function that lives in a cell.
"""

from __future__ import annotations

import linecache
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlrun.errors import DlrunError
from dlrun.launch import Host, LaunchPlan, look_here, new_run_dir
from dlrun.launch import launch as _launch
from dlrun.launch.result import Result, check_interrupted

_CALL = Path(__file__).parent / "programs" / "call.py"


def launch(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    n: int | None = None,
    *,
    show: Sequence[int] | None = (0,),
    env: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
    per_node: int | None = None,
) -> Any:
    """Call ``function(*args)`` on ``n`` ranks, and return what it returned on rank 0.

    ``n`` is the number of GPUs, or the batch job's ranks, unless said. What the ranks in ``show`` print is shown below
    the cell (None: all ranks'); every rank's log is in dlrun-runs/latest. ``env`` are variables of theirs, ``hosts``
    the machines they run on, ``per_node`` of them on each.

    Raises:
        DlrunError: a rank failed, the function cannot be sent, or nothing could be started.
        KeyboardInterrupt: it was interrupted; no rank is left.
    """
    if threading.current_thread() is not threading.main_thread():
        raise DlrunError("the ranks are started from the main thread alone: call launch() in a cell, not in a thread")
    plan = LaunchPlan(
        (str(_CALL),),
        n,
        show=None if show is None else tuple(show),
        env=tuple((env or {}).items()),
        hosts=tuple(Host(name) for name in hosts),
        per_node=per_node,
    )
    try:
        return _returned(plan._replace(ranks=_ranks(n)), function, tuple(args))
    except DlrunError as error:  # who shows an exception shows its message alone
        raise DlrunError("; ".join(filter(None, (error.message, error.hint)))) from error.__cause__


def _returned(plan: LaunchPlan, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Carry the plan out with this call; return what it returned on rank 0."""
    folder = Path(new_run_dir(plan)).absolute()
    folder.mkdir(parents=True)
    call, answer = folder / "call.pickle", folder / "answer.pickle"
    try:
        _send(call, function, args)
        program = (*plan.program, str(call), str(answer))
        _check(_launch(plan._replace(program=program, run_dir=str(folder)), None, _note))
        return pickle.loads(answer.read_bytes())
    finally:
        for file in (call, answer):  # they may be large
            file.unlink(missing_ok=True)


def _ranks(n: int | None) -> int:
    """Return how many ranks there are to be."""
    here = look_here()
    ranks = n if n is not None else here.allocation.ranks or here.gpus
    if not ranks:
        raise DlrunError("how many ranks is not said, and no GPU is here", "say so: launch(train, n=2)")
    return ranks


def _send(file: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Write what the ranks call, with where they import from and the text of the cell, for their tracebacks."""
    try:
        import cloudpickle
    except ImportError:
        raise DlrunError("sending a function to the ranks needs cloudpickle", 'pip install "dlrun[notebook]"') from None
    name = getattr(function, "__name__", "the function")
    file_of = getattr(getattr(function, "__code__", None), "co_filename", "")
    cell = (file_of if Path(file_of).is_file() else f"the cell of {name}", linecache.getlines(file_of))
    try:
        call = cloudpickle.dumps((function, args))
    except Exception as error:  # of pickle, TypeError and whatever an object's own reduction raises
        why = f"{name} cannot be sent to the ranks: {type(error).__name__}: {error}"
        raise DlrunError(
            why, "make in it what cannot be sent, such as a model on a GPU, a lock or an open file"
        ) from error
    file.touch(mode=0o600)
    file.write_bytes(pickle.dumps((sys.path, cell, call)))


def _check(result: Result) -> None:
    """Raise what the end of the job calls for."""
    check_interrupted(result)
    if result.returncode:
        for line in result.failure.tail if result.failure else ():
            print(f"  | {line}", file=sys.stderr)
        why = str(result.failure) if result.failure else f"the job ended with exit code {result.returncode}"
        raise DlrunError(f"{why}; logs: {result.run_dir}")
    if result.serial:
        _note("the ranks never talked to each other: each has run the whole function for itself")


def _note(text: str) -> None:
    print(f"dlrun: {text}", file=sys.stderr)
