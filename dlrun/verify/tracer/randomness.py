"""The random generators a script shares with its libraries: who seeded them, who drew from them, their states."""

from __future__ import annotations

import os
import random
import sys
from hashlib import blake2b
from typing import Any

from dlrun.verify.tracer import generators
from dlrun.verify.tracer.recorder import Recorder, is_user_file
from dlrun.verify.tracer.told import Whole


def states() -> dict[str, str]:
    """Return a hash of the state of each shared generator: torch, numpy, random, and cuda where it is in use."""
    made: dict[str, bytes] = {}
    if torch := sys.modules.get("torch"):
        made["torch"] = torch.get_rng_state().numpy().tobytes()
    if "tensorflow.python.eager.context" in sys.modules:  # "tensorflow" alone may be a package's stand-in for it
        made |= _of_tensorflow()
    made["random"] = repr(random.getstate()).encode()
    if numpy := sys.modules.get("numpy"):
        _, keys, position, *rest = numpy.random.get_state()
        made["numpy"] = keys.tobytes() + repr((position, rest)).encode()
    if torch and torch.cuda.is_initialized():
        made["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return {name: blake2b(state, digest_size=8).hexdigest() for name, state in made.items()}


# Keras 3 keeps generators in its layers; these are the models that were called.
watched_models: dict[int, Any] = {}


# What stands for TensorFlow's state while nobody has seeded it: another one in each process.
_UNSEEDED = os.urandom(8)


def _of_tensorflow() -> dict[str, bytes]:
    """Return the states of TensorFlow's generator for eager code, and of the layers' own."""
    from tensorflow.python.eager import context

    seed, own = context.global_seed(), getattr(context.context(), "_rng", None)
    made = {"tensorflow": repr((seed, own.getstate() if own else None)).encode() if seed is not None else _UNSEEDED}
    models = [m for m in watched_models.values() if getattr(m, "built", True)]  # Keras 2 minds being asked before
    seeds = [v for m in models for v in m.variables if "seed_generator" in getattr(v, "path", "")]
    if seeds:
        made["keras"] = repr([v.numpy().tolist() for v in seeds]).encode()
    return made


class Draws:
    """Which generators were drawn from since it was last asked.

    A DataLoader draws a base seed and its order whenever it is iterated: that is not noise in the training, so the
    loader's instruments call ``mark`` before it, and ``mark(count=False)`` after.
    """

    def __init__(self) -> None:
        self._last = states()
        self._drawn: set[str] = set()

    def mark(self, count: bool = True) -> None:
        """Compare with the last mark; ``count`` says whether a difference is the script's draw."""
        now = states()
        if count:
            self._drawn |= {name for name, state in now.items() if self._last.get(name, state) != state}
        self._last = now

    def collect(self) -> list[str]:
        """Return the names drawn from since the last call, and forget them."""
        self.mark()
        drawn, self._drawn = sorted(self._drawn), set()
        return drawn


def install(recorder: Recorder) -> Draws:
    """Note every seeding; seed what the orders say. Returns the watch over draws."""
    import numpy

    torch, tf = sys.modules.get("torch"), sys.modules.get("tensorflow")
    begun: dict[str, str] = {}
    if torch:
        _note_seeding(recorder, begun, torch, "manual_seed", "torch")
        _note_seeding(recorder, begun, torch, "seed", "torch", fixed=False)
    if tf:
        _note_seeding(recorder, begun, tf.compat.v2.random, "set_seed", "tensorflow")
    _note_seeding(recorder, begun, random, "seed", "random")
    _note_seeding(recorder, begun, numpy.random, "seed", "numpy")
    generators.install(recorder)
    seed = recorder.orders.seed
    if seed is None and tf:  # deterministic ops want a seed; this one differs from run to run, as if there were none
        with recorder.aside():
            tf.compat.v2.random.set_seed(int.from_bytes(os.urandom(4), "little") >> 1)
    if seed is not None:
        seed += recorder.rank if recorder.orders.seed_by_rank else 0
        with recorder.aside():
            if torch:
                torch.manual_seed(seed)
            if tf:
                tf.compat.v2.random.set_seed(seed)
            random.seed(seed)
            numpy.random.seed(seed % 2**32)
    begun |= states()
    recorder.note("begin", states=begun)
    return Draws()


def _note_seeding(
    recorder: Recorder, begun: dict[str, str], module: Any, name: str, generator: str, fixed: bool = True
) -> None:
    """Wrap a seeding function: an event says which generator, which seed was given, if one was, and if it is late.

    Late is a first seeding of a generator that was drawn from since the script began, in the state ``begun``. One more
    than the serial script makes, with a seed that has the rank's number in it, is left out where the orders say so.
    """
    seeding, expected, made = getattr(module, name), recorder.orders.seedings, 0

    def noted(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        given = [*args, *kwargs.values()]
        is_fixed = fixed and bool(given) and given[0] is not None
        if not recorder.inside and (is_fixed or is_user_file(sys._getframe(1).f_code.co_filename)):
            late = generator in begun and states()[generator] != begun.pop(generator)
            seed = repr(given[0])[:40] if given else ""
            made += is_fixed
            if expected is not None and made > expected.get(generator, 0) and isinstance(given[0], Whole):
                return getattr(module, "default_generator", None)  # the local one: 1 rank goes on as it was
            recorder.note("seed", generator=generator, fixed=is_fixed, seed=seed, late=late)
        with recorder.aside():
            return seeding(*args, **kwargs)

    setattr(module, name, noted)
