"""Whole scripts, as people have them for the plugins, run as they are: gradients and weights are one process's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dl_comm import _core
from on_ranks import HERE, launch

CLIENTS = HERE / "clients"
LIB = Path(str(_core.__file__)).parent / "lib"
has_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
has_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
pytestmark = pytest.mark.timeout(1600)
RANKS = pytest.mark.parametrize("n", [2, 3])


def recorded(n: int, script: str, *words: str | Path, **variables: str) -> list[dict[str, Any]]:
    """Return what each of n ranks has recorded; all have the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        variables |= {"RECORDS": folder, "TF_CPP_MIN_LOG_LEVEL": "2"}
        done = launch(n, CLIENTS / script, *words, **variables)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return records_in(Path(folder), n)


def records_in(folder: Path, n: int) -> list[dict[str, Any]]:
    records = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(n)]
    assert all(record["weights"] == records[0]["weights"] for record in records)
    return records


@cache
def by_hand() -> tuple[Any, Any, Any]:
    """Return the first gradient, and the weights after three steps with momentum, of one process with all rows."""
    data = np.random.RandomState(3)
    xs, ys = data.randn(36, 5), data.randn(36, 1)
    w, b, speeds, first = np.ones((5, 1)), np.zeros(1), [0.0, 0.0], None
    for k in range(3):
        x, y = xs[12 * k : 12 * (k + 1)], ys[12 * k : 12 * (k + 1)]
        off = 2 * (x @ w + b - y) / 12
        grads = [x.T @ off, off.sum(0)]
        first = first or grads
        speeds = [0.9 * s + g for s, g in zip(speeds, grads, strict=True)]
        w, b = w - 0.1 * speeds[0], b - 0.1 * speeds[1]
    return first, w, b


def assert_like_by_hand(records: list[dict[str, Any]]) -> None:
    first, *weights = by_hand()
    for record in records:
        for found, expected in zip(record["weights"], weights, strict=True):
            np.testing.assert_allclose(found, expected.ravel(), rtol=2e-5, atol=1e-6)
        for found, expected in zip(record.get("grads", []), first, strict=False):
            np.testing.assert_allclose(found, expected.ravel(), rtol=2e-5, atol=1e-6)


def assert_alike(found: Any, expected: Any, what: str = "") -> None:
    """Compare nested lists of numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_alike(found[name], expected[name], name)
    elif isinstance(expected, list):
        assert len(found) == len(expected), what
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other, what)
    else:
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), what


@has_tensorflow
@pytest.mark.parametrize(("n", "how"), [(2, ()), (3, ()), (3, ("mpi",)), (2, ("check",))])
def test_operators_that_a_script_loads_train_in_a_session(n, how):
    records = recorded(n, "ddl_operators_session.py", "ddl_MDR.so", *how, LD_LIBRARY_PATH=str(LIB / "ddl"))
    assert [record["place"] for record in records] == [[r, n, r, n, r] for r in range(n)]
    assert_like_by_hand(records)


@has_tensorflow
def test_in_the_folder_of_ddl_1_init_has_its_three_outputs():
    records = recorded(2, "ddl_operators_session.py", LIB / "ddl-tensorflow/lib/ddl_MDR.so")
    assert [record["place"] for record in records] == [[r, 2, r] for r in range(2)]
    assert_like_by_hand(records)


@has_tensorflow
@pytest.mark.parametrize(("n", "how"), [(2, ()), (3, ("function",))])
def test_operators_run_eagerly_and_in_functions(n, how):
    assert_like_by_hand(recorded(n, "ddl_operators_eager.py", *how, LD_LIBRARY_PATH=str(LIB / "ddl")))


@has_tensorflow
@RANKS
@pytest.mark.wide("3")
def test_a_module_ddl_of_the_scripts_own_works_under_dlrun_launch(n, tmp_path):
    script = CLIENTS / "own_ddl" / "train.py"
    words = ["launch", "-n", str(n), "--env", "DDL_OPTIONS=-mode p", "--log-dir", "runs", str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "dlrun", *words],
        cwd=tmp_path,
        env={**os.environ, "RECORDS": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    records = records_in(tmp_path, n)
    assert [record["place"] for record in records] == [[r, n] for r in range(n)]
    assert records[0]["steps"] == 3
    assert_like_by_hand(records)


@has_tensorflow
@RANKS
@pytest.mark.wide("3")
def test_import_ddl_alone_however_variables_are_made_initialized_and_trained(n):
    assert_alike(recorded(n, "ddl_ways.py", DDL_OPTIONS="-mode p")[0], alone("ddl_ways.py"))


@has_tensorflow
@pytest.mark.parametrize(("n", "how"), [(2, "session"), (3, "session"), (2, "eager"), (3, "eager")])
@pytest.mark.wide("3")
def test_where_ddl_options_are_not_set_a_script_calls_ddl_by_hand(n, how):
    records = recorded(n, "ddl_explicit.py", how)
    assert [record["own"] for record in records] == [[r] for r in range(n)]
    assert_like_by_hand(records)


@has_tensorflow
@pytest.mark.parametrize(("n", "how"), [(2, "assign"), (3, "method")])
def test_the_plugins_script_with_resource_variables_where_tensorflow_is_renamed(n, how):
    assert_like_by_hand(recorded(n, "cray_resource_variables.py", how))


@has_tensorflow
@RANKS
@pytest.mark.parametrize("how", ["graph", "eager"])
@pytest.mark.wide("3")
def test_keras_with_ddls_callbacks(n, how):
    if how == "graph" and _keras_3():
        pytest.skip("Keras 3 has no graphs of TensorFlow 1")
    expected = alone("ddl_keras_ways.py", how)
    assert_alike(recorded(n, "ddl_keras_ways.py", how, DDL_OPTIONS="-mode p")[0], expected)


@has_torch
@RANKS
@pytest.mark.wide("3")
def test_a_trainer_for_pytorch_does_with_its_optimizer_what_it_wants(n):
    assert_alike(recorded(n, "torch_trainer.py")[0], alone("torch_trainer.py"))


@cache
def alone(script: str, *words: str) -> dict[str, Any]:
    """Return what a script records in one process."""
    return recorded(1, script, *words)[0]


def _keras_3() -> bool:
    from importlib.metadata import version

    return int(version("keras").partition(".")[0]) >= 3
