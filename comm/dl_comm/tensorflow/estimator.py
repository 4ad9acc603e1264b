"""What an Estimator needs on many ranks: a folder for each, and an optimizer that averages."""

from __future__ import annotations

import importlib
import inspect
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from dl_comm import _core
from dl_comm.parts import bounds, set_weight
from dl_comm.ranks import get_nranks, get_rank, parts
from dl_comm.rate import lr_scale
from dl_comm.tensorflow.optimizer import DistributedOptimizer


def model_dir(path: Any) -> Any:
    """Return where this rank's Estimator keeps its model: rank 0's is ``path``, the others get folders of their own.

    These begin with a copy of rank 0's latest checkpoint, if there is one: all ranks then resume at the same step, and
    agree on how many of ``max_steps`` are left. Collective. On one rank ``path`` itself comes back.
    """
    if get_nranks() == 1:
        return path
    files: dict[str, bytes] = {}
    if get_rank() == 0:
        latest = tf.train.latest_checkpoint(str(path)) if path else None
        if latest:
            found = [Path(str(path)) / "checkpoint", *Path(latest).parent.glob(f"{Path(latest).name}.*")]
            files = {file.name: file.read_bytes() for file in found}
    files = pickle.loads(_core.broadcast_bytes(pickle.dumps(files), 0))
    if get_rank() == 0:
        return path
    folder = Path(tempfile.mkdtemp(prefix="dl_comm-model-"))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return str(folder)


def part_of_batches(made: Any) -> Any:
    """Return this rank's part of every batch of what an input function of an Estimator has ``made``.

    That is a tf.data.Dataset of batches, or the tensors of one, ``(features, labels)``, the same on all ranks. In the
    graph that it is called in, the gradients of ``DistributedOptimizer`` count by the samples of the parts, which
    differ by one where n does not divide a batch: where the loss is a mean over the samples, n ranks leave the
    parameters of one process. On one rank ``made`` itself comes back. Raises ``ValueError`` for sparse tensors.
    """
    n = parts()
    if n == 1:
        return made
    if isinstance(made, tf.data.Dataset):
        iterator = tf.compat.v1.data.make_initializable_iterator(made)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        made = iterator.get_next()
    leaves = [leaf for leaf in tf.nest.flatten(made) if leaf is not None]
    if any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
        raise ValueError("part_of_batches() cannot divide sparse tensors: keep a rank's batch")
    length = tf.shape(leaves[0])[0]
    begin, end = bounds(length, get_rank(), n)
    weight = tf.cast(n * (end - begin), tf.float64) / tf.cast(length, tf.float64)
    graph = weight.graph
    set_weight(lambda: weight if tf.compat.v1.get_default_graph() is graph else None)
    first = tf.minimum(begin, length - 1)  # of a batch with no sample for this rank one that does not count
    rows = slice(first, tf.maximum(end, first + 1))
    return tf.nest.map_structure(lambda leaf: None if leaf is None else leaf[rows], made)


# The rates that ready-made Estimators of TensorFlow 2.15 give an optimizer that is named. Those
# for Keras optimizers give a DNN's the rate that is the optimizer's own.
_RATES = {
    "Baseline": {"optimizer": 0.3},
    "DNNLinearCombined": {"dnn_optimizer": 0.001, "linear_optimizer": 0.005},
    "DNN": {"optimizer": 0.05},
    "Linear": {"optimizer": 0.2},
}


def default_optimizer(
    kind: type, parameter: str = "optimizer", name: str = "", rule: str = "linear"
) -> str | Callable[[], Any]:
    """Return what to give a ready-made Estimator of class ``kind`` as ``parameter``, for it to average.

    It makes the optimizer that the class itself would make of ``name``, by default the one it makes unasked
    (``"Adagrad"``, ``"Ftrl"``), with the class's rate scaled by ``rule`` as ``lr_scale`` does. On one rank ``name``
    itself comes back. Raises ``TypeError`` for other Estimators.
    """
    family = next((f for f in _RATES if kind.__name__.startswith(f)), None)
    if family is None or parameter not in _RATES[family]:
        known = ", ".join(_RATES)
        raise TypeError(f"default_optimizer() knows no {parameter} of {kind.__name__}; it knows those of {known}")
    name = name or inspect.signature(kind).parameters[parameter].default
    if get_nranks() == 1:
        return name
    makers = importlib.import_module(kind.__module__).optimizers
    keras = kind.__name__.endswith("V2")

    def make() -> Any:
        instance = makers.get_optimizer_instance_v2 if keras else makers.get_optimizer_instance
        own = keras and family == "DNN"
        rate = instance(name).get_config()["learning_rate"] if own else _RATES[family][parameter]
        return DistributedOptimizer(instance(name, learning_rate=lr_scale(rate, rule)))

    return make
