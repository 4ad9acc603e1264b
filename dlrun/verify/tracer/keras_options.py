"""What an optimizer of Keras or of TensorFlow 1 was made with: the rate of the step that comes, its other options."""

from __future__ import annotations

from typing import Any

from dlrun.verify.tracer.options import numbers_of

# Rates, and what counts steps.
LEFT_OUT = {"learning_rate", "lr", "ema_overwrite_frequency", "gradient_accumulation_steps"}


def rate_of(optimizer: Any) -> float:
    """Return the learning rate of the step that comes."""
    if hasattr(optimizer, "_decayed_lr"):  # Keras 2, legacy
        return float(optimizer._decayed_lr("float32"))
    rate = getattr(optimizer, "_learning_rate", optimizer.learning_rate)
    return float(rate(optimizer.iterations) if callable(rate) and not hasattr(rate, "assign") else rate)


def options_of(optimizer: Any) -> list[dict[str, list[float]]]:
    """Return the numbers among an optimizer's options besides its rate, as those of one group.

    What a rate falls by at each step is a part of it, and so is a weight decay of TensorFlow's add-ons, which no rate
    multiplies.
    """
    while hasattr(optimizer, "inner_optimizer"):  # of a LossScaleOptimizer
        optimizer = optimizer.inner_optimizer
    try:
        given = optimizer.get_config()
    except (AttributeError, NotImplementedError):  # of TensorFlow 1; with a schedule of one's own that has none
        given = vars(optimizer)
    found = {name.lstrip("_"): numbers for name, value in given.items() if (numbers := numbers_of(value))}
    left_out = LEFT_OUT | ({"decay"} if hasattr(optimizer, "_decayed_lr") else set())
    left_out |= {"weight_decay"} if type(optimizer).__module__.startswith("tensorflow_addons") else set()
    return [{name: numbers for name, numbers in found.items() if name not in left_out}]
