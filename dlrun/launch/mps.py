"""NVIDIA's multi-process service (MPS) for ranks that share this machine's GPUs: from before the first to the last.

Without it the driver gives each rank the whole GPU for a time slice of milliseconds. Measured with ResNet-50 on two
ranks of an H200 (examples/cnn_benchmark/compare.py): a step without communication takes 39.5 ms in time slices and
29.7 ms under MPS; with dl_comm's averaging, overlapped, 42.1 and 32.0 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlrun.launch.plan import LaunchPlan
from dlrun.launch.site import Site
from dlrun.rank.mps import CONTROL, needed, said

_SITES = "/tmp/nvidia-mps/control"  # of a service that runs for everybody, where its variables say nothing else
# What a rank's framework does first; a service that cannot serve refuses it.
_TRIAL = (
    sys.executable,
    "-c",
    "import ctypes; cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(); "
    "print('works' if not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) else '')",
)


@contextmanager
def served(
    plan: LaunchPlan, site: Site, note: Callable[[str], None], trial: tuple[str, ...] = _TRIAL
) -> Iterator[dict[str, str]]:
    """Yield the variables that lead ranks to a service of this job's own; {}: there is none.

    There is one where ranks share GPUs of this machine and ``plan.mps`` asks for it, or the GPUs are in exclusive mode
    and take no two ranks without. One of the site's is left as it is. ``note`` is told where it does not work.
    """
    env = {**site.env, **dict(plan.env)}
    shared = plan.local and 0 < site.gpus < (plan.ranks or 1) * (plan.gpus or 1)
    sites = "CUDA_MPS_PIPE_DIRECTORY" in env or Path(_SITES).exists()
    if not shared or sites or not (plan.mps or needed(env)):
        yield {}
        return
    import shutil  # both cost 2 ms or more
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="dlrun-mps-", dir="/tmp"))  # a short path: a socket's is
    variables = {f"CUDA_MPS_{name}_DIRECTORY": str(folder / name.lower()) for name in ("PIPE", "LOG")}
    there = env | variables
    try:
        for part in variables.values():
            Path(part).mkdir(mode=0o700)
        said((*CONTROL, "-d"), there)
        works = said(trial, there).split() == ["works"]
        if not works:
            note("NVIDIA's MPS does not work here: the ranks have the GPUs in time slices")
        yield variables if works else {}
    finally:
        said(CONTROL, there, "quit\n")
        shutil.rmtree(folder, ignore_errors=True)
