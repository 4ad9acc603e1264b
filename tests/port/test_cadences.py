"""What all ranks evaluate alike every so many steps is kept, counted and decided by as in the serial script."""

import pytest
from running import started

from dlrun.errors import DlrunError
from dlrun.port import Options, port

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
START = "for x, y in train:\n"
UPDATES = f"""{START}    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
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

best, bad, ups, last, step, curve, plain, rows, steps = float("inf"), 0, 0, 9.0, 0, [], [], [], []
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
            steps.append({"epoch": epoch, "step": step})
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
    print(epoch, bad, ups, len(curve), curve[-1], [round(v, 4) for v in plain], rows, steps)
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


WINDOW = (
    HEAD.replace(", shuffle=True", "")
    + """
for epoch in range(2):
    window, seen = [], 0
    for i, (x, y) in enumerate(train):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        window.append(loss.item())
        if i % 6 == 5:
            print(f"{sum(window) / len(window):.4f} {max(window):.4f} {min(window):.4f} {len(window)}")
            window = []
"""
)


def test_a_window_that_is_a_new_list_each_time_is_that_of_all_ranks(tmp_path) -> None:
    (tmp_path / "train.py").write_text(WINDOW)
    ported = port(WINDOW)
    (tmp_path / "dist.py").write_text(ported.text)
    serial = started(tmp_path, ["train.py"])
    assert serial.count("\n") == 4 and not [d for d in ported.doubts if d.danger != "low"]
    assert [started(tmp_path, ["dist.py"], n) for n in (2, 3)] == [serial, serial]
    kept = port(WINDOW, Options(batch="global"))
    assert "max(window)" in [d.why.partition(":")[0] for d in kept.doubts if d.name == "unknown-placement"]


DRAWN = (
    HEAD.replace(", shuffle=True", "")
    + """
