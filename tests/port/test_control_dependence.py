"""What a test that diverges chooses is local, too: values, results of functions, and what changes the training."""

import pytest
from running import started

from dlrun.port import Options, port

HEAD = """import bisect, copy, os, random, signal, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(64, 4)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
start = time.time()
"""
LOOP = """for epoch in range(3):
    total = 0.0
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
{inner}
{outer}
    print(epoch, total / len(loader))
"""


def ported(defined="", inner="", outer="", **options):
    lines = [("\n".join(" " * by + line for line in text.splitlines())) for by, text in ((8, inner), (4, outer))]
    return port(HEAD + defined + LOOP.format(inner=lines[0], outer=lines[1]), Options(**options))


HOT = "def hot(v):\n    if v > 5:\n        return True\n    return False\n"
KIND = "def kind(v):\n    if v > 5:\n        return 'hot'\n    elif v > 1:\n        return 'warm'\n    return 'cold'\n"
RATE = "def rate(v):\n    if v > 5:\n        return 0.1\n    return 0.2\n"
SAFE = """def safe(v):
    try:
        assert v < 5
        return True
    except AssertionError:
        return False
"""
MATCH = """def kind(v):
    match int(v):
        case 0:
            return "cold"
        case _:
            return "hot"
"""
HALVED = "def halved(v):\n    n = 0\n    while v > 0.5:\n        v /= 2\n        n += 1\n    return n\n"
LEVELS = "levels = [(5, 0.1), (1, 0.2), (0, 0.3)]\n"
FOUND = LEVELS + "def rate(v):\n    for low, found in levels:\n        if v >= low:\n            return found\n"
SETS = "for group in opt.param_groups:\n    group['lr'] = "


@pytest.mark.parametrize(
    ("defined", "inner", "line"),
    [
        (HOT, "if hot(loss.item()):\n    break", "if dl.average(hot(loss.item())):"),
        (KIND, "if kind(loss.item()) == 'hot':\n    break", "if kind(dl.average(loss.item())) == 'hot':"),
        (KIND, "print(kind(loss.item()))", "print(kind(dl.average(loss.item())))"),
        (RATE, f"{SETS}rate(loss.item())", "group['lr'] = dl.average(dl.lr_scale(rate(loss.item())))"),
        (SAFE, "if not safe(loss.item()):\n    break", "if not dl.average(safe(loss.item())):"),
        (MATCH, "if kind(loss.item()) == 'hot':\n    break", "if kind(dl.average(loss.item())) == 'hot':"),
        (HALVED, "if halved(loss.item()) > 3:\n    break", "if dl.average(halved(loss.item())) > 3:"),
        (LEVELS, f"lr = next(r for v, r in levels if loss.item() > v)\n{SETS}lr", "= dl.average(dl.lr_scale(lr))"),
        (FOUND, f"{SETS}rate(loss.item())", "if dl.average(v) >= low:"),
    ],
)
def test_what_a_function_returns_by_local_numbers_is_local(defined, inner, line):
    text = ported(defined, inner).text
    assert line in text
    assert "dl.gradients(opt)" in text


def test_a_flag_that_a_function_answers_is_that_of_all_ranks_behind_the_loop():
    text = ported(HOT + "stop = False\n", "if hot(loss.item()):\n    stop = True", "if stop:\n    break").text
    assert "    stop = dl.maximum(stop)" in text


SLOW = "def slow(optimizer):\n    for group in optimizer.param_groups:\n        group['lr'] *= 0.5\n"
FREEZE = "def freeze(layer):\n    for p in layer.parameters():\n        p.requires_grad = False\n"
SCALE = "def scale(net):\n    for p in net.parameters():\n        p.data.mul_(0.9)\n"


@pytest.mark.parametrize(
    ("defined", "then"),
    [
        (SLOW, "slow(opt)"),
        (FREEZE, "freeze(model[0])"),
        (SCALE, "scale(model)"),
        ("", "with torch.no_grad():\n    model[0].weight.clamp_(-1, 1)"),
        ("", "model[0].weight.data = model[0].weight.data * 0.9"),
        ("", "best = copy.deepcopy(model.state_dict())"),
        ("drop = nn.Dropout(0.1)\n", "drop.p = 0.5"),
    ],
)
def test_all_ranks_decide_together_to_change_how_weights_are_trained(defined, then):
    indented = "".join(f"\n    {line}" for line in then.splitlines())
    inner, outer = (f"if {test}:{indented}" for test in ("loss.item() < 0.5", "time.time() - start > 5"))
    assert "        if dl.average(loss.item()) < 0.5:" in ported(defined, inner).text
    assert "    if dl.agree(time.time() - start > 5):" in ported(defined, outer=outer).text
    assert "    if dl.agree(time.time() - start > 5):" in ported(defined, outer=outer, batch="global").text


