"""Functions of PyTorch that leave a note when the script calls them: clipping, losses, autocast, a plateau's metric."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dlrun.verify.tracer.importing import number_of
from dlrun.verify.tracer.recorder import Recorder
from dlrun.verify.tracer.tensors import digest

LOSSES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "poisson_nll_loss",
)
CLASSES = ("cross_entropy", "nll_loss")  # whose weights are those of classes, not of samples


def note(recorder: Recorder, owner: Any, name: str, kind: str, then: Callable[[], None] = lambda: None) -> None:
    """Wrap a function so that each call by the script leaves an event of this kind, and ``then`` is called."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if not recorder.inside and getattr(args[0] if args else None, "_enabled", True):
            recorder.note(kind, function=name, limit=_limit(args, kwargs))
        with recorder.aside():
            result = function(*args, **kwargs)
            then()
        return result

    setattr(owner, name, noted)


def note_restores(recorder: Recorder) -> None:
    """Note what torch.load() has read: of a file that is not there it reads nothing."""
    load = torch.load

    @functools.wraps(load)
    def noted(*args: Any, **kwargs: Any) -> Any:
        result = load(*args, **kwargs)
        if not recorder.inside:
            recorder.note("restores")
        return result

    torch.load = noted


def _limit(args: Any, kwargs: dict[str, Any]) -> float | None:
    """Return the number at which a function clips, the argument after the parameters; None of other functions."""
    given = [*args[1:2], *(kwargs[name] for name in ("max_norm", "clip_value") if name in kwargs)]
    return number_of(given[0]) if given else None


def note_precision(recorder: Recorder) -> None:
    """Note the types to which autocast rounds what is computed under it."""
    enter: Callable[[Any], Any] = torch.autocast.__enter__
    known: set[Any] = set()

    @functools.wraps(enter)
    def noted(self: Any) -> Any:
        if self._enabled and self.fast_dtype not in known:
            known.add(self.fast_dtype)
            recorder.note("autocast", type=str(self.fast_dtype).removeprefix("torch."))
        return enter(self)

    torch.autocast.__enter__ = noted  # type: ignore[method-assign]


def note_targets(recorder: Recorder, compared: Callable[[Any], None]) -> None:
    """Hand on what losses that are functions compare with; those that are modules are followed as modules.

    Note losses that weigh samples, or ignore some.
    """
    for name in LOSSES:
        function = getattr(nn.functional, name)

        @functools.wraps(function)
        def noted(*args: Any, function: Callable[..., Any] = function, **kwargs: Any) -> Any:
            target = args[1] if len(args) > 1 else kwargs.get("target")
            compared(target)
            weight = args[2] if len(args) > 2 else kwargs.get("weight")
            if torch.is_grad_enabled() and _weighs(target, weight, kwargs):
                classes = kwargs.get("pos_weight", weight if function.__name__ in CLASSES else None)
                known = isinstance(classes, torch.Tensor) and not classes.requires_grad
                recorder.note("weighs", classes=digest(classes) if known and classes is not None else "")
            return function(*args, **kwargs)

        setattr(nn.functional, name, noted)


def _weighs(target: Any, weight: Any, kwargs: dict[str, Any]) -> bool:
    ignored, given = kwargs.get("ignore_index", -100), (weight, kwargs.get("pos_weight"))
    weighed = any(isinstance(each, torch.Tensor) for each in given)
    return weighed or (isinstance(target, torch.Tensor) and bool((target == ignored).any()))


def note_metric(recorder: Recorder) -> None:
    """Note the metric by which ReduceLROnPlateau decides."""
    step = ReduceLROnPlateau.step

    @functools.wraps(step)
    def noted(self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.note("decision", what="ReduceLROnPlateau.step", values={"metric": float(metrics)})
        return step(self, metrics, *args, **kwargs)

    ReduceLROnPlateau.step = noted  # type: ignore[method-assign]
