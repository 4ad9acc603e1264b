"""What is known of the graphs of TensorFlow 1: which op updates which variables, with which gradients, averaged where.

A session is only told what to fetch, so all of it is noted while the graph is made and found again from what is run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import gradients_util
from tensorflow.python.training.optimizer import Optimizer

from dlrun.verify.tracer.recorder import Recorder

READERS = ("IteratorGetNext", "QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2")
STATISTICS = ("moving_mean", "moving_variance", "moving_average", "moving_stddev")
NORMS = ("FusedBatchNorm", "batchnorm", "batch_norm")


@dataclass(frozen=True)
class Update:
    """An op that applies ``gradients`` to ``variables``; ``rate`` is a number, a tensor or None."""

    optimizer: Any
    gradients: tuple[Any, ...]
    variables: tuple[Any, ...]
    rate: Any


@dataclass(frozen=True)
class Mean:
    """Where a gradient was averaged: the tensor before and after, and what had clipped it before (function, line)."""

    own: Any
    mean: Any
    clip: tuple[str, str] | None


@dataclass(frozen=True)
class Plan:
    """What a session is about to run: updates, in the order in which they were made, and what tells of the step."""

    updates: tuple[Update, ...]
    collective: bool  # an op of dl_comm is among it
    sent: tuple[str, ...]  # variables that dl_comm broadcasts
    read: tuple[Any, ...]  # tensors with what is read from data sets and queues
    random: tuple[tuple[int, int], ...]  # seeds of the random ops
    norm: bool


class Graphs:
    """Notes the making of graphs. Tensors go by the graph and name that they are kept under (see ``key``)."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._updates: dict[Any, Update] = {}
        self._means: dict[str, Mean] = {}
        self._owners: dict[str, str] = {}  # of gradients: the keys of their variables
        self._clips: dict[str, tuple[str, str]] = {}
        self._sent: dict[Any, tuple[str, ...]] = {}
        self._plans: dict[Any, Plan] = {}

    def updated(self, op: Any, optimizer: Any, pairs: Iterable[Any], rate: Any) -> None:
        """``op`` applies these pairs of gradients and variables."""
        known = [(g, v) for g, v in pairs if v is not None]
        op = getattr(op, "op", op)
        if isinstance(op, ops.Operation):
            self._updates[op] = Update(optimizer, tuple(g for g, _ in known), tuple(v for _, v in known), rate)

    def derived(self, gradients: Iterable[Any], sources: Iterable[Any]) -> None:
        """These are gradients with respect to these variables, or tensors."""
        for gradient, source in zip(gradients, sources, strict=False):
            if gradient is not None and hasattr(source, "op"):
                self._owners[key(gradient)] = key(source)

    def clipped(self, tensors: Iterable[Any], function: str) -> None:
        """A function that clips made these tensors."""
        for tensor in tensors:
            if tensor is not None:
                self._clips[key(tensor)] = (function, self.recorder.line)

    def averaged(self, own: list[Any], means: list[Any]) -> None:
        """``means`` are the means over the ranks of ``own``."""
        for before, after in zip(own, means, strict=False):
            if before is None:
                continue
            owner = self._nearest(before, lambda k: self._owners.get(k))
            self._means[key(after)] = Mean(before, after, self._clips.get(key(before)))
            if owner:
                self._owners[key(after)] = owner

    def sends(self, op: Any, variables: Iterable[Any]) -> None:
        """``op`` gives these variables the root's values."""
        self._sent[op] = tuple(key(v) for v in variables)

    def mean_of(self, gradient: Any, variable: Any) -> Mean | None:
        """Return where a gradient that is applied was averaged, the way up; None where it was not."""
        mine = key(variable)

        def found(k: str) -> Mean | bool | None:
            if k in self._means and self._owners.get(k, mine) == mine:
                return self._means[k]
            return self._owners.get(k) == mine or None  # the gradient as it was computed

        hit = self._nearest(gradient, found)
        return hit if isinstance(hit, Mean) else None

    def _nearest(self, tensor: Any, found: Callable[[str], Any]) -> Any:
        """Return the first that is found among a tensor and what it is computed from, the nearest first."""
        todo = deque([_dense(tensor)])
        seen = {key(tensor)}
        while todo:
            here = todo.popleft()
            if hit := found(key(here)):
                return hit
            for source in here.op.inputs:
                if key(source) not in seen:
                    seen.add(key(source))
                    todo.append(source)
        return None

    def plan(self, graph: Any, fetched: list[Any]) -> Plan:
        """Return what fetching these tensors and ops runs."""
        wanted = tuple(sorted({f"{getattr(f, 'op', f).name}" for f in fetched}))
        place = (id(graph), len(self._updates), wanted)
        if place not in self._plans:
            self._plans[place] = self._planned(ancestors([getattr(f, "op", f) for f in fetched]))
        return self._plans[place]

    def _planned(self, found: set[Any]) -> Plan:
        training = tuple(update for op, update in self._updates.items() if op in found)
        made = ancestors([_dense(g).op for u in training for g in u.gradients if g is not None])
        seeds = {(op.name, op.get_attr("seed"), op.get_attr("seed2")) for op in made if _is_random(op)}
        return Plan(
            updates=training,
            collective=any(op.type == "DlReduce" for op in found),
            sent=tuple(k for op, keys in self._sent.items() if op in found for k in keys),
            read=tuple(t for op in sorted(made, key=lambda op: op.name) if op.type in READERS for t in op.outputs),
            random=tuple((seed, second) for _, seed, second in sorted(seeds)),
            norm=any(part in op.name for op in made for part in NORMS),
        )


