"""What training with TensorFlow computes in one step and uses in a later one, followed through its eager ops.

As ``lineage`` does for PyTorch: queues, moving averages and the like, kept in variables or in plain tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from dlrun.verify.tracer.arrays import array_note, native
from dlrun.verify.tracer.recorder import Recorder, is_of_user
from dlrun.verify.tracer.values import KEPT, NAMED, Value, keep_names, kind_of, line, made, note_carried

MOVES = {
    "Cast",
    "ConcatV2",
    "ExpandDims",
    "GatherNd",
    "GatherV2",
    "Identity",
    "Pack",
    "ReadVariableOp",
    "Reshape",
    "ResourceGather",
    "ResourceScatterNdUpdate",
    "ResourceScatterUpdate",
    "ResourceStridedSliceAssign",
    "ReverseV2",
    "Roll",
    "ScatterNd",
    "Select",
    "SelectV2",
    "Slice",
    "Split",
    "SplitV",
    "Squeeze",
    "StopGradient",
    "StridedSlice",
    "TensorScatterUpdate",
    "TensorStridedSliceUpdate",
    "Tile",
    "Transpose",
    "Unpack",
}
RENEWS = "AssignVariableOp"
DRAWS = "StatelessRandom"  # how the ops begin that draw by a seed which counts on: noise is not made of it
REDUCES = {
    "Max",
    "Mean",
    "Min",
    "Prod",
    "Sum",
    "ResourceScatterAdd",
    "ResourceScatterNdAdd",
    "SegmentMean",
    "SegmentSum",
    "TensorScatterAdd",
    "UnsortedSegmentMean",
    "UnsortedSegmentSum",
}


class Ops:
    """Follows values through TensorFlow's eager ops. ``round`` counts how often all optimizers have stepped."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.round, self.paused = 0, False
        self._values: dict[int, tuple[Any, Value]] = {}  # by id of a tensor, or of a variable's handle
        self._trained: set[int] = set()  # ids of handles
        self._fed: set[Value] = set()  # of variables that were given other values

    def of(self, thing: Any) -> Value | None:
        """Return what is known of the value of a tensor or variable."""
        found = self._values.get(id(_handle(thing)))
        return found[1] if found else None

    def is_memory(self, variable: Any) -> bool:
        """Whether a variable is known to keep what was computed of samples, as a queue does, and not itself on.

        A copy of what is trained is none: that comes from parameters, which are no values here.
        """
        value = self.of(variable)
        return value is not None and value in self._fed and value.round > 0 and kind_of(value) == KEPT

    def called(self, op: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        """TensorFlow ran an op."""
        if graph is not None or self.paused or self.recorder.inside or not inputs:
            return
        name = op.decode() if isinstance(op, bytes) else op
        known = [entry[1] for tensor in inputs if (entry := self._values.get(id(tensor)))]
        known = [] if name.startswith(DRAWS) else known
        over_samples = name in REDUCES and _along_samples(inputs)
        if inputs[0].dtype == tf.resource and not outputs:
            self._changed(name, inputs[0], known, name in REDUCES)
        elif known or over_samples or not any(id(tensor) in self._trained for tensor in inputs):
            for output in outputs:
                value = made(self.round, known, name in MOVES, over_samples)
                value.accumulates = value.generation > 1
                value.at = line() if value.made_of or value.reduced else ""
                self._keep(output, value)

    def _changed(self, name: str, handle: Any, known: list[Value], reduces: bool) -> None:
        """A variable was changed."""
        if id(handle) in self._trained:
            return
        entry = self._values.get(id(handle))
        value = entry[1] if entry else self._keep(handle, Value(self.round, self.round))
        others = [v for v in known if v is not value]
        self._fed |= {value} if others else set()
        change = made(self.round, others, name in MOVES or name == RENEWS, reduces)
        value.change(change, name in MOVES, name == RENEWS)

    def _keep(self, tensor: Any, value: Value) -> Value:
        key, values = id(tensor), self._values

        def forget(_: Any) -> None:
            values.pop(key, None)

        values[key] = (weakref.ref(tensor, forget), value)
        return value

    def stepped(self, round: int) -> None:
        """After a step: keep the names and contents of what the script has kept."""
        self.round = round
        with self.recorder.aside():
            keep_names(self.of, _below, array_note)

    def backward(self, target: Any, sources: list[Any]) -> None:
        """A loss goes backward to these variables: note what is in it of earlier rounds."""
        for source in sources:
            handle = id(native(source).handle)
            self._trained.add(handle)
            self._values.pop(handle, None)
        losses = [value for tensor in tf.nest.flatten(target) if (value := self.of(tensor)) is not None]
        note_carried(self.recorder, losses, self.round)


def install(recorder: Recorder) -> Ops:
    """Watch TensorFlow's ops where the orders say so."""
    ops = Ops(recorder)
    if recorder.orders.lineage:
        op_callbacks.add_op_callback(ops.called)
    return ops


def _handle(thing: Any) -> Any:
    return thing.handle if isinstance(thing, tf.Variable) else thing


def _along_samples(inputs: Any) -> bool:
    """Whether a reduction goes along the first axis, where the samples are."""
    axes = inputs[1].numpy().reshape(-1).tolist() if len(inputs) > 1 and inputs[1].dtype == tf.int32 else [0]
    return not axes or 0 in axes or -len(inputs[0].shape) in axes


def _below(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tf.Variable) or tf.is_tensor(value):
        yield name, value
    elif depth and isinstance(value, (list, tuple, dict)) and len(value) <= NAMED:
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield from _below(f"{name}[{key!r}]", item, depth - 1)
    elif depth and hasattr(value, "__dict__") and is_of_user(value):
        for key, item in list(vars(value).items()):
            yield from _below(f"{name}.{key}", item, depth - 1)
