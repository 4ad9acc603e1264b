"""dl_comm.keras on real ranks, with whichever Keras is installed, on each backend that is."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

import pytest
from on_ranks import checks_in

FILES = (
    "keras_steps.py",
    "keras_styles.py",
    "keras_everywhere.py",
    "keras_reducing.py",
    "keras_global_batch.py",
    "keras_evaluating.py",
)
KERAS_2 = find_spec("keras") is not None and version("keras").startswith("2.")
# Three ranks show what two do, and what is uneven. TensorFlow and jax compile everything anew on each.
RANKS = {"tensorflow": 2, "torch": 3, "jax": 2}
# jax's compiler is what takes the time: unoptimised, and kept for the other rank and the next check, it takes half.
JAX = {
    "JAX_ENABLE_X64": "1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
pytestmark = pytest.mark.timeout(1600)  # the first check of a launch waits for all of them


@pytest.mark.parametrize(("backend", "n"), RANKS.items())
@pytest.mark.parametrize("check", checks_in(*FILES))
@pytest.mark.wide("jax")
def test_keras(check, backend, n, assert_passed):
    _look(check, backend, n, FILES, assert_passed)


@pytest.mark.parametrize("check", checks_in("keras_steps.py"))
def test_steps_on_jax(check, assert_passed):
    _look(check, "jax", RANKS["jax"], ("keras_steps.py",), assert_passed)


@pytest.mark.parametrize("check", checks_in("keras_evaluating.py"))
def test_evaluations_of_one_rank(check, assert_passed):
    _look(check, "torch", 1, ("keras_evaluating.py",), assert_passed)


def _look(check, backend, n, files, assert_passed):
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    if backend != "tensorflow" and KERAS_2:
        pytest.skip(f"Keras 2 has no {backend} backend")
    assert_passed(check, n, files, KERAS_BACKEND=backend, **JAX)
