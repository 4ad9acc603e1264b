"""With the global batch kept, ranks show what the serial script shows: samples that are kept, counts, meters."""

from pathlib import Path

import pytest
from running import rounded, started

from dlrun.port import Options, port

HERE = Path(__file__).parent
METERS = """import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Meter:
    def __init__(self): self.sum = self.count = 0
    def update(self, value, n=1): self.sum += value * n; self.count += n
    def mean(self): return self.sum / self.count

def accuracy(out, y, topk=(1,)):
    _, pred = out.topk(max(topk), 1, True, True)
    correct = pred.t().eq(y.view(1, -1).expand_as(pred.t()))
    return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / y.size(0)) for k in topk]

def run(batches, opt=None):
    losses, top, first = Meter(), Meter(), Meter()
    rows, kinds = 0, np.zeros(3, int)
    scores = []
    for x, y in batches:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        if opt is not None:
            opt.zero_grad(); loss.backward(); opt.step()
        one, two = accuracy(out, y, topk=(1, 2))
        losses.update(loss.item(), x.size(0)); top.update(two.item(), x.shape[0]); first.update(one[0].item(), len(y))
        rows += x.shape[0]
        kinds += np.bincount(y.numpy(), minlength=3)
        scores += out.softmax(1)[:, 0].tolist()
    print(f"{losses.mean():.5f} {top.mean():.4f} {first.mean():.4f} {rows} {kinds.tolist()} {np.median(scores):.5f}")

torch.manual_seed(0)
x, y = torch.randn(100, 4), torch.randint(0, 3, (100,))
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), 0.1)
train, val = DataLoader(TensorDataset(x[:80], y[:80]), 8, shuffle=True), DataLoader(TensorDataset(x[80:], y[80:]), 8)
for epoch in range(2):
    run(train, opt)
    with torch.no_grad():
        run(val)
"""
ROWS = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(96, 4), torch.randint(0, 3, (96,))
loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    pairs, rows, named, missed = [], [], [], 0
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        right = (out.argmax(1) == y).sum().item()
        missed += (1 - (out.argmax(1) == y).float()).sum().item()
        pairs.append((loss.item(), right))
        rows.append([i, loss.item(), loss.item() ** 2])
        named.append({"step": i, "loss": loss.item(), "right": right})
    print(len(pairs), [sum(column) for column in zip(*pairs)])
    print(missed, missed / len(loader.dataset))
    print(rows[-1], max(row[2] for row in rows))
    print(sum(row["right"] for row in named), min(row["loss"] for row in named), named[3]["step"])
"""


OBJECTS = """import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
class Mean:
    def __init__(self): self.total, self.n, self.seen = 0.0, 0, []
    def update(self, v): self.total += v; self.n += 1; self.seen.append(v)
    def compute(self): return self.total / self.n
class Top(Mean):
    def compute(self): return max(self.seen)
