"""Collective calls of threads, made on every rank in the order in which rank 0's threads come to make them.

The ops of a graph run in an order of the session's own, on every rank another one, and TensorFlow does not tell a
kernel which op of its graph it is, but only the op's name. So rank 0 announces the name of the op that runs next.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import numpy as np

from dl_comm import CommError, _core
from dl_comm.ranks import own_team


class Rank0sOrder:
    """A team whose calls are made in that order. Making one is collective."""

    def __init__(self) -> None:
        self.team = own_team()
        self._changed = threading.Condition()
        self._announced: int | None = None

    def run(self, name: str, act: Callable[[int], None]) -> None:
        """Call ``act`` with the team when the op ``name`` is next: at once on rank 0, as it says on the others."""
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
        with self._changed:
            if _core.rank() == 0:
                self._announce(key, name)
                act(self.team)
                return
            while self._announced != key:
                if self._announced is None:
                    self._announced = self._announce(0, name)
                else:
                    self._changed.wait()
            try:
                act(self.team)
            finally:
                self._announced = None
                self._changed.notify_all()

    def _announce(self, key: int, name: str) -> int:
        """Return rank 0's key: the others add zeros."""
        sent = np.array([key], np.int64)
        try:
            _core.allreduce([(sent.ctypes.data, 1, "int64")], "sum", self.team, ["the name of the next op"])
        except CommError as error:
            raise CommError(f"{name}: {error.message}", "Every rank must run the ops that rank 0 does.") from error
        return int(sent[0])