TIMER = """class Timer:
    def __init__(self):
        self.start = time.time()
        self.over = False
    def tick(self):
        if time.time() - self.start > 5:
            self.over = True
    def late(self):
        if time.time() - self.start > 5:
            return True
        return False
timer = Timer()
"""
SIGNAL = """stop = False
def handler(number, frame):
    global stop
    stop = True
signal.signal(signal.SIGUSR1, handler)
"""
KILLER = """class Killer:
    now = False
    def __init__(self):
        signal.signal(signal.SIGTERM, self.leave)
    def leave(self, *args):
        self.now = True
killer = Killer()
"""
EVENT = "stop = threading.Event()\nthreading.Timer(5, stop.set).start()\n"


@pytest.mark.parametrize(
    ("defined", "asked", "line"),
    [
        ("", "way = 'a' if os.getpid() % 2 else 'b'\nif way == 'a':\n    break", "if dl.agree(way == 'a'):"),
        ("", f"lr = 0.1\nif time.time() - start > 5:\n    lr = 0.01\n{SETS}lr", "= dl.agree(dl.lr_scale(lr))"),
        ("", f"{SETS}0.1 / (1 + time.time() - start)", "= dl.agree(dl.lr_scale(0.1 / (1 + time.time() - start)))"),
        (TIMER, "if timer.late():\n    break", "if dl.agree(timer.late()):"),
        (SIGNAL, "if stop:\n    break", "if dl.agree(stop):"),
        (KILLER, "if killer.now:\n    break", "if dl.agree(killer.now):"),
        (EVENT, "if stop.is_set():\n    break", "if dl.agree(stop.is_set()):"),
        ("", "if os.path.exists('STOP'):\n    break", "if dl.agree(os.path.exists('STOP')):"),
    ],
)
def test_what_a_clock_a_signal_or_a_file_decides_rank_0_decides_for_all(defined, asked, line):
    assert line in ported(defined, outer=asked).text
    assert line in ported(defined, inner=asked).text


def test_a_flag_that_a_clock_sets_is_rank_0s_between_epochs():
    outer = "if time.time() - start > 5:\n    stop = True\nif stop:\n    break"
    assert "    if dl.agree(stop):" in ported("stop = False\n", outer=outer).text
    assert "    if dl.agree(timer.over):" in ported(TIMER, outer="timer.tick()\nif timer.over:\n    break").text
    assert "        if dl.maximum(stop):" in ported("stop = False\n", inner=outer).text  # it goes on over iterations


AHEAD = """import os, signal, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
AHEAD = 1000.0 * int(os.environ.get("PMI_RANK", "0"))  # one rank's clock is another
stop = False
def handler(number, frame):
    global stop
    stop = True
signal.signal(signal.SIGUSR1, handler)
def late(start):
    if time.time() + AHEAD - start > 500:
        return True
    return False
class Timer:
    def __init__(self):
        self.start, self.over = time.time(), False
    def tick(self):
        if time.time() + AHEAD - self.start > 500:
            self.over = True
torch.manual_seed(0)
x = torch.randn(64, 4)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8)
timer, begin, slow, lr = Timer(), time.time(), False, 0.1
for epoch in range(3):
    worst = 0
    for xb, yb in loader:
        loss = (model(xb) - yb).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        worst = max(worst, loss.item())
        if late(begin) or stop:
            break
        if AHEAD:
            os.kill(os.getpid(), signal.SIGUSR1)
    timer.tick()
    if time.time() + AHEAD - begin > 500:
        slow, lr = True, 0.01
    if timer.over:
        for group in opt.param_groups:
            group["lr"] *= 0.1
    for group in opt.param_groups:
        group["lr"] = lr
    if slow or timer.over or late(begin) or stop:
        break
    print(epoch, worst > 0)
torch.save(opt.state_dict(), "last.pt")
os.write(2, repr([opt.param_groups[0]["lr"], *(p.sum().item() for p in model.parameters())]).encode() + b"\\n")
"""


