"""A small /dev/shm, as containers have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUMS = """
import numpy as np
import dl_comm as mc
mc.init(1, 1, 1000)
print(mc.gradients([np.full(50_000, mc.get_rank(), np.float32)], 0)[0].sum())
mc.finalize()
"""


@pytest.mark.parametrize("size", ["64k", "512k", "4m", "30m"])  # each of them too small for 3 ranks
@pytest.mark.wide("openmpi-4.1.4", "mpich-4.0.2")
def test_where_shared_memory_is_too_small_for_mpi_ranks_do_without(mpiexec: str, tmp_path: Path, size: str):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    if os.getuid() != 0 or not shutil.which("unshare"):
        pytest.skip("a /dev/shm of its own needs root and unshare")
    (tmp_path / "sums.py").write_text(SUMS)
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "3", "--mpiexec", mpiexec, "sums.py"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", *line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "50000.0\n"), done.stderr
    assert "too little for 3 ranks: MPI does without it" in done.stderr
