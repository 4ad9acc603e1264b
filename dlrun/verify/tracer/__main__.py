"""``python .../tracer ORDERS script.py args``: run the script as ``__main__`` and write the trace of this rank."""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import tokenize
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlrun.verify.tracer.recorder import Recorder

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # sums are split over threads: their number decides the last bits
    "MKL_NUM_THREADS": "1",
    "MKL_CBWR": "COMPATIBLE",  # the same bits wherever an array lies in memory
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TORCHDYNAMO_DISABLE": "1",
    "TF_DETERMINISTIC_OPS": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def main(arguments: list[str]) -> None:
    """Trace one script: ``arguments`` are the orders' file, the script and its arguments."""
    os.environ.update(ENVIRONMENT)
    gc.disable()  # what is imported now stays until the end: looking through it takes a third of PyTorch's import
    from dlrun.package import home_of
    from dlrun.verify.tracer import conditions, files, logged, scalars, sites
    from dlrun.verify.tracer.recorder import Orders, Recorder, Stopped, rank_here

    orders = Orders.read(arguments[0])
    recorder = Recorder(orders, rank_here())
    note_held = _into_torch(recorder) if orders.framework == "torch" else _into_tensorflow(recorder)
    gc.freeze()
    gc.enable()
    os.chdir(orders.folder)

    script = Path(orders.script)
    with tokenize.open(script) as file:
        text = file.read()
    home, named = home_of(script, text), orders.named or orders.script
    module = ModuleType("__main__")
    module.__dict__.update({"__file__": named, conditions.WATCH: conditions.watch(recorder)})
    sys.modules["__main__"] = module
    sys.argv = [named, *arguments[1:]]
    sys.path[0] = str(home.folder)
    code = conditions.watched(text, str(script), bool(orders.few))
    recorder.note("sites", file=script.name, calls=sites.sites(text))
    files.install(recorder)
    logged.install(recorder)
    scalars.install(recorder)
    how, where, left = "finished", None, dict[str, str]()
    try:
        if home.package:  # it has relative imports: run as by python -m
            module.__dict__["__package__"] = importlib.import_module(home.package).__name__
        exec(code, module.__dict__)
    except Stopped as stopped:
        how, where = "stopped", stopped.__traceback__
    except (SystemExit, AssertionError) as error:
        code = error.code if isinstance(error, SystemExit) else type(error).__name__
        if code and recorder.judges:
            left = {"left": str(int(code) if isinstance(code, bool) else code), "line": _line(error, script)}
        elif code:
            recorder.note("error", type=type(error).__name__, message=str(error), line=_line(error, script))
            if not isinstance(error, SystemExit):
                traceback.print_exc()
            raise
    except BaseException as error:
        recorder.note("error", type=type(error).__name__, message=str(error), line=_line(error, script))
        traceback.print_exc()
        raise
    note_held(module.__dict__, where)
    recorder.note("end", how=how, **left)
    sys.stdout.flush()
    if left and (ending := sys.modules.get("dl_comm.rank_exit")):
        ending.leave()  # else it aborts the job of the others, which have an end to come to, too


def _into_torch(recorder: Recorder) -> Callable[..., None]:
    """Return what notes the tensors that a script holds in the end, ``note(its globals, traceback)``."""
    import torch

    from dlrun.verify.tracer import (
        averaging,
        holdings,
        loaders,
        noise,
        plain,
        quiet,
        randomness,
        replay,
        schedules,
        training,
    )

    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    if recorder.orders.quiet:
        quiet.install()
    draws = randomness.install(recorder)
    followed = loaders.install(recorder, draws)
    if recorder.orders.quiet and not recorder.orders.few:  # where ranks have parts of batches
        noise.Noise(recorder, draws, followed).install()
    trained = training.install(recorder, draws, followed)
    replay.install(recorder)
    averaging.install(recorder, trained, followed)
    plain.install(recorder, trained)
    scheduled = schedules.install(recorder)

    def note_last(*held: Any) -> None:
        holdings.note_held(trained, *held)
        scheduled.look_ahead(trained.optimizer_number)

    return note_last


def _into_tensorflow(recorder: Recorder) -> Callable[..., None]:
    """Run everything but sessions eagerly, and on one thread: each step is seen, and sums have one order.

    Return what notes the tensors that a script holds in the end.
    """
    import tensorflow as tf

    from dlrun.verify.tracer import (
        datasets,
        graphs,
        keras_schedules,
        randomness,
        sessions,
        tapes,
        tensorflow_face,
        variables,
    )
    from dlrun.verify.tracer.quiet_keras import install as switch_noise_off

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.run_functions_eagerly(True)
    if recorder.orders.quiet:
        switch_noise_off()
    draws = randomness.install(recorder)
    data, graph = datasets.install(recorder, draws), graphs.install(recorder)
    sessions.install(recorder, graph)
    taped = tapes.install(recorder, draws, data, graph)
    tensorflow_face.install(recorder, taped, data)

    def note_last(*held: Any) -> None:
        variables.note_held(taped, *held)
        keras_schedules.look_ahead(recorder, taped.optimizers.values())

    return note_last


def _line(error: BaseException, script: Path) -> str:
    """Return file:line of the user's innermost frame in a traceback."""
    from dlrun.verify.tracer.recorder import is_user_file

    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else script.name


def preload(framework: str) -> None:
    """Import what a run of a script in this framework does, and change nothing."""
    os.environ.update(ENVIRONMENT)
    gc.disable()
    from dlrun.verify.tracer import conditions, files, logged, scalars, sites  # noqa: F401

    if framework == "torch":
        import torch  # noqa: F401

        from dlrun.verify.tracer import averaging, holdings, plain, quiet, replay, schedules  # noqa: F401
    else:
        import tensorflow  # noqa: F401

        from dlrun.verify.tracer import keras_schedules, quiet_keras, sessions, tensorflow_face  # noqa: F401
    gc.freeze()


def entered(arguments: list[str]) -> None:
    """Run as ``main``; in a process that has imported the framework already, where there is one."""
    from dlrun.verify.tracer import warm

    if arguments[0] == "--warm":
        door = socket.socket(fileno=int(arguments[1]))
        main(warm.serve(door, lambda: preload(arguments[2])))
        warm.leave(0)
    if path := os.environ.pop(warm.VARIABLE, ""):
        code = warm.hand_over(path, arguments)
        if code is not None:
            sys.exit(code)
    main(arguments)
    if "DLRUN_RANK" not in os.environ:  # else this is the shim's process, which has a last word
        warm.leave(0)


if __name__ == "__main__":
    entered(sys.argv[1:])
