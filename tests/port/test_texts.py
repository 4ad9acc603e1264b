"""What a function of the script's own prints or writes is shown as what print() shows: the numbers of all ranks."""

import pytest

from dlrun.port import port

HEAD = """import functools, math, sys
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(64, 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
"""
LOOP = """for epoch in range(3):
    total = 0.0
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        total += loss.item()
"""
OWN = 'def log(text, path=None):\n    print(text)\n    with open("log.txt", "a") as f:\n        f.write(text)\n'


LAST = "loss = dl.average(loss)"


@pytest.mark.parametrize(
    ("function", "line", "written"),
    [
        (OWN, 'log(f"{epoch} {total / len(data):.3f}")', "total = dl.total(total)"),
        (OWN, 'log("%d %.3f" % (epoch, loss.item()))', LAST),
        (OWN, 'line = f"{loss.item():.3f}"\n    log(line)', LAST),
        (OWN + "say = functools.partial(log, path='b')\n", 'say(f"{loss.item()}")', LAST),
        (OWN + "def note(what, step):\n    log(f'{step}: {what}')\n", 'note(f"{loss.item()}", epoch)', LAST),
    ],
    ids=["format", "percent", "name", "partial", "through another"],
)
def test_numbers_in_a_text_that_a_function_shows_are_those_of_all_ranks(function, line, written):
    text = port(HEAD + function + LOOP + f"    {line}\n").text
    assert f"    {written}  #" in text
    assert f"    {line}\n" in text


UPDATE = """def update(net, optimizer, x, y, clip):
    optimizer.zero_grad()
    loss = (net(x) - y).pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
    optimizer.step()
    return loss.item()
step = functools.partial(update, model, opt, clip=1.0)
for epoch in range(3):
    for x, y in loader:
        print(step(x, y))
"""


def test_an_update_whose_first_arguments_are_bound_before_is_followed():
    text = port(HEAD + UPDATE).text
    assert "loader = dl.shard(DataLoader(" in text
    assert "    dl.gradients(optimizer)  # mean over the ranks\n    torch.nn.utils.clip_grad_norm_(" in text
    assert "print(dl.average(step(x, y)))" in text


@pytest.mark.parametrize("end", ["sys.exit(1)", "exit()", "raise SystemExit"])
@pytest.mark.parametrize("test", ["np.isnan(total) == True", "not math.isfinite(total)"])
def test_all_ranks_end_the_program_where_one_computes_what_is_no_number(test, end):
    text = port(HEAD + LOOP + f"    if {test}:\n        {end}\n").text
    assert f"    total = dl.total(total)  # sums over all ranks' samples\n    if {test}:\n        {end}\n" in text


ROW = """import csv, json
import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(64, 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
out = open("log", "w")
table, step = csv.writer(out), 0
for x, y in loader:
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    opt.step()
    step += 1
    if step % 4 == 0:
        LINE
"""
STEP, MEAN = "dl.serial_steps(step)", "dl.average(loss.item())"


@pytest.mark.parametrize(
    ("line", "written"),
    [
        (r'out.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")', f'"step": {STEP}, "loss": {MEAN}'),
        (r"print(json.dumps(dict(step=step, loss=loss.item())))", f"step={STEP}, loss={MEAN}"),
        (r'out.write(" ".join([str(step), str(loss.item())]))', f"[str({STEP}), str({MEAN})]"),
        (r'out.write(str({"loss": loss.item()}) + "\n")', f'str({{"loss": {MEAN}}})'),
        (r'row = {"loss": loss.item()}; out.write(json.dumps(row) + "\n")', "json.dumps(dl.average(row))"),
        (r"row = (loss.item(), y.mean().item()); table.writerow(row)", "table.writerow(dl.average(row))"),
        (r"print([round(v, 3) for v in (loss.item(), y.mean().item())])", "[round(dl.average(v), 3) for v in"),
    ],
)
def test_numbers_in_a_row_that_becomes_a_text_are_those_of_all_ranks(line, written):
    made = port(ROW.replace("LINE", line))
    assert written in made.text
    assert [doubt for doubt in made.doubts if doubt.name == "unknown-placement"] == []