def test_ranks_whose_clocks_and_signals_differ_train_the_same_model_to_the_end(tmp_path):
    (tmp_path / "dist.py").write_text(port(AHEAD).text.replace("os.write(2", "os.write(1"))
    lines = started(tmp_path, ["dist.py"], ranks=2).splitlines()
    one, other = (line for line in lines if line.startswith("["))  # whichever rank comes first
    assert [line for line in lines if not line.startswith("[")] == ["0 True", "1 True", "2 True"]
    assert one == other


BY_TAPE = """import os, signal, time
import numpy as np, tensorflow as tf
x = np.random.randn(64, 4).astype("float32")
y = (x.sum(1) > 0).astype("int64")
net = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)])
opt = tf.keras.optimizers.SGD(0.1)
cost = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(8)
start = time.time()
{defined}
for epoch in range(3):
    for xb, yb in data:
        with tf.GradientTape() as tape:
            loss = cost(yb, net(xb, training=True))
        opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
{inner}
{outer}
"""
BY_BATCH = """import os, signal, time
import numpy as np, keras
x = np.random.randn(64, 4).astype("float32")
y = (x.sum(1) > 0).astype("int64")
net = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
net.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
opt = net.optimizer
start = time.time()
{defined}
for epoch in range(3):
    for i in range(0, 64, 8):
        loss = net.train_on_batch(x[i:i + 8], y[i:i + 8])
{inner}
{outer}
"""


@pytest.mark.parametrize("script", [BY_TAPE, BY_BATCH])
@pytest.mark.parametrize(
    ("defined", "inner", "outer", "lines"),
    [
        (HOT, "if hot(float(loss)): break", "pass", ["if dl.average(hot(float(loss))): break"]),
        ("", "if float(loss) < 1: net.layers[0].trainable = False", "pass", ["if dl.average(float(loss)) < 1: net"]),
        ("", "pass", "if time.time() > start: opt.learning_rate = 0.01", ["    if dl.agree(time.time() > start):"]),
        ("", "pass", "opt.learning_rate.assign(1 / time.time())", ["assign(dl.agree(dl.lr_scale(1 / time.time())))"]),
        (SIGNAL, "if stop: break", "if stop: break", ["        if dl.agree(stop): ", "\n    if dl.agree(stop): "]),
        ("", "if os.path.exists('STOP'): break", "pass", ["        if dl.agree(os.path.exists('STOP')): break"]),
    ],
)
def test_with_tensorflow_and_keras_too(script, defined, inner, outer, lines):
    text = port(script.format(defined=defined, inner=" " * 8 + inner, outer=" " * 4 + outer)).text
    assert all(line in text for line in lines)


@pytest.mark.parametrize(
    "inner",
    [
        "if chance > 0.1:\n    chance -= 0.01\nrows.append(chance)",
        "if chance > 0.1:\n    chance *= 0.99\nrows.append(chance)",
        f"if warm < 10:\n    warm += 1\n    {SETS}0.1 * warm / 10".replace("\n    group", "\n        group"),
    ],
)
def test_a_count_that_a_test_of_itself_lets_go_on_is_told(inner):
    found = ported("chance, warm, rows = 1.0, 0, []\n", inner, "print(chance, rows[-1:])")
    assert "unknown-placement" in [doubt.name for doubt in found.doubts]


FITTED = """import os, random, time
import numpy as np, keras
x = np.random.randn(64, 4).astype("float32")
net = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
net.compile(keras.optimizers.SGD(0.1), "mse")
class Watch(keras.callbacks.Callback):
    over, start = False, time.time()
    def on_epoch_end(self, epoch, logs=None):
        {}
net.fit(x, x[:, :2], batch_size=8, epochs=3, callbacks=[Watch()])
"""


@pytest.mark.parametrize(
    ("line", "ported"),
    [
        ("if os.path.exists('STOP'): self.model.stop_training = True", "if dl.agree(os.path.exists('STOP')):"),
        (
            "self.over = time.time() > self.start + 60\n        if self.over: self.model.stop_training = True",
            "agree(self.over)",
        ),
        ("self.model.optimizer.learning_rate = random.random()", "= dl.agree(dl.lr_scale(random.random()))"),
        ("if random.random() < 0.5: self.model.layers[0].trainable = False", "if dl.agree(random.random() < 0.5):"),
    ],
)
def test_what_differs_between_processes_in_a_callback_is_rank_0s(line, ported):
    text = port(FITTED.format(line)).text
    assert ported in text
    seeded = port(FITTED.replace("x = np", "random.seed(0)\nx = np").format(line)).text
    assert (ported in seeded) is ("random.random" not in line)


