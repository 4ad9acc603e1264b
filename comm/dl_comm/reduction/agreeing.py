"""Decisions that all ranks take alike: by a clock, a random draw, a local buffer."""

from __future__ import annotations

import pickle
from typing import Any

from dl_comm import _core
from dl_comm.errors import CommError
from dl_comm.ranks import get_nranks, is_worker


def agree(value: Any) -> Any:
    """Return rank 0's ``value`` on all ranks: for decisions that each rank would take by itself.

    ``if dl.agree(time.time() - began > limit): break`` ends the loop on all ranks in the same step. ``value`` is a
    truth value, a number, a text, or whatever small thing can be pickled. Collective, also where all repeat the serial
    run (``DL_COMM_REPLICATE``), as their clocks differ. On one rank ``value`` itself comes back.
    """
    if get_nranks() == 1 or is_worker():
        return value
    return pickle.loads(_core.broadcast_bytes(pickle.dumps(value, protocol=5), 0))


def any_rank(flag: Any) -> bool:
    """Return, on all ranks, whether ``flag`` is true on any: one has seen a NaN, or wants to stop. Collective."""
    return any(_flags(flag, "any_rank"))


def all_ranks(flag: Any) -> bool:
    """Return, on all ranks, whether ``flag`` is true on each: all have enough samples, or are done. Collective."""
    return all(_flags(flag, "all_ranks"))


def _flags(flag: Any, who: str) -> list[bool]:
    mine = bool(flag)
    if get_nranks() == 1 or is_worker():
        return [mine]
    everyone = _core.allgather_bytes(f"{who} {int(mine)}".encode())
    for rank, sent in enumerate(everyone):
        if sent.decode(errors="replace").split(" ")[0] != who:
            raise CommError(
                f"{who}() on this rank meets another call on rank {rank}",
                "All ranks make the same calls in the same order.",
            )
    return [sent.endswith(b"1") for sent in everyone]