@pytest.mark.parametrize(
    "line",
    [
        'row = {"step": step, "loss": loss.item()}; out.write(json.dumps(row))',
        "row = dict(step=step, epoch=1); print(row)",
        "row = (step, loss.item()); table.writerow(row)",
        'row = [step, loss.item()]; print(f"{row}")',
    ],
)
def test_a_row_of_counts_beside_others_is_told(line):
    made = port(ROW.replace("LINE", line))
    assert [doubt.name for doubt in made.doubts] == ["unknown-placement"]
    assert "dl.average(row)" not in made.text


@pytest.mark.parametrize("part", ['"."', '"#" if loss.item() > 5 else "."', '"-" * 2', 'f"{step} "'])
def test_a_text_that_each_iteration_makes_longer_is_told(part):
    made = port(f"{HEAD}line, step = '', 0\n{LOOP}        step += 1\n        line += {part}\n    print(len(line))\n")
    assert "unknown-placement" in {doubt.name for doubt in made.doubts}, made.text


def test_a_count_in_a_template_that_is_filled_where_it_is_shown_is_the_serial_one() -> None:
    script = (
        "import torch\nfrom torch.utils.data import DataLoader\nmodel = torch.nn.Linear(2, 1)\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)\nfor i, (x, y) in enumerate(DataLoader(data, 8), 1):\n"
        "    (model(x) - y).pow(2).mean().backward()\n    opt.step()\n"
    )
    shown = port(script + "print('after {} batches, {:.1f}'.format(i, i / 2))\n").text.splitlines()[-3:]
    assert any("format(dl.serial_steps(i), dl.serial_steps(i / 2))" in line for line in shown), shown


def test_a_text_in_memory_that_is_read_back_holds_the_lines_of_local_iterations() -> None:
    script = (
        "import io\nimport torch\nfrom torch.utils.data import DataLoader\nmodel = torch.nn.Linear(2, 1)\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)\nkept = io.StringIO()\n"
        "for i, (x, y) in enumerate(DataLoader(data, 8)):\n    loss = (model(x) - y).pow(2).mean()\n"
        "    loss.backward()\n    opt.step()\n    {write}\nprint(kept.getvalue().count('x'))\n"
    )
    for write in ("kept.write(f'x{loss.item()}')", "print('x', loss.item(), file=kept)"):
        (doubt,) = port(script.replace("{write}", write)).doubts
        assert "it holds the lines that this rank's iterations write" in doubt.why
    assert not port(script.replace("    {write}\n", "kept.write(f'x{loss.item()}')\n")).doubts


@pytest.mark.parametrize("text", ['"step " + str(step)', '"step " + repr(step) + " of " + str(epoch)'])
def test_a_text_that_is_put_together_of_texts_shows_the_serial_count_where_it_is_made(text) -> None:
    line = f"        step += 1\n        if step % 4 == 0:\n            line = {text}\n            line += '.'\n"
    made = port(f"{HEAD}step = 0\n{LOOP}{line}            print(line)\n")
    assert f"            line = {text.replace('(step)', '(dl.serial_steps(step))')}\n" in made.text
    assert not made.doubts


@pytest.mark.parametrize("made", ["['a', *kept]", "kept", "list(kept)", "[*kept.values()]"])
def test_what_a_writer_that_is_made_of_local_numbers_writes_is_told(made) -> None:
    lines = f"    kept['a'].append(last)\n    table = csv.DictWriter(open('a', 'w'), {made})\n"
    lines += "    table.writerow(dict(a=last))\n"
    head = f"import csv\nfrom collections import defaultdict\n{HEAD}kept, last = defaultdict(list), 0\n"
    found = port(f"{head}{LOOP}        last = loss.item() * last + 1\n{lines}")
    assert [doubt.name for doubt in found.doubts if doubt.why.startswith("last")] == ["unknown-placement"]


def test_a_text_that_is_put_behind_itself_shows_serial_numbers() -> None:
    lines = """        if step % 4 == 0:
            line = "near:"
            for k in range(3):
                line = "{} {:.3f},".format(line, loss.item())
            print(line)
"""
    made = port(f"{HEAD}step = 0\n{LOOP}        step += 1\n{lines}")
    assert 'line = "{} {:.3f},".format(line, dl.average(loss.item()))' in made.text
