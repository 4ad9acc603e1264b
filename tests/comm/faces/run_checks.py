"""Run on every rank: ``mpiexec -n 2 python run_checks.py torch_data.py ...`` calls the public functions of each file.

Rank 0 prints ``passed NAME`` after each. The first failure ends the job, with the traceback of its rank.
"""

import os
import runpy
import sys
import traceback
import warnings
from pathlib import Path

import dl_comm.torch as dl

warnings.simplefilter("error")


def main() -> None:
    dl.init()
    for file in sys.argv[1:]:
        for name, check in runpy.run_path(file).items():
            if name.startswith("_") or getattr(check, "__module__", "") != "<run_path>":
                continue
            try:
                check()
                dl.barrier()
            except BaseException:
                print(f"rank {dl.get_rank()} failed in {Path(file).name}: {name}", file=sys.stderr)
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            dl.print(f"passed {name}", flush=True)
    dl.finalize()


main()
