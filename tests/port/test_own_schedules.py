"""Rates that scripts compute from their steps: n ranks follow the serial run, n steps at once."""

import re

import pytest
from running import ran
from small import HEAD, SERIAL

from dlrun.port import Options, port

TRAINS = """
import math
import torch
from torch.optim.lr_scheduler import LambdaLR, _LRScheduler
from torch.utils.data import DataLoader, TensorDataset


class Noam:
    def __init__(self, factor, warmup, optimizer):
        self.factor, self.warmup, self.optimizer, self._step = factor, warmup, optimizer, 0

    def step(self):
        self._step += 1
        for group in self.optimizer.param_groups:
            self.last = group["lr"] = self.rate()
        self.optimizer.step()

    def rate(self, step=None):
        if step is None:
            step = self._step
        return self.factor * min(step ** -0.5, step * self.warmup ** -1.5)


class Restarts:
    def __init__(self, optimizer, cycle, warm=6):
        self.optimizer, self.cycle, self.warm, self.done = optimizer, cycle, warm, 0

    def step(self):
        self.done += 1
        at = self.done % self.cycle
        rate = 0.005 * (1 + math.cos(at / self.cycle * math.pi))
        if self.done in range(self.warm):
            rate /= 10
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()


class Poly(_LRScheduler):
    def __init__(self, optimizer, most):
        self.most = most
        super().__init__(optimizer)

    def get_lr(self):
        return [base * (1 - self.last_epoch / self.most) ** 0.9 for base in self.base_lrs]


def warmed(optimizer, warm_steps, total):
    def factor(step):
        if step < warm_steps:
            return step / max(1, warm_steps)
        return (total - step) / max(1, total - warm_steps)
    return LambdaLR(optimizer, factor)


def adjust(optimizer, step, most=24):
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * 0.5 ** (step / 6) if step < 12 else 0.01 * (most - step) / most


def halve(optimizer):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


torch.manual_seed(0)
x = torch.arange(48.0).reshape(24, 2) / 48
model = torch.nn.Linear(2, 1)
loader = DataLoader(TensorDataset(x, x[:, :1] * 3), batch_size=2)
made = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(6)]
noam, restarts = Noam(0.01, 6, made[0]), Restarts(made[5], 12)
schedulers = [Poly(made[1], 24), warmed(made[2], 6, 2 * len(loader))]
optimizer, ramp, decayed, adjusted, halved, _ = made
rates, done = [], 0
for epoch in range(2):
    for a, b in loader:
        adjust(adjusted, done)
        if done > 0 and done % 6 == 0:
            halve(halved)
        loss = (model(a) - b).pow(2).mean()
        model.zero_grad()
        loss.backward()
        noam.step()
        restarts.step()
        ramp.step()
        decayed.step()
        adjusted.step()
        halved.step()
        done += 1
        each = (noam.optimizer, restarts.optimizer, ramp, decayed, adjusted, halved)
        rates.append([group["lr"] for made in each for group in made.param_groups])
        for scheduler in schedulers:
            scheduler.step()
torch.save(rates, "last.pt")
"""