torch.manual_seed(0)
tr = DataLoader(TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,))), 6, shuffle=True)
model = nn.Linear(6, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    ms = {n: c() for n, c in (("a", Mean), ("b", Top))}
    hooks = list(ms.values())
    for x, y in tr:
        out = model(x); loss = F.cross_entropy(out, y)
        opt.zero_grad(); loss.backward(); opt.step()
        for m in hooks: m.update(loss.item())
    print({k: round(m.compute(), 4) for k, m in ms.items()}, [len(m.seen) for m in hooks])
"""

PHASES = """import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
class Margin(nn.Module):
    def forward(self, out, y):
        losses = nn.functional.cross_entropy(out, y, reduction="none")
        return losses.mean(), int((losses > 1).sum())
torch.manual_seed(0)
x, y = torch.randn(112, 6), torch.randint(0, 3, (112,))
sets = {"train": TensorDataset(x[:72], y[:72]), "val": TensorDataset(x[72:], y[72:])}
loaders = {k: DataLoader(d, 8, shuffle=k == "train") for k, d in sets.items()}
model, lossf = nn.Linear(6, 3), Margin()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for phase in loaders:
        losses, large, preds, trues = [], [], [], []
        for x, y in loaders[phase]:
            out = model(x)
            found = lossf(out, y)
            loss = found[0] if type(found) in (tuple, list) else found
            if phase == "train":
                opt.zero_grad(); loss.backward(); opt.step()
            losses.append(loss.item())
            large.append(found[1])
            preds.extend(out.argmax(1).tolist())
            trues.append(y)
        trues = torch.cat(trues)
        print(phase, sum(losses) / len(losses), large, sum(large) / len(large), len(preds), len(trues))
        print((torch.tensor(preds) == trues).float().mean().item(), torch.bincount(trues).tolist())
"""


@pytest.mark.parametrize(
    "program",
    [METERS, ROWS, OBJECTS, PHASES, (HERE / "placement" / "registered.py").read_text()],
    ids=["meters", "rows", "objects", "phases", "kept"],
)
def test_the_global_batch_on_two_ranks_shows_the_serial_numbers(program, tmp_path) -> None:
    (tmp_path / "train.py").write_text(program)
    ported = port(program, Options(batch="global"))
    (tmp_path / "dist.py").write_text(ported.text)
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert len(serial.splitlines()) >= 2 and not [d for d in ported.doubts if d.name == "unknown-placement"]
    for one, other in zip(serial.splitlines(), mine.splitlines(), strict=True):
        assert rounded(other) == rounded(one)


def test_a_number_of_an_earlier_iteration_that_is_shown_behind_the_loop_is_told() -> None:
    first = ROWS.replace("    pairs,", "    first = None\n    pairs,").replace(
        "        right = ", "        if first is None: first = loss.item()\n        right = "
    )
    ported = port(
        first.replace("    print(len(pairs)", "    print(first)\n    print(len(pairs)"), Options(batch="global")
    )
    told = [d.why.partition(":")[0] for d in ported.doubts if d.name == "unknown-placement"]
    assert told == ["first"] or "print(dl.average(first))" in ported.text


PACKED = """import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(4)
loader = DataLoader(TensorDataset(torch.randn(96, 5), torch.randint(0, 3, (96,))), 12)
model = nn.Linear(5, 3)
opt = torch.optim.SGD(model.parameters(), 0.1)
packed, pair, counts, sums, stacked = torch.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2), torch.zeros(2)
for x, y in loader:
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    opt.zero_grad(); loss.backward(); opt.step()
    right = (out.argmax(1) == y).sum().item()
    packed += torch.tensor([loss.item(), right])
    pair += np.array((loss.item(), right))
    counts += np.array([right, 1])
    sums = sums + np.asarray([loss.item() * len(y), len(y)])
    stacked += torch.stack([loss.detach(), (out.argmax(1) == y).float().sum()])
print(packed)
print(pair)
print(counts)
print(sums)
print(stacked)
"""


def test_means_and_counts_that_are_added_up_in_one_array_are_each_reduced_its_own_way(tmp_path) -> None:
    (tmp_path / "train.py").write_text(PACKED)
    ported = port(PACKED, Options(batch="global"))
    (tmp_path / "dist.py").write_text(ported.text)
    assert not ported.doubts and "sums = dl.total(sums)" in ported.text
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    for one, other in zip(serial.splitlines(), mine.splitlines(), strict=True):
        assert rounded(other) == rounded(one)


TESTED = """import math
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 1)), 8)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
for epoch in range(2):
    skipped = made = large = 0
    total = 0.0
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        if not math.isfinite(loss.item()):
            skipped += 1
            continue
        opt.zero_grad(); loss.backward(); opt.step()
        total += loss.item()
        made += 1
        large += loss.item() > 1
    print(total / made, skipped, made, large)
