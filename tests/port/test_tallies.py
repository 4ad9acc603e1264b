"""Counts that a training loop keeps under tests of local samples."""

from __future__ import annotations

import pytest
from running import started

from dlrun.port import Options, port

LOOP = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data, batch_size=1, shuffle=True)
for epoch in range(9):
    count = 0
    for i, (x, y) in enumerate(loader):
        out = model(x)
        torch.nn.functional.cross_entropy(out, y).backward()
        opt.step()
        if {test}:
            count += 1
    {after}
"""
VALIDATED = LOOP.replace(
    "        if {test}:",
    """        if i % 9 == 0:
            meter.update(model(held).mean().item())
            if meter.avg < best:
                best = meter.avg
            else:""",
).replace("    count = 0", "    count, best, meter = 0, 9.0, Meter()")
RIGHT = "out.argmax() == y[0]"


@pytest.mark.parametrize(
    ("test", "after", "read"),
    [
        (RIGHT, "print(count / len(data))", True),
        (RIGHT, "if count == len(data): break", True),
        (RIGHT, "pass", False),
        ("i % 2 == 0", "print(count / len(data))", False),
    ],
)
def test_a_count_of_a_ranks_own_samples_is_of_all_ranks_where_it_is_read(test, after, read) -> None:
    ported = port(LOOP.format(test=test, after=after))
    assert ("    count = dl.total(count)  #" in ported.text) == read
    assert not [doubt for doubt in ported.doubts if doubt.danger != "low"]


def test_a_count_under_a_test_of_averages_is_alike_on_all_ranks() -> None:
    ported = port(
        "class Meter:\n    def update(self, x):\n        self.avg = x\n"
        + VALIDATED.format(test="", after="if count > 3: break").replace("            count", "                count")
    )
    assert "dl.total(count)" not in ported.text


TOGETHER = """
best, count, n_iter = 9.0, 0, 99
for i, (x, y) in enumerate(loader):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    if i % 9 == 0:
        value = model(held).mean().item()
        if value < best: best, {zero} = value, 0
        else:
            count += 1
            if {test}: break
"""


@pytest.mark.parametrize(("zero", "test"), [("count", "count > 2"), ("i_best", "count > 2 and i > 9")])
def test_a_count_under_a_test_of_averages_is_alike_where_it_is_set_beside_the_best(zero, test) -> None:
    ported = port(LOOP.partition("for epoch")[0] + TOGETHER.format(zero=zero, test=test))
    assert not [doubt for doubt in ported.doubts if doubt.name == "may-hang"]


def test_a_count_that_is_set_beside_others_is_not_read_there() -> None:
    after = "pass\nbest, count = 0, 0"
    assert "dl.total(count)" not in port(LOOP.format(test=RIGHT, after=after)).text
    after = "pass\nbest, table[count] = 0, 0"
    assert "    count = dl.total(count)  #" in port(LOOP.format(test=RIGHT, after=after)).text


def test_a_count_of_a_sessions_own_samples_is_totalled_too() -> None:
    ported = port("""
import numpy as np
import tensorflow.compat.v1 as tf
x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.int64, [None])
logits = tf.layers.dense(x, 2)
train_op = tf.train.AdamOptimizer(1e-3).minimize(tf.losses.sparse_softmax_cross_entropy(y, logits))
predicted, rows, labels = tf.argmax(logits, 1), np.load("rows.npy"), np.load("labels.npy")
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(9):
        correct = 0
        for i in range(len(rows)):
            _, p = sess.run([train_op, predicted], feed_dict={x: rows[i : i + 1], y: labels[i : i + 1]})
            if p[0] == labels[i]:
                correct += 1
        if correct == len(rows):
            break
""")
    assert (
        "        correct = dl.total(correct)  # sums over all ranks' samples\n        if correct == len(rows):"
        in ported.text
    )


FILLED = """
import numpy as np
import torch
model = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
n = len(x) // 8
table = np.zeros((9, n))
for epoch in range(9):
    losses, terms = np.zeros(n), [0.0, 0.0]
    each = np.zeros(n)
    for i in range(n):
        loss = (model(x[i * 8 : i * 8 + 8]) ** 2).mean()
        loss.backward()
        opt.step()
        each[i] = loss.item()
        table[epoch, i] = loss.item()
        terms[0] += loss.item()
    print(each.mean(), terms[0] / n)