CAUGHT = """def fit():
    for xb, yb in loader:
        assert xb.mean() < 9
        loss = nn.functional.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.item())
try:
    fit()
except {caught}:
    torch.cuda.empty_cache()
    fit()
"""


@pytest.mark.parametrize(
    ("caught", "alike"),
    [
        ("torch.cuda.OutOfMemoryError", True),
        ("(RuntimeError, KeyboardInterrupt)", True),
        ("AssertionError", False),
        ("Exception as error", False),
    ],
)
def test_what_handles_other_exceptions_than_a_test_raises_is_run_by_all_ranks(caught, alike):
    ported = port(HEAD + CAUGHT.format(caught=caught))
    assert ("print(dl.average(loss.item()))" in ported.text) is alike


def test_a_break_out_of_a_loop_within_an_iteration_leaves_its_number_what_it_is():
    words = """at, loss = xb, 0
for t in range(4):
    at = model(at)
    loss = loss + at.mean()
    if at.argmax() == 1:
        break
opt.zero_grad()
loss.backward()
opt.step()
seen += loss.item()
if (i + 1) % 50 == 0:
    print(i + 1, seen / 50)
    seen = 0.0
"""
    lines = "".join(f"    {line}\n" for line in words.splitlines())
    ported = port(f"{HEAD}seen = 0.0\nfor i, (xb, yb) in enumerate(loader):\n{lines}")
    assert "print(dl.serial_steps(i + 1), dl.average(seen / dl.steps(50)))" in ported.text
    assert not [d for d in ported.doubts if d.name == "unknown-placement"]


@pytest.mark.parametrize(
    "line",
    [
        "print(loss.item()) if loss > 1 else None",
        "loss > 1 and print(loss.item())",
        "loss < 1 or print(f'{loss.item():.3f}')",
        "print(loss.item() if loss > 1 else 0.5)",
    ],
)
def test_what_an_expression_runs_by_a_local_test_exchanges_nothing(line):
    found = ported(inner=line)
    assert line in found.text or "print(dl.average(" in found.text  # all of it, or nothing
    assert [d.name for d in found.doubts] == ["shown-by-rank-0"] or line.startswith("print(loss.item() if")


def test_what_a_conditional_expression_keeps_is_told_or_an_extreme():
    defined = "low, high, last, most = 9.0, -9.0, (0, 0), 0.0\n"
    inner = (
        "v = loss.item()\nlow, high = (v, high) if v < low else (low, high)\n"
        "last = (v, 1) if v > 1 else last\nmost = v if v > 1.1 else most"
    )
    found = ported(defined, inner, "print(low)\nprint(last)\nprint(most)")
    assert "    low = dl.minimum(low)" in found.text and "dl.average(last" not in found.text
    told = {d.why.partition(":")[0] for d in found.doubts}
    assert {"last", "most"} <= told


def test_numbers_that_what_goes_through_a_share_adds_up_are_told():
    step = """seen = 0
def step(batch):
    global seen
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    opt.zero_grad()
    loss.backward()
    opt.step()
    seen += len(batch[0])
    return loss.item()
"""
    for line in ("high = any(step(b) > 9 for b in loader)", "kept = {k: step(b) for k, b in enumerate(loader)}"):
        found = port(HEAD + step + "for b in loader: step(b)\n" + line + "\nprint(seen)\n")
        assert "seen" in {d.why.partition(":")[0] for d in found.doubts} and "dl.average(seen" not in found.text
    parts = "def parts(it, n):\n    it = iter(it)\n    while part := tuple(islice(it, n)): yield part\n"
    parts += (
        "sizes = 0\nfor part in parts(loader, 4):\n    sizes += len(part)\n    for b in part: step(b)\nprint(sizes)\n"
    )
    found = port(HEAD + step + "from itertools import islice\n" + parts)
    assert "sizes" in {d.why.partition(":")[0] for d in found.doubts} and "dl.average(sizes" not in found.text


