"""The steps so far are the steps so far by whatever name, and in whatever object, the script keeps their count."""

import zipfile

import pytest
from running import started

from dlrun.port import port

HEAD = """import itertools
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), 8, shuffle=True)
last, warm = 40, 10
"""
# What trains for an epoch: {count} is where it counts, {opening} and {closing} what it takes and gives.
EPOCH = """def train({takes}):
    {opening}
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        {count} += 1
        if {count} < warm:
            opt.param_groups[0]["lr"] = 0.1 * {count} / warm
        if {count} % 20 == 0:
            torch.save(model.state_dict(), "net.pt")
        if {count} == last:
            break
    {closing}
"""
EPOCHS = """{begin}
for epoch in itertools.count():
    {call}
    if {count} == last:
        break
"""


def indented(text):
    return "".join(f"    {line}" for line in text.splitlines(keepends=True))


def written(count, begin, takes="", opening="pass", closing="pass", call="train()", around="", name=""):
    epoch = EPOCH.format(count=name or count, takes=takes, opening=opening, closing=closing)
    epochs = EPOCHS.format(count=count, begin=begin, call=call)
    if around:
        begin, epochs = epochs.split("\n", 1)
        return HEAD + around + indented(f"{begin}\n{epoch}{epochs}") + "main()\n"
    return HEAD + epoch + epochs


@pytest.mark.parametrize(
    "source",
    [
        written("step", "step = 0", opening="global step"),
        written("step", "step = 0", opening="nonlocal step", around="def main():\n"),
        written("step", "step = 0", "step", closing="return step", call="step = train(step)"),
        written(
            "done",
            "done, best = 0, None",
            "step, best",
            closing="return best, step",
            name="step",
            call="best, done = train(done, best)",
        ),
        written("state['step']", "state = {'step': 0}", "s", name="s['step']", call="train(state)"),
        written(
            "now.step", "import types\nnow = types.SimpleNamespace(step=0)", "at", name="at.step", call="train(now)"
        ),
        written("now.step", "class State:\n    step = 0\nnow = State()", "at", name="at.step", call="train(now)"),
    ],
    ids=["global", "nonlocal", "returned", "returned by another name", "dict", "namespace", "object"],
)
def test_a_count_of_steps_is_one_count_in_the_loop_over_batches_and_in_that_over_epochs(source):
    text = port(source).text
    assert text.count("== dl.steps(last):") == 2
    assert text.count("% dl.steps(20) == 0:") == 1
    assert text.count("< dl.steps(warm):") == text.count("/ dl.steps(warm))") == 1


def test_of_what_a_function_returns_only_what_ranks_compute_for_themselves_is_averaged():
    epoch = EPOCH.format(takes="step", opening="total = 0.0", count="step", closing="return step, total / len(loader)")
    epoch = epoch.replace("        step += 1\n", "        step += 1\n        total += loss.item()\n")
    epochs = EPOCHS.format(begin="step = 0", call="step, mean = train(step)", count="step")
    text = port(HEAD + epoch + epochs + "    if mean < 0.1:\n        break\n").text
    assert "    if step == dl.steps(last):\n" in text
    assert "    total = dl.total(total)  # sums over all ranks' samples\n" in text
    assert "    return step, total / dl.serial_steps(len(loader))\n" in text
    assert "\n    if mean < 0.1:\n" in text
    assert "average(step)" not in text


AVERAGED = """from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
mean, annealed = AveragedModel(model), SWALR(opt, swa_lr=0.02, anneal_epochs=3)
restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=2)
size = len(loader)
for epoch in range(6):
    for i, (x, y) in enumerate(loader):
        (model(x) - y).pow(2).mean().backward()
        opt.step()
        restarts.step(epoch + i / size)
    mean.update_parameters(model)
    annealed.step()
update_bn(loader, mean)
"""


def test_a_part_of_an_epoch_is_one_of_the_ranks_batches_though_the_loader_stays_whole_for_others():
    text = port(HEAD + AVERAGED).text
    assert "T_0=2)" in text
    assert "swa_lr=dl.lr_scale(0.02), anneal_epochs=3)" in text
    assert "size = len(dl.shard(loader))" in text and "restarts.step(epoch + i / size)" in text
    elsewhere = port(HEAD + AVERAGED + "print(size)\n").text  # all batches: there the part is of all
    assert "T_0=2)" in elsewhere
    assert "size = len(loader)" in elsewhere and "restarts.step(epoch + dl.serial_steps(i) / size)" in elsewhere


