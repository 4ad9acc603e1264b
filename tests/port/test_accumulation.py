"""Gradients that are added up over several batches before an update."""

import pytest
import torch
from running import ran
from small import HEAD

from dlrun.port import Options, port

EVERY_K = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

class Counted:
    def __init__(self, optimizer):
        self.optimizer, self.updates = optimizer, 0

    def step(self):
        self.updates += 1
        self.optimizer.step()

torch.manual_seed(0)
x = torch.rand(672, 64, dtype=torch.float64)
y = x[:, :10].argmax(1)
accumulation_steps = 4
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = torch.nn.Linear(64, 10).double()
opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
total_steps = 3 * len(loader) // accumulation_steps
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: max(0.1, 1 - step / total_steps))
counted = Counted(opt)
for epoch in range(3):
    running = 0.0
    for step, (a, b) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(a), b) / accumulation_steps
        loss.backward()
        running += loss.item()
        if (step + 1) % accumulation_steps == 0 or step + 1 == len(loader):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            counted.step()
            sched.step()
            opt.zero_grad()
    print(f"epoch {epoch}: {counted.updates} updates, loss {running:.6f}")
torch.save(model.state_dict(), "last.pt")
"""
MICRO = """\
import torch
x, y = load()
model = torch.nn.Linear(64, 10)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    total = 0.0
    for micro in range(4):
        picks = torch.randint(len(x), (8,))
        loss = torch.nn.functional.cross_entropy(model(x[picks]), y[picks]) / 4
        loss.backward()
        total += loss.item()
    opt.step()
    opt.zero_grad()
    if step % 20 == 0:
        print(step, total)
"""


def test_updates_every_few_batches_are_those_of_one_process(tmp_path):
    serial, shared = (tmp_path / f"{name}.py" for name in ("serial", "shared"))
    serial.write_text(EVERY_K)
    shared.write_text(port(EVERY_K, Options(batch="global")).text)
    said, parameters = ran(serial, tmp_path / "alone")
    shown, same = ran(shared, tmp_path / "two", 2)
    assert shown.splitlines() == said.splitlines()
    for name, value in parameters.items():
        torch.testing.assert_close(same[name], value, rtol=1e-9, atol=1e-12)


def test_updates_every_few_local_batches_are_one_nth_as_many(tmp_path):
    local = tmp_path / "local.py"
    local.write_text(port(EVERY_K).text)
    shown, _ = ran(local, tmp_path / "local", 2)
    assert [line.split(",")[0] for line in shown.splitlines()] == [f"epoch {i}: {6 * i + 6} updates" for i in range(3)]


def test_a_rate_that_is_set_with_every_update_leaves_the_batches_of_one_as_they_are():
    source = EVERY_K.replace(
        "            sched.step()\n", "            opt.param_groups[0]['lr'] = 0.5 / (1 + counted.updates)\n"
    )
    text = port(source).text
    assert "if (step + 1) % accumulation_steps == 0 or" in text
    assert "accumulation_steps = 4\n" in text
    called = source.replace("            counted.step()", "            update()").replace(
        "counted = ", "def update():\n    opt.step()\n    opt.zero_grad()\ncounted = "
    )
    saves = called.replace("            update()", "            update()\n            torch.save(model, 'now.pt')")
    assert "if (step + 1) % accumulation_steps == 0 or" in port(saves).text


def test_gradients_are_averaged_before_what_reads_them_on_the_way_to_an_update():
    wrapped = """class Noam:
    def __init__(self, optimizer):
        self.optimizer = optimizer
    def step(self):
        self.optimizer.step()
noam = Noam(torch.optim.Adam(model.parameters()))
for x, y in DataLoader(data, shuffle=True):
    scaler.scale((model(x) - y).pow(2).mean()).backward()
    scaler.step(noam)
"""
    text = port(HEAD + wrapped).text
    assert "    dl.gradients(noam.optimizer)  # mean over the ranks\n    scaler.step(noam)\n" in text
    assert text.count("dl.gradients(") == 1
    plain = wrapped.replace("scaler.step(noam)", "noam.step()")
    assert "        dl.gradients(self.optimizer)  # mean over the ranks\n        self.optim" in port(HEAD + plain).text


def test_micro_batches_stay_the_updates_are_shared_and_their_sum_is_averaged():
    text = port(MICRO).text
    assert "for step in range(dl.steps(1000)):" in text
    assert "for micro in range(4):" in text
    assert "    dl.gradients(opt)  # mean over the ranks\n    opt.step()" in text
    assert "print(dl.serial_steps(step), dl.average(total))" in text


def test_variables_that_add_up_gradients_of_tapes_are_averaged_where_an_optimizer_applies_them() -> None:
    ported = port("""
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
sums = [tf.Variable(tf.zeros_like(v)) for v in model.trainable_variables]
for step, x in enumerate(tf.data.TFRecordDataset("a").map(tf.io.parse_tensor).batch(8)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2) / 4
    for total, gradient in zip(sums, tape.gradient(loss, model.trainable_variables)):
        total.assign_add(gradient)
    if (step + 1) % 4 == 0:
        opt.apply_gradients(zip(sums, model.trainable_variables))
        for total in sums:
            total.assign(tf.zeros_like(total))
""")
    assert "opt = dl.DistributedOptimizer(opt)" in ported.text
    assert "dl.gradients(" not in ported.text
    assert "by hand" not in ported.report()


CLIPPED = """
import tensorflow as tf
x = tf.random.uniform((640, 10))
data = tf.data.Dataset.from_tensor_slices(x).batch(20)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.01)
sums = [tf.Variable(tf.zeros_like(v)) for v in model.trainable_variables]
for i, a in enumerate(data):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(a) ** 2) / 4
    for s, g in zip(sums, tape.gradient(loss, model.trainable_variables)):
        s.assign_add(g)
    if (i + 1) % 4 == 0:
        {clip}
        opt.apply_gradients(zip(grads, model.trainable_variables))
        for s in sums:
            s.assign(tf.zeros_like(s))
"""


@pytest.mark.parametrize(
    ("clip", "found"),
    [
        ("grads, _ = tf.clip_by_global_norm(sums, 1.0)", "tf.clip_by_global_norm(dl.gradients(sums), 1.0)"),
        ("grads = [tf.clip_by_norm(s, 1.0) for s in sums]", "[tf.clip_by_norm(s, 1.0) for s in dl.gradients(sums)]"),
        (
            "grads = [tf.clip_by_value(s, -1, 1) for s, v in zip(sums, model.variables)]",
            "for s, v in zip(dl.gradients(sums), model.variables)]",
        ),
    ],
)
def test_gradients_that_variables_add_up_are_averaged_before_they_are_clipped(clip: str, found: str) -> None:
    text = port(CLIPPED.format(clip=clip)).text
    assert found in text and "DistributedOptimizer" not in text


LEFT_OVER = """import torch
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(40, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    waiting = 0
    for a, b in loader:
        ((model(a) - b).pow(2).mean() / 2).backward()
        waiting += 1
        if waiting == 2:
            opt.step()
            opt.zero_grad()
            waiting = 0
    if waiting:
        opt.step()
        opt.zero_grad()
    print(epoch)
"""


def test_batches_since_the_last_update_are_as_many_on_all_ranks_and_epochs_stay_epochs():
    text = port(LEFT_OVER).text
    assert "        if waiting == 2:\n" in text and "    if waiting:\n" in text
    assert "    print(epoch)\n" in text
