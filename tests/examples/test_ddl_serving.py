"""What was trained on several ranks with IBM's DDL is served where dl_comm is not installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddl_serving"
pytestmark = [
    pytest.mark.skipif(not find_spec("tensorflow") or not find_spec("sklearn"), reason="no TensorFlow or scikit-learn"),
    pytest.mark.timeout(900),
]

SERVES = """
import sys
for name in ("ddl", "dl_comm"):
    sys.modules[name] = None  # as where they are not installed
import numpy as np, tensorflow as tf
from sklearn.datasets import load_digits
images, digits = load_digits(return_X_y=True)
served = tf.saved_model.load(sys.argv[1])
found = served.signatures["serving_default"](pixels=tf.constant(images.astype("f4") / 16))["digit"].numpy()
print("accuracy %.4f" % np.mean(found == digits))
kinds = {node.op for node in served.graph.as_graph_def().node}
assert not {"DlReduce", "Bcast", "AllReduceN"} & kinds, kinds
"""


def run(folder: Path, *words: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=500, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracies(said: str) -> list[str]:
    return re.findall(r"accuracy (\S+)", said)


def test_the_weights_of_two_and_three_ranks_are_served_as_they_were_trained(tmp_path):
    for n in ("2", "3"):
        out = f"digits-{n}"
        said = run(tmp_path, "-m", "dlrun", "launch", "-n", n, str(EXAMPLE / "train.py"), "--out", out)
        trained = accuracies(said)
        assert len(trained) == 3 and float(trained[-1]) > 0.85, said
        run(tmp_path, str(EXAMPLE / "export.py"), out, f"served-{n}")
        assert accuracies(run(tmp_path, "-c", SERVES, f"served-{n}")) == trained[-1:]
