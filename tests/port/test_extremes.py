"""The greatest and the least so far: of all ranks' samples, or of the means over the ranks."""

import pytest
from running import started

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


GATHERED = """import numpy as np, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(4):
    losses, errors, parts = [], [], []
    for x, y in loader:
        error = (model(x) - y).abs()
        loss = error.mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        errors.extend(error.detach().flatten().tolist())
        parts.append(error.detach())
    print(SHOWN)
"""
GREATEST = "max(dl.broadcast(float({}), root=r) for r in range(dl.get_nranks()))"


@pytest.mark.parametrize(
    ("shown", "written", "doubted"),
    [
        ("max(errors)", GREATEST.format("max(errors)"), False),
        ('f"{np.max(errors):.3f}"', 'f"{' + GREATEST.format("np.max(errors)") + ':.3f}"', False),
        ("torch.cat(parts).max().item()", GREATEST.format("torch.cat(parts).max().item()"), False),
        ("torch.cat(parts).mean(0).max().item()", "dl.average(torch.cat(parts).mean(0).max().item())", False),
        ("np.max(losses)", "np.max(dl.average(losses))", False),
        ("np.median(errors)", "dl.average(np.median(errors))", True),
        ("np.percentile(errors, 95)", "dl.average(np.percentile(errors, 95))", True),
    ],
)
def test_what_is_made_of_samples_that_a_loop_gathered_is_of_all_ranks_or_doubted(shown, written, doubted):
    ported = port(GATHERED.replace("SHOWN", shown))
    assert f"    print({written})\n" in ported.text
    assert any("this rank's samples alone" in d.why for d in ported.doubts) == doubted


def test_the_greatest_that_a_function_returns_beside_others_is_of_all_ranks() -> None:
    body = GATHERED.partition("for epoch")[2].partition("\n")[2].partition("    print")[0]
    script = GATHERED.partition("for epoch")[0] + f"def train():\n{body}    return loss.item(), max(errors)\n"
    text = port(script + "for epoch in range(4):\n    loss, worst = train()\n    print(loss, worst)\n").text
    assert f"    print(dl.average(loss), {GREATEST.format('worst')})\n" in text


def test_the_greatest_and_the_least_of_all_ranks_samples_are_those_of_one_process(tmp_path):
    data = "data = [(torch.arange(8.0) * k / 64, torch.ones(1)) for k in range(64)]\ntorch.manual_seed(0)\n"
    script = GATHERED.replace("model =", data + "model =").replace("0.1)", "0.0)")  # one model throughout
    script = script.replace("SHOWN", "round(max(errors), 5), round(np.min(errors), 5)")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "train_dist.py").write_text(port(script).text)
    assert started(tmp_path, ["train_dist.py"], 3) == started(tmp_path, ["train.py"])