"""


def test_iterations_that_a_test_of_the_loss_counts_are_those_of_whole_batches(tmp_path) -> None:
    (tmp_path / "train.py").write_text(TESTED)
    ported = port(TESTED, Options(batch="global"))
    (tmp_path / "dist.py").write_text(ported.text)
    assert not ported.doubts and "large += dl.average(loss.item()) > 1" in ported.text
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert [rounded(line) for line in mine.splitlines()] == [rounded(line) for line in serial.splitlines()]
    odd = TESTED.replace("math.isfinite(loss.item())", "fine(loss)").replace("epoch in range(2)", "fine in fines")
    assert [d.why.partition(":")[0] for d in port(odd, Options(batch="global")).doubts if d.name != "may-hang"]


SHOWN = """import itertools, math
import numpy as np
import sklearn.metrics
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 1)), 8)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    loss = nn.functional.mse_loss(out, y)
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"{SHOWN:.4f}")
"""


@pytest.mark.parametrize(
    "told",
    [
        "(1 - ((out - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()).item()",
        "((y - y.mean()) * (out - out.mean())).mean().item()",
        "torch.square(out - out.mean(0)).sum().item()",
        "(out - y).abs().median().item()",
        "np.std((out - y).detach().numpy())",
        "(out > out.mean()).sum().item()",
        "(out - y).norm().item()",
        "len(set(out.argmax(1).tolist()))",
        "int(all(o > 0 for o in out[:, 0].tolist()))",
        "next(t for t in (0.9, 0.5, 0.1, 0.0) if loss.item() >= t)",
        "len([k for k in range(3) if loss.item() > k])",
        "sum(out[:, 0].tolist()[:2]) + out.argmax(1).tolist()[0]",
        "len(np.unique(out.argmax(1).numpy()))",
        "sklearn.metrics.f1_score(y.tolist(), out.tolist(), average='macro')",
        "((out - y) ** 2)[y > 0].mean().item()",
        "out[(y > 0) & ~(out > 0)].abs().mean().item()",
        "torch.masked_select(out, y.gt(0)).mean().item()",
        "nn.functional.mse_loss(out[y > 0], y[y > 0]).item()",
        "(out[y > 0] - out.mean()).sum().item()",
        "np.average(y.numpy(), weights=1 + y.numpy() ** 2)",
        "int((y > 0).all())",
        "out[y > 0].sum().item() if (y > 0).any() else 0.0",
        "np.corrcoef(out[:, 0].detach().numpy(), y[:, 0].numpy())[0, 1]",
        "sum(1 for _ in itertools.takewhile(lambda t: t > 0, y[:, 0].tolist()))",
        "next((k for k, t in enumerate(y[:, 0].tolist()) if t > 0), 9)",
        "y[:, 0].tolist().index(y.max().item())",
        "sum(k * t for k, t in enumerate(sorted(y[:, 0].tolist())))",
    ],
)
def test_a_number_of_this_ranks_part_that_no_others_make_whole_is_told(told) -> None:
    ported = port(SHOWN.replace("SHOWN", told), Options(batch="global"))
    assert [d.name for d in ported.doubts] == ["unknown-placement"] and "dl.average" not in ported.text


SUMS_AND_MEANS = (
    "(y - y.mean()).sum().item() + (out - y.mean()).mean().item()",
    "((out > 0) & (y > 0)).sum().item() / (y > 0).sum().item()",
    "((out - y) ** 2 * (y > 0)).sum().item() / float(len(y))",
    "(out / len(out)).sum().item()",
    "math.sqrt(loss.item())",
    "max((out > 0).sum().item(), 1) / 3",
    "out[y > 0].pow(2).sum().item() / len(out[y > 0]) + out[y > 0].sum().item()",
    "out[y > 0].sum().item() / (y > 0).sum() if (y > 0).sum() else 0.0",
    "(y > 0).all(1).sum().item()",
    "((1 - out) ** 2 + y * torch.clamp(0.9 - out, min=0.0) ** 2).sum(dim=1).mean().item()",
    "(y * out.sigmoid().log() + (1 - y) * (1 - out.sigmoid()).log()).mean().item()",
)


def test_sums_means_and_quotients_of_sums_are_those_of_whole_batches(tmp_path) -> None:
    program = SHOWN.replace('"{SHOWN:.4f}"', '"' + " ".join(f"{{{shown}:.4f}}" for shown in SUMS_AND_MEANS) + '"')
    (tmp_path / "train.py").write_text(program)
    ported = port(program, Options(batch="global"))
    (tmp_path / "dist.py").write_text(ported.text)
    assert not ported.doubts
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert [rounded(line) for line in mine.splitlines()] == [rounded(line) for line in serial.splitlines()]


KEPT_BY_NUMBER = """
def step(x, y):
    out = model(x)
    loss = nn.functional.mse_loss(out, y)
    opt.zero_grad(); loss.backward(); opt.step()
    return {"mean": loss.item(), "twice": 2 * loss.item()}, {"mean": loss.item(), "sum": ((out - y) ** 2).sum().item()}
