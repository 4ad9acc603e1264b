"""Means over some steps, what happens at their ends, and one function that updates or only evaluates."""

import pytest

from dlrun.port import port

SESSION = """import random
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
class Model:
    def __init__(self):
        self.rate = tf.Variable(0.5, trainable=False)
        self.lower = self.rate.assign(self.rate * 0.99)
        self.x = tf.placeholder(tf.float32, [None, 10])
        self.loss = tf.reduce_mean(tf.layers.dense(self.x, 1) ** 2)
        self.update = tf.train.GradientDescentOptimizer(self.rate).minimize(self.loss)
    def step(self, session, x, forward_only):
        if forward_only:
            return session.run(self.loss, {self.x: x})
        return session.run([self.update, self.loss], {self.x: x})[1]
    def batch(self, rows):
        return np.stack([random.choice(rows) for _ in range(32)])
rows, held = np.load("rows.npy"), np.load("held.npy")
with tf.Session() as session:
    model = Model()
    session.run(tf.global_variables_initializer())
    mean, done, kept = 0.0, 0, []
    while True:
        mean += model.step(session, model.batch(rows), False) / 200
        done += 1
        if done % 200 == 0:
            print(done, mean)
            if len(kept) > 2 and mean > max(kept[-3:]):
                session.run(model.lower)
            kept.append(mean)
            mean = 0.0
            for part in range(4):
                print(part, model.step(session, model.batch(held[part]), True))
        if done > 10000:
            break
"""


@pytest.fixture(scope="module")
def text() -> str:
    """The port of a session whose one function updates, or only evaluates."""
    return port(SESSION).text


def test_a_mean_over_some_steps_whose_end_lowers_the_rate_is_one_over_as_much_of_an_epoch(text) -> None:
    assert "mean += model.step(session, model.batch(rows), False) / dl.steps(200)" in text
    assert "if done % dl.steps(200) == 0:" in text
    assert "if done > dl.steps(10000):" in text


def test_all_ranks_lower_the_rate_together(text) -> None:
    assert "if len(kept) > 2 and dl.average(mean) > max(kept[-3:]):" in text
    assert "kept.append(dl.average(mean))" in text
    assert "print(dl.serial_steps(done), dl.average(mean))" in text


def test_a_loop_that_only_evaluates_goes_on_whole(text) -> None:
    assert "for part in range(4):" in text
    assert "model.batch(held[part])" in text


def test_so_does_one_of_pytorch_whose_function_leaves_early() -> None:
    source = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x, y, evaluates):
    loss = (model(x) - y).pow(2).mean()
    if evaluates:
        return loss.item()
    loss.backward()
    opt.step()
    return loss.item()
done, mean = 0, 0.0
for x, y in DataLoader(data, shuffle=True):
    mean += step(x, y, False) / 100
    done += 1
    if done % 100 == 0:
        torch.save(model.state_dict(), "model.pt")
        print(mean)
        mean = 0.0
        for a, b in DataLoader(held):
            print(step(a, b, True))
"""
    text = port(source).text
    assert "for a, b in DataLoader(held):" in text
    assert "mean += step(x, y, False) / dl.steps(100)" in text
    assert "if dl.should_stop() or done % dl.steps(100) == 0:" in text


@pytest.mark.parametrize(
    "line", ["opt.learning_rate = opt.learning_rate * 0.5", "rate.assign(rate * 0.5)", "rate.assign(0.01)"]
)
def test_a_tape_whose_loss_sets_a_rate_sets_one_on_all_ranks(line) -> None:
    source = f"""import tensorflow as tf
model, rate = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.Variable(0.1)
opt, before = tf.keras.optimizers.SGD(lambda: rate), 9.0
for epoch in range(9):
    for x in tf.data.Dataset.from_tensor_slices(rows).batch(8):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    if loss > before:
        {line}
    before = loss
"""
    text = port(source).text
    assert text.index("loss = dl.average(loss)") < text.index("if loss > before:")


def test_a_part_of_a_mean_that_is_divided_with_its_steps_is_not_doubted() -> None:
    source = """import tensorflow as tf