def test_hand_made_schedules_on_n_ranks_are_those_of_every_nth_serial_step(tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    ported = port(TRAINS, Options(lr_scaling="none"))
    assert not [doubt for doubt in ported.doubts if "rate" in doubt.why]
    (tmp_path / "train_dist.py").write_text(ported.text)
    _, serial = ran(tmp_path / "train.py", tmp_path / "serial")
    assert ran(tmp_path / "train_dist.py", tmp_path / "alone")[1] == serial
    assert len({tuple(rates) for rates in serial}) == 24
    for ranks in (2, 3):
        _, rates = ran(tmp_path / "train_dist.py", tmp_path / str(ranks), ranks)
        assert len(rates) == len(serial)
        for each in (rates[rank::ranks] for rank in range(ranks)):  # the ranks' entries, in the serial order
            assert [r[:2] for r in each] == [pytest.approx(r[:2]) for r in serial[ranks - 1 :: ranks]]  # count from 1
            assert [r[2:] for r in each] == [pytest.approx(r[2:]) for r in serial[::ranks]]


def ported(source, keep):
    """Return the lines of the port of ``source`` that match ``keep``."""
    return [line.strip() for line in port(source).text.splitlines() if re.search(keep, line)]


LOOP = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
loader = DataLoader(data, batch_size=8, shuffle=True)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
MADE
done = 0
for epoch in range(9):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        sched.step()
        done += 1
        if 0 < args.most < done:
            break
"""
WARMED = "sched = get_linear_schedule_with_warmup(opt, warm, total)\n"


@pytest.mark.parametrize(
    ("made", "written"),
    [
        # Each branch of a total, handed on or not, is divided once or not at all.
        ("total = args.most if args.most > 0 else 9 * len(loader)", []),
        (
            f"if args.most > 0:\n    total = args.most\nelse:\n    total = 9 * len(loader)\nwarm = 50\n{WARMED}",
            ["total = dl.steps(args.most)", "warm = dl.steps(50)"],
        ),
        (
            f"def made(opt, total):\n    warm = total // 10\n    {WARMED}    return sched\nsched = made(opt, 9000)",
            ["sched = get_linear_schedule_with_warmup(opt, dl.steps(warm), dl.steps(total))"],
        ),
        (f"total = 9000\nwarm = total // 10\n{WARMED}", ["total = dl.steps(9000)"]),
        (f"total = 9 * len(loader)\nwarm = int(0.1 * total)\n{WARMED}", []),
    ],
)
def test_counts_of_steps_are_divided_once_where_they_are_written(made, written):
    source = LOOP.replace("MADE", f"from transformers import get_linear_schedule_with_warmup\n{made}")
    assert ported(source, r"= .*dl\.steps\(") == written


@pytest.mark.parametrize(
    ("made", "written"),
    [
        ("sched = lr_scheduler.CosineAnnealingLR(opt, T, eta_min=1e-5)", "eta_min=dl.lr_scale(1e-5))"),
        ("sched = lr_scheduler.CosineAnnealingLR(opt, T, eta_min=0)", "eta_min=0)"),
        ("sched = lr_scheduler.ReduceLROnPlateau(opt, min_lr=args.least)", "min_lr=dl.lr_scale(args.least))"),
        ("sched = tqdm(total=9 * args.size)", "tqdm(total=dl.steps(9 * args.size), disable=not dl.is_rank0())"),
        ("sched = tqdm(total=9 * len(loader))", "tqdm(total=9 * len(loader), disable=not dl.is_rank0())"),
    ],
)
def test_the_least_rate_is_scaled_and_bars_count_to_a_ranks_own_batches(made, written):
    head = "from torch.optim import lr_scheduler\nfrom tqdm import tqdm\n"
    moved = LOOP.replace("sched.step()", "sched.update(8)") if "tqdm" in made else LOOP
    assert ported(head + moved.replace("MADE", made), r"^sched = ")[0].endswith(written)


@pytest.mark.parametrize("often", ["part", "(len(data) // 40)", "500"])
def test_what_happens_several_times_an_epoch_does_so_with_n_ranks_too(often):
    asked = f"part = len(data) // 40\n        if done % {often} == 0:\n            print(done)"
    source = LOOP.replace("MADE", "").replace("sched.step()", "pass")
    source = source.replace("if 0 < args.most < done:\n            break", asked)
    written = {"500": "dl.steps(500)", "part": "dl.steps(part)"}.get(often, "dl.steps(len(data) // 40)")
    assert ported(source, "if ") == [f"if done % {written} == 0:"]


@pytest.mark.parametrize(
    ("end", "written"),
    [
        ("0 < args.most < done", "0 < dl.steps(args.most) < done"),
        ("args.most <= done", "dl.steps(args.most) <= done"),
        ("args.most > 0 and done > args.most", "args.most > 0 and done > dl.steps(args.most)"),
        ("args.most >= done", "dl.steps(args.most) >= done"),  # ends after the first step
    ],
)
def test_a_count_of_steps_that_ends_the_training_is_divided_on_either_side_of_its_comparison(end, written):
    source = LOOP.replace("MADE", "").replace("0 < args.most < done", end).replace("sched.step()", "")
    assert ported(source, "if ") == [f"if {written}:"]


@pytest.mark.parametrize(
    ("epochs", "written"),
    [
        ("int(args.most / len(loader) + 0.5)", "int(dl.steps(args.most) / len(loader) + 0.5)"),
        ("args.most // (len(data) // 8)", "args.most // (len(data) // 8)"),  # the length of all
        ("args.most", "args.most"),
    ],
)
def test_a_count_of_steps_that_the_length_of_a_share_turns_into_epochs_is_divided(epochs, written):
    source = LOOP.replace("MADE", f"epochs = {epochs}").replace("range(9)", "range(epochs)").replace("sched.step()", "")
    assert ported(source, "epochs = ") == [f"epochs = {written}"]


def test_a_count_that_goes_to_a_schedule_out_of_sight_is_doubted():
    source = LOOP.replace("MADE", "import lab\nsched = lab.Ramp(opt, warmup_steps=50, total_steps=9 * len(loader))")
    assert [d.write for d in port(source).doubts if "may count" in d.why] == ["warmup_steps=dl.steps(50), if it does"]


def test_a_rate_that_is_multiplied_at_every_batch_falls_as_in_the_serial_run_and_one_made_of_itself_is_doubted():
    steps = "for group in opt.param_groups:\n            group['lr'] *= args.fall"
    source = LOOP.replace("MADE", "").replace("sched.step()", steps)
    assert ported(source, "group.'lr'. .=") == ["group['lr'] *= dl.compound(args.fall)"]
    body = "return [0.99 * group['lr'] for group in self.optimizer.param_groups]"
    made = f"class Fall(torch.optim.lr_scheduler._LRScheduler):\n    def get_lr(self):\n        {body}\n"
    assert [d for d in port(LOOP.replace("MADE", f"{made}sched = Fall(opt)")).doubts if "of the one before" in d.why]


def test_a_rate_that_changes_at_one_step_is_doubted_where_ranks_may_pass_it_by():
    body = "if self.last_epoch == 100:\n            return [0.01]\n        return self.base_lrs"
    made = f"class Once(torch.optim.lr_scheduler._LRScheduler):\n    def get_lr(self):\n        {body}\n"
    doubted = [d.why for d in port(LOOP.replace("MADE", f"{made}sched = Once(opt)")).doubts if d.danger == "high"]
    assert doubted and "self.last_epoch == 100" in doubted[0]


@pytest.mark.parametrize(
    ("hook", "lines", "written"),
    [
        ("on_batch_end", "K.set_value(opt.lr, opt.lr * 1.1)", "opt.lr * dl.compound(1.1))"),
        (
            "on_batch_end",
            "lr = K.get_value(opt.lr)\n        lr *= self.factor\n        K.set_value(opt.lr, lr)",
            "lr *= dl.compound(self.factor)\n",
        ),
        ("on_batch_end", "new = K.get_value(opt.lr) / FALL\n        K.set_value(opt.lr, new)", "/ dl.compound(FALL)\n"),
        (
            "on_train_batch_begin",
            "opt.learning_rate.assign((1 - FALL) * opt.learning_rate)",
            "(dl.compound(1 - FALL) * opt.learning_rate)",
        ),
        ("on_batch_end", "opt.lr = opt.lr * self.moving", ""),
        ("on_batch_end", "opt.lr = opt.lr * logs['loss']", ""),
        ("on_batch_end", "if batch % 9 == 0:\n            opt.lr = opt.lr * 1.1", ""),
        ("on_batch_end", "opt.lr = opt.lr * 1.1 + 0.1", ""),
        ("on_epoch_end", "K.set_value(opt.lr, opt.lr * 0.9)", None),
        ("on_batch_end", "K.set_value(opt.lr, self.full)", None),
    ],
)
def test_a_callback_that_makes_each_batchs_rate_of_the_one_before_makes_n_batches_of_it_or_is_doubted(
    hook, lines, written
):
    ported = port(f"""import keras
from keras import backend as K
opt = keras.optimizers.SGD(0.1)
FALL = 0.1
class Finder(keras.callbacks.Callback):
    def __init__(self, factor):
        self.factor = factor
    def on_train_begin(self, logs=None):
        self.full = K.get_value(opt.lr)
    def on_epoch_end(self, epoch, logs=None):
        self.moving = 1.1
    def {hook}(self, batch, logs=None):
        {lines}
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(opt, "mse")
model.fit(x, y, callbacks=[Finder(1.1)])
""")
    assert ["of the one before" in d.why for d in ported.doubts if d.danger == "high"] == [True] * (written == "")
    assert ported.text.count("lr_scale") == 1 + ("+ 0.1" in lines), "what is added is a rate, too"
    assert (written or "") in ported.text and ported.text.count("compound(") == bool(written)


@pytest.mark.parametrize(
    ("test", "written"),
    [
        ("self.seen >= most", "self.seen >= dl.steps(most)"),
        ("900 == int(self.model.optimizer.iterations)", "dl.steps(900) == int(self.model.optimizer.iterations)"),
        ("logs['loss'] < 900", "dl.average(logs['loss']) < 900"),
    ],
)
def test_a_callback_that_ends_the_training_after_a_count_of_batches_does_so_after_as_many_samples(test, written):
    assert (
        f"if {written}:"
        in port(f"""import keras
class Stop(keras.callbacks.Callback):
    seen = 0
    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if {test}:
            self.model.stop_training = True
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, callbacks=[Stop()])
""").text
    )


@pytest.mark.parametrize(
    ("test", "body", "written"),
    [
        ("done % 1000 == 0", "torch.save(model.state_dict(), 'last.pt')", "if done % dl.steps(1000) == 0:"),
        ("not done % k", "keep(model)", "if not done % dl.steps(k):"),
        ("done % k == k - 1", "keep(model)", "if done % dl.steps(k) == dl.steps(k) - 1:"),
        ("done == 500 or done % k == 0", "keep(model)", "if done == dl.steps(500) or done % dl.steps(k) == 0:"),
        ("done > 1", "if valued(model) > 1:\n                break", "if done > 1:"),
        ("(done + 1) % 10 == 0", "if valued(model) > 1:\n                break", "if (done + 1) % dl.steps(10) == 0:"),
        ("done % 10 == 0", "plateau.step(valued(model))", "if done % dl.steps(10) == 0:"),
        ("done % 10 == 0", "print(done, loss.item())", "if done % dl.steps(10) == 0:"),
        ("done % 10 == 0", "for x in range(9):\n                break", "if done % dl.steps(10) == 0:"),
        ("done % 100 == 99", "keep(model)", "if done % dl.steps(100) == dl.steps(100) - 1:"),
    ],
)
def test_what_saves_or_decides_does_so_as_often_as_in_the_serial_run(test, body, written):
    made = "k = 50\nplateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)\n"
    made += "def keep(what):\n    torch.save(what.state_dict(), 'last.pt')\n"
    source = LOOP.replace("MADE", made).replace("sched.step()", f"if {test}:\n            {body}")
    assert written in ported(source, "if .*done")


WAITED = """class Trainer:
    def __init__(self, model):
        self.model, self.opt = model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.step = self.bad = 0
    def update(self, x):
        self.model(x).mean().backward()
        self.opt.step()
    def fit(self, batches):
        while self.step < 900:
            self.update(next(batches))
            self.step += 1
            if self.step % 10 == 0:
                if valued(self.model) > 1:
                    self.bad += 1
                    if self.bad >= 5:
                        break
