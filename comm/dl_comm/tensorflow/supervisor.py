"""A Supervisor of many ranks: rank 0 restores, saves and logs, and all start from its variables."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from dl_comm.rank0 import Silence
from dl_comm.ranks import get_rank
from dl_comm.tensorflow.state import broadcast_variables

_Serial: Any = tf.compat.v1.train.Supervisor
_PARAMETERS = inspect.signature(_Serial.__init__)


class Supervisor(_Serial):  # type: ignore[misc]
    """``tf.compat.v1.train.Supervisor``, with its arguments, for a session on each rank. Making one is collective.

    Only rank 0 reads and writes ``logdir``. Each session that is made gets rank 0's variables, be they initialized or
    restored. Every rank is the chief of its own model: ``is_chief`` must not say otherwise (``ValueError``).

    Summaries that rank 0's service thread would compute at a time of its own cannot hold averaged gradients, for which
    it would wait in vain: they are left out, and it says so.
    """

    _summary_op: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add the broadcast to the graph, which is closed then."""
        given = _PARAMETERS.bind(self, *args, **kwargs).arguments
        del given["self"]
        if not given.pop("is_chief", True):
            raise ValueError("is_chief=False: on ranks there is no other process that initializes this one's model")
        graph = given.setdefault("graph", None) or tf.compat.v1.get_default_graph()
        with graph.as_default():
            self._alike = broadcast_variables(tf.compat.v1.global_variables())
        given["graph"] = graph
        logdir = given.get("logdir")
        if get_rank() > 0:
            given |= {"logdir": None, "summary_writer": None}
            if given.get("init_op", 0) is None and given.get("init_fn") is None:
                del given["init_op"]  # rank 0 restores all; there is nothing to restore from here
        super().__init__(**given)
        if get_rank() > 0 and logdir:
            self._summary_writer = Silence()
            self._save_path = str(Path(logdir) / given.get("checkpoint_basename", "model.ckpt"))

    def prepare_or_wait_for_session(self, *args: Any, **kwargs: Any) -> Any:
        """Return a session as the serial one does, then with rank 0's variables. Collective."""
        session = super().prepare_or_wait_for_session(*args, **kwargs)
        session.run(self._alike)
        return session

    PrepareSession = prepare_or_wait_for_session

    def start_standard_services(self, sess: Any) -> Any:
        """Start what saves and logs on rank 0, but for summaries that it cannot compute alone."""
        summaries = self._summary_op
        if summaries is not None and self._logdir and _communicates(getattr(summaries, "op", summaries)):
            self._summary_op = None
            print("dl_comm: the Supervisor writes no summaries: they need values of all ranks", file=sys.stderr)
        try:
            return super().start_standard_services(sess)
        finally:
            self._summary_op = summaries

    StartStandardServices = start_standard_services

    def summary_computed(self, *args: Any, **kwargs: Any) -> None:
        """Write a summary on rank 0."""
        if get_rank() == 0:
            super().summary_computed(*args, **kwargs)

    SummaryComputed = summary_computed


def _communicates(op: Any) -> bool:
    """Tell whether running ``op`` runs one that all ranks must reach."""
    seen, todo = {op}, [op]
    while todo:
        op = todo.pop()
        if op.type == "DlReduce":
            return True
        new = {*(t.op for t in op.inputs), *op.control_inputs} - seen
        seen |= new
        todo.extend(new)
    return False
