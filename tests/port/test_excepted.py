"""Updates that an error leaves out on one rank are doubted."""

import pytest
from small import HEAD

from dlrun.port import port

LOOP = (
    HEAD
    + """opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, shuffle=True):
    try:
        opt.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        opt.step()
    except {error}:
        {does}
"""
)
MEMORY = "if 'out of memory' not in str(error):\n            raise error"


@pytest.mark.parametrize(
    ("error", "does", "doubted"),
    [
        ("RuntimeError", "continue", True),
        ("RuntimeError as error", MEMORY, True),
        ("(ValueError, RuntimeError)", "print('left out')", True),
        ("Exception", "raise", False),
        ("RuntimeError", "break", False),
        ("KeyboardInterrupt", "continue", False),
    ],
)
def test_an_update_that_an_error_leaves_out_on_one_rank_is_doubted(error, does, doubted):
    doubts = port(LOOP.format(error=error, does=does)).doubts
    assert any("leaves out its update of opt" in doubt.why for doubt in doubts) == doubted
