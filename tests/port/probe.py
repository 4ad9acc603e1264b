"""Runs a training script for a few optimizer steps and writes what the parameters were after each.

    python probe.py RESULT STEPS SCRIPT [ARGS...]

RESULT (a path; a rank's number is appended) gets JSON: the digests of all parameters after each step, and why the
run ended. Everything random is seeded first, so that two runs of one script agree.
"""

import hashlib
import json
import os
import random
import runpy
import sys
import time
import traceback


def main() -> None:
    """Run the script under the hook."""
    result, limit, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    sys.argv = sys.argv[3:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))  # noqa: PTH100, PTH120
    import numpy
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(1)
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    digests: list[str] = []
    main_process = os.getpid()

    def done(why: str) -> None:
        rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
        with open(f"{result}.{rank}", "w") as file:  # noqa: PTH123
            json.dump({"why": why, "digests": digests}, file)

    def after(optimizer, args, kwargs) -> None:  # type: ignore[no-untyped-def]
        if os.getpid() != main_process:
            return
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for p in group["params"]:
                digest.update(p.detach().cpu().contiguous().view(-1).to(torch.float64).numpy().tobytes())
        digests.append(digest.hexdigest()[:16])
        if len(digests) >= limit:
            done("steps")
            sys.stdout.flush()
            ranks = int(os.environ.get("PMI_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1")))
            end = time.monotonic() + 30  # nobody is torn away in a collective: all reach this step
            while time.monotonic() < end and not all(os.path.exists(f"{result}.{r}") for r in range(ranks)):  # noqa: PTH110
                time.sleep(0.05)
            os._exit(0)

    register_optimizer_step_post_hook(after)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        done(f"exit {error.code}")
        raise
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        own = [f for f in where if script in f.filename]
        done(f"{type(error).__name__}: {str(error)[:160]} (line {own[-1].lineno if own else '?'})")
        traceback.print_exc()
        os._exit(1)
    done("end")


if __name__ == "__main__":
    main()
