"""The greatest and the least so far: of all ranks' samples, or of the means over the ranks."""

import pytest

from dlrun.port import port

SCRIPT = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data, batch_size=16, shuffle=True)
kept = 0.0
for epoch in range(4):
    total = 0.0
    for x, y in loader:
        error = (model(x) - y).abs()
        loss = error.mean()
        loss.backward()
        opt.step()
        total += loss.item()
        BATCH
    EPOCH
    print(f"{epoch} {kept:.3f}")
    print("kept", kept)
"""
OF_ALL = "{}(dl.broadcast(float(kept), root=r) for r in range(dl.get_nranks()))"


@pytest.mark.parametrize(
    ("batch", "epoch", "written", "shown"),
    [
        ("kept = min(kept, loss.item())", "", "kept = min(kept, dl.average(loss.item()))", "kept"),
        ("", "kept = max(total / len(loader), kept)", "kept = max(dl.average(total / len(loader)), kept)", "kept"),
        ("kept = max(kept, error.max().item())", "", "kept = max(kept, error.max().item())", OF_ALL.format("max")),
        ("low = float(torch.min(error))\n        kept = min(kept, low)", "", "kept = min(kept, low)",
         OF_ALL.format("min")),
    ],
)  # fmt: skip
def test_an_extreme_so_far_is_that_of_all_ranks(batch, epoch, written, shown):
    text = port(SCRIPT.replace("BATCH", batch).replace("EPOCH", epoch)).text
    assert f" {written}\n" in text
    assert f'print(f"{{epoch}} {{{shown}:.3f}}")' in text
    assert f'print("kept", {shown})' in text


def test_an_extreme_that_some_ranks_alone_come_to_is_averaged_where_it_is_shown():
    batch = "if loss.item() < 0.5:\n            kept = min(kept, loss.item())"
    assert 'print("kept", dl.average(kept))' in port(SCRIPT.replace("BATCH", batch).replace("EPOCH", "")).text
