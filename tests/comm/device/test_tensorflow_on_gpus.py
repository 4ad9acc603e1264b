"""dl_comm.tensorflow with tensors on GPUs, on real ranks: over the fake driver, and on the machine's own GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import pytest
from gpus import HERE, real_driver
from on_gpus import FACES, checks_in, launched

CHECKS = "tensorflow_on_gpu.py"
pytestmark = [
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
    pytest.mark.timeout(900),  # the first check of a launch waits for all of them
]


@pytest.fixture(scope="session")
def said_over_the_fake(fake: Callable[..., str]) -> str:
    more = {"DL_COMM_CUDA_LIBRARY": fake(), "DL_COMM_NCCL_LIBRARY": fake(), "FAKE_CUDA_OWNS_ALL": "1"}
    return launched(2, HERE / "tensorflow_as_if_on_gpu.py", HERE / CHECKS, **more)


@pytest.mark.parametrize("check", checks_in(HERE, (CHECKS,)))
def test_over_the_fake_driver(check, said_over_the_fake):
    assert f"passed {check}" in said_over_the_fake.splitlines(), said_over_the_fake[-8000:]


@cache
def said_on_a_real_gpu(n: int) -> str:
    return launched(n, FACES / "run_checks.py", HERE / CHECKS)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("check", checks_in(HERE, (CHECKS,)))
def test_tensorflow_on_a_real_gpu(check, n):
    real_driver()
    import tensorflow as tf

    if not tf.test.is_built_with_cuda():
        pytest.skip("this TensorFlow was built without CUDA")
    said = said_on_a_real_gpu(n)
    if f"skipped {check}: needs the fake driver" in said.splitlines():
        pytest.skip("needs the fake driver")
    assert f"passed {check}" in said.splitlines(), said[-8000:]