def key(thing: Any) -> str:
    """Return what a tensor, a variable or a variable's handle goes by; of a variable, the op that makes it."""
    dense = _dense(thing)
    op = dense.op
    is_variable = isinstance(dense, tf.Variable) or op.type in ("VarHandleOp", "VariableV2")
    return f"{id(op.graph)}/{op.name if is_variable else dense.name}"


def kind_of(name: str) -> str:
    """Return whether a variable that is not trained holds batch norm's statistics or is a copy, by its name."""
    return "statistics" if name.rpartition("/")[2].split(":")[0] in STATISTICS else "copy"


def _dense(thing: Any) -> Any:
    return thing.values if isinstance(thing, tf.IndexedSlices) else thing


def _is_random(op: Any) -> bool:
    draws = op.type.startswith(("Random", "Truncated", "Multinomial", "Parameterized")) and "Shuffle" not in op.type
    return draws and "seed2" in op.node_def.attr


def ancestors(wanted: list[Any]) -> set[Any]:
    """Return the ops that these need, themselves included."""
    seen: set[Any] = set()
    todo = list(wanted)
    while todo:
        op = todo.pop()
        if op not in seen:
            seen.add(op)
            todo += [*(t.op for t in op.inputs), *op.control_inputs]
    return seen


def seeds_of(graph: Any) -> list[tuple[int, int]]:
    """Return the seeds of all random ops of a graph."""
    return _seeds(graph, len(graph.get_operations()))


@cache
def _seeds(graph: Any, _count: int) -> list[tuple[int, int]]:
    return [(op.get_attr("seed"), op.get_attr("seed2")) for op in graph.get_operations() if _is_random(op)]


def install(recorder: Recorder) -> Graphs:
    """Follow the making of gradients and updates."""
    graphs = Graphs(recorder)
    helper, apply = gradients_util._GradientsHelper, Optimizer.apply_gradients

    def derived(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        found = helper(ys, xs, *args, **kwargs)
        graphs.derived(found, xs if isinstance(xs, (list, tuple)) else [xs])
        return found

    def applied(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        op = apply(self, pairs, *args, **kwargs)
        if not tf.executing_eagerly():
            graphs.updated(op, self, pairs, next((r for n in RATES if (r := getattr(self, n, None)) is not None), None))
        return op

    gradients_util._GradientsHelper, Optimizer.apply_gradients = derived, applied
    return graphs


RATES = ("_lr_t", "_learning_rate_tensor", "_lr", "_learning_rate")
