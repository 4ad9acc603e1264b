"""Random generators that the script makes for itself: whether it seeds them, and the noise that it draws from them.

A generator that every rank seeds alike gives all of them the same noise; an order of samples has to be the same. So
draws of numbers and of orders are noted apart. PyTorch's noise is followed in ``lineage``. Of the generators that NumPy
and ``random`` have for all, arrays of noise are noted: one number decides something, mostly.
"""

from __future__ import annotations

import functools
import random
import sys
import weakref
from collections.abc import Callable, Collection
from hashlib import blake2b
from typing import Any

import numpy as np

from dlrun.verify.tracer.recorder import Recorder, is_user_file

NOISE = (
    "beta",
    "betavariate",
    "binomial",
    "exponential",
    "gamma",
    "gauss",
    "gumbel",
    "laplace",
    "lognormal",
    "normal",
    "normalvariate",
    "poisson",
    "rand",
    "randn",
    "random",
    "random_sample",
    "standard_normal",
    "uniform",
)
ORDERS = ("permutation", "shuffle", "randperm")
made: list[weakref.ref[Any]] = []  # the script's own, by order of creation


def number_of(generator: Any) -> int | None:
    """Return which of the script's own generators this is; None if it is none of them."""
    return next((number for number, own in enumerate(made) if own() is generator), None)


def seed_own(numbers: Collection[int], seed: int) -> None:
    """Let those of the script's own generators go on from a seed."""
    for generator in [own for number in numbers if number < len(made) and (own := made[number]()) is not None]:
        if hasattr(generator, "bit_generator"):
            generator.bit_generator.state = type(generator.bit_generator)(seed).state
        else:
            generator.seed(seed)


def install(recorder: Recorder) -> None:
    """Follow the generators of NumPy and ``random`` that the script makes from now on."""
    _follow_default_rng(recorder)
    _follow_classes(recorder)
    torch = sys.modules.get("torch")
    for name in NOISE:
        if hasattr(np.random, name):
            setattr(np.random, name, _noting(recorder, getattr(np.random, name), "draw"))
    for module in (np.random, random, *([torch] if torch else [])):
        for name in ORDERS:
            if hasattr(module, name):
                setattr(module, name, _noting(recorder, getattr(module, name), "order"))


def _noting(recorder: Recorder, draw: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Return a function that notes the arrays that it draws, or the order that it brings its argument into.

    What a list holds may be large: of its order the state of the generator tells, which decides it.
    """
    of_list = np.random.get_state if getattr(draw, "__self__", None) is np.random.mtrand._rand else random.getstate

    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        state = repr(of_list()) if args and isinstance(args[0], list) else ""
        found = draw(*args, **kwargs)
        what = args[0] if found is None and args else found
        if getattr(what, "shape", None) not in ((), (1,)) and hasattr(what, "__len__") and _by_user(recorder):
            recorder.note(kind, hash=_hash(what, state), size=len(what))
        return found

    return drawn


def _hash(what: Any, state: str = "") -> str:
    plain = what.detach().cpu() if hasattr(what, "detach") else what
    bits = state.encode() or np.ascontiguousarray(plain).tobytes()
    return blake2b(bits, digest_size=8).hexdigest()


def _follow_default_rng(recorder: Recorder) -> None:
    make, watched = (
        np.random.default_rng,
        type("Generator", (np.random.Generator,), _noted(recorder, np.random.Generator)),
    )

    @functools.wraps(make)
    def seeded(seed: Any = None) -> Any:
        users = _by_user(recorder)
        generator = make(_seed(recorder, seed, "numpy.random.default_rng", users))
        return _known(watched(generator.bit_generator)) if users else generator

    np.random.default_rng = seeded


def _follow_classes(recorder: Recorder) -> None:
    """Put classes in the place of ``RandomState`` and ``random.Random``; what is one of these is one of theirs."""
    for module, name in ((np.random, "RandomState"), (random, "Random")):
        plain = getattr(module, name)
        alike = type(f"Any{name}", (type,), {"__instancecheck__": lambda _, it, plain=plain: isinstance(it, plain)})
        known = f"{module.__name__}.{name}"

        def init(self: Any, seed: Any = None, plain: Any = plain, known: str = known) -> None:
            plain.__init__(self, _seed(recorder, seed, known, _by_user(recorder)))
            if _by_user(recorder):
                _known(self)

        setattr(
            module,
            name,
            alike(name, (plain,), {"__init__": init, "__module__": module.__name__, **_noted(recorder, plain)}),
        )


def _known(generator: Any) -> Any:
    made.append(weakref.ref(generator))
    return generator


def _seed(recorder: Recorder, seed: Any, known: str, users: bool) -> Any:
    """Return the seed for a generator: the orders' where there is none, which is noted of the script's own."""
    if seed is None and not recorder.inside:
        if users:  # not what a library has for itself
            recorder.note("seed", generator=known, fixed=False)
        return recorder.orders.seed
    return seed


def _by_user(recorder: Recorder) -> bool:
    return not recorder.inside and is_user_file(sys._getframe(2).f_code.co_filename)


def _noted(recorder: Recorder, plain: Any) -> dict[str, Callable[..., Any]]:
    """Return the methods of a generator that draw noise or orders, each noting what it drew for the script."""

    def noted(draw: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(draw)
        def drawn(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = draw(self, *args, **kwargs)
            if _by_user(recorder):
                recorder.note("draw", hash=_hash(found))
            return found

        return drawn

    def ordered(draw: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(draw)
        def drawn(self: Any, *args: Any, **kwargs: Any) -> Any:
            state = repr(_state_of(self)) if args and isinstance(args[0], list) else ""
            found = draw(self, *args, **kwargs)
            what = args[0] if found is None and args else found
            if hasattr(what, "__len__") and len(what) > 1 and _by_user(recorder):
                recorder.note("order", hash=_hash(what, state), size=len(what))
            return found

        return drawn

    draws = {name: noted(getattr(plain, name)) for name in NOISE if hasattr(plain, name)}
    return draws | {name: ordered(getattr(plain, name)) for name in ORDERS if hasattr(plain, name)}


def _state_of(generator: Any) -> Any:
    """Return the state of a generator of NumPy's or of ``random``."""
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.getstate() if hasattr(generator, "getstate") else generator.get_state()
