"""Loss scaling of Keras: whoever skips a step after an overflow has to see the averaged gradients."""

from __future__ import annotations

import sys
from typing import Any

from dl_comm.errors import CommError


def averaged_outside(optimizer: Any) -> bool:
    """Whether a LossScaleOptimizer is about to apply this optimizer within it, and has averaged the gradients.

    Raises :class:`CommError` if it does not average: it would skip the step, and the averaging in it, on the rank that
    overflows alone.
    """
    frame = sys._getframe(1)
    while frame is not None:
        outer = frame.f_locals.get("self")
        names = [kind.__name__ for kind in type(outer).__mro__]
        if outer is not optimizer and any(name.startswith("LossScaleOptimizer") for name in names):
            if hasattr(outer, "_dl_comm_averages"):
                return True
            raise CommError(
                "the optimizer that averages is inside a LossScaleOptimizer, where a rank whose gradients overflow "
                "would skip the averaging: let the outer one average, by distribute(model) after compile() or by "
                "DistributedOptimizer(LossScaleOptimizer(...))"
            )
        frame = frame.f_back  # type: ignore[assignment]
    return False
