"""Runs a training script for a few optimizer steps and writes what the parameters were after each.

    python probe.py RESULT STEPS SCRIPT [ARGS...]

RESULT (a path; a rank's number is appended) gets JSON: the digests of all parameters after each step, and why the
run ended. Everything random is seeded first, so that two runs of one script agree. PROBE_FRAMEWORK says whose steps
are watched: torch, keras (Keras optimizers, tape loops, run eagerly) or session (TensorFlow 1, Estimators).
"""

import hashlib
import json
import os
import random
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy

from dlrun.package import home_of


class Probe:
    """Keeps one digest per step and ends the process after the last one, when all ranks have come so far."""

    def __init__(self, result: str, limit: int) -> None:
        self.result, self.limit = result, limit
        self.digests: list[str] = []
        self.by_hand: list[str] = []
        self.process = os.getpid()

    def stepped(self, arrays: list[Any], by_hand: bool = False) -> None:
        """Take the parameters, numpy arrays, as a step left them behind; of one by hand, as the next one finds them."""
        if os.getpid() != self.process:
            return
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(numpy.ascontiguousarray(array, dtype="float64").tobytes())
        (self.by_hand if by_hand else self.digests).append(digest.hexdigest()[:16])
        if len(self.digests) >= self.limit or (by_hand and not self.digests and len(self.by_hand) > 2 * self.limit):
            self.ended("steps")
            self.leave()

    def ended(self, why: str) -> None:
        """Write the result."""
        rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
        with open(f"{self.result}.{rank}.part", "w") as file:  # noqa: PTH123
            json.dump({"why": why, "digests": self.digests or self.by_hand}, file)
        os.replace(f"{self.result}.{rank}.part", f"{self.result}.{rank}")  # noqa: PTH105

    def leave(self) -> NoReturn:
        """Wait until nobody can be torn away in a collective, then end without any exit hooks."""
        sys.stdout.flush()
        ranks = int(os.environ.get("PMI_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1")))
        end = time.monotonic() + 30
        while time.monotonic() < end and not all(os.path.exists(f"{self.result}.{r}") for r in range(ranks)):  # noqa: PTH110
            time.sleep(0.05)
        os._exit(0)


def watch_torch(probe: Probe) -> None:
    """Look at the parameters of every optimizer that steps, and before each backward pass at those it reaches."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(1)
    torch.manual_seed(0)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        groups = optimizer.param_groups
        probe.stepped([p.detach().cpu().to(torch.float64).numpy() for group in groups for p in group["params"]])

    backward = torch.autograd.backward

    def before(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not probe.digests:
            probe.stepped([leaf.detach().cpu().to(torch.float64).numpy() for leaf in leaves(tensors)], by_hand=True)
        return backward(tensors, *args, **kwargs)

    register_optimizer_step_post_hook(after)
    torch.autograd.backward = before


def leaves(tensors: Any) -> list[Any]:
    """Return the tensors that a backward pass reaches."""
    found, seen = [], set()
    todo = [t.grad_fn for t in (tensors if isinstance(tensors, (tuple, list)) else [tensors])]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            todo += [following for following, _ in node.next_functions]
    return found


def watch_keras(probe: Probe) -> None:
    """Look at the variables that a Keras optimizer was given; everything runs eagerly."""
    import keras
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    keras.utils.set_random_seed(0)
    optimizers = keras.optimizers
    name = "apply" if hasattr(optimizers.Optimizer, "stateless_apply") else "apply_gradients"
    bases = [optimizers.Optimizer, *([optimizers.legacy.Optimizer] if name == "apply_gradients" else [])]
    for base in bases:
        owner = next(cls for cls in base.__mro__ if name in vars(cls))
        setattr(owner, name, stepping(probe, vars(owner)[name], name))


def stepping(probe: Probe, method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return an optimizer's method that shows the variables to the probe when it is done."""
    depth = 0

    def watched(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        first, depth = list(first), depth + 1
        try:
            result = method(self, first, *args, **kwargs)
        finally:
            depth -= 1
        if not depth:
            given = args[0] if args else kwargs.get("trainable_variables")
            variables = [v for _, v in first] if name == "apply_gradients" else given or self._trainable_variables
            probe.stepped([v.numpy() for v in variables])
        return result

    return watched


def watch_sessions(probe: Probe) -> None:
    """Look at the trainable variables after every run of a session that an optimizer's update was part of."""
    import tensorflow as tf
    from tensorflow.python.client.session import BaseSession
    from tensorflow.python.framework import ops, random_seed
    from tensorflow.python.training.optimizer import Optimizer

    run, apply, build = BaseSession.run, Optimizer.apply_gradients, ops.Graph.__init__
    updates: set[Any] = set()
    drawn: dict[int, int] = {}
    known: dict[Any, bool] = {}

    def seeded(graph: Any, *args: Any, **kwargs: Any) -> None:
        build(graph, *args, **kwargs)
        graph._seed = 0

    def numbered(op_seed: Any = None) -> tuple[int, int]:
        """Count the random ops themselves: an op of another kind before them leaves their seeds alone."""
        graph = ops.get_default_graph()
        drawn[id(graph)] = drawn.get(id(graph), 0) + 1
        return (graph.seed if graph.seed is not None else 0), drawn[id(graph)] if op_seed is None else op_seed

    def applied(self: Any, *args: Any, **kwargs: Any) -> Any:
        update = apply(self, *args, **kwargs)
        updates.add(getattr(update, "op", update))
        return update

    def trains(session: Any, fetches: Any) -> bool:
        elements = [session.graph.as_graph_element(f) for f in parts(fetches)]
        key = tuple(sorted({getattr(e, "op", e).name for e in elements})), id(session.graph)
        if key not in known:
            seen, todo = set(), [getattr(e, "op", e) for e in elements]
            while todo:
                op = todo.pop()
                if op not in seen:
                    seen.add(op)
                    todo += [*(t.op for t in op.inputs), *op.control_inputs]
            known[key] = bool(seen & updates)
        return known[key]

    def ran(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(self, fetches, *args, **kwargs)
        if trains(self, fetches):
            probe.stepped(run(self, self.graph.get_collection("trainable_variables")))
        return result

    ops.Graph.__init__, random_seed.get_seed = seeded, numbered
    Optimizer.apply_gradients, BaseSession.run = applied, ran
    tf.reset_default_graph()


def parts(fetches: Any) -> list[Any]:
    """Return what a session is to fetch, one by one; a dict's keys may be anything, such as hooks."""
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        return [part for fetch in fetches for part in parts(fetch)]
    return [] if fetches is None else [fetches]


WATCH = {"torch": watch_torch, "keras": watch_keras, "session": watch_sessions}


def main() -> None:
    """Run the script under the hook."""
    result, limit, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    sys.argv = sys.argv[3:]
    home = home_of(Path(script), Path(script).read_bytes())
    sys.path[0] = str(home.folder)
    numpy.random.seed(0)
    random.seed(0)
    probe = Probe(result, limit)
    WATCH[os.environ.get("PROBE_FRAMEWORK", "torch")](probe)
    try:
        if home.package:
            runpy.run_module(home.module(Path(script)), run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        probe.ended(f"exit {error.code}")
        raise
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        own = [f for f in where if script in f.filename]
        probe.ended(f"{type(error).__name__}: {str(error)[:160]} (line {own[-1].lineno if own else '?'})")
        traceback.print_exc()
        os._exit(1)
    probe.ended("end")


if __name__ == "__main__":
    main()
