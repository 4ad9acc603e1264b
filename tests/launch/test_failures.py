"""Of the table that `failures.py` prints, the rows that need one machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from failures import ENDS, see
from launchers import LAUNCHERS

BUSY = 30.0  # more seconds on a busy machine; the ranks would go on for a quarter of an hour
ROWS = [
    *(("mpich", how) for how in ("SIGBUS", "MemoryError", "hang", "Ctrl-C", "SIGTERM")),
    *(("openmpi", how) for how in ("SIGSEGV", "abort")),
    *(("torchrun", how) for how in ("sys.exit(0)", "SIGSEGV")),
]


@pytest.mark.parametrize(("backend", "how"), ROWS)
def test_a_job_that_fails_in_mid_training_is_over_soon_names_the_rank_and_leaves_nothing(
    tmp_path: Path, backend: str, how: str
):
    pytest.importorskip("dl_comm._core", reason="dl_comm's compiled core is not installed")
    if backend == "torchrun":
        pytest.importorskip("torch")
    if not any(name.startswith("mpich" if backend == "torchrun" else backend) for name in LAUNCHERS):
        pytest.skip(f"{backend} is not installed")
    seen = see(backend, how, tmp_path)
    assert not seen.wrong(BUSY), seen.errors


def test_there_are_13_ways_to_fail():
    assert len(ENDS) == 13