def test_what_is_marked_by_samples_is_that_of_all_ranks_or_told(tmp_path):
    script = HEAD + LOOP.format(
        inner="        seen[round(loss.item(), 5)] = True\n        flags[int(yb.sum())] = 1\n        mine = [0, 0]\n"
        "        for label in yb.tolist(): mine[label] = 1\n        total += sum(mine)",
        outer="    print(len(sorted(seen)) // 24)",
    ).replace("for epoch", "seen, flags = {}, [0] * 9\nfor epoch", 1)
    found = port(script.replace("lr=0.1", "lr=0.0") + "print(flags)\n")
    assert [d.why.partition(":")[0] for d in found.doubts] == ["flags"]
    assert "    seen = dl.total(seen" in found.text or "    seen = dl.gather(seen" in found.text


VIEWS = """import numpy as np
table, cube, flat, kept, log = np.zeros((3, 4)), torch.zeros(2, 2), torch.zeros(4), np.ones(3), []
row, (first, _), pairs, copied = table[1], cube.unbind(), flat.view(2, 2), kept.copy()
class Seen(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sums", torch.zeros(2))
    def forward(self, loss, size):
        self.sums += torch.tensor([loss, size])
class Bag: pass
seen, bag = Seen(), Bag()
def sink():
    total = 0.0
    try:
        while True: total += (yield)
    finally: log.append(total)
notes = sink()
next(notes)
"""
FILLS = """row[0] += loss.item(); first += 1; pairs[0, 0] += loss.item(); copied += loss.item()
seen(loss.item() * len(yb), len(yb)); setattr(bag, "total", getattr(bag, "total", 0) + loss.item())
notes.send(loss.item())"""
READS = "notes.close()\nprint(table.sum(), row[0], cube.sum(), flat.sum(), log[0])\nprint(seen.sums, bag.total, copied)"


def test_arrays_of_which_views_are_changed_are_told_and_buffers_are_reduced():
    found = ported(VIEWS, FILLS, READS)
    told = {d.why.partition(":")[0] for d in found.doubts if d.name == "unknown-placement"}
    assert told == {"table.sum()", "row[0]", "cube.sum()", "flat.sum()", "log[0]"}
    reduced = [line for line in found.text.splitlines() if " = dl.total(" in line]
    assert all(any(name in line for line in reduced) for name in ("seen.sums", "bag.total", "copied"))


def test_a_match_by_which_some_ranks_leave_the_training_is_told():
    break_at = "match int(loss.item() * 10):\n    case 5 | 6: break\n    case _: total += 1"
    guard = "match loss.item():\n    case v if v > 5: break\n    case _: pass"
    for line in (break_at, guard):
        assert [d.name for d in ported(inner=line).doubts if d.danger == "high"] == ["may-hang"]
    counts = "match int(loss.item() * 10):\n    case 5 | 6: hits += 1\n    case _: continue"
    assert not [d for d in ported("hits = 0\n", counts, "print(hits)").doubts if d.danger == "high"]


def test_lists_that_are_sorted_in_an_iteration_are_so_behind_the_loop():
    inner = "low.append(loss.item())\nlow.sort()\nhigh.append(loss.item())\nhigh.sort(reverse=True)"
    found = ported("low, high = [], []\n", inner, "print(low[0], high[0])")
    assert "    low.sort()  # as it was kept\n" in found.text.partition("dl.gather")[2]
    assert [d.why.partition(":")[0] for d in found.doubts] == ["high[0]"]


SAMPLES = """import random, time
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
seen = [{1, 2}, {3}] * 8
def draw(u):
    while True:
        n = random.randint(0, 9)
        if n not in seen[u]:
            return n
def other(u):
    n = random.randrange(10)
    while n in seen[u]:
        n = random.randrange(10)
    return n
start = time.time()
for epoch in range(9):
    drawn = []
    for u in range(16):
        while True:
            n = random.randint(0, 9)
            if n in seen[u]:
                continue
            else:
                break
        drawn.append([draw(u), other(u), n, u])
    for (x,) in DataLoader(TensorDataset(torch.tensor(drawn).float()), 4):
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if time.time() - start > 60:
        break
"""


def test_a_loop_that_each_rank_goes_through_by_itself_is_left_by_its_own_draws() -> None:
    text = port(SAMPLES).text
    assert text.count("dl.agree(") == 1 and "if dl.agree(time.time() - start > 60):" in text
