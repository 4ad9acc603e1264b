"""dl_comm.torch on 2 and 3 real ranks."""

from __future__ import annotations

import pytest
from on_ranks import checks_in

FILES = (
    "torch_gradients.py",
    "torch_reducing.py",
    "torch_situations.py",
    "torch_styles.py",
    "torch_overlap.py",
    "torch_optimizer.py",
    "torch_state.py",
    "torch_data.py",
    "torch_ranks.py",
    "torch_served.py",
)
pytestmark = pytest.mark.timeout(1600)  # the first check of a launch waits for all of them


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("check", checks_in(*FILES))
@pytest.mark.wide("-2")
def test_on_real_ranks(check, n, assert_passed):
    assert_passed(check, n, FILES)
