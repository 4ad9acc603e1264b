"""The first generation's module for PyTorch: the plugin's calls, and an optimizer that averages before each step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import dl_comm
import torch
from dl_comm import *  # noqa: F403
from dl_comm.torch.optimizer import distributed, watch_scalers

__all__ = ["DistributedOptimizer", *dl_comm.__all__]

_teams = itertools.count()


class DistributedOptimizer(torch.optim.Optimizer):
    """Averages the gradients of ``opt``'s parameters over the ranks, then steps; all else is ``opt``'s own.

    Every new one takes the next team, of ``nthread_per_team`` threads; a copy takes one at its first step. The first
    ``warmup`` share of the ``nstep`` steps blocks, later ones are pipelined (see ``dl_comm.config_team``); ``verb`` and
    ``freq`` are its verbosity and perf_freq. The parameters are broadcast from rank 0 at the start if they differ
    between ranks. ``nteam`` is accepted. Groups, state, defaults and hooks are those of ``opt``: hooks of a step see
    the averaged gradients.
    """

    def __init__(
        self,
        opt: torch.optim.Optimizer,
        nstep: int,
        nteam: int = 1,
        nthread_per_team: int = 2,
        warmup: float = 0.10,
        verb: int = 2,
        freq: int = 100,
    ) -> None:
        dl_comm.init_mpi()
        self.__setstate__(
            {"optimizer": opt, "threads": nthread_per_team, "phases": (0, int(warmup * nstep), nstep, verb, freq)}
        )
        self._take_team()
        parameters = [parameter.data for parameter in self._parameters()]
        if dl_comm.check_buffers_match(parameters) != 0:
            dl_comm.broadcast(parameters, 0)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: the optimizer and the schedule, not the team."""
        return {name: self.__dict__[name] for name in ("optimizer", "threads", "phases")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on from what ``__getstate__`` has returned."""
        self.__dict__.update(state, team=None, done=False)
        if dl_comm.get_nranks() > 1:
            watch_scalers()
            distributed[self] = self

    def _take_team(self) -> None:
        self.team = next(_teams)
        dl_comm.create_team(self.team, self.threads)
        dl_comm.config_team(self.team, *self.phases)

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def average(self, optimizer: Any = None) -> None:
        """Replace the gradients by their means: of those that some ranks lack, zeros count there. Collective."""
        if self.team is None:
            self._take_team()
        parameters = [parameter for parameter in self._parameters() if parameter.requires_grad]
        grads = [parameter.grad for parameter in parameters]
        there = torch.tensor([float(grad is not None) for grad in grads])
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
        *means, shares = dl_comm.gradients([*filled, there], self.team)
        for parameter, grad, mean, share in zip(parameters, grads, means, shares.tolist(), strict=True):
            if share == 0:
                parameter.grad = None
            elif grad is None or grad.layout != mean.layout:
                parameter.grad = mean
            else:
                grad.copy_(mean)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average the gradients, and step; with a closure, the gradients and the loss of each of its evaluations."""
        if closure is not None:
            return self.optimizer.step(self._averaged(closure))
        if not self.done:  # a scaler has averaged them
            self.average()
        self.done = False
        return self.optimizer.step()

    def _averaged(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def averaged() -> Any:
            with torch.enable_grad():
                loss = closure()
            self.average()
            if isinstance(loss, torch.Tensor):
                return dl_comm.average(loss.detach().clone())
            return loss

        return averaged

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked for is the optimizer's."""
        if name.startswith("__") or "optimizer" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.optimizer, name)


def _of_the_optimizer(name: str) -> property:
    def read(self: DistributedOptimizer) -> Any:
        return getattr(self.optimizer, name)

    def write(self: DistributedOptimizer, value: Any) -> None:
        setattr(self.optimizer, name, value)

    return property(read, write, doc=f"That of the optimizer: its ``{name}``.")


_OWN = {"step", "profile_hook_step"}
for _name in ("param_groups", "state", "defaults", *(n for n in vars(torch.optim.Optimizer) if not n.startswith("_"))):
    if _name not in _OWN:
        setattr(DistributedOptimizer, _name, _of_the_optimizer(_name))
