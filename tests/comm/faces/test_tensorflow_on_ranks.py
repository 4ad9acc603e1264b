"""dl_comm.tensorflow on 3 real ranks, with whichever TensorFlow is installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from on_ranks import checks_in

pytestmark = [
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
    pytest.mark.timeout(1600),  # the first check of a launch waits for all of them
]

FILES = (
    "tensorflow_everywhere.py",
    "tensorflow_sessions.py",
    "tensorflow_styles.py",
    "tensorflow_drop_in.py",
    "tensorflow_reducing.py",
)


@pytest.mark.parametrize("check", checks_in(*FILES))
def test_tensorflow(check, assert_passed):
    assert_passed(check, 3, FILES)  # three ranks show what two do, and what is uneven


GRAPHS = ("tensorflow_ddl_graph.py",)


@pytest.mark.parametrize("check", checks_in(*GRAPHS))
def test_ddl_as_in_tensorflow_1(check, assert_passed):
    assert_passed(check, 3, GRAPHS, DDL_OPTIONS="-mode r:3")


RENAMED = ("tensorflow_renamed.py",)


@pytest.mark.parametrize("check", checks_in(*RENAMED))
def test_scripts_that_rename_tensorflow(check, assert_passed):
    assert_passed(check, 2, RENAMED)
