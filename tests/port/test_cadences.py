"""What all ranks evaluate alike every so many steps is kept, counted and decided by as in the serial script."""

from running import started

from dlrun.port import port

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X, XV = torch.randn(48, 5), torch.randn(20, 5)
Y, YV = (X.sum(1) > 0).long(), (XV.sum(1) > 0).long()
net = nn.Linear(5, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.0)
train, held = DataLoader(TensorDataset(X, Y), 4, shuffle=True), DataLoader(TensorDataset(XV, YV), 4)
"""
SCRIPT = (
    HEAD
    + """
def evaluate(net, loader):
    net.eval()
    loss, n = 0, 0
    with torch.no_grad():
        for x, y in loader:
            loss += F.cross_entropy(net(x), y, reduction="sum").item()
            n += len(y)
    net.train()
    return loss / n

best, bad, ups, last, step, curve, plain, rows = float("inf"), 0, 0, 9.0, 0, [], [], []
for epoch in range(9):
    for x, y in train:
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 6 == 0:
            value = evaluate(net, held)
            curve.append((step, round(value, 5)))
            plain.append(value)
            rows.append({"epoch": epoch, "value": f"{value:.4f}"})
            if value > last:
                ups += 1
            else:
                ups = 0
            last = value
            if value < best:
                best, bad = value, 0
            else:
                bad += 1
            if bad >= 3:
                break
    print(epoch, bad, ups, len(curve), curve[-1], [round(v, 4) for v in plain], rows)
    if bad >= 3:
        break
print("stopped in", epoch, len(plain))
"""
)


def test_lists_and_patience_go_by_as_many_evaluations_as_the_serial_script_makes(tmp_path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ported = port(SCRIPT)
    (tmp_path / "dist.py").write_text(ported.text)
    serial = started(tmp_path, ["train.py"])
    assert serial.endswith("stopped in 1 4\n") and not [d for d in ported.doubts if d.danger != "low"]
    assert [started(tmp_path, ["dist.py"], n) for n in (2, 3)] == [serial, serial]


def test_what_ranks_count_at_a_cadence_by_tests_of_their_own_is_told() -> None:
    script = HEAD + SCRIPT.partition("best, bad")[2].partition("            value =")[0].join(("best, bad", ""))
    ported = port(script + "            if loss.item() > 0.7:\n                ups += 1\nprint(ups)\n")
    assert [d.why.partition(":")[0] for d in ported.doubts if d.name == "unknown-placement"] == ["ups"]
