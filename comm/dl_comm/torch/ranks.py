"""Joining the ranks from PyTorch: this rank's GPU, threads and random numbers."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import get_worker_info

from dl_comm.machine import share_of_machine
from dl_comm.ranks import (
    draw_alike,
    get_localsize,
    get_rank,
    joins,
    parts,
    shift_generators,
    shift_own,
    shifted_seed,
)
from dl_comm.shared_random import drawing_alike


def init(alike: bool = True) -> None:
    """Join the ranks of the job. A second call does nothing; every other function joins on its first use.

    On several ranks it also gives this rank its share of the machine:

    - where CUDA is available, ``torch.cuda.set_device`` picks, among the GPUs this process sees and in the order in
      which it sees them, the first that the fewest ranks of this node before it have picked;
    - where ``OMP_NUM_THREADS`` is not set, ``torch.set_num_threads`` gets the cores this rank may run on, each
      divided by the number of ranks of this node that may also run there (at least 1).

    And it gives all ranks rank 0's random numbers (``torch``'s on the CPU, NumPy's and those of ``random``): what an
    unseeded script draws from here on, as the split of its data, is one for all, until ``reseed()``. With
    ``alike=False`` they stay local, as those of processes are.

    Raises ``dl_comm.CommError`` when the launcher and the MPI library disagree on the ranks.
    """
    if not joins(__name__):
        return
    cuda = torch.cuda.is_available()
    share = share_of_machine([_gpu_name(i) for i in range(torch.cuda.device_count())] if cuda else [])
    if share.gpu is not None:
        torch.cuda.set_device(share.gpu)
    if "OMP_NUM_THREADS" not in os.environ and get_localsize() > 1:
        torch.set_num_threads(share.threads)
    if alike:
        _draw_alike()


def _draw_alike() -> None:
    """Give all ranks rank 0's random numbers, those of torch on the CPU, too."""
    state = draw_alike(torch.get_rng_state().numpy().tobytes())
    if parts() > 1:
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _gpu_name(index: int) -> str:
    """A name for visible GPU ``index`` that means the same GPU in every process of this node."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is not None:
        return str(uuid)
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return mask.split(",")[index] if mask else str(index)


def reseed(*generators: Any, alike: bool = False) -> None:
    """Give every rank its own random numbers, or all ranks those of rank 0, which keeps the serial script's.

    On rank r > 0 the generators of torch (CPU and CUDA), NumPy and ``random`` are seeded from a hash of their own
    state and r: a seeded script stays reproducible. Call it where the ranks shall begin to differ (dropout, noise,
    augmentation), after the model is built. Given generators of the script's own, such as a ``torch.Generator`` that it
    draws noise from, it does so with those alone.

    With ``alike`` all ranks go on from the states that rank 0's generators of torch (on the CPU), NumPy and ``random``
    are in, for what must be drawn alike: a split of the data, an order of them. That is collective. In the worker
    processes of a loader, which are seeded already, and in a stream that is read alike, it does nothing.
    """
    if get_worker_info() is not None or drawing_alike():
        return
    if generators:
        shift_own(generators)
        return
    if alike:
        if parts() > 1:
            _draw_alike()
        return
    rank = get_rank() if parts() > 1 else 0
    if rank == 0:
        return
    torch.manual_seed(shifted_seed(torch.get_rng_state().numpy().tobytes(), rank))
    shift_generators(rank)
