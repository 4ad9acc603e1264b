"""What is made of local losses and changes weights, gradients or rates is the same on all ranks."""

import pytest
from running import ran

from dlrun.port import port

SCRIPT = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
model, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, in loader:
        loss = (model(x) - other(x).detach()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        {before}
        opt.step()
        {after}
torch.save({{**model.state_dict(), **{{"other." + k: v for k, v in other.state_dict().items()}}}}, "last.pt")
"""
WEIGHTS = "with torch.no_grad():\n            for p in model.parameters():\n                "
BOTH = "with torch.no_grad():\n            for a, b in zip(other.parameters(), model.parameters()):\n                "
CASES = [
    ("pass", WEIGHTS + "p.mul_(1 - 0.1 * loss.item())", "p.mul_(dl.average(1 - 0.1 * loss.item()))"),
    ("pass", WEIGHTS + "p -= 0.1 * loss.item() * p", "p -= dl.average(0.1 * loss.item()) * p"),
    ("pass", BOTH + "t = loss.item(); a.mul_(1 - t).add_(t * b)", "a.mul_(dl.average(1 - t)).add_(dl.average(t) * b)"),
    ("for p in model.parameters(): p.grad *= loss.item()", "pass", "p.grad *= dl.average(loss.item())"),
    ("torch.nn.utils.clip_grad_norm_(model.parameters(), loss.item())", "pass", "(), dl.average(loss.item()))"),
    ("opt.param_groups[0]['lr'] = min(0.1, loss.item())", "pass", "= dl.lr_scale(min(0.1, dl.average(loss.item())))"),
]


@pytest.mark.parametrize(("before", "after", "written"), CASES)
def test_a_number_that_changes_weights_is_averaged(before, after, written):
    found = port(SCRIPT.format(before=before, after=after))
    assert written in found.text
    assert not [d for d in found.doubts if d.danger == "high"]


@pytest.mark.parametrize("after", [WEIGHTS + "p.mul_(0.99)", WEIGHTS + "p.mul_(1 - 0.1 * epoch)", "print(loss.item())"])
def test_what_is_alike_is_left(after):
    text = port(SCRIPT.format(before="pass", after=after)).text.replace("print(dl.average", "")
    assert "dl.average" not in text


def test_what_the_gradients_of_a_weight_are_made_of_is_left():
    found = port(SCRIPT.format(before="model.bias.grad = torch.autograd.grad(loss, model.bias)[0]", after="pass"))
    assert "dl.average" not in found.text and not [d for d in found.doubts if d.danger == "high"]


def test_below_a_test_that_ranks_decide_apart_it_is_doubted():
    changes = "            for p in model.parameters(): p.data.mul_(1 - loss.item())"
    after = f"if sorted([min(loss.item(), 5.0), epoch])[0] < 1:\n{changes}"
    found = port(SCRIPT.format(before="pass", after=after))
    write = "dl.average(1 - loss.item()) where every rank comes by"
    assert write in [doubt.write for doubt in found.doubts if doubt.danger == "high"]


def test_a_test_above_it_is_one_on_all_ranks():
    changes = "            for p in model.parameters(): p.data.mul_(1 - loss.item())"
    found = port(SCRIPT.format(before="pass", after=f"if x.mean() > 0:\n{changes}"))
    assert f"if dl.average(x.mean()) > 0:\n{changes[:-18]}" in found.text and not found.doubts
    assert "p.data.mul_(dl.average(1 - loss.item()))" in found.text


def test_the_ranks_models_stay_one(tmp_path):
    script = tmp_path / "train_dist.py"
    changes = f"{CASES[0][1]}\n        {CASES[2][1]}"
    text = port(SCRIPT.format(before=CASES[3][0], after=changes)).text
    each = "[p.detach() for m in (model, other) for p in m.parameters()]"
    one = f"apart = sum(dl.total((p - dl.broadcast(p.clone())).abs().sum().item()) for p in {each})\ndl.print(apart)\n"
    script.write_text(text.replace("dl.finalize()", f"{one}dl.finalize()"))
    said, _ = ran(script, tmp_path / "run", 2)
    assert float(said) == 0


FOLDS = """import random
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
for fold in range(3):
    {seeded}
    held = {drawn}
    model = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, in DataLoader(TensorDataset(torch.zeros(64, 4)), batch_size=8):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if float(held.sum()) > 5:
        break
"""


@pytest.mark.parametrize(
    ("seeded", "drawn", "alike"),
    [
        ("torch.manual_seed(fold)", "torch.randn(8, 4)", True),
        ("np.random.seed(fold)", "np.random.rand(8)", True),
        ("pass", "torch.randn(8, 4, generator=torch.Generator().manual_seed(fold))", True),
        ("np.random.seed(fold)", "torch.randn(8, 4)", False),
        ("torch.manual_seed(fold) if fold else None", "torch.randn(8, 4)", False),
        ("if fold: torch.manual_seed(fold)", "torch.randn(8, 4)", False),
        ("pass", "torch.randn(8, 4)", False),
    ],
)
def test_what_is_drawn_of_a_seed_that_is_set_again_is_the_same_on_all_ranks(seeded, drawn, alike):
    text = port(FOLDS.format(seeded=seeded, drawn=drawn)).text
    assert ("if float(held.sum()) > 5:" in text) == alike


ONE_HOT = """import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(7, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
table = torch.zeros(64, 1)
lost = []
for x, y in DataLoader(TensorDataset(torch.zeros(64, 4), torch.zeros(64, 1, dtype=torch.long)), batch_size=8):
    which = torch.zeros(len(x), 3)
    which.scatter_(1, y, 1)
    loss = model(torch.cat([x, which], 1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    lost.append(loss.item())
    {after}
print(sum(lost) / len(lost), table.sum())
"""


def test_entries_that_an_iteration_sets_in_its_own_array_are_no_doubt_and_those_of_a_table_are():
    assert not port(ONE_HOT.format(after="pass")).doubts
    (doubt,) = port(ONE_HOT.format(after="table.scatter_(0, y, x[:, :1])")).doubts
    assert doubt.why.startswith("table.scatter_() is out of sight")


def test_what_an_iteration_fills_is_its_own_and_what_goes_on_is_told() -> None:
    source = """
import torch
from torch.utils.data import DataLoader
names = ["ab", "abc", "d", "ef"] * 16
def pad(rows):
    found = torch.zeros((len(rows), 3)).long()
    for at, row in enumerate(rows):
        found[at, :len(row)] = torch.tensor([ord(c) - 97 for c in row])
    return found
table = torch.zeros(3, 2)
net = torch.nn.EmbeddingBag(9, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
total = 0
for rows in DataLoader(names, 16):
    out = net(pad(rows))
    loss = out.pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    total += loss.item()
    row = table[1]
    row += out.detach().sum(0)
print(total)
"""
    ported = port(source)
    assert "total = dl.total(total)" in ported.text and not ported.doubts
    (told,) = port(source + "print(table[1])\n").doubts
    assert "row may share its memory" in told.why
