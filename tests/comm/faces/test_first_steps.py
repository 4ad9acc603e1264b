"""A look at a Keras script's first steps: its gradients, its steps, and a quiet end long before its own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras, numpy as np
import dl_comm.keras as dl
dl.init()
model = keras.Sequential([keras.layers.Dense(7), keras.layers.Dense(2, use_bias=False)])
model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
dl.distribute(model)
x = np.ones((64, 5), "float32")
model.fit(x, x[:, :2], batch_size=4, epochs=10_000, verbose=0)
open("finished", "w")
"""


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_a_keras_script_shows_its_gradients_and_ends_after_the_steps_that_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "train_dist.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--log-dir", "logs"]
    variables = ("--env", "DL_COMM_PROBE=20", "--env", "DL_COMM_TIMELINE=run", "--env", "KERAS_BACKEND=tensorflow")
    done = subprocess.run(
        [*command, *variables, "train_dist.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "logs/latest" / "probe-0.json").read_text())
    assert (seen["counts"], seen["dtype"], seen["overlap"]) == ([35, 7, 14], "float32", False)
    assert len(seen["seconds"]) == 20
    assert not (tmp_path / "finished").exists()
    from dlrun.timeline.rings import read_all

    assert all(len(track.steps()) >= 18 for track in read_all(tmp_path / "logs/latest"))
