"""The first generation's wrapper for PyTorch: an optimizer that averages its gradients before each step."""

from __future__ import annotations

import itertools
from typing import Any

import dl_comm
import torch

__all__ = ["DistributedOptimizer"]

_teams = itertools.count()


class DistributedOptimizer:
    """Averages the gradients of ``opt``'s parameters over the ranks, then steps; all else is ``opt``'s own.

    Every new one takes the next team, of ``nthread_per_team`` threads. The first ``warmup`` share of the ``nstep``
    steps blocks, later ones are pipelined (see ``dl_comm.config_team``); ``verb`` and ``freq`` are its verbosity and
    perf_freq. The parameters are broadcast from rank 0 at the start if they differ between ranks.
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
        self.optimizer = opt
        self.team = next(_teams)
        dl_comm.create_team(self.team, nthread_per_team)
        dl_comm.config_team(self.team, 0, int(warmup * nstep), nstep, verb, freq)
        parameters = [parameter.data for parameter in self._parameters()]
        if dl_comm.check_buffers_match(parameters) != 0:
            dl_comm.broadcast(parameters, 0)

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def step(self, closure: Any = None) -> Any:
        """Average the gradients, and step. A parameter without a gradient counts as one with zeros."""
        parameters = [parameter for parameter in self._parameters() if parameter.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        means = dl_comm.gradients([parameter.grad for parameter in parameters], self.team)
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.grad.copy_(mean)
        return self.optimizer.step(closure)

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked for is the optimizer's."""
        return getattr(self.optimizer, name)
