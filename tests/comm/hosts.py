"""Several "hosts" on one machine (dlrun/bench/lab.py), for tests: skipped where they cannot be made."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlrun.bench import lab
from dlrun.bench.lab import Slow
from dlrun.errors import DlrunError


@dataclass(frozen=True)
class Lab(lab.Lab):
    """A lab whose programs are run to their end."""

    def run(
        self, mpiexec: str, per_host: int, program: Path, hosts: int, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program on ``per_host`` ranks of each of the first ``hosts`` hosts."""
        return subprocess.run(
            self.command(mpiexec, per_host, hosts, str(program)),
            capture_output=True,
            text=True,
            timeout=120,
            env=lab.environment({"DL_COMM_TIMEOUT_S": "60", **environment}),
            check=False,
        )


@contextmanager
def network(folder: Path, hosts: int, slow: Slow | None = None) -> Iterator[Lab]:
    """Make ``hosts`` hosts, joined by fast links or by slow ones; skip the test where that cannot be."""
    with ExitStack() as made:
        try:
            there = made.enter_context(lab.network(folder, hosts, slow))
        except DlrunError as error:
            pytest.skip(str(error))
        yield Lab(there.prefix, there.agent)
