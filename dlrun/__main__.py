"""``dlrun`` and ``python -m dlrun``: the verbs, and an end without a traceback where Ctrl-C comes while they load."""

import sys


def main() -> None:
    """Run dlrun with the words of the command line; never returns."""
    try:
        from dlrun.cli import main as verbs
    except KeyboardInterrupt:
        sys.exit(130)
    verbs(prog_name="dlrun")


if __name__ == "__main__":
    main()
