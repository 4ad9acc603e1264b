"""Updates without an optimizer: parameters that a backward reached and that the script then changed itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from dlrun.verify.tracer.recorder import Recorder
from dlrun.verify.tracer.tensors import digest, tensor_note
from dlrun.verify.verdict import values

NUMBER = 0  # of the optimizer that these updates stand for: there is no other


class ByHand:
    """Makes a step of what a script does between two backwards, as long as no optimizer has stepped.

    The step is noted when the next one begins: at a model's next call, or the next backward. What an optimizer holds
    is left to it: SAM moves the parameters, and looks from there, before its first step.
    """

    def __init__(self, recorder: Recorder, describe: Callable[[list[torch.Tensor]], dict[str, Any]]) -> None:
        self.recorder, self._describe = recorder, describe
        self.wanted = True  # no optimizer has stepped
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # that the script has made
        self.parameters: list[torch.Tensor] = []
        self._facts: dict[str, Any] = {}  # of the parameters, before their first step
        self._before: list[str] = []
        self._grads: list[Any] = []
        self._params: list[Any] = []  # as the last step left them
        self._first: list[torch.Tensor] = []  # where updates are taken back: the values before them

    def reached(self, parameters: list[torch.Tensor]) -> None:
        """A backward was made that reached these parameters; the first one tells which are followed."""
        if not self.wanted:
            return
        if not self.parameters:
            self.parameters = parameters
            self._facts = self._describe(self.parameters)
            if self.recorder.orders.frozen:
                self._first = [p.detach().clone() for p in self.parameters]
        self._before = [digest(p) for p in self.parameters]
        self.look()

    def look(self) -> None:
        """Note the gradients with which an update would be made now."""
        if self.wanted:
            self._grads = [tensor_note(p.grad) for p in self.parameters]

    def _are_held(self) -> bool:
        held = {id(p) for o in self.optimizers for group in o.param_groups for p in group["params"]}
        return any(id(p) in held for p in self.parameters)

    def take_back(self) -> None:
        """Give the parameters the values that they had before the first update."""
        if not self.wanted or self._are_held():
            return
        with self.recorder.aside(), torch.no_grad():
            for parameter, first in zip(self.parameters, self._first, strict=False):
                if not torch.equal(parameter, first):
                    parameter.copy_(first)

    def settle(self, states: Callable[[], dict[str, str]]) -> None:
        """Note a step where parameters have changed since the last backward."""
        if not self.wanted or not self._before or [digest(p) for p in self.parameters] == self._before:
            return
        self._before = []
        if self._are_held():
            return
        if not self.recorder.steps:
            self.recorder.note("optimizer", optimizer=NUMBER, type="by hand", **self._facts)
            self._params = self._facts["params"]
        self.recorder.steps += 1
        before, self._params = self._params, [tensor_note(p) for p in self.parameters]
        self.recorder.note(
            "step",
            step=self.recorder.steps,
            optimizer=NUMBER,
            lr=rate(before, self._params, self._grads),
            grads=self._grads,
            params=self._params,
            states=states(),
            drew=[],
        )


def rate(before: list[Any], after: list[Any], gradients: list[Any]) -> list[float]:
    """Return the learning rate of an update, from notes: how much of its gradient was subtracted from each parameter.

    Nothing where an update is not its gradient times a number, one for all parameters, as momentum's is not.
    """
    change: list[float] = []
    gradient: list[float] = []
    for p, q, g in zip(before, after, gradients, strict=True):
        if g is not None:
            change += [x - y for x, y in zip(values(p), values(q), strict=True)]
            gradient += values(g)
    square = sum(g * g for g in gradient)
    times = sum(c * g for c, g in zip(change, gradient, strict=True)) / (square or 1.0)
    apart = sum((c - times * g) ** 2 for c, g in zip(change, gradient, strict=True))
    return [times] if times > 0 and apart < 1e-6 * times**2 * square else []
