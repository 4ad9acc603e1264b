"""The launcher's own process: started, heard, and ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import selectors
import signal
import subprocess
from collections.abc import Mapping
from typing import IO

from dlrun.launch.plan import Command


class LauncherProcess:
    """The program that starts the ranks; ``said`` are its own words, which nobody sees unless something goes wrong.

    ``open_files``: the limits (soft, hard) that it starts with.
    """

    def __init__(
        self,
        command: Command,
        env: Mapping[str, str],
        cwd: str,
        selector: selectors.BaseSelector,
        open_files: tuple[int, int],
    ) -> None:
        self.said = bytearray()
        self._selector = selector
        self._process = subprocess.Popen(
            command.argv,
            cwd=cwd or None,
            env=command.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _as_a_child(open_files),
        )
        pipe = self._process.stdout
        assert pipe
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, selectors.EVENT_READ, lambda: self._hear(pipe))

    @property
    def ended(self) -> bool:
        """Whether the launcher is gone; its ranks may not be."""
        return self._process.poll() is not None

    @property
    def code(self) -> int:
        """The exit code of the launcher that has ended, 128 + signal where one ended it."""
        code = int(self._process.returncode)
        return code if code >= 0 else 128 - code

    def end(self, by_group: bool) -> None:
        """End it: SIGTERM, and SIGKILL (for its session, ``by_group``) if that does not help.

        srun is killed alone: its helper then cancels the job step, and without the helper that would run on for ever.
        """
        process = self._process
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if by_group:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()

    def last_words(self) -> bytes:
        """Return all that the launcher has said, after its end."""
        if self._process.stdout and not self._process.stdout.closed:
            self.said += self._process.stdout.read() or b""
            self._process.stdout.close()
        return bytes(self.said)

    def _hear(self, pipe: IO[bytes]) -> None:
        data = pipe.read(65536)
        if data:
            self.said += data
        elif data == b"":
            self._selector.unregister(pipe)


def _as_a_child(open_files: tuple[int, int]) -> None:
    """Die with the parent; begin with the limits that it began with, which some launchers hand on to the ranks."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
