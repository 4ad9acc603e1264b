"""For all tests: on a machine with a single GPU, jobs of several ranks start nevertheless."""

import os

os.environ.setdefault("DLRUN_SHARE_GPUS", "1")
