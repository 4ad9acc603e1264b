"""A rank's log: all that its script wrote."""

from __future__ import annotations

import contextlib
import os
import struct
import time

from dlrun.rank.script import theirs

TAIL = 20  # last lines of a failed rank that are shown
# How lines begin in which faulthandler tells of the shim, of all the modules that are loaded, or (Python 3.14 on) of
# the functions in C, of which there are more than a tail has lines.
_OURS = (
    f'  File "{os.path.dirname(__file__)}/',  # noqa: PTH120
    '  File "<frozen runpy>"',
    "Extension modules: ",
    "Current thread's C stack",
    '  Binary file "',
)


TIMES = struct.Struct("<dQ")  # when (seconds since 1970), and at which byte of the log, something was written
_APART = 0.001  # seconds at least between two that are noted


class Log:
    """The file ``rank-R.log`` in the run directory ``folder``, and ``rank-R.times``: when which of it was written."""

    def __init__(self, folder: str, rank: int) -> None:
        self.name = f"rank-{rank}.log"
        self.fd = os.open(f"{folder}/{self.name}", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self.times = os.open(f"{folder}/rank-{rank}.times", flags, 0o644)
        self.written, self.noted = 0, 0.0
        self._complained = False

    def write(self, data: bytes) -> bytes:
        """Keep ``data``; return what is to be told where that cannot be, once: a full disk ends no training."""
        self._note()
        try:
            while data:
                done = os.write(self.fd, data)  # of a disk that is nearly full, less than was asked
                self.written += done
                data = data[done:]
        except OSError as error:
            if not self._complained:
                self._complained = True
                told = f"dlrun: {self.name} cannot be written ({error.strerror}); the job goes on without it\n"
                return told.encode()
        return b""

    def _note(self) -> None:
        """Note when what comes now is written; a log without its times can be read, too."""
        now = time.time()
        if now - self.noted >= _APART or now < self.noted:
            self.noted = now
            with contextlib.suppress(OSError):
                os.write(self.times, TIMES.pack(now, self.written))

    def size(self) -> int:
        """Return how many bytes it holds."""
        return os.lseek(self.fd, 0, os.SEEK_END)

    def tail(self) -> list[str]:
        """Return its last lines, each as it stands after its last carriage return; of a crash, without the shim's."""
        text = os.pread(self.fd, 16384, max(0, self.size() - 16384)).decode(errors="replace")
        lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n") if line.strip()]
        return [line for line in lines if not line.startswith(_OURS)][-TAIL:]


def crashed_at(tail: list[str]) -> str:
    """Return ``file:line`` of the innermost frame of the user's that faulthandler printed, if it printed any."""
    frames = [line.strip()[6:].partition('", line ') for line in tail if line.startswith('  File "')]
    named = [(file, rest.split()[0]) for file, _, rest in frames if rest]
    own = [f"{file}:{line}" for file, line in named if not theirs(file)]
    return own[0] if own and any(line.startswith("Fatal Python error") for line in tail) else ""
