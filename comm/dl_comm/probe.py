"""A look at a script's first steps: which gradients it averages, and how long a step takes. Then the script ends.

``dlrun tune`` asks for it by DL_COMM_PROBE=STEPS. ``probe-RANK.json`` in the run directory then holds ``counts`` (the
elements of each array averaged in a step, in order), their ``dtype``, whether they are averaged in the background
(``overlap``), ``seconds`` of every step but the first, and the most ``memory`` that the rank and, in PyTorch, its GPU
(``gpu_memory``) have held, in bytes. The rank ends after so many steps, together with the others
and with exit code 0; a script with fewer ends by itself.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dl_comm import _core, settings, step_count


class Probe:
    """What was seen so far."""

    def __init__(self, steps: int, file: Path) -> None:
        self.steps, self.file = steps, file
        self.ends: list[float] = []
        self.current: list[tuple[int, str, bool]] = []  # elements, dtype, in the background
        self.last: list[tuple[int, str, bool]] = []

    def exchanged(self, kind: str, buffers: list[tuple[int, int, str]], op: str, name: str) -> None:
        """Note an exchange of gradients: a mean that is no metric."""
        if op == "mean" and not name.startswith(step_count.NOT_GRADIENTS):
            self.current += [(count, dtype, kind == "start") for _, count, dtype in buffers]

    def step_ended(self, number: int) -> None:
        """Note when, and end the script after the last."""
        self.ends.append(time.perf_counter())
        self.last, self.current = self.current or self.last, []
        if len(self.ends) > self.steps:
            self.write()
            if threading.current_thread() is threading.main_thread():
                raise SystemExit(0)
            _core.finalize(True)  # a framework's thread, which swallows exceptions
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).exit(0)  # not os._exit: MPICH tells its launcher that all is well only in exit handlers

    def write(self) -> None:
        """Put what was seen into the file, whole or not at all."""
        dtypes = Counter(dtype for _, dtype, _ in self.last)
        value: dict[str, Any] = {
            "counts": [count for count, _, _ in self.last],
            "dtype": dtypes.most_common(1)[0][0] if dtypes else "",
            "overlap": any(background for _, _, background in self.last),
            "seconds": [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)],
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "gpu_memory": _gpu_memory(),
        }
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(value))
        partial.replace(self.file)


def _gpu_memory() -> int:
    """Return the bytes that PyTorch has held of this rank's GPU at most; 0 where it used none."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.max_memory_reserved()) if torch and torch.cuda.is_initialized() else 0


def record(environment: Mapping[str, str]) -> None:
    """Look at the steps of this rank where DL_COMM_PROBE says so."""
    steps = environment.get("DL_COMM_PROBE")
    if not steps or environment.get("DL_COMM_RANK_PROCESS"):
        return
    file = Path(environment.get("DLRUN_RUN_DIR", "."), f"probe-{environment.get('DLRUN_RANK', '0')}.json")
    probe = Probe(int(settings.number(environment, "DL_COMM_PROBE", 0, whole=True)), file)
    step_count.listen(probe.step_ended)
    step_count.watch(probe.exchanged)
    atexit.register(probe.write)
