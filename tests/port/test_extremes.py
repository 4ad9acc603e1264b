"""The greatest and the least so far: of all ranks' samples, or of the means over the ranks."""

import pytest
from running import rounded, started

from dlrun.port import Options, port

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


@pytest.mark.parametrize(
    ("batch", "epoch", "written"),
    [
        ("kept = min(kept, loss.item())", "", "kept = dl.minimum(kept)  #"),
        ("", "kept = max(total / len(loader), kept)", "kept = max(total / dl.serial_steps(len(loader)), kept)\n"),
        ("kept = max(kept, error.max().item())", "", "kept = dl.maximum(kept)  #"),
        ("low = float(torch.min(error))\n        kept = min(kept, low)", "", "kept = dl.minimum(kept)  #"),
        ("if loss.item() < 0.5:\n            kept = min(kept, loss.item())", "", "kept = dl.minimum(kept)  #"),
    ],
)
def test_an_extreme_so_far_is_that_of_all_ranks(batch, epoch, written):
    text = port(SCRIPT.replace("BATCH", batch).replace("EPOCH", epoch)).text
    assert f"    {written}" in text and ("total = dl.total(total)" in text) == bool(epoch)
    assert 'print(f"{epoch} {kept:.3f}")' in text and 'print("kept", kept)' in text


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


@pytest.mark.parametrize(
    ("shown", "kept"),
    [
        ("max(errors)", "errors"),
        ('f"{np.max(errors):.3f}"', "errors"),
        ("torch.cat(parts).mean(0).max().item()", "parts"),
        ("np.max(losses)", "losses"),
        ("np.median(errors)", "errors"),
        ("np.percentile(errors, 95)", "errors"),
    ],
)
def test_what_is_made_of_samples_that_a_loop_gathered_is_of_all_ranks(shown, kept):
    ported = port(GATHERED.replace("SHOWN", shown))
    assert f"    {kept} = dl.gather({kept}, over=loader)  #" in ported.text and f"    print({shown})\n" in ported.text
    assert not [d for d in ported.doubts if d.danger == "medium"]


def test_the_greatest_that_a_function_returns_beside_others_is_of_all_ranks() -> None:
    body = GATHERED.partition("for epoch")[2].partition("\n")[2].partition("    print")[0]
    script = GATHERED.partition("for epoch")[0] + f"def train():\n{body}    return loss.item(), max(errors)\n"
    text = port(script + "for epoch in range(4):\n    loss, worst = train()\n    print(loss, worst)\n").text
    assert "    errors = dl.gather(errors, over=loader)  #" in text and "    loss = dl.average(loss)  #" in text
    assert "    print(loss, worst)\n" in text


def test_the_greatest_and_the_least_of_all_ranks_samples_are_those_of_one_process(tmp_path):
    data = "data = [(torch.arange(8.0) * k / 64, torch.ones(1)) for k in range(64)]\ntorch.manual_seed(0)\n"
    script = GATHERED.replace("model =", data + "model =").replace("0.1)", "0.0)")  # one model throughout
    script = script.replace("SHOWN", "round(max(errors), 5), round(np.min(errors), 5)")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "train_dist.py").write_text(port(script).text)
    assert started(tmp_path, ["train_dist.py"], 3) == started(tmp_path, ["train.py"])


@pytest.mark.parametrize(
    ("begins", "batch", "shown", "told"),
    [
        ("(None, 0.0)", "if loss.item() > kept[1]: kept = (x, loss.item())", "kept[1]", True),
        ("(0, 0.0)", "if error.max().item() > 3: kept = 1, loss.item()", "kept[1]", True),
        ("(0, 0.0)", "kept = 1, loss.item()", "kept[1]", False),
    ],
)
def test_what_goes_on_in_a_tuple_that_is_bound_anew_is_told_as_a_ranks_own(begins, batch, shown, told):
    script = SCRIPT.replace("    total = 0.0", f"    total, kept = 0.0, {begins}").replace("BATCH", batch)
    script = script.replace('{kept:.3f}")', '")').replace('print("kept", kept)', f'print("kept", {shown})')
    ported = port(script.replace("EPOCH", ""))
    doubts = [d.why.partition(":")[0] for d in ported.doubts if d.name == "unknown-placement"]
    assert doubts == [shown] * told
    assert ('print("kept", dl.average(kept[1]))' in ported.text) != told


CHOSEN = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 5), torch.randint(0, 3, (96,))), 8)
model = torch.nn.Linear(5, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
best = 1e9
for epoch in range(2):
    low, high = float("inf"), -1.0
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(); loss.backward(); opt.step()
        value = loss.item()
        low = value if value < low else low
        high = high if high >= value else value
    best = low if low < best else best
    print(low, high, best)
"""


@pytest.mark.parametrize("batch", ["local", "global"])
def test_the_least_that_is_chosen_by_an_expression_is_the_serial_one(batch, tmp_path) -> None:
    (tmp_path / "train.py").write_text(CHOSEN)
    ported = port(CHOSEN, Options(batch=batch))
    (tmp_path / "dist.py").write_text(ported.text)
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert [rounded(line) for line in mine.splitlines()] == [rounded(line) for line in serial.splitlines()]
    assert not ported.doubts
