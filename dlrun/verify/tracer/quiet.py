"""Training without dropout, and with batch norm's statistics as they are: what a step leaves is the samples' alone.

So ranks with a part of the batch each can be compared with the serial run where these would make them differ.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

DROPOUTS = ("alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


def install() -> None:
    """Switch the noise in PyTorch's functions off."""
    for owner in (torch, nn.functional):
        for name in DROPOUTS:
            if hasattr(owner, name):
                setattr(owner, name, lambda input, *_, **__: input)
    norm, attention, rrelu = (
        getattr(nn.functional, name) for name in ("batch_norm", "scaled_dot_product_attention", "rrelu")
    )

    @functools.wraps(norm)
    def still(
        input: Any,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        training &= running_mean is None
        return norm(input, running_mean, running_var, weight, bias, training, momentum, eps)

    @functools.wraps(attention)
    def attending(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
    ) -> Any:
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    @functools.wraps(rrelu)
    def leaking(input: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, **_: Any) -> Any:
        return rrelu(input, lower, upper, False)

    for name, function in (("batch_norm", still), ("rrelu", leaking), ("scaled_dot_product_attention", attending)):
        setattr(nn.functional, name, function)


def is_still(layer: nn.Module) -> bool:
    """Whether a batch norm has statistics, which it is left with."""
    return getattr(layer, "running_mean", None) is not None