"""


def test_an_array_with_an_entry_for_each_batch_has_a_ranks_own_and_sums_in_a_list_are_of_all() -> None:
    ported = port(FILLED)
    assert "for i, own_i in dl.turns(range(n)):" in ported.text
    assert "table = np.zeros((9, dl.steps(n)))\n" in ported.text and "each = np.zeros(dl.steps(n))\n" in ported.text
    assert "np.zeros(n), [0.0, 0.0]" in ported.text  # nothing fills it
    assert "dl.total(terms[0]" in ported.text and not [d for d in ported.doubts if d.danger == "medium"]
    drawn = FILLED.replace("i * 8 : i * 8 + 8", "np.random.randint(0, len(x), 8)")
    text = port(drawn).text
    assert "range(dl.steps(n)):" in text and "each = np.zeros(dl.steps(n))\n" in text


def test_an_array_with_an_entry_for_each_batch_is_the_mean_over_the_ranks_or_gathered() -> None:
    totals = [line for line in port(FILLED).text.splitlines() if "dl.total(" in line]
    assert not [line for line in totals if "each" in line]


@pytest.mark.parametrize("after", ["np.savetxt('log.txt', history)", "history = np.array(history)"])
def test_rows_of_a_history_are_of_all_ranks(after):
    script = LOOP.format(test="y[0] > 9", after="pass") + after + "\nplt.plot([row[1] for row in history])\n"
    kept = script.replace("        out = ", "        history.append([i, model(x).sum().item()])\n        out = ")
    ported = port("import numpy as np\nhistory = []\n" + kept).text
    assert "    history = dl.gather(history, since=history_before, over=loader)  #" in ported


@pytest.mark.parametrize("shown", ["numbers[-1]", "max(numbers)", "numbers"])
def test_numbers_of_iterations_in_a_list_are_those_of_the_serial_iterations(shown) -> None:
    script = LOOP.format(test="y[0] > 9", after="pass") + f"print({shown})\nprint(len(numbers))\n"
    kept = script.replace("        out = ", "        numbers.append(i)\n        out = ")
    made = port("numbers = []\n" + kept)
    assert "numbers.append(dl.serial_iteration(i))" in made.text and "dl.gather(numbers" in made.text
    assert "print(len(numbers))" in made.text and not [d.name for d in made.doubts if d.danger == "medium"]


def test_what_is_multiplied_in_every_iteration_is_no_count() -> None:
    script = LOOP.format(test="y[0] > 9", after="pass") + "print(share)\nprint(2 * heat)\n"
    for line in ("share *= 0.9", "heat = heat * 0.9"):
        script = script.replace("        out = ", f"        {line}\n        out = ")
    made = port("share, heat = 1.0, 4.0\n" + script)
    assert "print(share)\nprint(2 * heat)\n" in made.text
    assert [d.name for d in made.doubts if d.danger == "medium"] == 2 * ["unknown-placement"]


def test_the_number_of_an_iteration_in_a_row_that_is_gathered_is_that_of_the_serial_script():
    script = LOOP.format(test="y[0] > 9", after="pass") + "print(history)\n"
    kept = script.replace("        out = ", "        history.append([i, model(x).sum().item()])\n        out = ")
    assert "history.append([dl.serial_iteration(i), model(x)" in port("history = []\n" + kept).text


STEERED = """import numpy as np
import torch
model = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
length, step, window = 2, 0, []
while length < 5 and step < 400:
    x, y = draw(np.random.randint(9, size=8), length)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    step += 1
    window.append(loss.item())
    if len(window) >= 20 and np.mean(window[-20:]) < 0.1:
        length += 1
        window = []
