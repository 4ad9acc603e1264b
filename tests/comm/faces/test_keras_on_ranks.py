"""dl_comm.keras on 2 and 3 real ranks, with whichever Keras is installed, on each backend that is."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

import pytest
from on_ranks import checks_in

BACKENDS = ("tensorflow", "torch")


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("check", checks_in("keras_everywhere.py"))
def test_keras(check, backend, n, assert_passed):
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    if backend == "torch" and version("keras").startswith("2."):
        pytest.skip("Keras 2 has no torch backend")
    assert_passed(check, n, ("keras_everywhere.py",), KERAS_BACKEND=backend)