model, rate = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.Variable(0.1)
opt, done, mean, before = tf.keras.optimizers.SGD(lambda: rate), 0, 0.0, 9.0
for x in tf.data.Dataset.from_tensor_slices(rows).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    done += 1
    mean += float(loss) / 100
    if done % 100 == 0:
        if mean > before:
            rate.assign(rate * 0.5)
        before, mean = mean, 0.0
"""
    ported = port(source)
    assert "mean += float(loss) / dl.steps(100)" in ported.text
    assert not any("divides by 100" in doubt.why for doubt in ported.doubts)


LEFT = {
    "tensorflow": """import tensorflow as tf
data = tf.data.Dataset.from_tensor_slices(rows).shuffle(500).repeat().batch(8)
model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
steps = STEPS
for epoch in range(9):
    total = 0.0
    for i, x in enumerate(data):
        if i >= steps:
            break
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        total += float(loss)
    SHOWN
""",
    "torch": """import torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
steps = STEPS
for epoch in range(9):
    total = 0.0
    for i, (x, y) in enumerate(torch.utils.data.DataLoader(rows, 8, shuffle=True)):
        if i >= steps:
            break
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        total += loss.item()
    SHOWN
""",
}


@pytest.mark.parametrize(
    ("framework", "steps", "shown", "written"),
    [
        ("tensorflow", "500", "print(total / steps)", "print(total / dl.serial_steps(steps))"),
        ("tensorflow", "len(rows) // 8", "print(total / steps)", "print(total / dl.serial_steps(steps))"),
        ("tensorflow", "500", "print(total / max(1, steps))", "print(total / max(1, dl.serial_steps(steps)))"),
        ("tensorflow", "500", "total /= steps; print(total)", "total /= dl.serial_steps(steps); print(total)"),
        ("torch", "500", "print(total / steps)", "print(total / dl.serial_steps(steps))"),
        ("torch", "500", "total = total / steps; print(total)", "total = total / dl.serial_steps(steps); print(total)"),
        ("torch", "len(rows) // 8", "print(total / steps)", "print(total / steps)"),  # left where it is
    ],
)
def test_a_sum_over_as_many_batches_as_a_rank_has_is_divided_by_as_many(framework, steps, shown, written) -> None:
    text = port(LEFT[framework].replace("STEPS", steps).replace("SHOWN", shown)).text
    divided = f"steps = dl.steps({steps})" in text
    assert divided or "if i >= dl.steps(steps):" in text
    assert divided == ("serial_steps" in written)
    assert text.index("    total = dl.total(total)") < text.index(written)


def test_so_is_one_whose_loop_counts_the_steps_that_it_draws() -> None:
    loop = "    for i, x in enumerate(data):\n        if i >= steps:\n            break\n"
    drawn = LEFT["tensorflow"].replace(loop, "    for i in range(steps):\n        x = next(batches)\n")
    drawn = drawn.replace("steps = STEPS", "batches = iter(data)\nsteps = len(rows) // 8")
    text = port(drawn.replace("SHOWN", "print(total / steps)")).text
    assert "steps = dl.steps(len(rows) // 8)" in text
    assert text.index("    total = dl.total(total)") < text.index("print(total / dl.serial_steps(steps))")


BY_HAND = """import numpy as np
import keras
x, y = np.load("x.npy"), np.load("y.npy")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
"""


def test_a_mean_over_some_batches_by_hand_is_one_over_as_much_of_an_epoch() -> None:
    source = f"""{BY_HAND}mean = 0.0
for step in range(20000):
    at = np.random.randint(0, len(x), 32)
    mean += model.train_on_batch(x[at], y[at]) / 500
    if (step + 1) % 500 == 0:
        model.save("model.keras")
        print(mean)
        mean = 0.0
"""
    text = port(source).text
    assert "model.train_on_batch(x[at], y[at]) / dl.steps(500)" in text
    assert "if dl.should_stop() or (step + 1) % dl.steps(500) == 0:" in text


@pytest.mark.parametrize(
    ("trains", "tests"),
    [
        (
            "np.mean([model.train_on_batch(*next(first)) for _ in range(90)])",
            "np.mean([model.test_on_batch(*next(second)) for _ in range(10)])",
        ),
        (
            "0\n    for i in range(90):\n        a, b = next(first)\n        trained += model.train_on_batch(a, b)",
            "0\n    for i in range(10):\n        a, b = next(second)\n        tested += model.test_on_batch(a, b)",
        ),
    ],
)
def test_a_generator_that_only_tests_stays_whole_and_epochs_stay_as_many(trains, tests) -> None:
    source = f"""{BY_HAND}def batches(at):
    while True:
        for i in range(0, len(at) - 32, 32):
            yield x[at[i : i + 32]], y[at[i : i + 32]]
