"""Ports a script and runs the port on 3 ranks that sleep before they touch files: what races, shows.

    python tests/port/jittered.py SCRIPT [--ranks 3] [--seeds 0 1 2] [-- ARGS]

Right is a port that ends well under each seed and leaves the files of the serial script.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from running import started

from dlrun.port.files import read_and_port


def files_of(folder):
    """Return the names of the files below ``folder``, but for Python's own."""
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return sorted(str(p) for p in found if "__pycache__" not in p.parts and p.suffix != ".py")


def left_by(text, folder, words=(), ranks=0, before=(), **env):
    """Run the script ``text`` in the new ``folder``, with copies of the files ``before``; return what it left."""
    folder.mkdir()
    for file in before:
        shutil.copy2(file, folder)
    (folder / "train.py").write_text(text)
    started(folder, ["train.py", *words], ranks, **env)
    return files_of(folder)


def races(path, folder, words=(), ranks=3, seeds=(0, 1, 2)):
    """Return what was wrong of the port of the script at ``path``, run under each seed in a folder below ``folder``."""
    before = [p for p in path.parent.iterdir() if p.is_file() and p != path]
    serial, wrong = left_by(path.read_text(), folder / "serial", words, before=before), []
    text = read_and_port(path).text
    for seed in seeds:
        try:
            left = left_by(text, folder / f"seed{seed}", words, ranks, before, JITTER=f"seed {seed}")
        except AssertionError as error:
            wrong.append(f"seed {seed}: {str(error)[-1500:]}")
        else:
            if left != serial:
                wrong.append(f"seed {seed}: left {left}, the serial script {serial}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", type=Path)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    found = races(args.script, Path(tempfile.mkdtemp()), args.words, args.ranks, args.seeds)
    print("\n".join(found) or f"{args.script}: right on {args.ranks} ranks under seeds {args.seeds}")
    sys.exit(bool(found))
