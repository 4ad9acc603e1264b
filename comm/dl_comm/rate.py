"""Learning rates and step counts that follow the number of ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

from dl_comm.ranks import get_rank, parts
from dl_comm.reduction.layout import layout_of

_RULES = {
    "linear": lambda lr, n: lr * n,
    "sqrt": lambda lr, n: lr * math.sqrt(n),
    "none": lambda lr, n: lr,
}


def lr_scale(lr: Any = 1.0, rule: str = "linear") -> Any:
    """Return the learning rate for a global batch that is n times as large on n ranks.

    ``rule`` is ``"linear"`` (lr * n, the linear scaling rule of Goyal et al., arXiv 1706.02677), ``"sqrt"``
    (lr * sqrt(n), usual for Adam and its kin) or ``"none"``. ``lr`` is a float, an int or a tensor, a function without
    arguments that returns one, or a list of these (one per parameter group). On 1 rank it is returned unchanged. Of a
    schedule of Keras it makes a copy whose rates are scaled, and that is told n times the step: after k steps the ranks
    have done the work of n k serial ones.
    Raises ``ValueError`` for another rule and ``TypeError`` for another type.
    """
    if rule not in _RULES:
        raise ValueError(f"lr_scale() has no rule {rule!r}; it knows {', '.join(map(repr, _RULES))}")
    if isinstance(lr, (list, tuple)):
        return type(lr)(lr_scale(each, rule) for each in lr)
    if any(kind.__name__ == "LearningRateSchedule" for kind in type(lr).__mro__):
        return lr if parts() == 1 else _scaled_schedule(lr, rule)
    if callable(lr):
        return lr if parts() == 1 else lambda: lr_scale(lr(), rule)
    _check_number(lr, "lr_scale", "a learning rate")
    n = parts()
    return lr if n == 1 else _RULES[rule](lr, n)


def _check_number(value: Any, function: str, what: str) -> None:
    if isinstance(value, bool) or not (isinstance(value, (int, float)) or hasattr(value, "dtype")):
        kind = type(value).__name__
        raise TypeError(f"{function}() got {kind} {value!r}; {what} is a float, an int or a tensor")


def _scaled_schedule(schedule: Any, rule: str) -> Any:
    """Return the schedule as one of a class of the same name and config: what is saved loads without dl_comm."""
    kind, n = type(schedule), parts()

    def call(self: Any, step: Any) -> Any:
        return lr_scale(kind.__call__(self, n * step), rule)

    names = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    scaled = copy.copy(schedule)
    scaled.__class__ = type(kind.__name__, (kind,), names)
    return scaled


def warm_factor(step: int, steps: int) -> float:
    """Return what the learning rate is multiplied by at ``step`` (from 0): from 1/n up to 1 over ``steps`` steps."""
    n = parts()
    return min(1.0, 1 / n + (1 - 1 / n) * step / steps) if steps else 1.0


def decay_factor(epoch: float, at: Iterable[int], factor: float) -> float:
    """Return what is left of the learning rate in ``epoch`` (from 0): ``factor`` for each of ``at`` that has come.

    Raises ``ValueError`` for a factor outside 0 to 1.
    """
    if not 0 < factor < 1:
        raise ValueError(f"decay() got the factor {factor}; it takes one between 0 and 1")
    return float(factor ** sum(epoch >= begin for begin in at))


def steps(count: Any) -> Any:
    """Return how many of ``count`` optimizer steps are left when n ranks share the work: ceil(count / n).

    For constants that count steps of the serial script: loop bounds, decay steps, warm-up steps. What is derived from
    ``len(loader)`` of a sharded loader already is right. ``None``, infinity, zero and negative numbers, which say "no
    limit" or "off", come back unchanged, as does everything on 1 rank.

    Of a list, tuple, set, range or array (milestones) each entry is one (an array becomes a list), of a dict
    ``{step: rate}`` each key. A function of the number of steps so far, as ``LambdaLR`` takes, becomes one that is told
    n times the number: after k steps the ranks have done the work of n k serial ones.
    """
    n = parts()
    if isinstance(count, (list, tuple, set, frozenset)):
        return type(count)(steps(each) for each in count)
    if isinstance(count, range):
        return tuple(map(steps, count))
    if getattr(count, "ndim", 0):
        return count if n == 1 else steps(count.tolist())
    if isinstance(count, dict):
        return {steps(step): value for step, value in count.items()}
    if callable(count):
        return count if n == 1 else lambda step: count(n * step)
    if hasattr(count, "numpy"):  # a tensor: the cardinality of a data set
        count = count.numpy().item()
    if n == 1 or count is None:
        return count
    if hasattr(count, "graph"):  # a tensor inside a tf.function
        return -(-count // n)
    return count if count <= 0 or count == math.inf else math.ceil(count / n)


def serial_steps(step: Any, over: Any = None) -> Any:
    """Return the number of serial steps whose work ``step`` optimizer steps of n ranks have done: n * step.

    For rates that a script computes from its steps so far, which are an int, a float, or a tensor. On 1 rank they are
    returned unchanged. ``over`` is the loader whose batches are counted: where it is no share (see ``is_shard``), as a
    validation loader in a function that also trains, ``step`` is returned unchanged; of ``shard(whole="batches")`` all
    of this rank's batches stand for all of the serial script's.
    """
    n = parts()
    if n == 1:
        return step
    if over is None:
        return step * n
    layout = layout_of(over)
    if layout is None:
        return step
    if layout.unpadded and layout.serial is not None and layout.mine is not None and step >= layout.mine:
        return layout.serial
    return step * n


def serial_iteration(step: Any, first: int = 0, by: int = 1) -> Any:
    """Return the number of the serial iteration whose batch this rank takes in its iteration ``step``.

    Both count from ``first``, and by ``by``: the iterations 0, 1, 2 of rank 1 of 4 take the batches of 1, 5, 9, as
    ``shard`` orders them. For numbers that iterations keep beside others, to be gathered. On 1 rank ``step`` is
    returned unchanged.
    """
    n = parts()
    return step if n == 1 else first + (step - first) * n + by * get_rank()


def compound(factor: Any) -> Any:
    """Return what n serial steps make of a ``factor`` that each multiplies by: factor ** n, for one step of n ranks.

    For exponential decays that step with every batch, and for moving averages of weights: with d ** n in place of d,
    ``ema = d * ema + (1 - d) * w`` forgets as in the serial run (the EMA scaling rule of Busbridge et al., arXiv
    2307.13813). ``factor`` is a float, an int, a tensor or an array. On 1 rank it is returned unchanged. Raises
    ``TypeError`` for another type.
    """
    _check_number(factor, "compound", "a factor")
    n = parts()
    return factor if n == 1 else factor**n