means, sums, array, rows, mixed = {}, {}, np.zeros(12), [], []
for i, (x, y) in enumerate(loader):
    row, other = step(x, y)
    means[i], sums[i], array[i] = row["mean"], other["sum"], other["sum"]
    rows.append(row)
print(means[3], sums[4], array.sum(), min(rows, key=lambda r: r["mean"])["twice"], len(rows), rows[7]["mean"])
"""


def test_what_is_kept_by_the_number_of_an_iteration_and_rows_of_numbers_are_those_of_whole_batches(tmp_path) -> None:
    program = SHOWN.partition("for x, y")[0] + KEPT_BY_NUMBER
    ported = port(program, Options(batch="global"))
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "dist.py").write_text(ported.text)
    assert not ported.doubts
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert rounded(mine) == rounded(serial)
    mixed = port(program.replace("rows.append(row)", "rows.append(other)"), Options(batch="global"))
    assert "neither add up nor average" in mixed.doubts[0].why and "dl.gather(rows" not in mixed.text


def test_a_number_that_a_library_out_of_sight_makes_of_a_part_is_averaged_and_told() -> None:
    made = "import piq\nssim = piq.SSIMLoss()\n" + SHOWN
    for told in ("piq.psnr(out, y).item()", "ssim(out, y).item()"):
        ported = port(made.replace("SHOWN", told), Options(batch="global"))
        assert [(d.name, d.danger) for d in ported.doubts] == [("unknown-placement", "low")]
        assert f"dl.average({told})" in ported.text
        assert not port(made.replace("SHOWN", told)).doubts  # one number of each iteration
    assert not port(made.replace("SHOWN", "piq.rearrange(out, 'b c').mean().item()"), Options(batch="global")).doubts


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("numbers_of_cut_batches.py", 12),
        ("numbers_of_losses.py", 8),
        ("numbers_of_lists.py", 22),
        ("numbers_of_entries.py", 28),
    ],
)
def test_programs_on_ranks_show_the_serial_numbers(program, lines, ranks, tmp_path) -> None:
    program = (HERE / program).read_text()
    ported = port(program, Options(batch="global"))
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "dist.py").write_text(ported.text)
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=ranks)
    assert not ported.doubts and len(serial.splitlines()) == lines
    for one, other in zip(serial.splitlines(), mine.splitlines(), strict=True):
        assert rounded(other) == rounded(one)


RUNNING = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(4)
loader = DataLoader(TensorDataset(torch.randn(96, 5), torch.randint(0, 3, (96,))), 12)
model = nn.Linear(5, 3)
opt = torch.optim.SGD(model.parameters(), 0.1)
mean, other, n = 0.0, 0.0, 0
for step, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    n += 1
    mean += (loss.item() - mean) / (step + 1)
    other = other + (loss.item() - other) / n
print(mean, other)
"""


def test_means_so_far_are_those_of_all_ranks(tmp_path) -> None:
    ported = port(RUNNING, Options(batch="global"))
    (tmp_path / "train.py").write_text(RUNNING)
    (tmp_path / "dist.py").write_text(ported.text)
    assert "mean, other = dl.average(mean, other)" in ported.text and not ported.doubts
    assert rounded(started(tmp_path, ["dist.py"], ranks=2)) == rounded(started(tmp_path, ["train.py"]))


@pytest.mark.parametrize("loss", ["Root()(out, y)", "nn.MSELoss(reduction=args.reduction)(out, y)"])
def test_a_loss_that_is_no_mean_or_may_be_a_sum_is_told(loss) -> None:
    root = (
        "class Root(nn.Module):\n    def forward(self, out, y):\n        return nn.functional.mse_loss(out, y).sqrt()\n"
    )
    given = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--reduction')\n"
    shown = f"    other += {loss}.item()\nprint(other)\n"
    program = RUNNING.replace("(96,)))", "(96, 3)).float())").replace("cross_entropy", "mse_loss")
    program = program.replace("torch.manual", f"{given}args = parser.parse_args()\n{root}torch.manual")
    program = program.replace(
        "loss = nn.functional.mse_loss(model(x), y)", "out = model(x); loss = nn.functional.mse_loss(out, y)"
    )
    ported = port(program[: program.index("    n += 1")] + shown, Options(batch="global"))
    assert [d.name for d in ported.doubts] == ["unknown-placement"]


