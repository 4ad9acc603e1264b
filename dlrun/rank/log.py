"""A rank's log: all that its script wrote."""

from __future__ import annotations

import os

from dlrun.rank.script import theirs

TAIL = 20  # last lines of a failed rank that are shown
# How lines begin in which faulthandler tells of the shim, of all the modules that are loaded, or (Python 3.14 on) of
# the functions in C, of which there are more than a tail has lines.
_OURS = (f'  File "{os.path.dirname(__file__)}/', '  File "<frozen runpy>"', "Extension modules: ",  # noqa: PTH120
         "Current thread's C stack", '  Binary file "')  # fmt: skip


class Log:
    """The file ``rank-R.log`` in the run directory ``folder``."""

    def __init__(self, folder: str, rank: int) -> None:
        self.name = f"rank-{rank}.log"
        self.fd = os.open(f"{folder}/{self.name}", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._complained = False

    def write(self, data: bytes) -> bytes:
        """Keep ``data``; return what is to be told where that cannot be, once: a full disk ends no training."""
        try:
            while data:
                data = data[os.write(self.fd, data) :]  # of a disk that is nearly full, less than was asked
        except OSError as error:
            if not self._complained:
                self._complained = True
                told = f"dlrun: {self.name} cannot be written ({error.strerror}); the job goes on without it\n"
                return told.encode()
        return b""

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
