"""The steps of TensorFlow 1: runs of a session that an update is part of, be it a monitored one's or an Estimator's.

What tells of the step is fetched in the same run: the gradients, before and after their averaging, the rate, and what
is read from data sets and queues; the variables in runs of their own, before the first step and after each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client.session import BaseSession, _FetchHandler
from tensorflow.python.framework import ops

from dlrun.verify.tracer.arrays import array_note, batch_digest, samples
from dlrun.verify.tracer.graphs import Graphs, Mean, Plan, Update, key, kind_of, seeds_of
from dlrun.verify.tracer.importing import number_of
from dlrun.verify.tracer.iteration_seeds import Turns
from dlrun.verify.tracer.keras_options import options_of
from dlrun.verify.tracer.randomness import states
from dlrun.verify.tracer.recorder import Recorder

RUN = "Session.run"


class Sessions:
    """Follows variables through the runs of sessions that update them.

    Optimizers, which are updates here, are numbered in the order of their first step, variables as they are seen.
    """

    def __init__(self, recorder: Recorder, graphs: Graphs) -> None:
        self.recorder, self.graphs = recorder, graphs
        self._optimizers: dict[int, int] = {}
        self._variables: dict[str, int] = {}
        self._sent: set[str] = set()
        self._turns = Turns(recorder)
        self._first_values: dict[str, tuple[Any, Any]] = {}  # of variables, before their first update

    def run(self, plain: Callable[..., Any], session: Any, fetches: Any, given: Any, *more: Any) -> Any:
        """Run what the script asks for; note it where it is a step."""
        plan = None
        with suppress(Exception):  # what is wrong with the fetches, the session itself says better
            handler = _FetchHandler(session.graph, fetches, {})
            plan = self.graphs.plan(session.graph, [*handler.fetches(), *handler.targets()])
        if self.recorder.inside or plan is None:
            return plain(session, fetches, given, *more)
        if plan.updates:
            if self.recorder.done:
                self.recorder.stop()
            return self._step(plan, plain, session, fetches, given, *more)
        result = self._waiting(plan, lambda: plain(session, fetches, given, *more))
        self._sent |= set(plan.sent)
        return result

    def _waiting(self, plan: Plan, run: Callable[[], Any]) -> Any:
        """Note the run as a call in which ranks may wait for each other, where it is one."""
        if not plan.collective:
            return run()
        self.recorder.note("call", fn=RUN)
        result = run()
        self.recorder.note("return", fn=RUN)
        return result

    def _step(self, plan: Plan, plain: Callable[..., Any], session: Any, fetches: Any, given: Any, *more: Any) -> Any:
        def values(of: Any) -> Any:
            with self.recorder.aside():
                return plain(session, of)

        for update in plan.updates:
            self._first(update, values)
        given = self._share(given) if self.recorder.orders.global_batch else given
        asked = [self._asked(update, session.graph) for update in plan.updates]
        wanted = {"theirs": fetches, "asked": asked, "read": list(plan.read)}
        if self.recorder.orders.frozen:
            self._keep(plan, values)
        found = self._waiting(plan, lambda: plain(session, wanted, given, *more))
        self._note_inputs(plan, given, dict(zip([t.name for t in plan.read], found["read"], strict=True)))
        self._sent |= set(plan.sent)
        for update, seen in zip(plan.updates, found["asked"], strict=True):
            self._note_step(update, seen, values(list(update.variables)), session.graph, plan)
        if self.recorder.orders.frozen:
            with self.recorder.aside():
                for variable, value in self._first_values.values():  # as load() does: without an op of its own
                    plain(session, variable.initializer, {variable.initializer.inputs[1]: value})
        self._turns.stepped()
        if self.recorder.done:
            self._note_held(session.graph, values)
        return found["theirs"]

    def _keep(self, plan: Plan, values: Callable[[Any], Any]) -> None:
        """Keep the values that variables have before their first update, to take updates back (see ``replay``)."""
        new = [v for update in plan.updates for v in update.variables if key(v) not in self._first_values]
        if new:
            kept = zip(new, values(new), strict=True)
            self._first_values |= {key(variable): (variable, value) for variable, value in kept}

    def _note_held(self, graph: Any, values: Callable[[Any], Any]) -> None:
        """Note the variables that no update changes: slots, averages, statistics, the number of the step."""
        variables = [v for v in graph.get_collection("variables") if key(v) not in self._variables]
        found = dict(zip([v.op.name for v in variables], values(variables) if variables else [], strict=True))
        held = {name: {"kind": kind_of(name), "note": array_note(value)} for name, value in found.items()}
        self.recorder.note("held", tensors=held)

    def _first(self, update: Update, values: Callable[[Any], Any]) -> None:
        """On an update's first step, note its variables."""
        if id(update) in self._optimizers:
            return
        number = self._optimizers[id(update)] = len(self._optimizers)
        variables = list(update.variables)
        params: list[Any] = [None] * len(variables)
        with suppress(tf.errors.FailedPreconditionError):  # initialised in the same run
            params = values(variables)
        self.recorder.note(
            "optimizer",
            optimizer=number,
            type=type(update.optimizer).__name__,
            names=[v.op.name for v in variables],
            ids=[self._number(v) for v in variables],
            broadcast=[key(v) in self._sent for v in variables],
            params=[array_note(p) or {"hash": "", "norm": 0.0, "type": "float32", "sample": ""} for p in params],
            options=options_of(update.optimizer),
        )

    def _number(self, variable: Any) -> int:
        return self._variables.setdefault(key(variable), len(self._variables))

    def _asked(self, update: Update, graph: Any) -> dict[str, Any]:
        """Return what is to be fetched of an update: ``used``, ``own`` and ``mean`` by position, and the rate."""
        asked: dict[str, Any] = {"used": {}, "own": {}, "mean": {}, "rate": []}
        for i, (gradient, variable) in enumerate(zip(update.gradients, update.variables, strict=True)):
            if gradient is None or not _can_be_fetched(graph, gradient):
                continue
            asked["used"][i] = gradient
            mean = self.graphs.mean_of(gradient, variable)
            if mean is not None:
                asked["own"][i], asked["mean"][i] = mean.own, mean.mean
        rate = update.rate
        if (tf.is_tensor(rate) or isinstance(rate, tf.Variable)) and _can_be_fetched(graph, rate):
            asked["rate"] = [rate]
        return asked

    def _note_inputs(self, plan: Plan, given: Any, read: dict[str, Any]) -> None:
        fed = {getattr(name, "name", str(name)): value for name, value in (given or {}).items()}
        arrays = {name: array for name, value in (fed | read).items() if (array := _array(value)) is not None}
        self.recorder.note(
            "forward",
            hash=batch_digest(list(arrays.values())),
            rows={name: samples([array]) for name, array in arrays.items()},
            fed=[name for name in arrays if name in fed],
            noise=bool(plan.random),
            norm=plan.norm,
            drew=["random ops"] if plan.random else [],
        )

    def _note_step(self, update: Update, seen: dict[str, Any], params: list[Any], graph: Any, plan: Plan) -> None:
        """Note the making of gradients, their averaging, and the update, in this order."""
        ids = [self._number(v) for v in update.variables]

        def note(values: dict[int, Any], i: int) -> Any:
            return array_note(_whole(values[i], update.variables[i])) if i in values else None

        means: dict[int, Mean | None] = {
            i: self.graphs.mean_of(update.gradients[i], update.variables[i]) for i in seen["mean"]
        }
        self.recorder.note("backward")
        for clip in {mean.clip for mean in means.values() if mean and mean.clip}:
            self.recorder.note("clip", function=clip[0], at=clip[1])
        if means:
            before, after = [note(seen["own"], i) for i in means], [note(seen["mean"], i) for i in means]
            self.recorder.note("return", fn="gradients", ids=[ids[i] for i in means], before=before, after=after)
        self.recorder.steps += 1
        rate = seen["rate"][0] if seen["rate"] else number_of(update.rate)
        self.recorder.note(
            "step",
            step=self.recorder.steps,
            optimizer=self._optimizers[id(update)],
            lr=[] if rate is None else [float(rate)],
            grads=[note(seen["used"], i) for i in range(len(ids))],
            params=[array_note(p) for p in params],
            states=self._states(graph, plan),
            drew=[],
        )

    def _states(self, graph: Any, plan: Plan) -> dict[str, str]:
        """Return the generators' states; the graph's ops have seeds of their own in place of TensorFlow's generator."""
        shared = {name: state for name, state in states().items() if name != "tensorflow"}
        return shared | {"graph": _hash(seeds_of(graph)), "random ops": _hash(plan.random)}

    def _share(self, given: Any) -> Any:
        """Return what is fed with this rank's 1/n of the batch, which is what most arrays have as their length."""
        if not given:
            return given
        rank, n = int(os.environ.get("DLRUN_RANK", "0")), int(os.environ.get("DLRUN_SIZE", "1"))
        arrays = {name: array for name, value in given.items() if (array := _array(value)) is not None}
        lengths = [len(array) for array in arrays.values()]
        batch = max(lengths, key=lengths.count, default=0)
        return given | {name: a[rank::n] for name, a in arrays.items() if len(a) == batch > 1}