def forever():
    while True:
        yield from loader
Trainer(model).fit(forever())
"""


def test_a_count_of_evaluations_is_none_of_steps():
    source = LOOP[: LOOP.index("MADE")] + WAITED
    assert ported(source, "if self|while self") == [
        "while self.step < dl.steps(900):",
        "if self.step % dl.steps(10) == 0:",
        "if self.bad >= 5:",
    ]


@pytest.mark.parametrize(
    ("weight", "written"),
    [
        ("tf.minimum(1.0, self.seen / 500)", "tf.minimum(1.0, dl.serial_steps(self.seen) / 500)"),
        ("self.weight()", "min(1.0, 0.01 * dl.serial_steps(self.optimizer.iterations))"),
        ("full", "K.set_value(full, 1 - 0.9 ** dl.serial_steps(self.batches))"),
        ("self.seen", ""),
        ("self.epochs / 9", ""),
    ],
)
def test_weights_in_a_train_step_and_what_callbacks_put_there_follow_the_serial_steps(weight, written):
    text = port(f"""import keras, tensorflow as tf
from keras import backend as K
full = K.variable(0.0)
class Grow(keras.callbacks.Callback):
    batches = 0
    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        {"K.set_value(full, 1 - 0.9 ** self.batches)" if weight == "full" else "pass"}