def results(net, loader):
    for x, y in loader:
        out = net(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield loss.item(), (out.argmax(1) == y).sum().item(), len(y)

for epoch in range(2):
    losses, hits, sizes = zip(*results(net, train))
    print(f"{sum(losses) / len(losses):.4f} {max(losses):.4f} {sum(hits)}/{sum(sizes)}")
"""
)


def test_columns_of_what_a_training_generator_yields_are_those_of_all_ranks(tmp_path) -> None:
    (tmp_path / "train.py").write_text(DRAWN)
    ported = port(DRAWN)
    (tmp_path / "dist.py").write_text(ported.text)
    serial = started(tmp_path, ["train.py"])
    assert serial.count("/48\n") == 2 and not [d for d in ported.doubts if d.danger != "low"]
    assert started(tmp_path, ["dist.py"], 2) == serial


def test_what_takes_all_that_a_training_generator_yields_and_is_no_loop_is_told() -> None:
    taken = DRAWN.replace(
        "    losses, hits", "    best = max(results(net, train)) if epoch else 0\n    print(best)\n    losses, hits"
    )
    told = [d.why.partition(":")[0] for d in port(taken).doubts if d.name == "unknown-placement"]
    assert told == ["best"]


SMOOTHED = (
    HEAD.replace(", shuffle=True", "")
    + """
mean, step = 0.0, 0
for x, y in train:
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    mean = 0.9 * mean + 0.1 * loss.item()
    if step % 6 == 0:
        print(f"{mean / (1 - 0.9 ** step):.4f}")
"""
)


def test_a_moving_average_that_forgets_as_serially_is_corrected_for_as_many_serial_steps() -> None:
    text = port(SMOOTHED).text
    assert "mean = dl.compound(0.9) * mean + (1 - dl.compound(0.9)) * loss.item()" in text
    assert 'print(f"{dl.average(mean / (1 - 0.9 ** dl.serial_steps(step))):.4f}")' in text


PASSES = (
    HEAD
    + """
step, epoch, batches, kept = 0, 0, iter(train), []
while step < 24:
    try:
        x, y = next(batches)
    except StopIteration:
        kept.append((epoch, step))
        epoch += 1
        batches = iter(train)
        x, y = next(batches)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 12 == 0:
        print(step, epoch)
print(step, epoch, kept)
"""
)


def test_passes_over_the_data_are_as_many_as_those_of_the_serial_script(tmp_path) -> None:
    (tmp_path / "train.py").write_text(PASSES)
    (tmp_path / "dist.py").write_text(port(PASSES).text)
    serial = started(tmp_path, ["train.py"])
    assert serial == "12 0\n24 1\n24 1 [(0, 12)]\n" and started(tmp_path, ["dist.py"], 2) == serial


def test_batches_that_a_generator_yields_are_not_divided() -> None:
    script = HEAD + "def batches():\n    for at in torch.randperm(48).split(4):\n        yield X[at], Y[at]\n"
    script += "for x, y in batches():\n    F.cross_entropy(net(x), y).backward()\n    opt.step()\n"
    with pytest.raises(DlrunError, match="here they are drawn by the script itself"):
        port(script, Options(batch="global"))
    assert "dl.shard(" in port(script).text


FORMS = (
    HEAD
    + """
import math

def evaluate():
    net.eval()
    with torch.no_grad():
        hits = sum((net(x).argmax(1) == y).sum().item() for x, y in held)
    net.train()
    return hits

def is_due(now, every):
    return not now % every

every, step, kept, last, after, marks = 12, 0, [], 0, 12, [6, 24, 48]
for epoch in range(5):
    for x, y in train:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        step += 1
        FORM
print(len(kept), kept)
"""
)
SHOWN = "kept.append(evaluate()); print(step, kept[-1])"


@pytest.mark.parametrize(
    "form",
    [
        f"if divmod(step, every)[1] == 0: {SHOWN}",
        f"whole, rest = divmod(step, every)\n        if not rest: {SHOWN}; print(whole)",
        f"if math.fmod(step, every) == 0: {SHOWN}",
        f"if step >= after: after += every; {SHOWN}",
        f"if step - last >= every: last = step; {SHOWN}",
        f"if every <= step - last: last = step; {SHOWN}",
        f"if step // every > last: last = step // every; {SHOWN}",
        f"if step in (6, 24, 48): {SHOWN}",
        f"if step in {{6, 24, 48}}: {SHOWN}",
        f"if step in marks: {SHOWN}",
        f"due = step % every == 0 and step > 12\n        if due: {SHOWN}",
        f"if (due := step % every == 0): {SHOWN}",
        "kept.append(evaluate()) if step % every == 0 else None",
        "step % every == 0 and print(step, evaluate())",
        f"if is_due(step, every): {SHOWN}",
        f"while step % every == 0:\n            {SHOWN}\n            break",
        f"match step % every:\n            case 0: {SHOWN}",
        f"if step % every: continue\n        {SHOWN}",
        f"if step % every == 0: pass\n        else: continue\n        {SHOWN}",
        f"if any(step % each == 0 for each in (18, 24)): {SHOWN}",
        f"if step == 30 and epoch > 1: {SHOWN}",
    ],
)
def test_a_cadence_is_one_in_whichever_form_it_is_asked(tmp_path, form: str) -> None:
    script = FORMS.replace("FORM", form)
    (tmp_path / "train.py").write_text(script)
    ported = port(script)
    (tmp_path / "dist.py").write_text(ported.text)
    serial = started(tmp_path, ["train.py"])
    assert not serial.startswith("0 ") and not [d for d in ported.doubts if d.danger != "low"]
    assert [started(tmp_path, ["dist.py"], n) for n in (2, 3)] == [serial, serial]


@pytest.mark.parametrize("test", ["step & 15 == 0", "str(step).endswith('0')", "math.sqrt(step).is_integer()"])
def test_a_test_that_is_computed_from_local_iterations_otherwise_is_told(test: str) -> None:
    ported = port(FORMS.replace("FORM", f"if {test}: {SHOWN}"))
    assert f"    if {test}: " in ported.text
    told = [d.why for d in ported.doubts if d.name == "unknown-placement"]
    assert [why.startswith(f"{test}: every so many iterations of a rank") for why in told] == [True]


@pytest.mark.parametrize("body", ["opt.step()", "loss = loss + 0.1 * net.weight.pow(2).sum()"])
def test_a_cadence_of_updates_and_of_parts_of_a_loss_is_that_of_each_rank(body: str) -> None:
    source = FORMS.replace("        F.cross_entropy(net(x), y).backward()\n        opt.step()\n        step += 1\n", "")
    loop = (
        f"step += 1\n        loss = F.cross_entropy(net(x), y)\n        if step % 4 == 0:\n            {body}\n        "
    )
    text = port(source.replace("FORM", f"{loop}loss.backward()\n        opt.step()")).text
    assert "if step % 4 == 0:" in text


def test_a_loss_that_is_only_shown_at_a_cadence_is_no_part_of_an_update() -> None:
    shown = (
        "if step % every == 0:\n            loss = F.cross_entropy(net(XV), YV)\n            print(step, loss.item())"
    )
    source = FORMS.replace(
        "F.cross_entropy(net(x), y).backward()", "loss = F.cross_entropy(net(x), y); loss.backward()"
    )
    assert "if step % dl.steps(every) == 0:" in port(source.replace("FORM", shown)).text


def test_a_flag_that_stays_and_a_function_that_asks_itself_are_followed() -> None:
    begun = FORMS.replace("every, step, kept", "late, every, step, kept").replace(
        "= 12, 0, [], 0", "= False, 12, 0, [], 0"
    )
    text = port(begun.replace("FORM", "late = late or step >= 40\n        if late: print(step)")).text
    assert "late = late or step >= dl.steps(40)" in text
    asks = FORMS.replace(
        "return not now % every", "return now % every == 0 or (now > every and is_due(now // every, every))"
    )
    assert "if is_due(step, every):" in port(asks.replace("FORM", f"if is_due(step, every): {SHOWN}")).text


def test_what_is_kept_under_a_step_at_a_cadence_is_read_by_it_and_decides_on_all_ranks(tmp_path) -> None:
    form = "if step >= after:\n            marks[step] = evaluate()\n            after += every\n"
    form += (
        "            if marks[step] > last:\n                last = marks[step]\n                print('best', step)\n"
    )
    form += "                torch.save(net.state_dict(), 'best.pt')"
    script = FORMS.replace("[6, 24, 48]", "{}").replace("FORM", form) + "print(marks, last)\n"
    (tmp_path / "train.py").write_text(script)
    ported = port(script)
    (tmp_path / "dist.py").write_text(ported.text)
    assert not [d for d in ported.doubts if d.danger != "low"]
    serial = started(tmp_path, ["train.py"])
    assert serial.startswith("best 12\n") and serial.count("12") > 5
    assert [started(tmp_path, ["dist.py"], n) for n in (2, 3)] == [serial, serial]


def test_batches_that_are_left_out_by_their_number_are_told_and_those_in_front_of_one_are_divided() -> None:
    start, loop = "step = 0\nfor i, (x, y) in enumerate(train):\n", HEAD + UPDATES
    for test in ("i % 5 == 2: continue", "i % 2: continue", "i == 0: continue"):
        (doubt,) = port(loop.replace(START, f"{start}    if {test}\n")).doubts
        assert doubt.name == "counts-steps" and "which batches are trained on goes by i" in doubt.why
    ported = port(loop.replace(START, f"{start}    if i < 6: continue\n"))
    assert "if i < dl.steps(6): continue" in ported.text and not ported.doubts
    accumulated = loop.replace(START, start).replace("    opt.step()", "    if (i + 1) % 2 == 0: opt.step()")
    assert not [d for d in port(accumulated).doubts if "trained on goes by" in d.why]


@pytest.mark.parametrize("also", ["", "; print(i)"])
@pytest.mark.parametrize("shown", ["odd", "even, odd", "odd / 2"])
def test_what_iterations_between_those_of_a_cadence_add_up_is_told(shown, also) -> None:
    """Where they do nothing but to add up, each adds to what its serial number says."""
    script = f"""import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
loader = DataLoader(data, batch_size=8)
opt = torch.optim.SGD(model.parameters(), 0.1)
even = odd = 0.0
for i, (x, y) in enumerate(loader):
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    opt.step()
    if i % 2 == 0:
        even += loss.item()
    else:
        odd += loss.item(){also}
print({shown})
"""
    if not also:
        ported = port(script)
        assert "if dl.serial_iteration(i) % 2 == 0:" in ported.text and not ported.doubts
        return
    doubts = [d for d in port(script).doubts if d.danger != "low"]
    assert [d.name for d in doubts] == ["unknown-placement"] and "between those of a cadence" in doubts[0].why


def test_what_picks_the_next_of_some_batches_counts_no_steps() -> None:
    source = """
import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.rand(64, 8)
target = DataLoader(TensorDataset(x[:24]), 4)
net = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(3):
    at, beside = 0, list(target)
    for a, b in DataLoader(TensorDataset(x, x.sum(1)), 4):
        (c,) = beside[at]
        loss = ((net(a)[:, 0] - b) ** 2).mean() + net(c).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        at += 1
        if at >= len(beside):
            at = 0
"""
    ported = port(source)
    assert "        if at >= len(beside):" in ported.text  # a rank that came to 1/n of them would never take the others
    assert [d.name for d in ported.doubts] == ["same-samples"]


def test_a_cadence_of_a_loop_that_also_evaluates_all_batches_is_told() -> None:
    source = """
import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.rand(64, 8)
data = {name: DataLoader(TensorDataset(x, x.sum(1)), 4) for name in ("train", "valid")}
net = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
def run(loader, trains):
    for i, (a, b) in enumerate(loader):
        loss = ((net(a)[:, 0] - b) ** 2).mean()
        if trains:
            opt.zero_grad(); loss.backward(); opt.step()
        if i % 4 == 0:
            print(i, loss.item())
for epoch in range(2):
    run(data["train"], True)
    CALL
"""
    (told,) = port(source.replace("CALL", "run(data['valid'], False)")).doubts
    assert "where this loop evaluates all batches, it is divided as well" in told.why
    assert not port(source.replace("CALL", "pass")).doubts
