"""Runs the scripts of a folder one after another in one process, each with its name above what it prints."""

import contextlib
import io
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

folder = Path(sys.argv[1]).resolve()
for script in sorted(folder.glob("*.py")):
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(out):
        os.chdir(scratch)
        try:
            runpy.run_path(str(script), run_name="__main__")
        except Exception:
            print("FAILED", traceback.format_exc())
        os.chdir(folder)
    if os.environ.get("PMI_RANK", "0") == "0" or "FAILED" in out.getvalue():
        print(f"### {script.stem}\n{out.getvalue()}", flush=True)
