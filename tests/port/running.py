"""Runs training scripts, alone or on ranks: what they print, and the ``last.pt`` that they leave."""

import atexit
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

QUICK = Path(__file__).with_name("quick")
IMPORTED_BY = {"PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS"}  # what imports look at


def started(folder, words, ranks=0, **env):
    """Run Python with these words in ``folder``, on so many ranks or alone; return what was printed."""
    launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)] if ranks else []
    path = os.pathsep.join(filter(None, (str(QUICK), env.get("PYTHONPATH", os.environ.get("PYTHONPATH")))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env, "PYTHONPATH": path}
    if IMPORTED_BY.isdisjoint(env):
        environment["DLRUN_TEST_WARM"] = warm(path, env.get("KERAS_BACKEND", ""))
    done = subprocess.run(
        [*launcher, sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def warm(path, backend):
    """Start the process that scripts with this PYTHONPATH fork from, see ``quick/warmed.py``; return its socket.

    With a backend it has imported Keras, too.
    """
    folder = tempfile.mkdtemp(prefix="warm-")  # a short path, as sockets want it
    frameworks = ["torch" if find_spec("torch") else "tensorflow", *(["keras"] if backend else [])]
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{folder}/door")
        door.listen(64)
        code = f"import warmed; warmed.serve({door.fileno()}, {frameworks})"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        env |= {"KERAS_BACKEND": backend} if backend else {}
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, pass_fds=[door.fileno()], cwd=folder
        )

    def end():
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return f"{folder}/door"


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