def test_a_text_with_a_count_in_it_is_kept_in_a_row_as_it_is():
    source = """import os
import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32, 4)), 8, shuffle=True)
model, kept, step = torch.nn.Linear(4, 1), [], 0
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        opt.zero_grad()
        model(x).pow(2).mean().backward()
        opt.step()
        step += 1
    path = os.path.join("out", f"{step}.pt")
    torch.save(model, path)
    kept.append((epoch, path, step))
print(kept)
"""
    text = port(source).text
    assert "kept.append((epoch, path, dl.serial_steps(step)))" in text
    assert 'path = os.path.join("out", f"{dl.serial_steps(step)}.pt")' in text


HANDED = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 1)), 8)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
def report(tag, at, **shown):
    print(tag, at, ", ".join(f"{k}={v}" for k, v in shown.items()))
class Log:
    def __init__(self, path): self.file = open(path, "w")
    def add(self, tag, at): self.file.write(f"{tag},{at}\\\\n"); self.file.flush()
log, step = Log("log.csv"), 0
for epoch in range(2):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        step += 1
        if step % 6 == 0:
            report("step", step)
            log.add("step", step)
    report("epoch", epoch + 1, step=step)
    log.add("epoch", epoch + 1)
log.add("end", step)
print(open("log.csv").read())
"""


def test_a_function_that_shows_a_count_of_steps_shows_a_number_of_epochs_as_it_is(tmp_path) -> None:
    (tmp_path / "train.py").write_text(HANDED)
    ported = port(HANDED)
    (tmp_path / "dist.py").write_text(ported.text)
    assert not ported.doubts
    shown = [started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)]
    assert shown[0] == shown[1] and "epoch,2" in shown[0]


FROM_ONE = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 1)), 8)
def forever():
    while True:
        yield from loader
batches = forever()
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
N, done = 36, 0
for step in range(1, N + 1):
    x, y = next(batches)
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    done += 1
    if step % 12 == 0:
        print("step", step)
print("first", step, done, step / N)
for x, y in loader:
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    done += 1
print("both", done)
"""


def test_steps_that_are_counted_from_one_and_over_two_loops_are_the_serial_ones_behind_them(tmp_path) -> None:
    (tmp_path / "train.py").write_text(FROM_ONE)
    ported = port(FROM_ONE)
    (tmp_path / "dist.py").write_text(ported.text)
    shown = [started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)]
    assert shown[0] == shown[1] and "first 36 36 1.0\nboth 48" in shown[0] and not ported.doubts


LAST_OF_SIX = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 1)), 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if i % 6 == 5:
            print(f"[{epoch}, {i + 1}] {i * len(x)}/{len(loader.dataset)} ({100.0 * i / len(loader):.1f}%)")
            print(len(x) * (i + 1))
"""


def test_samples_and_percent_so_far_at_the_last_of_so_many_steps_are_the_serial_ones(tmp_path) -> None:
    (tmp_path / "train.py").write_text(LAST_OF_SIX)
    ported = port(LAST_OF_SIX)
    (tmp_path / "dist.py").write_text(ported.text)
    shown = [started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=3)]
    assert shown[0] == shown[1] and "[1, 12] 44/96 (45.8%)\n48" in shown[0] and not ported.doubts


STEP = """import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Pairs(Dataset):
    def __init__(self):
        self.x, self.y, self.served = torch.ones(96, 3), torch.ones(96, 1), 0
    def __len__(self): return len(self.x)
    def __getitem__(self, i):
        self.served += 1
        return self.x[i], self.y[i]
pairs = Pairs()
loader = DataLoader(pairs, 8)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), 0.0)
def step(x, y):
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    return loss.item()
"""
FROM_TWO = """batches = iter(loader)
losses = []
for t in range(2, 8):
    x, y = next(batches)
    losses.append(step(x, y))
    if t % 2 == 0:
        print(t)
print(t, len(losses))
"""
BY_ITSELF = """def every(k):
    count = 0
    def due():
        nonlocal count
        count += 1
        return count % k == 0
    return due
due = every(4)
for x, y in loader:
    step(x, y)
    if due():
        print("due")
"""
EARLY = """for i, (x, y) in enumerate(loader):
    if i >= 6:
        break
    step(x, y)
