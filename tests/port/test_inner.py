"""Copies of the model that each iteration makes and adapts, as meta-learning does, are local."""

import pytest
from running import started

from dlrun.port import port

HEAD = """import copy, torch
from torch import nn
torch.manual_seed(0)
tasks = [(torch.randn(8, 2), torch.randn(8, 1)) for _ in range(12)]
net = nn.Linear(2, 1)
meta = torch.optim.SGD(net.parameters(), lr=0.0)
"""
ADAPTS = """fast = copy.deepcopy(net)
inner = torch.optim.SGD(fast.parameters(), lr=0.1)
for _ in range(2):
    loss = ((fast(x[:4]) - y[:4]) ** 2).mean()
    inner.zero_grad()
    loss.backward()
    inner.step()
"""
LOOP = """for epoch in range(2):
    total = 0.0
    for b in range(0, 12, 2):
        meta.zero_grad()
        batch = tasks[b:b + 2]
        for x, y in batch:
            ADAPT
            found = ((fast(x[4:]) - y[4:]) ** 2).mean()
            for p, g in zip(net.parameters(), torch.autograd.grad(found, list(fast.parameters()))):
                p.grad = g if p.grad is None else p.grad + g
            total += found.item()
        meta.step()
    print(epoch, f"{total / 12:.5f}")
"""
INDENT = "\n" + 12 * " "
WITHIN = HEAD + LOOP.replace("ADAPT", INDENT.join(ADAPTS.splitlines()))
APART = (
    HEAD
    + "def adapt(x, y):\n    "
    + "\n    ".join(ADAPTS.splitlines())
    + "\n    return fast\n"
    + LOOP.replace("ADAPT", "fast = adapt(x, y)")
)


@pytest.mark.parametrize("script", [WITHIN, APART], ids=["within", "apart"])
def test_each_rank_adapts_copies_to_its_own_tasks(script, tmp_path) -> None:
    (tmp_path / "train.py").write_text(script)
    ported = port(script)
    (tmp_path / "dist.py").write_text(ported.text)
    assert "inner = torch.optim.SGD(fast.parameters(), lr=0.1)\n" in ported.text
    assert ported.text.count("dl.gradients(") == 1 and "dl.gradients(meta)" in ported.text
    assert ported.text.count("dl.broadcast(") == 1
    assert started(tmp_path, ["dist.py"], 2) == started(tmp_path, ["train.py"])


def test_a_copy_that_is_trained_by_batches_of_its_own_after_the_model_is_trained_by_all_ranks() -> None:
    tuned = """from torch.utils.data import DataLoader
for epoch in range(3):
    for x, y in DataLoader(tasks, shuffle=True):
        ((net(x) - y) ** 2).mean().backward()
        meta.step()
    tuned = copy.deepcopy(net)
    inner = torch.optim.SGD(tuned.parameters(), lr=0.1)
    for x, y in DataLoader(tasks, shuffle=True):
        ((tuned(x) - y) ** 2).mean().backward()
        inner.step()
"""
    text = port(HEAD + tuned).text
    assert "dl.gradients(inner)" in text and "tuned.parameters(), lr=dl.lr_scale(0.1)" in text
