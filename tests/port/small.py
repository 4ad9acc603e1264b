"""The smallest script that trains, a function that updates, and what the porter says where it refuses one."""

import pytest

from dlrun.errors import DlrunError
from dlrun.port import port

HEAD = "import torch\nfrom torch.utils.data import DataLoader\nmodel = torch.nn.Linear(2, 1)\n"
LOOP = """opt = torch.optim.Adam(model.parameters())
for x, y in DataLoader(data, shuffle=True):
    (model(x) - y).pow(2).mean().backward()
    opt.step()
"""
SERIAL = HEAD + LOOP
UPDATE = """def update(x, y):
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()
"""


def refused(source: str) -> DlrunError:
    """Return the error with which ``source``, called train.py, is refused."""
    with pytest.raises(DlrunError) as error:
        port(source, name="train.py")
    return error.value