print(i)
"""
SERVED = "for x, y in loader:\n    step(x, y)\nprint(pairs.served)\n"


def test_a_range_of_steps_that_starts_late_is_divided_at_both_ends(tmp_path) -> None:
    (tmp_path / "train.py").write_text(STEP + FROM_TWO)
    (tmp_path / "dist.py").write_text(port(STEP + FROM_TWO).text)
    assert started(tmp_path, ["dist.py"], ranks=2) == started(tmp_path, ["train.py"])


@pytest.mark.parametrize(("loop", "told"), [(EARLY, "i"), (SERVED, "pairs.served")])
def test_counts_that_no_line_makes_those_of_the_serial_script_are_told(loop, told) -> None:
    doubts = [d for d in port(STEP + loop).doubts if d.name == "unknown-placement"]
    assert [d.why.partition(":")[0] for d in doubts] == [told]
    late = EARLY.replace("    if i >= 6:\n        break\n", "").replace(
        "    step(x, y)", "    step(x, y)\n    if i == 5: break"
    )
    assert not port(STEP + late).doubts and "print(dl.serial_steps(i + 1) - 1)" in port(STEP + late).text


def test_a_function_that_counts_its_calls_is_due_as_often_as_in_the_serial_script(tmp_path) -> None:
    (tmp_path / "train.py").write_text(STEP + BY_ITSELF)
    ported = port(STEP + BY_ITSELF)
    (tmp_path / "dist.py").write_text(ported.text)
    assert not ported.doubts and "return count % dl.steps(k) == 0" in ported.text
    assert started(tmp_path, ["dist.py"], ranks=2) == started(tmp_path, ["train.py"]) == "due\n" * 3


def test_each_unknown_number_of_a_line_is_told() -> None:
    first = "mean, kept = 0.0, torch.zeros(len(loader))\nfor i, (x, y) in enumerate(loader):\n    loss = step(x, y)\n"
    first += '    mean = (mean * i + loss) / (i + 1)\n    kept[i] = loss\nprint(f"{mean:.4f} {kept.sum():.4f}")\n'
    doubts = [d for d in port(STEP + first).doubts if d.name == "unknown-placement"]
    assert [d.why.partition(":")[0] for d in doubts] == ["mean", "kept.sum()"]


PASSED_ON = """def batches(k):
    for _ in range(k):
        yield from loader
for i, (x, y) in enumerate(batches(2), 1):
    step(x, y)
for j, (x, y) in zip(range(1, 100), loader):
    step(x, y)
print(i, j)
"""


def test_iterations_are_counted_from_one_through_generators_and_beside_a_range(tmp_path) -> None:
    (tmp_path / "train.py").write_text(STEP + PASSED_ON)
    ported = port(STEP + PASSED_ON)
    (tmp_path / "dist.py").write_text(ported.text)
    assert not ported.doubts
    assert started(tmp_path, ["dist.py"], ranks=2) == started(tmp_path, ["train.py"])


@pytest.mark.parametrize(
    "head",
    [
        "for i, (x, y) in enumerate(loader, 5):\n    s = i\n",
        "for i, (x, y) in zip(itertools.count(5), loader):\n    s = i\n",
        "s, weights = 0.0, [0.1 * k for k in range(len(X) // 8)]\nfor w, (x, y) in zip(weights, loader):\n    s += w\n",
        "for s, (x, y) in zip('abcdefgh', loader):\n    pass\n",
    ],
)
def test_what_stands_beside_other_batches_on_ranks_is_told(head) -> None:
    source = f"import itertools\n{STEP}X = torch.zeros(64)\n{head}    step(x, y)\nprint(s)\n"
    assert [d.name for d in port(source).doubts] == ["unknown-placement"]


@pytest.mark.parametrize(
    "loop",
    [
        "it, n = iter(loader), 0\nwhile (b := next(it, None)) is not None:\n    step(*b)\n    n += len(b[0])\n",
        "it, n = iter(loader), 0\nfor x, y in iter(lambda: next(it, None), None):\n    step(x, y)\n    n += len(x)\n",
        "n = 0\nfor i, (x, y) in enumerate(map(lambda b: b, loader)):\n    step(x, y)\n    n += len(x)\n",
    ],
)
def test_batches_that_a_test_or_a_function_draws_are_this_ranks(tmp_path, loop) -> None:
    source = f"{STEP}{loop}print(n)\n"
    (tmp_path / "dist.py").write_text(port(source).text)
    assert started(tmp_path, ["dist.py"], ranks=2) == "96\n"


FLAGGED = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def endless(loader):
    while True:
        yield from loader
batches = endless(DataLoader(data, batch_size=8, shuffle=True))
step, done, seen = 0, False, 0
while not done:
    x, y = next(batches)
    (model(x) - y).pow(2).mean().backward()
    opt.step()
    step += 1
    done = step >= 1000
"""