first, second = batches(np.arange(3000)), batches(np.arange(3000, 3400))
for epoch in range(20):
    trained = {trains}
    tested = {tests}
    print(epoch, trained, tested)
"""
    text = port(source).text
    assert "first, second = dl.shard(batches(np.arange(3000))), batches(np.arange(3000, 3400))" in text
    assert "for epoch in range(20):" in text
    assert "in range(dl.steps(90))" in text


def test_a_record_that_a_variable_keeps_is_the_mean_that_was_compared() -> None:
    source = """import tensorflow as tf
model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
mean, best = tf.keras.metrics.Mean(), tf.Variable(9.0)
for epoch in range(9):
    mean.reset_state()
    for x in tf.data.Dataset.from_tensor_slices(rows).batch(8):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        mean.update_state(loss)
    if mean.result() < best:
        best.assign(mean.result())
    else:
        break
"""
    text = port(source).text
    decides = text.index("if mean.result() < best:\n        best.assign(mean.result())")
    assert text.index("\n    dl.total(mean)") < decides


COLLECTED = """import torch
from collections import deque
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(512, 4), torch.randn(512, 1)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
losses, running, recent = [], 0.0, deque(maxlen=50)
for epoch in range(9):
    for step, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        {kept}
        if step % 50 == 49:
            {mean}
            torch.save(model.state_dict(), "model.pt")
"""

LOCAL = pytest.mark.xfail(strict=True, reason="a mean over a list's last entries inside the loop is local, and doubted")


@pytest.mark.parametrize(
    ("kept", "mean", "right"),
    [
        (
            "running += loss.item()",
            "print(running / 50)\n            running = 0.0",
            "dl.average(running / dl.steps(50))",
        ),
        ("running += loss.item()", "print(running / 50.0)\n            running = 0.0", "running / dl.steps(50.0)"),
        (
            "running += loss.item()",
            "running /= 50\n            print(running)\n            running = 0.0",
            "running /= dl.steps(50)",
        ),
        pytest.param(
            "losses.append(loss.item())",
            "print(sum(losses[-50:]) / 50)",
            "dl.average(sum(losses[-dl.steps(50):]) / dl.steps(50))",
            marks=LOCAL,
        ),
        (
            "losses.append(loss.item())",
            "print(sum(losses) / 50)\n            losses = []",
            "sum(losses) / dl.steps(50)",
        ),
        pytest.param(
            "recent.append(loss.item())",
            "print(sum(recent) / 50)",
            "dl.average(sum(recent) / dl.steps(50))",
            marks=LOCAL,
        ),
    ],
)
def test_a_mean_over_the_steps_between_two_saves_is_one_over_as_many_as_a_rank_makes(kept, mean, right) -> None:
    text = port(COLLECTED.format(kept=kept, mean=mean)).text
    assert "if step % dl.steps(50) == dl.steps(50) - 1:" in text
    assert right in text
    assert ("maxlen=dl.steps(50)" in text) is ("recent" in kept)


def test_a_number_that_divides_something_else_stays() -> None:
    text = port(COLLECTED.format(kept="running += loss.item()", mean='print(f"{step / 50} {running}")')).text
    assert "{(dl.serial_steps(step + 1) - 1) / 50}" in text
    mean = "print(round(running / seen / 50, 4))"  # a batch's size, as it happens
    kept = COLLECTED.replace("    for step", "    running, seen = 0.0, 0\n    for step")
    text = port(kept.format(kept="running += loss.item()\n        seen += 1", mean=mean)).text
    assert "round(dl.total(running) / dl.serial_steps(seen) / 50, 4)" in text


def test_a_mean_that_is_only_shown_is_one_over_as_many_steps_as_a_rank_makes() -> None:
    shown = COLLECTED.replace('            torch.save(model.state_dict(), "model.pt")\n', "")
    text = port(shown.format(kept="running += loss.item()", mean="print(running / 50)\n            running = 0.0")).text
    assert "if step % dl.steps(50) == dl.steps(50) - 1:" in text
    assert "dl.average(running / dl.steps(50))" in text


def test_what_is_rounded_is_the_mean() -> None:
    text = port(COLLECTED.format(kept="pass", mean="print(round(loss.item(), 3))")).text
    assert "round(dl.average(loss.item()), 3)" in text


def test_a_list_to_which_the_loop_adds_holds_no_samples() -> None:
    source = """import torch
