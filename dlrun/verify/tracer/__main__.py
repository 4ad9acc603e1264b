"""``python .../tracer ORDERS script.py args``: run the script as ``__main__`` and write the trace of this rank."""

from __future__ import annotations

import os
import sys
import tokenize
import traceback
from pathlib import Path
from types import ModuleType

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # sums are split over threads: their number decides the last bits
    "MKL_NUM_THREADS": "1",
    "MKL_CBWR": "COMPATIBLE",  # the same bits wherever an array lies in memory
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TORCHDYNAMO_DISABLE": "1",
}


def main(arguments: list[str]) -> None:
    """Trace one script: ``arguments`` are the orders' file, the script and its arguments."""
    os.environ.update(ENVIRONMENT)
    import torch

    from dlrun.verify.tracer import averaging, conditions, files, loaders, randomness, training
    from dlrun.verify.tracer.recorder import Orders, Recorder, Stopped, rank_here

    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    orders = Orders.read(arguments[0])
    os.chdir(orders.scratch)
    recorder = Recorder(orders, rank_here())
    draws = randomness.install(recorder)
    followed = loaders.install(recorder, draws)
    trained = training.install(recorder, draws, followed)
    averaging.install(recorder, trained, followed)

    script = Path(orders.script)
    module = ModuleType("__main__")
    module.__dict__.update({"__file__": str(script), conditions.WATCH: conditions.watch(recorder)})
    sys.modules["__main__"] = module
    sys.argv = [str(script), *arguments[1:]]
    sys.path[0] = str(script.parent)
    with tokenize.open(script) as file:
        code = conditions.watched(file.read(), str(script))
    files.install(recorder)
    how = "finished"
    try:
        exec(code, module.__dict__)
    except Stopped:
        how = "stopped"
    except SystemExit as error:
        if error.code:
            recorder.note("error", type="SystemExit", message=str(error.code), line=_line(error, script))
            raise
    except BaseException as error:
        recorder.note("error", type=type(error).__name__, message=str(error), line=_line(error, script))
        traceback.print_exc()
        raise
    recorder.note("end", how=how)
    sys.stdout.flush()


def _line(error: BaseException, script: Path) -> str:
    """Return file:line of the user's innermost frame in a traceback."""
    from dlrun.verify.tracer.recorder import is_user_file

    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else script.name


if __name__ == "__main__":
    main(sys.argv[1:])