@pytest.mark.parametrize(
    "place", ["idx[each.argmax()].item()", "each.argmin().item()", "int(np.argmax(each.tolist()))"]
)
def test_where_the_extreme_of_a_part_is_tells_nothing_of_the_batch(place) -> None:
    program = f"import numpy as np\n{RUNNING[: RUNNING.index('    n += 1')]}".replace("(x, y) in", "(x, y, idx) in")
    program = program.replace("(96,)))", "(96,)), torch.arange(96))").replace("other, n = 0.0,", "other, n = 0,")
    each = "    each = nn.functional.cross_entropy(model(x), y, reduction='none')\n"
    ported = port(f"{program}{each}    other += {place}\nprint(other)\n", Options(batch="global"))
    assert {d.name for d in ported.doubts} == {"unknown-placement"} and "dl.average(other" not in ported.text


def test_where_the_extreme_of_each_sample_is_counts_over_the_ranks() -> None:
    program = f"{RUNNING[: RUNNING.index('    n += 1')]}    for row, label in zip(model(x), y):\n"
    ported = port(f"{program}        n += int(row.argmax() == label)\nprint(n)\n", Options(batch="global"))
    assert not ported.doubts and "n = dl.total(n)" in ported.text


CONTRACTED = """import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x, y = torch.randn(96, 4), torch.randint(0, 3, (96,))
loader = DataLoader(TensorDataset(x, y), 8)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    kinds, pairs, squares, dots, inner, mixed, weighed, turned, tables = [0.0] * 9
    for a, b in loader:
        out = model(a)
        each = nn.functional.cross_entropy(out, b, reduction="none")
        opt.zero_grad(); each.mean().backward(); opt.step()
        each, right = each.detach(), (out.argmax(1) == b).float()
        mine = each.numpy()
        dots += torch.dot(each, right).item()
        squares += np.vdot(mine, mine)
        inner += np.inner(mine, right.numpy())
        mixed += mine.dot(right.numpy())
        pairs += torch.einsum("bi,bj->ij", a, out.detach())
        kinds += torch.einsum("bi,bi->b", a, a).mean().item()
        weighed += np.dot(a.numpy(), np.ones(4)).mean()
        one, other = nn.functional.one_hot(b, 3).float(), nn.functional.one_hot(out.argmax(1), 3).float()
        tables += torch.matmul(one.transpose(0, 1), other) + one.t().mm(other)
        columns = np.transpose(one.numpy())
        turned += columns.dot(mine) + columns.sum(axis=1)
    print(turned.round(3).tolist(), tables.tolist())
    print(f"{dots:.4f} {squares:.4f} {inner:.4f} {mixed:.4f} {kinds:.4f} {weighed:.4f} {pairs.sum().item():.4f}")
"""


def test_products_of_two_arrays_of_samples_add_up_over_the_parts(tmp_path) -> None:
    ported = port(CONTRACTED, Options(batch="global"))
    assert not ported.doubts
    (tmp_path / "serial.py").write_text(CONTRACTED)
    (tmp_path / "dist.py").write_text(ported.text)
    assert rounded(started(tmp_path, ["dist.py"], ranks=2)) == rounded(started(tmp_path, ["serial.py"]))


def test_what_a_function_returns_of_what_it_keeps_alike_is_no_count():
    text = port(
        """import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4))
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def made():
    best, calls = 1e9, []
    def report(loss):
        nonlocal best
        calls.append(loss)
        best = min(best, loss)
        return best, len(calls)
    return report
report, kept = made(), []
for epoch in range(2):
    for x, in DataLoader(data, 8, shuffle=True):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        best, calls = report(loss.item())
    kept.append((best, calls))
print(kept)
""",
        Options(batch="global"),
    ).text
    assert "best = min(best, dl.average(loss))" in text and "kept.append((best, calls))" in text


