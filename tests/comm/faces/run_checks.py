"""Run on every rank: ``mpiexec -n 2 python run_checks.py torch_data.py ...`` calls the public functions of each file.

Rank 0 prints ``passed NAME`` after each, or ``skipped NAME: reason`` if the check returned one. The first failure ends
the job, with the traceback of its rank.
"""

import importlib
import os
import sys
import traceback
import warnings
from pathlib import Path

from dl_comm.rank0 import print as print_on_rank0
from dl_comm.ranks import barrier, finalize, get_rank


def main() -> None:
    get_rank()
    if all(Path(file).name.startswith("torch_") for file in sys.argv[1:]):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the last global batch has")  # fewer samples than there are ranks
        warnings.filterwarnings("ignore", ".* do not divide (a global batch|[0-9]+ (positions|entries of a stream))")
        warnings.filterwarnings("ignore", "drop_last leaves out")
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # that of PyTorch 2.1 in its own load
    for file in sys.argv[1:]:
        module = importlib.import_module(Path(file).stem)  # this program's folder is on the path
        for name, check in list(vars(module).items()):
            if name.startswith("_") or getattr(check, "__module__", "") != module.__name__:
                continue
            try:
                missing = check()
                barrier()
            except BaseException:
                print(f"rank {get_rank()} failed in {Path(file).name}: {name}", file=sys.stderr)
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            print_on_rank0(f"skipped {name}: {missing}" if missing else f"passed {name}", flush=True)
    finalize()


main()