print("reached", length)
"""


@pytest.mark.xfail(strict=True, reason="the mean of a local window is not agreed on: told as a hang")
def test_a_level_that_all_ranks_decide_alike_is_no_count_of_a_ranks_own_samples() -> None:
    ported = port(STEERED)
    assert "dl.average(np.mean(window[-20:])) < 0.1:" in ported.text


def test_sums_by_class_are_those_of_all_ranks_where_they_are_read() -> None:
    after = 'print(" ".join(f"{h:.3f}" for h in right / seen))'
    counted = """        for c in range(2):
            right[c] += (out.argmax(1) == y)[y == c].sum()
            seen[c] += (y == c).sum()
    """
    source = LOOP.replace("    count = 0\n", "    right, seen = torch.zeros(2), torch.zeros(2)\n").partition(
        "        if {test}"
    )
    ported = port(source[0] + counted + after)
    assert "    right, seen = dl.total(right, seen)  #" in ported.text
    assert not [doubt for doubt in ported.doubts if doubt.danger == "medium"]


BY_NAME = """        seen += len(x)
        for k, term in (("a", out.mean()), ("b", out.pow(2).mean())):
            parts[k] += term.item() * len(x)
    """
NAMED = {'parts["a"]', 'parts["b"]'}


def reduced(text: str) -> set[str]:
    """Return what is summed up over the ranks behind the loop."""
    left = [line.partition(" = dl.total(")[0] for line in text.splitlines() if " = dl.total(" in line]
    return {name.strip() for each in left for name in each.split(",")}


@pytest.mark.parametrize(
    ("begun", "shown", "written"),
    [
        ('{"a": 0.0, "b": 0.0}', 'print(parts["a"] / len(data))', {'parts["a"]'}),
        ('{k: 0.0 for k in "ab"}', "for k, v in parts.items(): print(k, v / len(loader.dataset))", NAMED),
        ('{k: 0.0 for k in "ab"}', 'print([f"{parts[k] / len(data):.3f}" for k in parts])', NAMED),
        ('{k: 0.0 for k in "ab"}', 'print([f"{parts[k] / len(data):.3f}" for k in open("names")])', NAMED),
        ('{k: 0.0 for k in "ab"}', "print({k: v / seen for k, v in parts.items()})", NAMED | {"seen"}),
    ],
)
def test_sums_by_name_that_a_loop_within_the_batch_adds_up_are_of_all_ranks(begun, shown, written) -> None:
    head = LOOP.replace("    count = 0\n", f"    seen, parts = 0, {begun}\n").partition("        if {test}")[0]
    ported = port(head + BY_NAME + shown)
    assert reduced(ported.text) == written and f"    {shown}\n" in ported.text
    assert not any(doubt.danger == "high" for doubt in ported.doubts)


@pytest.mark.parametrize(
    ("shown", "term", "written"),
    [
        ("print(parts)", "out.sum().item()", NAMED),
        ('torch.save({"n": 1, "sums": parts}, "last.pt")', "out.sum().item()", NAMED),
        ("print(parts)", "out.sum().detach()", NAMED),  # tensors
        ('parts["a"] /= len(data); parts["b"] /= len(data); print(parts)', "out.sum().item()", NAMED),
        ('print(parts["a"] / seen)', "out.sum().item()", {'parts["a"]', "seen"}),
    ],
)
def test_dicts_of_sums_that_are_shown_or_saved_whole_are_totals(shown, term, written) -> None:
    begun = '    seen, parts = 0, {"a": 0.0, "b": 0.0}\n'
    head = LOOP.replace("    count = 0\n", begun).partition("        if {test}")[0]
    added = f'seen += len(x)\n        parts["a"] += out.mean().item() * len(x)\n        parts["b"] += {term}\n'
    ported = port(f"{head}        {added}    {shown}\n")
    assert reduced(ported.text) == written and not [d for d in ported.doubts if d.danger != "low"]


CARRIED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 3), torch.randint(0, 2, (96,))), batch_size=8)
model = nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), 0.0)
low, records, total, above, moving, spikes, high, before, rises = 9.0, 0, 0.0, 0, 0.7, 0, 0, None, 0
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    if loss.item() < low:
        low = loss.item()
        records += 1
    total += loss.item()
    if loss.item() > total / (i + 1):
        above += 1
    moving = 0.9 * moving + 0.1 * loss.item()
    if loss.item() > moving:
        spikes += 1
    if loss.item() > 0.7:
        high += 1
    if before is not None and loss.item() > before:
        rises += 1
    before = loss.item()
print(f"{low:.5f} {high}")
print(records)
print(above)
print(spikes)
print(rises)
"""


@pytest.mark.parametrize(
    ("batch", "told"), [("local", ["records", "above", "spikes", "rises"]), ("global", ["above", "spikes"])]
)
def test_a_count_by_a_test_of_what_this_ranks_iterations_have_left_is_told(batch, told) -> None:
    doubts = [d for d in port(CARRIED, Options(batch=batch)).doubts if d.name == "unknown-placement"]
    assert [d.why.partition(":")[0] for d in doubts] == told


def test_extremes_of_whole_batches_and_the_count_of_their_records_are_the_serial_ones(tmp_path) -> None:
    (tmp_path / "train.py").write_text(CARRIED)
    (tmp_path / "dist.py").write_text(port(CARRIED, Options(batch="global")).text)
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert mine.splitlines()[:2] == serial.splitlines()[:2]


def test_a_loop_that_keeps_many_counts_is_solved() -> None:
    more = (
        "".join(f"    if i % 2: c{k} += {k}\n" for k in range(12))
        + "    if last > 0.5: ups += 1\n    last = loss.item()\n"
    )
    begin = "last = ups = 0\n" + "".join(f"c{k} = 0\n" for k in range(12))
    many = CARRIED.replace("for i, (", begin + "for i, (").replace(
        "print(f", more.strip("\n").join(("", "\n")) + "print(f"
    )
    ported = port(many + "print(ups, c3)\n", Options(batch="global"))
    assert [d.name for d in ported.doubts] == ["unknown-placement"] * 2 and "dl.average(last) > 0.5" in ported.text