@pytest.mark.parametrize(
    ("loop", "ends", "expected"),
    [
        ("while not done:", "done = step >= 1000", "done = step >= dl.steps(1000)"),
        ("while done is False:", "done = step > 999 or bad(step)", "done = step > dl.steps(999) or bad(step)"),
        ("while not done:", "seen = step >= 1000", "seen = step >= 1000"),
    ],
)
def test_a_count_that_ends_a_loop_by_way_of_a_name_is_divided(loop, ends, expected):
    source = FLAGGED.replace("while not done:", loop).replace("done = step >= 1000", ends)
    assert f"    {expected}\n" in port(source).text


def test_what_an_average_of_models_and_a_scheduler_count_is_the_serial_number(tmp_path) -> None:
    script = (
        HEAD
        + """swa = torch.optim.swa_utils.AveragedModel(model)
sched = torch.optim.lr_scheduler.StepLR(opt, 6, 0.5)
by_epoch = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
for epoch in range(2):
    for x, y in loader:
        (model(x) - y).pow(2).mean().backward()
        opt.step()
        sched.step()
        swa.update_parameters(model)
    by_epoch.step()
    print(epoch, int(swa.n_averaged), swa.n_averaged.item(), sched.last_epoch, by_epoch.last_epoch)
"""
    )
    (tmp_path / "serial.py").write_text(script)
    (tmp_path / "ported.py").write_text(port(script).text)
    assert started(tmp_path, ["ported.py"], 2) == started(tmp_path, ["serial.py"]) == "0 8 8 8 1\n1 16 16 16 2\n"


@pytest.mark.parametrize("rate", ["rates[step]", "rate_at(step)"])
def test_a_rate_picked_by_the_step_does_not_divide_steps_that_a_sharded_loader_has_divided(tmp_path, rate) -> None:
    script = (
        HEAD
        + f"""rates = [0.1 / (1 + t) for t in range(3 * len(loader))]
def rate_at(t):
    return rates[t]
batches = iter(loader)
for step in range(3 * len(loader)):
    for group in opt.param_groups:
        group["lr"] = {rate}
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    (model(x) - y).pow(2).mean().backward()
    opt.step()
    if (step + 1) % len(loader) == 0:
        print("epoch", (step + 1) // len(loader))
"""
    )
    (tmp_path / "serial.py").write_text(script)
    (tmp_path / "ported.py").write_text(port(script).text)
    assert started(tmp_path, ["ported.py"], 2) == started(tmp_path, ["serial.py"]) == "epoch 1\nepoch 2\nepoch 3\n"


PAIRED = """other = DataLoader(torch.utils.data.TensorDataset(torch.randn(48, 4), torch.randn(48, 1)), 8, shuffle=True)
opt.param_groups[0]["lr"] = 0.0
def test(loader):
    i, seen, total, batches = 0, 0, 0.0, iter(loader)
    while i < len(loader):
        x, y = next(batches)
        total += y.sum().item()
        seen += len(y)
        i += 1
    return total / seen
for epoch in range(2):
    n = min(len(loader), len(other))
    one, two = iter(loader), iter(other)
    for i in range(n):
        alpha = 2 / (1 + torch.exp(torch.tensor(-float(i + epoch * n) / 2 / n))) - 1
        (x, y), (z, _) = next(one), next(two)
        loss = (model(x) - y).pow(2).mean() + alpha * model(z).mean()
        loss.backward()
        opt.step()
    print(f"{epoch} {n} {test(other):.4f}")
"""


def test_lengths_of_loaders_stay_local_where_a_share_of_the_run_weighs_a_loss_and_where_a_loop_counts_up(tmp_path):
    (tmp_path / "serial.py").write_text(HEAD.replace("model =", "torch.manual_seed(0)\nmodel =") + PAIRED)
    (tmp_path / "ported.py").write_text(port((tmp_path / "serial.py").read_text()).text)
    assert started(tmp_path, ["ported.py"], 2) == started(tmp_path, ["serial.py"])


LAST = """def train():
    total = extra = 0
    for i, (x, y) in enumerate(loader):
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / i, extra / i, 5 / i, 3 * i
opt.param_groups[0]["lr"] = 0.0
mean, none, part, times = train()
print(f"{mean:.4f} {none}")
"""


