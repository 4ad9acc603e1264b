"""NVIDIA's multi-process service (MPS): lets ranks that share a GPU run on it at once.

Without it the driver gives each rank the whole GPU in turn, for milliseconds at a time: ranks that wait for each other
wait for their turns (ResNet-50 on two ranks of an H200: 39.6 ms a step without MPS, 29.8 ms with it), and a GPU in
exclusive mode takes one rank only. The first rank of a node starts the service, with pipes and logs of this job's own
in the node's /tmp, tries it out, and ends it with the job. Where it does not work the ranks go on without. Only where
more ranks than GPUs share a node is anything looked at: starting it takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, MutableMapping

_SITES = "/tmp/nvidia-mps/control"  # that of a service which runs for everybody, where nothing else is said
_READY_S = 60.0
# What a rank's framework does first; a service that cannot serve refuses it.
_TRIAL = (
    sys.executable,
    "-c",
    "import ctypes; cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(); "
    "raise SystemExit(bool(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)))",
)


def folders(job: str) -> dict[str, str]:
    """Return the variables that lead to the service of this job on this node."""
    name = f"/tmp/dlrun-mps-{zlib.crc32(job.encode()):08x}"
    return {f"CUDA_MPS_{what}_DIRECTORY": f"{name}-{what.lower()}" for what in ("PIPE", "LOG")}


def join(env: MutableMapping[str, str], local_rank: int, job: str, trial: tuple[str, ...] = _TRIAL) -> bool:
    """Have this rank use MPS if it works here; return whether this rank has started it, and is to call :func:`end`.

    A service that the site runs (``CUDA_MPS_PIPE_DIRECTORY`` is set, or it is where NVIDIA's is by default) is used as
    it is.
    """
    if "CUDA_MPS_PIPE_DIRECTORY" in env or os.path.exists(_SITES):  # noqa: PTH110 - pathlib costs 5 ms a rank
        return False
    settings = folders(job)
    answer = settings["CUDA_MPS_PIPE_DIRECTORY"] + "/dlrun"
    if local_rank == 0:
        for folder in settings.values():
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
        there = {**env, **settings}
        works = _run(("nvidia-cuda-mps-control", "-d"), there) and _run(trial, there)
        if works:
            env.update(settings)
        else:
            _run(("nvidia-cuda-mps-control",), there, "quit\n")
        with open(f"{answer}.new", "w") as file:  # noqa: PTH123
            file.write("works" if works else "")
        os.rename(f"{answer}.new", answer)  # noqa: PTH104 - whoever finds it finds all of it
        return True
    deadline = time.monotonic() + _READY_S
    while not os.path.exists(answer) and time.monotonic() < deadline:  # noqa: PTH110
        time.sleep(0.05)
    if os.path.exists(answer) and os.path.getsize(answer):  # noqa: PTH110, PTH202
        env.update(settings)
    return False


def end(env: Mapping[str, str], job: str) -> None:
    """End the service that :func:`join` started, and remove its folders."""
    import shutil

    settings = folders(job)
    if env.get("CUDA_MPS_PIPE_DIRECTORY") == settings["CUDA_MPS_PIPE_DIRECTORY"]:
        _run(("nvidia-cuda-mps-control",), env, "quit\n")
    for folder in settings.values():
        shutil.rmtree(folder, ignore_errors=True)


def _run(words: tuple[str, ...], env: Mapping[str, str], told: str = "") -> bool:
    """Whether a program is here, answers, and says that all is well."""
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            words, env=dict(env), input=told, text=True, stdout=quiet, stderr=quiet, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
