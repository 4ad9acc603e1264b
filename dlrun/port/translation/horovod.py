"""Horovod's calls and what stands for them in dl_comm."""

from __future__ import annotations

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method
from dlrun.port.translation import Found, Library, Rule, Translation, gpus

_MODULES = {
    "horovod.torch": "torch",
    "horovod.tensorflow.keras": "keras",
    "horovod.keras": "keras",
    "horovod.tensorflow": "tensorflow",
}


def _reduction(translation: Translation, call: cst.Call) -> str:
    """Return which reduction ``call`` asks for: Average, Sum, or what else its ``op`` says."""
    op, average = translation.argument(call, "op"), translation.argument(call, "average", -1)
    if average is not None:
        return "Sum" if translation.script.code(average.value) == "False" else "Average"
    return translation.script.code(op.value).rsplit(".", 1)[-1] if op is not None else "Average"


def _mean_or_sum(translation: Translation, call: cst.Call) -> str:
    """Return the template of an allreduce: only dl_comm.torch has sums."""
    return "total" if translation.framework == "torch" and _reduction(translation, call) == "Sum" else "average"


def _in_place(translation: Translation, call: cst.Call) -> str:
    return f"{_mean_or_sum(translation, call)}_in_place"


def _mean(translation: Translation, call: cst.Call) -> Found:
    """Yield the doubts about what an average leaves out."""
    how = _reduction(translation, call)
    if how != "Average" and _mean_or_sum(translation, call) == "average":
        yield Doubt(
            call,
            f"op={how}: dl_comm takes the mean here, n times smaller than a sum",
            "high",
            "multiply by the number of ranks",
            step="metrics",
            name="loss-scale",
        )


def _optimizer(translation: Translation, call: cst.Call) -> Found:
    """Yield the doubts about arguments of DistributedOptimizer that fall away."""
    op, small = translation.argument(call, "op"), translation.argument(call, "compression")
    if op is not None and not translation.script.code(op.value).endswith("Average"):
        yield Doubt(
            op,
            f"op={translation.script.code(op.value)}: dl_comm averages the gradients",
            "high",
            "where this was no average, choose the learning rate anew",
            step="gradients",
            name="loss-scale",
        )
    if small is not None and not translation.script.code(small.value).endswith("none"):
        yield Doubt(
            small,
            "gradients travel in their own precision, uncompressed",
            "low",
            step="gradients",
            name="not-compressed",
        )


def _uneven(translation: Translation, call: cst.Call) -> Found:
    yield Doubt(
        call,
        "join() let ranks run out of data one by one; here all must do as many steps",
        "high",
        "DistributedSampler pads, drop_last cuts: either makes the ranks equal",
        step="shard",
        name="may-hang",
    )


def _ramp(translation: Translation, call: cst.Call) -> Found:
    """Yield a doubt where the rate that the warm-up ended at is not in sight as the optimizer's own."""
    script, end = translation.script, translation.argument(call, "initial_lr", 0)
    given = [a for c in script.calls if c is not call for a in c.args if a.keyword is None or a.keyword.value in _RATES]
    if end is None or script.code(end.value) not in {script.code(a.value) for a in given}:
        yield Doubt(
            call,
            "the warm-up ends at the optimizer's own rate, not at initial_lr",
            "medium",
            "give both the same rate",
            step="rate",
            name="rate-not-scaled",
        )


def _implied(translation: Translation) -> Found:
    yield from gpus.named(translation)
    yield from _tapes(translation)


