"""``python -m dlrun``."""

from dlrun.cli import main

main()
