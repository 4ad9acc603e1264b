"""``dlrun`` and ``python -m dlrun``: the verbs, and an end without a traceback where Ctrl-C comes while they load."""

import codecs
import io
import sys

_PLAIN = {"✓": "+", "✗": "x", "·": "-"}


def main() -> None:
    """Run dlrun with the words of the command line; never returns."""
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")
    try:
        from dlrun.cli import main as verbs
    except KeyboardInterrupt:
        sys.exit(130)
    verbs(prog_name="dlrun")


def _plain(error: UnicodeError) -> tuple[bytes, int]:
    """Say what a terminal has no letters for: by others, and file names that are no text by their own bytes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    hard = error.object[error.start : error.end]
    own = [bytes([ord(c) - 0xDC00]) if "\udc80" <= c <= "\udcff" else _PLAIN.get(c, "?").encode() for c in hard]
    return b"".join(own), error.end


if __name__ == "__main__":
    main()
