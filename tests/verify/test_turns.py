"""What a script draws for itself follows from the turn of its loop: the ranks draw the serial script's turns."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from dlrun.verify.tracer import generators
from dlrun.verify.tracer.iteration_seeds import Turns
from dlrun.verify.tracer.recorder import Orders


class Recorder:
    """Counts steps, as the tracer's does."""

    def __init__(self, rank: int = 0, **orders: Any) -> None:
        self.rank, self.steps = rank, 0
        self.orders = Orders("", "", "", "", 6, 3, **{"turn_steps": 1, "shares": 2, **orders})  # type: ignore[arg-type]

    def aside(self) -> nullcontext[None]:
        return nullcontext()


def drawn(turns: int, rank: int = 0, reseeds: bool = True, **orders: int) -> list[float]:
    recorder = Recorder(rank, **orders)
    seeded, numbers = Turns(recorder), list[float]()  # type: ignore[arg-type]
    random.seed(0)
    if reseeds:
        seeded.reseeded()
    for _ in range(turns):
        numbers.append(random.random())
        for _ in range(recorder.orders.turn_steps):
            recorder.steps += 1
            seeded.stepped()
    return numbers


def test_ranks_draw_what_the_serial_script_draws_in_its_turns_between_them() -> None:
    serial = drawn(6, reseeds=False)
    assert len(set(serial)) == 6
    assert drawn(3, stride=2) == serial[::2]
    assert drawn(3, rank=1, stride=2) == serial[1::2]
    assert drawn(3, rank=1, stride=2, reseeds=False) == serial[::2]  # alike, as where the port shares one order
    assert drawn(6, rank=1) == [serial[0], *serial[1:]]  # each takes a part of every batch
    assert drawn(6, turn_steps=2, reseeds=False) == serial


def test_another_turn_of_those_that_ranks_make_together_comes_last() -> None:
    serial, turned = drawn(6, reseeds=False), drawn(6, reseeds=False, turn=1)
    assert turned[2:] == [serial[3], serial[2], serial[5], serial[4]]


def test_without_turns_nothing_is_seeded() -> None:
    random.seed(0)
    expected = [random.random() for _ in range(3)]
    assert drawn(3, turn_steps=0) == expected


@pytest.mark.parametrize("make", [random.Random, np.random.RandomState, np.random.default_rng])
def test_a_generator_of_the_scripts_own_that_ranks_reseed_draws_the_serial_scripts_turns_too(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers(turns: int, rank: int = 0, **orders: Any) -> list[float]:
        own = make(3)
        monkeypatch.setattr(generators, "made", [lambda: own])
        assert generators.number_of(own) == 0
        recorder = Recorder(rank, generators=(0,), **orders)
        seeded, found = Turns(recorder), list[float]()  # type: ignore[arg-type]
        if rank:
            seeded.reseeded_own()
        for _ in range(turns):
            found.append(float(own.random() if hasattr(own, "random") else own.rand()))
            recorder.steps += 1
            seeded.stepped()
        return found

    serial = numbers(6)
    assert len(set(serial)) == 6
    assert numbers(3, stride=2) == serial[::2]
    assert numbers(3, rank=1, stride=2) == serial[1::2]
