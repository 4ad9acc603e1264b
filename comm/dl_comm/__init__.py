"""dl_comm averages gradients over the ranks of a data-parallel job.

These are the names of the Cray PE DL Plugin, for NumPy arrays; ``dl_comm.torch`` and its neighbours speak to the
frameworks. Without a launcher a process is rank 0 of 1, and averaging changes nothing.

All calls but the ranks and sizes are collective: every rank makes the same ones in the same order, with arrays of the
same shapes and types. Where they differ, every rank gets a :class:`CommError` that names the first array that does.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

if importlib.util.find_spec("dl_comm._core") is None:
    raise ModuleNotFoundError(
        "dl_comm was installed without its compiled core (wheel.cmake=false): install dlrun where a C++17 compiler is",
        name="dl_comm._core",
    )

from dl_comm import _core, averaging, compare_ranks, device, probe, rank_exit, timeline
from dl_comm.arrays import bare, beside, described, is_tensorflow, moved, writable
from dl_comm.errors import CommError
from dl_comm.schedule import Phases
from dl_comm.stopping import should_stop

timeline.record(os.environ)
probe.record(os.environ)

__all__ = [
    "CommError",
    "average",
    "barrier",
    "broadcast",
    "check_buffers_match",
    "config_team",
    "create_team",
    "finalize",
    "get_localrank",
    "get_localsize",
    "get_nranks",
    "get_rank",
    "gradients",
    "init",
    "init_mpi",
    "should_stop",
]


def init_mpi() -> None:
    """Join the ranks of this job. Idempotent; after it the rank and the sizes are known.

    Raises :class:`CommError` in a process that a rank has started: it would take the rank's place.
    """
    rank_exit.refuse_children()
    joined = _core.initialized()
    _core.init()
    rank_exit.watch()
    why = "" if joined or _core.rank() != 0 else _core.session().without_shared_memory()
    if why and os.environ.get("DL_COMM_SHARED_MEMORY") != "none":
        sys.stderr.write(f"dl_comm: there are ranks that share no memory ({why}): they talk through MPI, slowly\n")


def init(nthread_per_team: int = 2, nteams: int = 1, msglen: int = 0, framework: str = "numpy") -> None:
    """Join the ranks, if ``init_mpi`` has not, and make teams 0 to ``nteams - 1`` of ``nthread_per_team`` threads each.

    ``msglen`` is the number of trainable elements, or an upper bound: a hint that never limits. ``framework`` is what
    the script uses ("numpy", "torch", "tensorflow"); the functions look at the type of their arguments all the same.
    """
    init_mpi()
    for team in range(nteams):
        create_team(team, nthread_per_team)


def create_team(team: int, nthreads: int, prec_level: int = 0) -> None:
    """Make team ``team`` with ``nthreads`` threads; level 1 sums floats in double. One made already stays as it is."""
    if team not in _teams:
        try:
            _core.create_team(team, nthreads, prec_level)
        except CommError as error:
            if "exists already" not in error.message:  # made at its first use, say by barrier()
                raise
        _teams.add(team)


def config_team(
    team: int = 0, transition: int = 0, ksteps: int = 1, max_steps: int = 1, verbosity: int = 0, perf_freq: int = 0
) -> None:
    """Say which of the team's ``gradients`` calls block and which return the mean of the step before.

    ``ksteps > 0``: the first ksteps calls block, the rest are pipelined; ``ksteps < 0``: blocking starts at call
    ``|ksteps|`` (or, with DL_COMM_COOLDOWN=last, for the last ``|ksteps|`` of ``max_steps``); ``transition >= 1``
    blends the two. A pipelined call returns the mean of the previous call's arrays, the first one its own. See
    :mod:`dl_comm.schedule`. With ``verbosity`` 1 rank 0, with 2 every rank, prints every ``perf_freq`` calls how long
    it has waited. A team that was not configured always blocks.
    """
    init_mpi()
    one = averaging.of(team)
    one.configure(Phases(transition, ksteps, max_steps, _core.cooldown()), verbosity, perf_freq)


def gradients(arrays: Sequence[Any], team: int = 0) -> list[Any]:
    """Return the mean over ranks of each NumPy array, torch tensor or CuPy array, as new ones in the same order.

    TensorFlow's tensors, eager or in a graph, go to :func:`dl_comm.tensorflow.gradients`.

    Any shapes; floats (also float16 and bfloat16) and integers. Integer means round towards zero. An element that is
    None stays None and counts for nothing: it is None on all ranks. Raises :class:`CommError` on every rank if the
    ranks' arrays differ in number, order, shape or type.
    """
    one = averaging.teams.get(team) or averaging.of(team)
    if one.at_once and _core.allreduce is averaging.unwatched:  # by little Python: it costs more than a short message
        begun = perf_counter()
        at_once = _core.means(arrays, team)
        if at_once is not None:
            one.waited += perf_counter() - begun
            one.calls += 1
            return at_once
    if any(is_tensorflow(array) for array in arrays):
        theirs: list[Any] = _for_tensorflow().gradients(arrays, team)
        return theirs
    present = [array for array in arrays if array is not None]
    means = iter(one.mean(present))
    return [None if array is None else beside(array, next(means)) for array in arrays]


def broadcast(arrays: Sequence[Any], root: int = 0) -> Any:
    """Give every rank the values of rank ``root``, in place: NumPy arrays, torch tensors and CuPy arrays.

    In the host's memory they are of any type but objects.

    For TensorFlow's variables and tensors see :func:`dl_comm.tensorflow.broadcast`, whose result this returns.
    """
    if any(is_tensorflow(array) for array in arrays):
        return _for_tensorflow().broadcast(arrays, root)
    there = [array for array in arrays if device.is_on_gpu(array)]
    for flight in device.take_off(there, 0, [described(array) for array in there], root=root):
        flight.land()
    with writable([array for array in arrays if not device.is_on_gpu(array)]) as dense:
        if dense or not there:
            sent = [moved(array) for array in dense]
            _core.broadcast([buffer for buffer, _ in sent], root, [label for _, label in sent])
    return None


def average(array: Any) -> Any:
    """Replace ``array`` by its mean over ranks, in place, and return it.

    Of TensorFlow's tensors, which do not change, see :func:`dl_comm.tensorflow.average`, whose result this returns.
    """
    if is_tensorflow(array):
        return _for_tensorflow().average(array)
    if device.is_on_gpu(array):
        for flight in device.take_off([array], 0, [described(array)]):
            flight.land()
        return array
    with writable([array]) as dense:
        _core.allreduce([bare(dense[0])], "mean", 0, [described(dense[0])])
    return array


def check_buffers_match(arrays: Sequence[Any], flag: int = 0) -> int:
    """Return 0 if the arrays hold the same bits on all ranks, else the number of arrays that do not.

    With ``flag`` 1 rank 0, with 2 every rank, prints which arrays differ and where.
    """
    return compare_ranks.mismatches(arrays, flag)


def get_rank() -> int:
    """Return the number of this rank, from 0."""
    return _core.rank()


def get_nranks() -> int:
    """Return the number of ranks."""
    return _core.size()


def get_localrank() -> int:
    """Return the number of this rank among those of its node, from 0."""
    return _core.local_rank()


def get_localsize() -> int:
    """Return the number of ranks on this node."""
    return _core.local_size()


def barrier() -> None:
    """Return once every rank has called."""
    _core.barrier()


def finalize() -> None:
    """Leave, once every rank does. Idempotent."""
    if _core.initialized() and not _core.session().finalized():
        averaging.report_at_end()
    rank_exit.leave()


def _for_tensorflow() -> Any:
    import dl_comm.tensorflow

    return dl_comm.tensorflow


_teams: set[int] = set()
