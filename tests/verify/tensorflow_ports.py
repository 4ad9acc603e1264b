"""Right ports of a tape, of fit() and of a session of TensorFlow, and runs of what is made of them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from dlrun.verify.runs import Task, execute, orders

KERAS_2 = metadata.version("keras").startswith("2.")
SCRIPTS = Path(__file__).parent / "scripts"
TAPE = (SCRIPTS / "tape_dist.py").read_text()
FIT = (SCRIPTS / "fit_dist.py").read_text()
SESSION = (SCRIPTS / "session_dist.py").read_text()
CLIP = "    grads, _ = tf.clip_by_global_norm(grads, 0.1)\n"


def run(folder: Path, text: str, ranks: int, steps: int = 6, of_an_epoch: int = 3, **more: object):
    """Return what a port did in so many steps."""
    folder.mkdir()
    script = folder / "train_dist.py"
    script.write_text(text)
    given = orders(steps, of_an_epoch, framework="tensorflow", lineage=ranks > 1, **more)
    return execute(Task("run", script, (), ranks, folder / "run", given, {}, 60.0))
