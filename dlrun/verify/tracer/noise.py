"""Random numbers that a training step draws, cut among the ranks as its samples are: a row for each sample of a rank.

With dropout off, what is left of them are the noise of generators, of a latent space or of a diffusion: rank r of n
takes those rows of what the serial script draws whose samples ``dl.shard()`` gives it: the r-th part of a batch, or r,
r + n, r + 2n, ... where the port divides the batches itself.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dlrun.verify.tracer.loaders import Loaders
from dlrun.verify.tracer.randomness import Draws
from dlrun.verify.tracer.recorder import Recorder

# Where the size is among the arguments; -1: it is all of them.
SIZED: dict[Any, dict[str, int]] = {
    torch: {"rand": -1, "randn": -1, "randint": 2, "normal": 2},
    np.random: {
        "normal": 2,
        "rand": -1,
        "randint": 2,
        "randn": -1,
        "random": 0,
        "random_sample": 0,
        "standard_normal": 0,
        "uniform": 2,
    },
}
LIKE: dict[Any, tuple[str, ...]] = {torch: ("bernoulli", "normal", "rand_like", "randint_like", "randn_like")}
IN_PLACE = ("bernoulli_", "exponential_", "log_normal_", "normal_", "random_", "uniform_")


class Noise:
    """Draws what all ranks draw together, and keeps the local state. Draws of the data's order are left alone."""

    def __init__(self, recorder: Recorder, draws: Draws, loaders: Loaders) -> None:
        self._recorder, self._draws, self._loaders = recorder, draws, loaders
        self._n = int(os.environ.get("DLRUN_SIZE", "1"))
        self._runs = recorder.orders.global_batch  # of smaller batches the ranks take whole ones, side by side
        self._inside = False

    def install(self) -> None:
        """Put the instruments in place."""
        for module, sized in SIZED.items():
            for name, position in sized.items():
                setattr(module, name, self._followed(getattr(module, name), functools.partial(self._sized, position)))
        for module, names in LIKE.items():
            for name in names:
                setattr(module, name, self._followed(getattr(module, name), self._like))
        for name in IN_PLACE:
            setattr(torch.Tensor, name, self._followed(getattr(torch.Tensor, name), self._in_place))

    def _followed(self, draw: Callable[..., Any], cut: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that draws as before until training has begun, and in what it calls itself."""

        @functools.wraps(draw)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("generator") is not None
            if self._inside or given or self._recorder.inside or self._loaders.reading or not self._loaders.local:
                return draw(*args, **kwargs)
            self._inside = True
            self._draws.mark()
            try:
                return cut(draw, args, kwargs)
            finally:
                self._draws.mark(count=False)
                self._recorder.note("noise")
                self._inside = False

        return drawn

    def _axis(self, shape: Sequence[int]) -> int | None:
        """Return the axis along which the samples of a rank's batch are, None of what is not drawn for samples."""
        local, sizes = self._loaders.local, {size for size in self._loaders.sizes.values() if size > 1}
        if self._n == 1 or local < 2:
            return None
        if shape and shape[0] not in sizes and shape[0] in {size * self._n for size in sizes}:
            return None  # that size is the script's constant
        return next((axis for axis, length in enumerate(shape) if length in sizes), None)

    def _sized(self, position: int, draw: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        words, place = list(args), position
        if "size" in kwargs:
            size = kwargs["size"]
        elif position < 0:
            size = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
        else:  # torch.randint(high, size)
            place = 1 if len(args) == 2 and isinstance(args[1], (tuple, list)) else position
            size = args[place] if len(args) > place else None
        if size is None:
            return self._like(draw, args, kwargs)
        shape = [size] if isinstance(size, int) else list(size)
        axis = self._axis(shape)
        if axis is None:
            return draw(*args, **kwargs)
        shape[axis] *= self._n
        if "size" in kwargs:
            kwargs = {**kwargs, "size": tuple(shape)}
        elif position < 0:
            words = shape
        else:
            words[place] = tuple(shape)
        return self._taken(draw(*words, **kwargs), axis, bool(kwargs.get("requires_grad")))

    def _like(self, draw: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        first = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        axis = None if first is None else self._axis(first.shape)
        if first is None or axis is None:
            return draw(*args, **kwargs)
        size = first.shape[axis]
        words = [self._grown(value, axis, size) for value in args]
        given = {name: self._grown(value, axis, size) for name, value in kwargs.items()}
        return self._taken(draw(*words, **given), axis)

    def _in_place(self, draw: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        axis = self._axis(tensor.shape)
        if axis is None:
            return draw(*args, **kwargs)
        every = draw(self._grown(tensor.detach(), axis, tensor.shape[axis]), *rest, **kwargs)
        return tensor.copy_(self._taken(every, axis))

    def _grown(self, value: Any, axis: int, size: int) -> Any:
        """Return a tensor with each of its samples n times; anything else as it is."""
        if not isinstance(value, torch.Tensor) or value.dim() <= axis or value.shape[axis] != size:
            return value
        return torch.cat([value] * self._n, axis) if self._runs else value.repeat_interleave(self._n, axis)

    def _taken(self, every: Any, axis: int, differentiable: bool = False) -> Any:
        rank, local = self._recorder.rank, every.shape[axis] // self._n
        rows = slice(rank * local, (rank + 1) * local) if self._runs else slice(rank, None, self._n)
        mine = every[(slice(None),) * axis + (rows,)]
        if isinstance(mine, torch.Tensor):
            mine = mine.detach().contiguous().requires_grad_(differentiable)
        return mine