def test_a_sum_over_the_number_of_the_last_iteration_is_over_the_serial_number(tmp_path) -> None:
    script = HEAD.replace("model =", "torch.manual_seed(0)\nmodel =") + LAST
    (tmp_path / "serial.py").write_text(script)
    (tmp_path / "ported.py").write_text(port(script).text)
    assert started(tmp_path, ["ported.py"], 2) == started(tmp_path, ["serial.py"])
    told = [d.why.partition(":")[0] for d in port(script + "print(part, times)\n").doubts if d.danger == "medium"]
    assert told == ["part", "times"]


WRITTEN = """import json, os, pathlib, zipfile
import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 1)), 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
here, steps, rows = pathlib.Path("."), 0, []
numbers, table = [], {"steps": []}
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad(); (model(x) - y).pow(2).mean().backward(); opt.step()
        steps += 1
    numbers.append(steps)
    table["steps"].append(steps)
    rows.append({"steps": steps, **{"epoch": epoch}})
(here / "text").write_text(json.dumps({"steps": steps}))
(here / "bytes").write_bytes(str(steps).encode())
os.system(f"echo {steps} > echoed")
with zipfile.ZipFile("packed", "w") as packed:
    packed.writestr("steps", f"{steps}")
with open("yaml", "w") as file:
    yaml.safe_dump({"steps": steps}, file)
    json.dump([numbers, table, rows], file)
"""


def test_counts_are_the_serial_ones_in_whatever_is_written_and_kept_over_the_epochs(tmp_path) -> None:
    ported = port(WRITTEN)
    found = []
    for ranks, text in ((1, WRITTEN), (2, ported.text)):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        (folder / "train.py").write_text(text)
        started(folder, ["train.py"], ranks=ranks)
        with zipfile.ZipFile(folder / "packed") as packed:
            found.append(
                [packed.read("steps"), *((folder / n).read_bytes() for n in ("text", "bytes", "echoed", "yaml"))]
            )
    assert found[0] == found[1] and found[0][0] == b"48" and not ported.doubts


def test_counts_in_a_table_are_made_serial_or_told_where_it_is_written() -> None:
    begun = WRITTEN[: WRITTEN.index("(here")].replace("import yaml", "import pandas as pd")
    ported = port(f"""{begun}pd.DataFrame([{{"steps": steps}}]).to_csv("a.csv")
made = pd.DataFrame({{"steps": [steps]}})
made.to_csv("b.csv")
""")
    assert 'pd.DataFrame([{"steps": dl.serial_steps(steps)}]).to_csv' in ported.text
    assert [doubt.why.partition(":")[0] for doubt in ported.doubts] == ["made"]


@pytest.mark.parametrize(
    ("lines", "serial", "told"),
    [
        ('row = {"steps": steps, "epoch": epoch}\n    rows.append(row)', True, []),
        ('row = {"steps": steps, **{"epoch": epoch}}\n    rows.append(row)\n    print(row)', True, []),
        ('row = {"steps": steps, "epoch": epoch}\n    print(row)\n    rows.append(row)', True, []),
        ('for k, v in {"steps": steps, "epoch": epoch}.items():\n        print(k, v)', False, []),
        ("for v in (steps, epoch):\n        print(v)", False, []),
    ],
)
def test_a_row_that_has_a_name_is_serial_where_it_is_kept_and_counts_beside_other_numbers_are_told(
    lines: str, serial: bool, told: list[str]
) -> None:
    begun = WRITTEN[: WRITTEN.index("    numbers.append")]
    ported = port(f"{begun}    {lines}\nprint(rows)\n")
    assert ('"steps": dl.serial_steps(steps)' in ported.text) is serial
    assert "dl.serial_steps(v)" not in ported.text
    assert [doubt.why.partition(":")[0] for doubt in ported.doubts] == told


BAR = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
loader, rest = DataLoader(data, 8), DataLoader(data, 12)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def bar(current, total):
    if current == total - 1:
        print("%d of %d" % (current + 1, total))
for i, (x, y) in enumerate(loader):
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    bar(i, len(loader))
for i, (x, y) in enumerate(rest):
    bar(i, len(rest))
"""


def test_a_bar_of_training_and_of_evaluation_is_not_scaled_in_half() -> None:
    ported = port(BAR)
    assert "% (current + 1, total)" in ported.text
    assert {d.why.split(":")[0] for d in ported.doubts} == {"current", "total"}