def _tapes(translation: Translation) -> Found:
    """Yield what DistributedGradientTape and the methods of a distributed optimizer become."""
    script = translation.script
    wrapped: set[str] = set()
    for node in script.nodes:
        if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
            call = node.value
            if translation.foreign(call.func) == "DistributedGradientTape" and isinstance(call.args[0].value, cst.Name):
                name = script.code(node.targets[0].target)
                wrapped |= {name}
                translation.done.append(call)
                why = "the tape stays as it is; its gradients are averaged"
                if name == call.args[0].value.value:
                    yield Edit(script.line_of(node), why, lambda _: cst.RemoveFromParent(), step="gradients")
                else:
                    yield Edit(call, why, lambda c: c.args[0].value, step="gradients")
        elif isinstance(node, cst.With) and all(calls_method(i.item, "skip_synchronize") for i in node.items):
            yield Edit(
                node,
                "the gradients are averaged above; once more changes nothing",
                lambda w: cst.FlattenSentinel(w.body.body),
                step="gradients",
            )
    for call in script.calls:
        func = call.func
        if calls_method(call, "gradient") and isinstance(func, cst.Attribute) and script.code(func.value) in wrapped:
            translation.averaged = True
            yield Edit(
                call,
                "average before anything reads the gradients",
                lambda c: expression("from/gradients", {"value": c}, dl=translation.alias),
                step="gradients",
            )
        elif calls_method(call, "synchronize") and isinstance(func, cst.Attribute) and _steps(translation, func.value):
            yield Edit(
                call,
                "average before anything reads the gradients",
                lambda c: expression("from/gradients", {"value": c.func.value}, dl=translation.alias),
                step="gradients",
            )


def _steps(translation: Translation, owner: cst.BaseExpression) -> bool:
    """Tell whether ``owner`` is something that the script lets step."""
    text = translation.script.code(owner)
    calls = translation.script.calls
    return any(calls_method(c, "step") and translation.script.code(c.func).rpartition(".")[0] == text for c in calls)


_RATES = ("lr", "learning_rate")

_MEAN = Rule(_mean_or_sum, "one value of all ranks", ("tensor",), "metrics", _mean)
_SAME = Rule("broadcast", "rank 0's on all ranks", ("tensor", "root_rank"), "broadcast")
_OBJECT = Rule("broadcast", "rank 0's on all ranks", ("obj", "root_rank"), "broadcast")

LIBRARY = Library(
    name="Horovod",
    modules=_MODULES,
    rules={
        "init": Rule("init", "join the other ranks; their random numbers stay local"),
        "shutdown": Rule("finalize", "leave together", step="finish"),
        "size": Rule("size", "how many ranks there are"),
        "rank": Rule("rank", "which rank this is"),
        "local_rank": Rule(gpus.local_rank, "which rank of its node this is, or its GPU"),
        "local_size": Rule("local_size", "how many ranks its node has"),
        "barrier": Rule("barrier", "wait for all", step="output"),
        "join": Rule("barrier", "wait for all", step="output", more=_uneven),
        "broadcast_parameters": Rule("broadcast", "rank 0's weights", ("params", "root_rank"), "broadcast", owner=True),
        "broadcast_optimizer_state": Rule("broadcast", "rank 0's state", ("optimizer", "root_rank"), "broadcast"),
        "broadcast_object": _OBJECT,
        "broadcast": _SAME,
        "broadcast_": _SAME,
        "broadcast_variables": Rule("broadcast_variables", "rank 0's", ("variables", "root_rank"), "broadcast"),
        "broadcast_global_variables": Rule("broadcast_graph", "rank 0's", ("root_rank",), "broadcast"),
        "BroadcastGlobalVariablesHook": Rule("broadcast_hook", "rank 0's variables", ("root_rank",), "broadcast"),
        "callbacks.BroadcastGlobalVariablesCallback": Rule("keras_broadcast", "rank 0's", ("root_rank",), "broadcast"),
        "callbacks.LearningRateWarmupCallback": Rule(
            "keras_warmup", "from 1/n of the rate to all of it", ("", "warmup_epochs"), "rate", _ramp
        ),
        "callbacks.MetricAverageCallback": Rule("keras_average", "the ranks' mean", step="metrics"),
        "DistributedOptimizer": Rule(
            "optimizer", "averages the gradients before it steps", ("optimizer",), "gradients", _optimizer
        ),
        "allreduce": _MEAN,
        "allreduce_": Rule(_in_place, "one value of all ranks", ("tensor",), "metrics", _mean),
    },
    constants={
        "Compression.none": "None",
        "Compression.fp16": "None",
        "Average": "None",
        "Sum": "None",
        "Adasum": "None",
        "nccl_built": "False",
        "cuda_built": "False",
        "rocm_built": "False",
        "ddl_built": "False",
        "ccl_built": "False",
        "gloo_built": "False",
        "gloo_enabled": "False",
        "mpi_built": "True",
        "mpi_enabled": "True",
        "mpi_threads_supported": "True",
        "is_initialized": "True",
    },
    averages=("DistributedOptimizer", "DistributedGradientTape"),
    implied=_implied,
)
