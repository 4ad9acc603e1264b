"""What the oldest PyTorch that dl_comm takes does not have yet."""

import functools

import torch


def with_a_scaler(check):
    """The check, where this PyTorch has a GradScaler, and float16, for the CPU, too: from 2.3 on."""

    @functools.wraps(check)
    def looked(*args):
        return check(*args) if hasattr(torch.amp, "GradScaler") else "before 2.3 PyTorch scales on GPUs alone"

    return looked
