"""What ranks of TensorFlow and Keras show of an epoch is what the serial script shows of the same samples."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from running import rounded, started

from dlrun.port import port

if find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed: nox -s keras3 runs these", allow_module_level=True)

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


@pytest.mark.parametrize("script", ["numbers_of_tensorflow.py", "numbers_of_keras.py"])
def test_two_ranks_show_the_serial_numbers(script, tmp_path) -> None:
    source = Path(__file__).with_name(script)
    (tmp_path / "dist.py").write_text(port(source.read_text()).text)
    shown = started(tmp_path, [str(source)], **QUIET)
    on_ranks = started(tmp_path, ["dist.py"], ranks=2, **QUIET)
    assert len(shown.splitlines()) > 8
    for serial, mine in zip(shown.splitlines(), on_ranks.splitlines(), strict=True):
        assert rounded(mine) == rounded(serial)
