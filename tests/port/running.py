"""Runs a training script that leaves ``last.pt``, alone or on ranks."""

import os
import subprocess
import sys
from pathlib import Path

import torch


def ran(script, folder, ranks=0, **env):
    """Run ``script`` in the new ``folder``; return what was printed and what ``last.pt`` holds."""
    folder.mkdir()
    command = [sys.executable, str(script)]
    if ranks:
        command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks), *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout, torch.load(folder / "last.pt")