class Net(keras.Model):
    def weight(self):
        return min(1.0, {"0.01 * self.optimizer.iterations" if weight == "self.weight()" else 1})
    def train_step(self, data):
        self.seen.assign_add(1.0)
        with tf.GradientTape() as tape:
            rest, size = self.losses_of(data)
            loss = rest + {weight} * size
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.variables), self.variables))
        return {{"loss": loss}}
model = Net()
model.compile("sgd")
model.fit(x, y, callbacks=[Grow()])
""").text
    assert written in text and text.count("serial_steps") == bool(written)


def test_in_a_loop_around_train_on_batch_rates_weights_and_stages_follow_the_serial_steps():
    source = """import keras, tensorflow as tf
import numpy as np
from keras import backend as K
size = K.variable(0.0)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
for i in range(900):
    rows = np.random.randint(0, 1000, 32)
    model.train_on_batch(x[rows], y[rows])
    if i == 800 or i > last:
        model.optimizer.learning_rate.assign(0.01)
    if i % 100 == 0 and i > 0:
        print(i)
    if (i + 1) % 300 == 0:
        model.save("made.keras")
    K.set_value(size, min(1.0, i / 300))
    model.optimizer.learning_rate = 0.1 * 0.999 ** i
"""
    text = port(source).text
    assert "if i == dl.steps(800) or i > dl.steps(last):" in text and "min(1.0, dl.serial_steps(i) / 300)" in text
    assert "dl.lr_scale(0.1 * 0.999 ** dl.serial_steps(i))" in text and "if i % dl.steps(100) == 0 and i > 0:" in text
    assert (
        "if dl.should_stop() or (i + 1) % dl.steps(300) == 0:" in text
    )  # 64 ranks might not make 300 turns, and save nothing


@pytest.mark.parametrize("start", [", 1", ", start=0", ""])
def test_a_loop_that_counts_its_batches_from_1_counts_as_well(start):
    end = f"for i, (x, y) in enumerate(forever(){start}):"
    source = f"""{SERIAL[: SERIAL.index("for x, y")]}def forever():
    while True:
        yield from DataLoader(data, shuffle=True)
{end}
    (model(x) - y).pow(2).mean().backward()
    opt.step()
    if i >= 900:
        break
