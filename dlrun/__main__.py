"""``dlrun`` and ``python -m dlrun``: the verbs, and an end without a traceback where Ctrl-C comes while they load."""

import atexit
import codecs
import io
import os
import select
import sys
import threading

_PLAIN = {"✓": "+", "✗": "x", "·": "-"}


def main() -> None:
    """Run dlrun with the words of the command line; never returns."""
    _open_what_is_closed()
    codecs.register_error("plain", _plain)
    sys.stderr = io.TextIOWrapper(_Remarks(2, "wb", closefd=False), sys.stderr.encoding, write_through=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")
    try:
        from dlrun.cli import main as verbs
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        verbs(prog_name="dlrun")
    except SystemExit as end:
        if not isinstance(end.code, str):
            _leave(end.code or 0)
        raise


def _leave(code: int) -> None:
    """End at once, where nobody needs what Python does at its end: taking all modules apart takes 15 ms."""
    if threading.active_count() > 1:
        return
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # Python says so
    os._exit(code)


class _Remarks(io.FileIO):
    """Where dlrun's remarks go: a full disk takes none, nor does a terminal that is gone, and that ends nothing."""

    def write(self, data: object) -> int:
        """Write ``data``, waiting where nothing can be written just now; what cannot be at all is dropped."""
        rest = memoryview(data)  # type: ignore[arg-type]
        while rest:
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except BlockingIOError:
                select.select([], [self], [])
            except OSError:
                break
        return len(memoryview(data))  # type: ignore[arg-type]


def _open_what_is_closed() -> None:
    """Give a dlrun that was started without standard streams (``>&-``) the null device for them.

    Else the first files that it opens would get their numbers, and what others print.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w"))  # noqa: PTH123, SIM115


def _plain(error: UnicodeError) -> tuple[bytes, int]:
    """Say what a terminal has no letters for: by others, and file names that are no text by their own bytes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    hard = error.object[error.start : error.end]
    own = [bytes([ord(c) - 0xDC00]) if "\udc80" <= c <= "\udcff" else _PLAIN.get(c, "?").encode() for c in hard]
    return b"".join(own), error.end


if __name__ == "__main__":
    main()
