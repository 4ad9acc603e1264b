"""The process that has imported the framework, from which runs fork: started once, where that is safe."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from dlrun.verify.tracer.warm import TASKS, VARIABLE

TRACER = Path(__file__).parent / "tracer" / "__main__.py"
DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri")  # of GPUs: a driver does not outlive a fork
SEED = "PYTHONHASHSEED"


class Warm:
    """Such a process for one framework; it starts with the first run, and ends with the ``with`` statement."""

    def __init__(self, framework: str) -> None:
        self._framework, self._lock = framework, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._safe = Path(TASKS).is_dir() and not any(Path(device).exists() for device in DEVICES)

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def told(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variable that tells a run of it; none where its sets would have another order."""
        if not self._safe or env[SEED] != os.environ.get(SEED, "0"):
            return {}
        with self._lock:
            if self._process is None:
                self._start()
        return {VARIABLE: self._door}

    @property
    def _door(self) -> str:
        return str(Path(self._folder) / "door")

    def _start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="dlrun-warm-")  # a short path, as sockets want it
        env = {SEED: "0", **os.environ, "PYTHONUNBUFFERED": "1"}
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(self._door)
            door.listen(64)
            words = [sys.executable, str(TRACER), "--warm", str(door.fileno()), self._framework]
            quiet, stream = subprocess.DEVNULL, door.fileno()
            self._process = subprocess.Popen(
                words, env=env, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, pass_fds=[stream]
            )
