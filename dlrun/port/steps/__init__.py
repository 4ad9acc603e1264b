"""The grid of the porter: framework x step, in reading order; nothing registers itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dlrun.port.edits import Doubt, Edit
from dlrun.port.frameworks import keras, tensorflow
from dlrun.port.steps.broadcast import broadcast
from dlrun.port.steps.counts import steps
from dlrun.port.steps.finish import finish
from dlrun.port.steps.gradients import gradients
from dlrun.port.steps.metrics import averages
from dlrun.port.steps.output import keras_output, output
from dlrun.port.steps.rate import keras_rate, rate
from dlrun.port.steps.shard import shard
from dlrun.port.steps.start import start

Pass = Callable[[Any], Iterable[Edit | Doubt]]


@dataclass(frozen=True)
class Step:
    """A step of the port, and whether a port without it would be wrong."""

    name: str
    required: bool
    meaning: str


STEPS = (
    Step("start", True, "join the other ranks"),
    Step("broadcast", True, "begin from the same weights"),
    Step("gradients", True, "average the gradients"),
    Step("shard", False, "give each rank its share of the samples"),
    Step("rate", False, "scale the learning rate with the global batch"),
    Step("steps", False, "divide constants that count steps"),
    Step("metrics", False, "average what is shown and what decides"),
    Step("output", False, "write files and print on rank 0 only"),
    Step("finish", True, "leave together"),
)

GRID: Mapping[str, Mapping[str, Pass]] = {
    "torch": {
        "start": start.torch,
        "broadcast": broadcast.torch,
        "gradients": gradients.torch,
        "shard": shard.torch,
        "rate": rate.torch,
        "steps": steps.torch,
        "metrics": averages.torch,
        "output": output.torch,
        "finish": finish.torch,
    },
    # distribute() broadcasts, shards and averages metrics where fit() runs: one edit for most of these steps.
    "keras": {
        "start": keras.start,
        "gradients": keras.gradients,
        "shard": keras.shard,
        "rate": keras_rate.rate,
        "steps": keras.steps,
        "metrics": keras.metrics,
        "output": keras_output.keras,
        "finish": keras.finish,
    },
    "tensorflow": {
        "start": tensorflow.start,
        "broadcast": tensorflow.broadcast,
        "gradients": tensorflow.gradients,
        "shard": tensorflow.shard,
        "rate": tensorflow.rate,
        "steps": tensorflow.steps,
        "metrics": tensorflow.metrics,
        "output": keras_output.tensorflow,
        "finish": tensorflow.finish,
    },
}