def _array(value: Any) -> Any:
    """Return what is fed as an array of one dimension or more; None of a number, a text, or several parts."""
    with suppress(ValueError):
        array = np.asarray(value)
        return array if array.ndim and array.dtype.kind != "O" else None
    return None


def _can_be_fetched(graph: Any, thing: Any) -> bool:
    part = thing.values if isinstance(thing, tf.IndexedSlices) else thing
    return part.graph is graph and bool(graph.is_fetchable(part))


def _whole(value: Any, variable: Any) -> Any:
    """Return a gradient as an array, also where it came as rows."""
    if not hasattr(value, "indices"):
        return value
    whole = np.zeros(variable.shape.as_list(), value.values.dtype)
    np.add.at(whole, value.indices, value.values)
    return whole


def _hash(seeds: Any) -> str:
    """Return a hash of the seeds of random ops; where one has none, another one each time."""
    unseeded = os.urandom(8) if (0, 0) in seeds else b""
    return blake2b(repr(list(seeds)).encode() + unseeded, digest_size=8).hexdigest()


def install(recorder: Recorder, graphs: Graphs) -> Sessions:
    """Follow the sessions, and the seeds of graphs; give graphs the seed that the orders have for them."""
    sessions, run, build = Sessions(recorder, graphs), BaseSession.run, ops.Graph.__init__
    seeding = ops.Graph.seed

    def ran(self: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        return sessions.run(run, self, fetches, feed_dict, options, run_metadata)

    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        if type(self) is ops.Graph:  # not a function's
            self._seed = given()

    def given() -> int:
        seed = recorder.orders.seed
        if seed is None:  # deterministic ops want one; this one differs from run to run, as if there were none
            return int.from_bytes(os.urandom(4), "little") >> 1
        return seed + (recorder.rank if recorder.orders.seed_by_rank else 0)

    def seeded(self: Any, seed: Any) -> None:
        ours = type(self) is ops.Graph and seed is None  # what Estimators say that are given none
        if type(self) is ops.Graph and not ours and not recorder.inside:
            recorder.note("seed", generator="graph", fixed=True)
        self._seed = given() if ours else seed

    ops.Graph.__init__, ops.Graph.seed, BaseSession.run = built, property(seeding.fget, seeded), ran
    tf.compat.v1.reset_default_graph()
    return sessions
