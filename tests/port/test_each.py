"""Means that a comprehension makes of the lists of a dict, whatever its keys, are of all ranks' entries."""

import pytest
from small import HEAD

from dlrun.port import port

LOOP = (
    HEAD
    + """from collections import defaultdict
import numpy as np
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, shuffle=True)
def step(x, y):
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return {"loss": loss.item(), "bias": abs(model.bias.item())}
for epoch in range(3):
    logs = MADE
    for x, y in loader:
        FILLS
    means = {key: np.mean(kept) for key, kept in logs.items()}
    SHOWS
"""
)
MEANS = "means = {key: np.mean(kept) for key, kept in logs.items()}"
WHOLE = "    logs = dl.gather(logs, over=loader)"
BY_KEY = '    logs["loss"], logs["bias"] = dl.gather(logs["loss"], logs["bias"], over=loader)'
EACH = "for key, value in step(x, y).items():\n            logs[key].append(value)"
NAMED = 'told = step(x, y)\n        logs["loss"].append(told["loss"])\n        logs["bias"].append(told["bias"])'


def ported(made: str, fills: str, shows: str) -> str:
    return port(LOOP.replace("MADE", made).replace("FILLS", fills).replace("SHOWS", shows)).text


@pytest.mark.parametrize(
    "shows",
    [
        'print(" ".join(f"{key}={mean:.3f}" for key, mean in means.items()))',
        "print(means)",
        'torch.save({"net": model.state_dict(), **means}, "m.pt")',
    ],
)
@pytest.mark.parametrize(
    ("made", "fills"),
    [("defaultdict(list)", EACH), ("defaultdict(list)", NAMED), ('{"loss": [], "bias": []}', NAMED)],
)
def test_lists_under_keys_are_of_all_ranks_before_their_means_are_made(made, fills, shows):
    text = ported(made, fills, shows)
    assert f"{BY_KEY if made[0] == '{' else WHOLE}  # all ranks' entries, in the serial order\n    {MEANS}\n" in text


def test_means_of_lists_that_a_rank_fills_at_times_are_left_alone():
    fills = EACH.replace("            logs", "            if value > 0.1:\n                logs")
    assert "dl.average(np.mean" not in ported("defaultdict(list)", fills, "print(means)")
