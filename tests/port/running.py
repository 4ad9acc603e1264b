"""Runs training scripts, alone or on ranks: what they print, and the ``last.pt`` that they leave."""

import os
import re
import subprocess
import sys
from pathlib import Path

QUICK = Path(__file__).with_name("quick")


def started(folder, words, ranks=0, **env):
    """Run Python with these words in ``folder``, on so many ranks or alone; return what was printed."""
    launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)] if ranks else []
    path = os.pathsep.join(filter(None, (str(QUICK), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **env}
    done = subprocess.run(
        [*launcher, sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ran(script, folder, ranks=0, **env):
    """Run ``script`` in the new ``folder``; return what was printed and what ``last.pt`` holds."""
    import torch

    folder.mkdir()
    return started(folder, [str(script)], ranks, **env), torch.load(folder / "last.pt")


def joined(text):
    """Return ``text`` with each statement that brackets break over lines on one line, as short ones are written."""
    text = re.sub(r"\(\n\s+([^()\n]+),\n\s*\) = ", r"\1 = ", text)
    text = re.sub(r"\(\n\s+", "(", text)
    text = re.sub(r",?\n\s*\)", ")", text)
    return re.sub(r",\n\s+since=", ", since=", text)


def rounded(line):
    """Return the words of a line, its numbers to 3 digits."""
    found = []
    for word in line.replace("/", " ").split():
        try:
            found.append(round(float(word.strip("%[](){},")), 3))
        except ValueError:
            found.append(word)
    return found