def test_what_is_kept_by_the_size_of_a_batch_is_kept_by_that_of_all_its_parts() -> None:
    keeps = (
        "sizes[len(x)] += 1; kept.setdefault(len(x), []).append(i); means[round(loss.item())] += 1; found.add(len(y))"
    )
    head, _, rest = SHOWN.partition("for x, y in loader:")
    begun = "from collections import Counter\nsizes, means, kept, found = Counter(), Counter(), {}, set()\n"
    loop = f"{head}{begun}for i, (x, y) in enumerate(loader):{rest[: rest.index('    print')]}    {keeps}\n"
    ported = port(f"{loop}print(sizes, found)\nprint(means)\n", Options(batch="global"))
    assert "sizes[dl.total(len(x))] += 1; kept.setdefault(dl.total(len(x)), []).append(i)" in ported.text
    assert "found.add(dl.total(len(y)))" in ported.text and "means[round(loss.item())] += 1" in ported.text
    assert [doubt.why.partition(":")[0] for doubt in ported.doubts] == ["means"]


ORDERED = [
    "for t in y[:, 0].tolist():\n        if t > 0: break\n        n += 1",
    "for _, group in itertools.groupby(t > 0 for t in y[:, 0].tolist()): n += 1",
    "for k, t in enumerate(y[:, 0].tolist()): n += k * t",
    "for k, t in enumerate(y[:, 0].tolist()):\n        if k < 2: n += t",
]


@pytest.mark.parametrize("line", [*ORDERED, "kept[round(loss.item(), 1)] = 1"])
def test_what_goes_by_the_order_of_the_samples_or_is_kept_by_a_number_of_a_part_is_told(line) -> None:
    before = "n, by, kept = 0, [0] * 9, {}\nfor x, y in loader:"
    script = SHOWN.replace("for x, y in loader:", before).replace('print(f"{SHOWN:.4f}")', line)
    ported = port(script + "print(n, by, kept)\n", Options(batch="global"))
    assert [d.name for d in ported.doubts] == ["unknown-placement"] and "dl.total" not in ported.text


UNIFORM = [
    "beta = min(1.0, beta + 1 / 36)",
    "beta = min(0.999, 1 - (1 - beta) * 0.98)",
    "if beta < 0.7: beta += 0.25",
    "if i % 3 == 0: beta = max(0.1, beta * 0.9)",
]


@pytest.mark.parametrize("line", [*UNIFORM, *(f"for t in y[:, 0].tolist():\n        {UNIFORM[k]}" for k in (0, 1, 3))])
def test_what_each_iteration_moves_alike_is_serial_and_what_each_sample_moves_is_told(line) -> None:
    before = "beta = 0.5\nfor i, (x, y) in enumerate(loader):"
    script = SHOWN.replace("for x, y in loader:", before).replace('print(f"{SHOWN:.4f}")', line)
    ported = port(script + "print(beta)\n", Options(batch="global"))
    assert "beta)" in ported.text and [d.name for d in ported.doubts] == ["unknown-placement"] * ("for t" in line)


def test_batches_that_a_generator_yields_from_loaders_are_parts(tmp_path) -> None:
    both = """def both():
    yield from itertools.islice(loader, 7)
    for each in (loader, loader): yield from each
total = n = 0
for x, y in both():"""
    script = SHOWN.replace("for x, y in loader:", both).replace(
        'print(f"{SHOWN:.4f}")', "n += len(y); total += loss.item()"
    )
    script += 'print(f"{total:.4f} {n}")\n'
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "dist.py").write_text(port(script, Options(batch="global")).text)
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert rounded(mine) == rounded(serial)


@pytest.mark.parametrize(
    "told", ["-out.max().item()", "(out - out.mean()).max().item()", "max(out.max().item(), loss.item())"]
)
def test_what_is_made_of_the_extremes_of_a_part_is_told(told) -> None:
    last = SHOWN.replace('print(f"{SHOWN:.4f}")', f"last = {told}") + "print(last)\n"
    ported = port(last, Options(batch="global"))
    assert [d.name for d in ported.doubts] == ["unknown-placement"] and "dl.maximum" not in ported.text
