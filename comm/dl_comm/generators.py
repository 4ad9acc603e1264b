"""Generators of random numbers that a script makes for itself: what state they are in."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


def state_of(generator: Any) -> Any:
    """Return the state that one of ``GENERATORS`` is in; it can be pickled."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state(legacy=False) if isinstance(generator, np.random.RandomState) else generator.getstate()


def set_state(generator: Any, state: Any) -> None:
    """Let one of ``GENERATORS`` go on from ``state``."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)
