"""IBM DDL's calls and what stands for them in dl_comm.

``import ddl`` alone made optimizers average, and Keras models and sessions start alike; here these are written out.
"""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.insert import expression
from dlrun.port.program.script import Script, calls_method
from dlrun.port.translation import Found, Library, Rule, Translation, gpus

_OPTIMIZER = re.compile(
    r"^(tensorflow\.(compat\.v1\.)?train\.\w+Optimizer|(tensorflow\.(python\.)?)?keras\.optimizers\.(legacy\.)?[A-Z]\w+)$"
)
_INITIALIZER = re.compile(r"global_variables_initializer|initialize_all_variables")


def _only_mean(translation: Translation, call: cst.Call) -> Found:
    average = translation.argument(call, "average", 1)
    if average is not None and translation.script.code(average.value) != "True":
        yield Doubt(
            call,
            "dl_comm takes the mean of gradients, n times smaller than their sum",
            "high",
            "scale the learning rate anew",
            step="gradients",
            name="loss-scale",
        )


def _written_out(translation: Translation) -> Found:
    """Yield what ``import ddl`` did by itself: joining the ranks, averaging in optimizers, one start for sessions."""
    yield from gpus.named(translation)
    script, dl = translation.script, translation.alias
    explicit = any(translation.foreign(c.func) in ("grads_reduce", "allreduce_n") for c in script.calls)
    for call in script.calls:
        if _OPTIMIZER.search(script.name_of(call.func)) and not explicit:
            translation.averaged = True
            yield Edit(
                call,
                "averages the gradients before it steps",
                lambda c: expression("from/optimizer", {"value": c}, dl=dl),
                step="gradients",
            )
    translation.averaged = translation.averaged or explicit
    started = any(translation.foreign(c.func) in ("bcast", "DDLGlobalVariablesCallback") for c in script.calls)
    for call in script.calls if not started else ():
        run = calls_method(call, "run")
        if run and call.args and _INITIALIZER.search(script.code(call.args[0].value)):
            yield Doubt(
                call,
                "import ddl gave all ranks rank 0's variables here",
                "high",
                f"{script.code(call.func)}({dl}.broadcast_variables(tf.compat.v1.global_variables()))",
                step="broadcast",
                name="ranks-diverge",
            )


def _face(script: Script) -> str:
    keras = any(_OPTIMIZER.search(n := script.name_of(c.func)) and "keras" in n for c in script.calls)
    return "keras" if keras or any(b.target.split(".")[0] == "keras" for b in script.imports()) else "tensorflow"


LIBRARY = Library(
    name="IBM DDL",
    modules={"ddl": "tensorflow"},
    rules={
        "init": Rule("init", "join the other ranks; their random numbers stay local"),
        "size": Rule("size", "how many ranks there are"),
        "rank": Rule("rank", "which rank this is"),
        "local_rank": Rule(gpus.local_rank, "which rank of its node this is, or its GPU"),
        "bcast": Rule("broadcast_one", "rank 0's on all ranks", ("t",), "broadcast"),
        "allreduce_n": Rule("gradients", "the mean over the ranks", ("grads",), "gradients", _only_mean),
        "grads_reduce": Rule("gradients_and_variables", "their mean", ("grads_and_vars",), "gradients", _only_mean),
        "DDLCallback": Rule("keras_average", "the ranks' mean", step="metrics"),
        "DDLGlobalVariablesCallback": Rule("keras_broadcast", "rank 0's", step="broadcast"),
    },
    constants={},
    averages=("grads_reduce", "allreduce_n"),
    implied=_written_out,
    face=_face,
)
