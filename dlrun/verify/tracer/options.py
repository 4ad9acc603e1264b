"""What an optimizer was made with: the rates of its groups before any schedule, and its other options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

CYCLED = {"base_momentum", "max_momentum"}  # what a schedule keeps in the groups, beside rates


def base_rates(optimizer: Optimizer) -> list[float]:
    """Return the rates that an optimizer was made with, before any schedule; of each group that has one."""
    rates = [group.get("initial_lr", optimizer.defaults.get("lr")) for group in optimizer.param_groups]
    return [float(rate) for rate in rates if rate is not None]


def options_of(optimizer: Optimizer) -> list[dict[str, list[float]]]:
    """Return the numbers among each group's options besides its rates, such as the weight decay or Adam's betas."""
    kept = [{name: numbers_of(value) for name, value in group.items()} for group in optimizer.param_groups]
    left_out = CYCLED | {name for group in kept for name in group if "lr" in name}
    return [{n: numbers for n, numbers in group.items() if numbers and n not in left_out} for group in kept]


def numbers_of(value: Any) -> list[float]:
    """Return an option's numbers, nothing where it is something else."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return [float(x) for x in parts] if all(isinstance(x, (bool, int, float)) for x in parts) else []
