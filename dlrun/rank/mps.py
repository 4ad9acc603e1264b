"""NVIDIA's multi-process service (MPS): lets ranks share GPUs that are in exclusive mode.

On the machine of ``dlrun launch`` that has seen to it before (launch/mps.py). On others, and under batch systems:
The first rank of a node starts it, with pipes and logs of this job's own in the node's /tmp, and ends it with the job.
Only where more ranks than GPUs share a node is anything looked at: asking the driver takes half a second.
"""

from __future__ import annotations

import os
import subprocess
import time
import zlib
from collections.abc import Mapping, MutableMapping

CONTROL = ("nvidia-cuda-mps-control",)
_QUERY = ("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader")
_READY_S = 10.0


def needed(env: Mapping[str, str]) -> bool:
    """Return whether ranks cannot share the GPUs without MPS, by the compute modes that nvidia-smi tells."""
    return any(mode.strip().lower().startswith("exclusive") for mode in said(_QUERY, env).splitlines())


def folders(job: str) -> dict[str, str]:
    """Return the variables that lead to the service of this job on this node."""
    name = f"/tmp/dlrun-mps-{zlib.crc32(job.encode()):08x}"
    return {f"CUDA_MPS_{what}_DIRECTORY": f"{name}-{what.lower()}" for what in ("PIPE", "LOG")}


def join(env: MutableMapping[str, str], local_rank: int, job: str) -> bool:
    """Have this rank use MPS where it must; return whether this rank has started it, and is to call :func:`end`.

    A service that the site runs (``CUDA_MPS_PIPE_DIRECTORY`` is set) is used as it is.
    """
    if "CUDA_MPS_PIPE_DIRECTORY" in env or not needed(env):
        return False
    settings = folders(job)
    env.update(settings)
    pipe = settings["CUDA_MPS_PIPE_DIRECTORY"]
    if local_rank == 0:
        for folder in settings.values():
            os.mkdir(folder, 0o700)  # noqa: PTH102 - one that is there is somebody else's; pathlib costs 5 ms a rank
        said((*CONTROL, "-d"), env)
        return True
    deadline = time.monotonic() + _READY_S
    while not os.path.exists(f"{pipe}/control") and time.monotonic() < deadline:  # noqa: PTH110
        time.sleep(0.05)
    return False


def end(env: Mapping[str, str]) -> None:
    """End the service that :func:`join` started, and remove its folders."""
    import shutil

    said(CONTROL, env, "quit -t 10\n")  # those that are still on their way out have so many seconds
    for what in ("PIPE", "LOG"):
        shutil.rmtree(env[f"CUDA_MPS_{what}_DIRECTORY"], ignore_errors=True)


def said(words: tuple[str, ...], env: Mapping[str, str], told: str = "") -> str:
    """Return what a program prints; "" where it is not here, or does not answer."""
    try:
        done = subprocess.run(words, env=dict(env), input=told, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
