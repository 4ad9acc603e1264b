"""A loop over what is written out, a turn for each kind of batch, is a part of the turn of the loop around it."""

import pytest

from dlrun.port import port

SCRIPT = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loaders = {{"a": DataLoader(one, 8, shuffle=True), "b": DataLoader(other, 8, shuffle=True)}}
draws = {{k: iter(v) for k, v in loaders.items()}}
first, second = iter(loaders["a"]), iter(loaders["b"])
kinds = ["a", "b"]
for step in range(args.steps):
    for kind in {kinds}:
        {draw}
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if (step + 1) % 200 == 0:
        torch.save(model.state_dict(), "net.pt")
    if step > args.steps - args.last:
        for group in opt.param_groups:
            group["lr"] = 0.01
"""


@pytest.mark.parametrize("kinds", ['["a", "b"]', '("a", "b")', "kinds", 'enumerate(["a", "b"])'])
@pytest.mark.parametrize("draw", ['x = next(first if kind == "a" else second)', "x = next(draws[kind])"])
def test_the_loop_around_counts_the_steps(kinds, draw) -> None:
    ported = port(SCRIPT.format(kinds=kinds, draw=draw))
    assert "for step in range(dl.steps(args.steps)):" in ported.text
    assert "if dl.should_stop() or (step + 1) % dl.steps(200) == 0:" in ported.text
    assert "if step > dl.steps(args.steps - args.last):" in ported.text
    assert not [doubt.why for doubt in ported.doubts if "changes at this step" in doubt.why]


def test_turns_for_written_rates_that_nothing_is_around_stay() -> None:
    source = SCRIPT.format(kinds="kinds", draw="x = next(first)")
    start = source.index("for step")
    rates = """for rate in (0.1, 0.01):
    opt = torch.optim.SGD(model.parameters(), lr=rate)
    for x in loaders["a"]:
        model(x).pow(2).mean().backward()
        opt.step()
"""
    text = port(source[:start] + rates).text
    assert "for rate in (0.1, 0.01):" in text
    assert "dl.shard(" in text
