"""Random numbers that follow from the iteration of a loop of steps, where the script draws or picks its batches itself.

So iteration k of rank r of n draws what iteration n k + r of the serial script draws: the ranks have its batches.
"""

from __future__ import annotations

import random
import sys
from typing import Any
from zlib import crc32

from dlrun.verify.tracer.generators import seed_own
from dlrun.verify.tracer.recorder import Recorder


class Turns:
    """Seeds the shared generators behind each iteration, which is so many optimizer steps (``orders.turn_steps``)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._own = recorder, False

    def reseeded(self) -> None:
        """From here on ranks draw numbers of their own."""
        self._own = True
        if self._recorder.rank and self._recorder.orders.turn_steps and self._recorder.orders.stride > 1:
            self._seed()

    def reseeded_own(self) -> None:
        """Let a rank's first draws of the script's own generators be those of its first serial iteration."""
        if self._recorder.rank and self._recorder.orders.turn_steps and self._recorder.orders.stride > 1:
            self._seed_own(self._turn())

    def stepped(self) -> None:
        """An optimizer step was made."""
        turn = self._recorder.orders.turn_steps
        if turn and self._recorder.steps % turn == 0:
            self._seed()

    def _turn(self) -> int:
        """Return the serial iteration that rank 0 comes to."""
        orders = self._recorder.orders
        turn, n = self._recorder.steps // orders.turn_steps * orders.stride, orders.shares
        return turn + ((turn + orders.turn) % n - turn % n if orders.turn else 0)  # of each n another one comes last

    def _seed(self) -> None:
        turn, stride = self._turn(), self._recorder.orders.stride
        seed_for(self._recorder, turn + (self._recorder.rank if self._own and stride > 1 else 0))
        self._seed_own(turn)

    def _seed_own(self, turn: int) -> None:
        orders = self._recorder.orders
        rank = self._recorder.rank if orders.stride > 1 else 0
        seed_own(orders.generators, crc32(repr(turn + rank).encode()))


def seed_for(recorder: Recorder, what: Any) -> None:
    """Let the shared generators go on from a seed that ``what`` decides: the numbers of a batch's samples, say."""
    seed = crc32(repr(what).encode())
    with recorder.aside():
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        if torch := sys.modules.get("torch"):
            torch.manual_seed(seed)
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow and tensorflow.executing_eagerly():  # a graph's ops have seeds of their own
            tensorflow.compat.v2.random.set_seed(seed)