"""
    assert "if i >= dl.steps(900):" in port(source).text


@pytest.mark.parametrize(
    ("sets", "written"),
    [
        ("opt.learning_rate = 0.1 * min(1.0, step / 20)", "min(1.0, dl.serial_steps(step) / 20)"),
        ("opt.learning_rate.assign(0.1 * min(1.0, step / 20))", "min(1.0, dl.serial_steps(step) / 20)"),
    ],
)
def test_a_rate_that_a_loop_of_a_tape_makes_of_its_number_follows_the_serial_steps(sets, written) -> None:
    source = f"""import numpy as np
import tensorflow as tf
x = np.random.randn(96, 4).astype("float32")
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
batches = iter(tf.data.Dataset.from_tensor_slices(x).shuffle(96).repeat().batch(8))
for step in range(1, 41):
    {sets}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(next(batches)) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    if step % 10 == 0:
        print(step, float(opt.learning_rate))
"""
    text = port(source).text
    assert f"dl.lr_scale(0.1 * {written})" in text
    assert "print(dl.serial_steps(step), float(opt.learning_rate))" in text  # the rate that all ranks train with


@pytest.mark.parametrize(
    "made",
    [
        "rate = partial(poly, total=2 * len(loader), base=0.1)",
        "def make(total, base):\n    def rate(it):\n        if it < total // 4:\n            return base * (it + 1) / "
        "(total // 4)\n        return base * (1 - it / total)\n    return rate\nrate = make(2 * len(loader), 0.1)",
        "given = dict(total=2 * len(loader), base=0.1)\ndef rate(it):\n    return poly(it, **given)",
    ],
)
def test_a_rate_that_is_measured_by_the_length_of_a_share_goes_by_local_steps_however_it_is_told_that(made) -> None:
    poly = "def poly(it, total, base, power=0.9):\n    return base * (1 - it / total) ** power\n"
    head = HEAD.replace("import torch\n", f"from functools import partial\nimport torch\n{poly}", 1)
    loop = """loader = DataLoader(data, shuffle=True)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
MADE
it = 0
for epoch in range(2):
    for x, y in loader:
        opt.param_groups[0]["lr"] = rate(it)
        (model(x) - y).pow(2).mean().backward()
        opt.step()
        it += 1
"""
    text = port(head + loop.replace("MADE", made)).text
    assert 'opt.param_groups[0]["lr"] = dl.lr_scale(rate(it))' in text
    assert "dl.steps(" not in text and "serial_steps" not in text