data = torch.utils.data.TensorDataset(torch.randn(512, 4), torch.randn(512, 1))
batches = iter(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True))
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(60):
    x, y = next(batches)
    loss = torch.nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    print(losses[step], max(losses[step - 9 :]))
"""
    text = port(source).text
    assert "for step in range(dl.steps(60)):" in text
    assert "turns" not in text


TORCH = """import torch
from itertools import cycle, islice
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(256, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
batches = cycle(loader)
turns, every = 400, 100
"""
STEP = """    opt.zero_grad()
    loss = (model(a) - b).pow(2).mean()
    loss.backward()
    opt.step()
    total += loss.item()
"""


def test_a_mean_over_all_steps_that_is_made_in_the_last_is_over_those_of_all_ranks() -> None:
    end = "    if it == turns - 1:\n        total /= turns\n        print(total)\n"
    text = port(f"{TORCH}total = 0.0\nfor it in range(turns):\n    a, b = next(batches)\n{STEP}{end}").text
    assert "if it == dl.steps(turns) - 1:\n        total /= turns\n        print(dl.total(total))" in text


def test_a_mean_over_batches_that_are_taken_by_number_is_over_those_of_all_ranks() -> None:
    loop = f"for epoch in range(3):\n    total = 0.0\n    for a, b in islice(batches, 100):\n{STEP}"
    text = port(TORCH + loop.replace(STEP, STEP.replace("    ", "        ")) + "    print(total / 100)\n").text
    assert "islice(batches, dl.steps(100))" in text
    assert "    total = dl.total(total)  # sums over all ranks' samples\n    print(total / 100)" in text


WINDOW = """import heapq
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,))), batch_size=8)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
kept = []
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    KEEPS
print("kept", [round(v, 5) for v in kept])
"""


@pytest.mark.parametrize(
    "keeps",
    [
        "kept = sorted([*kept, loss.item()])[:3]",
        "kept = sorted(kept + [loss.item()], reverse=True)[:3]",
        "kept.append(loss.item()); kept = kept[-3:]",
        "kept.append(loss.item()); del kept[:-3]",
        "kept += [loss.item()]; kept.sort(); kept.pop()",
        "heapq.heappush(kept, loss.item()); heapq.heappop(kept)",
        "heapq.heappushpop(kept, loss.item())",
        "kept.append(loss.item()); kept = heapq.nsmallest(3, kept)",
        "kept.append(loss.item()); kept = heapq.nlargest(3, kept) if len(kept) > 3 else kept",
        "kept.append(loss.item()); kept = kept[-3:] if len(kept) > 3 else kept",
        "kept.append(loss.item()); kept.remove(max(kept))",
    ],
)
def test_the_best_few_of_a_rank_are_no_serial_list(keeps) -> None:
    done = port(WINDOW.replace("KEEPS", keeps))
    assert "dl.gather(kept" not in done.text
    assert [d.name for d in done.doubts if "kept" in d.why or "v:" in d.why] == ["unknown-placement"]


BOUNDED = """import random
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,))), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    {keep}
print(kept)
"""


@pytest.mark.parametrize(
    "keep",
    [
        "if len(kept) < 3: kept.append(loss.item())",
        "if not kept: kept.append(loss.item())",
        "if y[0].item() not in kept: kept.append(y[0].item())",
        "if len(kept) < 3: kept.append(loss.item())\n    else: kept[random.randrange(3)] = loss.item()",
    ],
)
def test_a_list_that_grows_under_a_test_of_itself_is_told_and_not_gathered(keep) -> None:
    made = port(BOUNDED.format(keep=keep))
    assert [d.why.partition(":")[0] for d in made.doubts if d.name == "unknown-placement"] == ["kept"]
    assert "dl.gather(" not in made.text and "dl.total(" not in made.text
