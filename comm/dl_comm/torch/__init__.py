"""dl_comm for PyTorch: what a training script calls to run on many ranks.

Every function works without a launcher, as rank 0 of 1, and then changes nothing: the script computes the same bits
as without it. On more ranks every function that communicates must be called by all ranks in the same order; the
ranks compare what they bring (names, shapes, dtypes), and a difference is an error on every rank that names it.

::

    import dl_comm.torch as dl

    dl.init()
    loader = dl.shard(loader)                      # this rank's share of every global batch
    optimizer = torch.optim.SGD(model.parameters(), lr=dl.lr_scale(0.1))
    dl.broadcast(model, optimizer)                 # rank 0's weights everywhere
    dl.reseed()                                    # until here all ranks draw alike, from here on each its own
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        dl.gradients(optimizer)                    # the mean over ranks, before anything reads a gradient
        optimizer.step()
    right, seen = dl.total(right, seen, over=loader)    # what the loop added up, of all ranks; dl.gather() of lists
    dl.save(model.state_dict(), "model.pt")        # rank 0 writes
    dl.finalize()
"""

from __future__ import annotations

from dl_comm.machine import get_gpu
from dl_comm.rank0 import print, rank0, rank0_first
from dl_comm.ranks import barrier, finalize, get_localrank, get_localsize, get_nranks, get_rank, is_rank0
from dl_comm.rate import compound, lr_scale, serial_iteration, serial_steps, steps
from dl_comm.reduction.agreeing import agree, all_ranks, any_rank
from dl_comm.reduction.closure import closure
from dl_comm.reduction.entries import entries
from dl_comm.reduction.layout import finders as _finders
from dl_comm.reduction.layout import is_shard
from dl_comm.reduction.since import snapshot
from dl_comm.shard_iterators import turns
from dl_comm.stopping import should_stop
from dl_comm.torch.averaging import gradients
from dl_comm.torch.checkpoint import load, save
from dl_comm.torch.divided import part
from dl_comm.torch.layouts import find as _find
from dl_comm.torch.layouts import serial_length
from dl_comm.torch.normalization import SyncBatchNorm, sync_batchnorm
from dl_comm.torch.optimizer import DistributedOptimizer
from dl_comm.torch.overlap import no_sync, overlap
from dl_comm.torch.ranks import init, reseed
from dl_comm.torch.rate import decay, lars, warmup
from dl_comm.torch.reducing import average, gather, maximum, minimum, total
from dl_comm.torch.sharding import shard
from dl_comm.torch.state import broadcast
from dl_comm.torch.step_timeline import watch as _watch
from dl_comm.torch.stretching import stretch
from dl_comm.torch.uneven import partial_sum

_watch()
_finders.append(_find)

__all__ = [
    "DistributedOptimizer",
    "SyncBatchNorm",
    "agree",
    "all_ranks",
    "any_rank",
    "average",
    "barrier",
    "broadcast",
    "closure",
    "compound",
    "decay",
    "entries",
    "finalize",
    "gather",
    "get_gpu",
    "get_localrank",
    "get_localsize",
    "get_nranks",
    "get_rank",
    "gradients",
    "init",
    "is_rank0",
    "is_shard",
    "lars",
    "load",
    "lr_scale",
    "maximum",
    "minimum",
    "no_sync",
    "overlap",
    "part",
    "partial_sum",
    "print",
    "rank0",
    "rank0_first",
    "reseed",
    "save",
    "serial_iteration",
    "serial_length",
    "serial_steps",
    "shard",
    "should_stop",
    "snapshot",
    "steps",
    "stretch",
    "sync_batchnorm",
    "total",
    "turns",
    "warmup",
]
