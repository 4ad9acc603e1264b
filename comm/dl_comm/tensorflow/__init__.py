"""dl_comm for TensorFlow 2.15 and later: eager code, ``tf.function``, and graphs with sessions.

Without a launcher a process is rank 0 of 1, and every function gives back what it got. On more ranks each collective
function must be reached by all ranks in the same order. In the graph of a session it is the making of the ops that
must be so; they may then run in any order.

::

    import dl_comm.tensorflow as dl

    dl.init()
    dataset = dl.shard(dataset)                     # every n-th batch
    dl.broadcast_variables(model, optimizer)
    grads = dl.gradients(tape.gradient(loss, model.trainable_variables))
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    dl.average(model)                               # moving statistics, before an evaluation or a save
    right, seen = dl.total(right, seen)             # what a loop over a share added up, of all ranks
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
from dl_comm.shares import partial_sum
from dl_comm.stopping import should_stop
from dl_comm.streams import stretch
from dl_comm.tensorflow.averaging import gradients
from dl_comm.tensorflow.data import shard
from dl_comm.tensorflow.estimator import default_optimizer, model_dir, part_of_batches
from dl_comm.tensorflow.global_batches import part
from dl_comm.tensorflow.layouts import find as _find
from dl_comm.tensorflow.optimizer import DistributedOptimizer
from dl_comm.tensorflow.ranks import init, reseed
from dl_comm.tensorflow.rate import decay, lars, warmup
from dl_comm.tensorflow.reducing import average, gather, maximum, minimum, total
from dl_comm.tensorflow.serving import serving_module
from dl_comm.tensorflow.state import BroadcastHook, broadcast, broadcast_variables
from dl_comm.tensorflow.supervisor import Supervisor

local_rank = get_localrank
_finders.append(_find)

__all__ = [
    "BroadcastHook",
    "DistributedOptimizer",
    "Supervisor",
    "agree",
    "all_ranks",
    "any_rank",
    "average",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "closure",
    "compound",
    "decay",
    "default_optimizer",
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
    "local_rank",
    "lr_scale",
    "maximum",
    "minimum",
    "model_dir",
    "part",
    "part_of_batches",
    "partial_sum",
    "print",
    "rank0",
    "rank0_first",
    "reseed",
    "serial_iteration",
    "serial_steps",
    "serving_module",
    "shard",
    "should_stop",
    "snapshot",
    "steps",
    "stretch",
    "total",
    "turns",
    "warmup",
]
