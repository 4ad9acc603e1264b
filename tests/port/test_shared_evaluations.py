"""Evaluations go through a share of whole batches where all their numbers come out exactly, and say why where not."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import started
from small import HEAD

from dlrun.port import Options, port

HERE = Path(__file__).parent
PROGRAMS = sorted((HERE / "placement").glob("evaluate*.py"))
SCRIPT = """import random
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import datasets, transforms

MAKES
loader = DataLoader(data, batch_size=8, shuffle=True)
test_loader = DataLoader(held, batch_size=8)
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def test():
    BEFORE
    total, seen = 0.0, 0
    with torch.no_grad():
        for x, y in test_loader:
            LINE
            total += F.cross_entropy(model(x), y).item()
    print(total / len(test_loader))


for epoch in range(3):
    model.train()
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    test()
"""
PLAIN, DROPS = "model = torch.nn.Linear(4, 3)", "model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout())"
SHARED = '        for x, y in dl.shard(test_loader, whole="batches"):\n'


def _ported(makes: str = PLAIN, before: str = "pass", line: str = "pass", **options):
    return port(
        SCRIPT.replace("MAKES", makes).replace("BEFORE", before).replace("LINE", line), Options(**options), "train.py"
    )


def test_batches_are_sharded_at_the_loop_and_the_length_stays_the_serial_one() -> None:
    ported = _ported()
    assert SHARED in ported.text
    assert (
        "        total = dl.total(total)  # sums over all ranks' samples\n    print(total / len(test_loader))"
        in ported.text
    )
    assert not ported.notes and not ported.doubts


def test_the_command_line_keeps_evaluations_whole() -> None:
    ported = _ported(evaluate="whole")
    assert "        for x, y in test_loader:\n" in ported.text and "dl.total" not in ported.text
    assert not ported.notes


@pytest.mark.parametrize(
    "before, shared",
    [("model.eval()", True), ("model.train(False)", True), ("model.train()", False), ("pass", False)],
)
def test_dropout_is_to_be_in_evaluation_mode(before: str, shared: bool) -> None:
    ported = _ported(DROPS, before)
    assert (SHARED in ported.text) is shared
    assert [n.why for n in ported.notes] == (
        [] if shared else ["each rank evaluates all of it: Dropout is in training mode"]
    )


def test_a_mode_that_is_set_by_the_caller_counts() -> None:
    source = SCRIPT.replace("MAKES", DROPS).replace("BEFORE", "pass").replace("LINE", "pass")
    assert SHARED not in port(source.replace("    test()", "    model.train()\n    test()")).text
    assert SHARED in port(source.replace("    test()", "    model.eval()\n    test()")).text


DRAWN = """class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.f = torch.nn.Linear(4, 3)
        self.begin()
    def begin(self):
        self.f.weight.data.normal_()
    def sample(self, n):
        return torch.randn(n, 3)
    def forward(self, x):
        return READ
model = Net()
"""


@pytest.mark.parametrize(
    ("read", "shared"), [("self.f(x)", True), ("self.f(x) + self.sample(len(x))", False), ("torch.rand(9, 3)", False)]
)
def test_what_a_model_draws_elsewhere_keeps_no_evaluation_whole(read: str, shared: bool) -> None:
    assert (SHARED in _ported(DRAWN.replace("READ", read)).text) is shared


def test_samples_that_are_picked_by_a_number_of_others_draw_not_as_those() -> None:
    makes = """
augmented = datasets.MNIST("data", transform=transforms.RandomCrop(28))
order = torch.randperm(len(augmented))
held = torch.utils.data.Subset(datasets.MNIST("data", transform=transforms.ToTensor()), order[:99])
data = torch.utils.data.Subset(augmented, order[99:])
"""
    assert SHARED in _ported(makes + PLAIN).text


STREAM = "class Lines(IterableDataset):\n    def __iter__(self):\n        yield from ()\nheld = Lines()\n" + PLAIN
FLIPS = """class Flipped(Dataset):
    def __len__(self):
        return 9
    def __getitem__(self, i):
        return (self.x[i].flip(0) if random.random() < 0.5 else self.x[i]), 0
held = Flipped()
"""
CROPS = """augment = transforms.Compose([transforms.RandomCrop(28), transforms.ToTensor()])
held = datasets.MNIST("data", train=False, transform=augment)
"""
CENTRED = (
    CROPS.replace("RandomCrop", "CenterCrop") + 'data = datasets.MNIST("data", transform=transforms.RandomCrop(9))\n'
)


@pytest.mark.parametrize(
    "makes, why",
    [
        (STREAM, "its samples come from a stream, which may keep state"),
        (FLIPS + PLAIN, "random.random draws at random for a sample"),
        (CROPS + PLAIN, "RandomCrop draws at random"),
        (CENTRED + PLAIN, None),
    ],
)
def test_samples_are_to_be_the_same_each_time(makes: str, why: str | None) -> None:
    ported = _ported(makes)
    assert (SHARED in ported.text) is (why is None)
    assert [n.why for n in ported.notes] == ([f"each rank evaluates all of it: {why}"] if why else [])


@pytest.mark.parametrize(
    "line, why",
    [
        ("torch.save(model(x), 'out.pt')", "torch.save() has an effect of its own in it"),
        ("print(x.mean().item())", "print() has an effect of its own in it"),
        ("x = x + torch.rand_like(x)", "torch.rand_like() draws at random"),
        ("if total > 3: break", "it may end before its last batch"),
        ("if total > 3: continue", "total > 3: it goes by how much has been evaluated so far"),
        ("seen = y.size(0)", None),  # nothing reads it
    ],
)
def test_what_stands_in_the_loop_may_keep_it_whole(line: str, why: str | None) -> None:
    ported = _ported(line=line)
    assert (SHARED in ported.text) is (why is None)
    assert [n.why for n in ported.notes] == ([f"each rank evaluates all of it: {why}"] if why else [])


@pytest.mark.parametrize(
    ("drawn", "agreed"),
    [
        ("shuffle=True", True),
        ("sampler=torch.utils.data.SubsetRandomSampler(range(40))", True),
        ("shuffle=False", False),
        ("shuffle=True, generator=torch.Generator().manual_seed(0)", False),
    ],
)
def test_ranks_that_evaluate_all_in_an_order_of_their_own_decide_by_what_all_find(drawn: str, agreed: bool) -> None:
    source = SCRIPT.replace("MAKES", PLAIN).replace("BEFORE", "pass").replace("LINE", "print(x.shape)")
    source = source.replace("held, batch_size=8", f"held, batch_size=8, {drawn}")
    source = source.replace("    print(total /", "    return print(total /").replace("return print(", "return (")
    ported = port(source.replace("    test()", "    if test() > 0.7:\n        break"))
    assert "for x, y in test_loader:" in ported.text
    assert ("dl.average(total" in ported.text) is agreed
    parts = port(source.replace("    test()", "    if test() > 0.7:\n        break"), Options(batch="global"))
    assert ("dl.average(total" in parts.text) is agreed  # no rank alone leaves the training


def test_ranks_that_evaluate_a_pipeline_made_anew_decide_by_what_all_find() -> None:
    script = TAPE.replace("MAKES", "").replace(
        "in test:", "in tf.data.Dataset.from_tensor_slices((u, v)).shuffle(9).batch(8):"
    )
    script = script.replace("error.update_state(SCORE)", "vals.append(float(loss_of(a, b, False)))")
    script = script.replace("    print(float(error.result()))", "    if sum(vals) / len(vals) > 0.7:\n        break")
    ported = port(script.replace("        opt.apply", "        vals = []\n        opt.apply"))
    assert "dl.average(" in ported.text


def test_the_report_says_where_and_why() -> None:
    ported = _ported(line="print(x.mean().item())")
    assert "line 17: each rank evaluates all of it: print() has an effect of its own in it\n" in ported.report()
    (note,) = ported.as_json()["notes"]
    assert note["line"] == 17


def test_an_evaluation_within_training_iterations_stays_whole() -> None:
    source = SCRIPT.replace("MAKES", PLAIN).replace("BEFORE", "pass").replace("LINE", "pass")
    ported = port(source.replace("        opt.step()\n    test()", "        opt.step()\n        test()"))
    assert SHARED not in ported.text
    assert "within an iteration of another loop over a share" in ported.notes[0].why


def test_five_ranks_show_what_one_shows(tmp_path: Path) -> None:
    for program in PROGRAMS:
        text = port(program.read_text()).text
        assert ('whole="' in text) is (program.stem != "evaluate_left")
        tmp_path.joinpath(program.name).write_text(text.replace("dl.finalize()", "pass"))
    run = str(HERE / "one_by_one.py")
    alone, five = started(tmp_path, [run, str(tmp_path)]), started(tmp_path, [run, str(tmp_path)], 5)
    assert alone.count("###") == len(PROGRAMS) and "FAILED" not in five
    assert five == alone


def test_positions_that_a_bar_goes_through_are_shared_likewise() -> None:
    source = (HERE / "placement" / "evaluate_positions.py").read_text()
    barred = source.replace("    for at in range(steps):", "    bar = tqdm(range(steps))\n    for at in bar:")
    share = 'dl.shard(range(steps), whole="" if optimizer is not None else "batches")'
    assert f"    for at in {share}:" in port(source).text
    text = port("from tqdm import tqdm\n" + barred).text
    assert f"    bar = tqdm({share}, disable=not dl.is_rank0())" in text and f"over={share})" in text


NOISY = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(64, 3)
train = DataLoader(TensorDataset(x), batch_size=8, shuffle=True)
held = DataLoader(TensorDataset(x[:24]), batch_size=8)
net = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(net.parameters(), lr=1e-4)
def score():
    total = 0.0
    for (a,) in held:
        total += (net(a + torch.randn_like(a)) - a).pow(2).mean().item()
    return total / len(held)
best, waited = None, 0
for epoch in range(30):
    for (a,) in train:
        opt.zero_grad()
        (net(a) - a).pow(2).mean().backward()
        opt.step()
    now = score()
    if best is None or now < best:
        best, waited = now, 0
        torch.save(net.state_dict(), "last.pt")
    else:
        waited += 1
        if waited > 2:
            break
print(epoch > 2)
"""


def test_ranks_that_draw_in_an_evaluation_decide_by_the_mean_of_what_they_find(tmp_path) -> None:
    ported = port(NOISY)
    assert "        total = dl.average(total)" not in ported.text and "    total = dl.average(total)" in ported.text
    (tmp_path / "train.py").write_text(ported.text.replace("print(epoch", "print(epoch, best, epoch"))
    one, two = started(tmp_path, ["train.py"], 2), started(tmp_path, ["train.py"], 2)
    assert one == two and one.rstrip().endswith("True")  # and no rank was left waiting for another's save


TAPE = """import numpy as np
import tensorflow as tf
from tensorflow import keras

train = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
MAKES
model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.1)
error = keras.metrics.Mean()


def loss_of(a, b, training):
    return tf.reduce_mean((model(a, training=training) - b) ** 2)


for epoch in range(3):
    for a, b in train:
        with tf.GradientTape() as tape:
            loss = loss_of(a, b, True)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    for a, b in test:
        error.update_state(SCORE)
    print(float(error.result()))
"""
HELD = "test = tf.data.Dataset.from_tensor_slices((u, v)).batch(8)"


@pytest.mark.parametrize(
    ("makes", "score", "why"),
    [
        (HELD, "tf.reduce_mean((model(a) - b) ** 2)", ""),
        (HELD, "loss_of(a, b, False)", ""),
        (HELD, "loss_of(a, b, True)", "Dropout may be in training mode"),
        (HELD, "tf.reduce_mean(model(a, training=epoch > 1))", "Dropout may be in training mode"),
        (HELD.replace(".batch", ".shuffle(9).batch"), "tf.reduce_mean(model(a))", ""),
        (
            HELD.replace(".batch", ".map(lambda a, b: (tf.image.random_flip_up_down(a), b)).batch"),
            "tf.reduce_mean(model(a))",
            "map() draws at random",
        ),
        (
            HELD + ".map(f, deterministic=False)",
            "tf.reduce_mean(model(a))",
            "its order may be another one on each rank",
        ),
        (
            "def made():\n    return tf.data.Dataset.from_tensor_slices((u, v)).shuffle(9).batch(8)\n\n\ntest = made()",
            "tf.reduce_mean(model(a))",
            "",
        ),
        (HELD, "tf.reduce_mean(model(a) + tf.random.normal((1,)))", "tf.random.normal() draws at random"),
    ],
)
def test_loops_beside_a_tape_share_what_they_evaluate(makes: str, score: str, why: str) -> None:
    ported = port(TAPE.replace("MAKES", makes).replace("SCORE", score))
    assert ('for a, b in dl.shard(test, whole="batches"):' in ported.text) is (not why)
    assert ("dl.total(error" in ported.text) is (not why)
    assert [note.why for note in ported.notes] == ([f"each rank evaluates all of it: {why}"] if why else [])


def test_the_command_line_keeps_evaluations_of_tensorflow_and_keras_whole() -> None:
    whole = port(TAPE.replace("MAKES", HELD).replace("SCORE", "tf.reduce_mean(model(a))"), Options(evaluate="whole"))
    assert "for a, b in test:" in whole.text and not whole.notes
    model = "model = keras.Sequential([keras.layers.Dense(1)])"
    fit = f"import keras\n{model}\nmodel.compile('sgd', 'mse')\nmodel.fit(x, y)\n"
    assert "dl.distribute(model)" in port(fit).text
    assert 'dl.distribute(model, evaluate="whole")' in port(fit, Options(evaluate="whole")).text
    played = (
        "import gym\nenv = gym.make('CartPole-v1')\nstate, reward, done, info = env.step(0)\nmodel.predict(state)\n"
    )
    assert 'dl.distribute(model, evaluate="whole")' in port(fit + played).text


def test_statistics_of_a_model_that_a_tape_trains_are_averaged_where_it_is_evaluated_and_saved() -> None:
    norm = "keras.layers.BatchNormalization()"
    makes = (
        TAPE.replace("MAKES", HELD).replace("keras.layers.Dropout(0.5)", norm).replace("SCORE", "loss_of(a, b, False)")
    )
    ported = port(makes + 'model.save("m.keras")\n')
    assert ported.text.count("dl.average(model)") == 1  # behind the loop that trains
    assert ported.text.index("dl.average(model)") < ported.text.index("for a, b in dl.shard(test")
    inside = makes.replace(
        "        opt.apply", "        if epoch > 1:\n            model.save_weights('w.weights.h5')\n        opt.apply"
    )
    assert port(inside).text.count("dl.average(model)") == 2
    assert "dl.average(model)" not in port(TAPE.replace("MAKES", HELD).replace("SCORE", "loss_of(a, b, False)")).text


SESSION = """import numpy as np
import tensorflow.compat.v1 as tf

x = tf.placeholder(tf.float32, [None, 4])
training = tf.placeholder_with_default(False, [])
normed = tf.layers.batch_normalization(x, training=training)
loss = tf.reduce_mean(tf.square(tf.layers.dense(normed, 1)))
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
saver = tf.train.Saver()
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(2):
        for at in range(0, 600, 5):
            sess.run(train_op, {x: data[at : at + 5], training: True})
            if at % 100 == 0:
                saver.save(sess, "last")
                print(sess.run(loss, {x: held}))
        print("loss", sess.run(loss, {x: held}))
"""


def test_statistics_that_a_session_holds_are_averaged_where_it_evaluates_and_saves() -> None:
    text = port(SESSION).text
    line = "dl.average(sess)  # BatchNorm's statistics: of all ranks' samples\n"
    assert f'                {line}                dl.rank0(saver.save)(sess, "last")' in text
    assert f"        {line}        if dl.should_stop():" in text and text.count(line) == 2
    assert line not in port(SESSION.replace("tf.layers.batch_normalization(x, training=training)", "x")).text


METERS = """
class Meter:
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count
    def __str__(self):
        return f"{self.val:.4f} ({self.avg:.4f})"

for epoch in range(3):
    losses = Meter()
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.update(loss.item(), len(x))
        if i % 10 == 0:
            print(f"{epoch} {losses}")
    tested = Meter()
    model.eval()
    with torch.no_grad():
        for x, y in test_loader:
            tested.update(torch.nn.functional.mse_loss(model(x), y).item(), len(x))
    print("tested {tested.avg:.3f} of {tested.count}".format(tested=tested))
"""


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ('f"{epoch} {losses}"', ["losses: rank 0's so far: it shows itself"]),
        ('"{} " "{m.avg:.3f}".format(epoch, m=losses)', []),
    ],
)
def test_an_evaluation_that_keeps_running_means_is_shared_and_a_meter_that_shows_itself_is_told(shown, told) -> None:
    made = "loader, test_loader = DataLoader(data, batch_size=8, shuffle=True), DataLoader(held, batch_size=8)\n"
    meters = METERS.replace('f"{epoch} {losses}"', shown)
    ported = port(f"{HEAD}{made}opt = torch.optim.SGD(model.parameters(), lr=0.1)\n{meters}")
    assert 'for x, y in dl.shard(test_loader, whole="batches"):' in ported.text
    assert "        if tested.count:\n            tested.avg = tested.sum / tested.count\n" in ported.text
    assert [doubt.why for doubt in ported.doubts if doubt.name == "shown-by-rank-0"] == told
    assert told or '"{} " "{losses_avg:.3f}".format(epoch, losses_avg=dl.average(losses.avg))' in ported.text


@pytest.mark.parametrize(
    "made", ["sum(F.mse_loss(model(x), y).item() for x, y in test)", "max([model(x).mean() for x, y in test])"]
)
def test_a_comprehension_that_evaluates_says_that_it_stays_whole(made) -> None:
    script = f"""import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
loader, test = DataLoader(data, batch_size=8), DataLoader(held, batch_size=8)
opt = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    opt.zero_grad()
    F.mse_loss(model(x), y).backward()
    opt.step()
print({made}, [len(x) for x, y in test])
"""
    why = "each rank evaluates all of it: a comprehension goes through it; a for loop would be shared"
    assert [note.why for note in port(script).notes] == [why]
    assert not port(script, Options(evaluate="whole")).notes


KEPT = """class Mean:
    def __init__(self):
        self.sum = self.seen = self.mean = 0
    def update(self, value, n):
        self.sum += value * n
        self.seen += n
        self.mean = self.sum / self.seen

best, bad = 1e9, 0
for epoch in range(9):
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        opt.step()
    mean, logs, found = Mean(), {"sum": 0.0}, []
    for i, (x, y) in enumerate(held):
        loss = torch.nn.functional.mse_loss(model(x), y).item()
        mean.update(loss, len(x))
        logs["sum"] += loss
        found.extend(model(x).flatten().tolist())
        print(i)
    scheduler.step(MEASURE)
    if MEASURE < best:
        best, bad = MEASURE, 0
    else:
        bad += 1
        if bad > 2:
            break
"""


@pytest.mark.parametrize(
    ("measure", "averaged", "agreed"),
    [
        ("mean.mean", "mean.mean", False),
        ("mean.sum / mean.seen", "mean.sum, mean.seen", False),
        ('logs["sum"]', 'logs["sum"]', False),
        ("statistics.median(found)", "", True),
    ],
)
def test_ranks_that_evaluate_in_orders_of_their_own_decide_alike_whatever_keeps_the_numbers(
    measure: str, averaged: str, agreed: bool
) -> None:
    made = "loader, held = DataLoader(data, 8, shuffle=True), DataLoader(held, 8, shuffle=True)\n"
    made += "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    made += "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)\n"
    ported = port(f"import statistics\n{HEAD}{made}{KEPT.replace('MEASURE', measure)}")
    assert not averaged or f"    {averaged} = dl.average({averaged})" in ported.text
    assert (f"scheduler.step(dl.agree({measure}))" in ported.text) is agreed
    assert (f"if dl.agree({measure} < best):" in ported.text) is agreed
    assert not [doubt for doubt in ported.doubts if doubt.danger == "high"]


HEIRS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(160, 3), torch.randn(160, 1))
train, valid = DataLoader(data, 10, shuffle=True), DataLoader(data, 10)
class Stage:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
    def epoch(self, batches, training):
        total = 0.0
        for x, y in batches:
            loss = self.loss(x, y)
            if training:
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
            total += loss.item()
        return total
    def run(self, batches, valid):
        print(self.epoch(batches, True), self.epoch(valid, False))
class One(Stage):
    def loss(self, x, y):
        return (self.model(x) - y).pow(2).mean()
class Two(Stage):
    def loss(self, x, y):
        return (self.model(x) - y).abs().mean()
for stage in (One(torch.nn.Linear(3, 1)), Two(torch.nn.Linear(3, 1))):
    stage.run(train, valid)
"""


def test_batches_that_methods_of_several_heirs_evaluate_are_shared_once():
    assert 'self.epoch(dl.shard(valid, whole="batches"), False)' in port(HEIRS).text


@pytest.mark.parametrize("seed", ["", "torch.manual_seed(0)\n"])
def test_an_evaluation_before_the_training_is_shared_by_ranks_that_have_one_model(seed):
    script = f"""{HEAD}{seed}
opt = torch.optim.SGD(model.parameters(), lr=0.1)
held = DataLoader(other, batch_size=8)
def evaluate():
    total = 0.0
    with torch.no_grad():
        for x, y in held:
            total += (model(x) - y).pow(2).sum().item()
    return total
first = evaluate()
for x, y in DataLoader(data, shuffle=True):
    (model(x) - y).pow(2).mean().backward()
    opt.step()
print(first, evaluate())
"""
    text = port(script).text
    assert 'dl.shard(held, whole="batches")' in text
    assert ("dl.broadcast(model, opt)  # every rank starts from rank 0's state\nfirst = " in text) is (not seed)
    assert text.count("dl.broadcast(model, opt)") == 1 + (not seed)


def test_a_generator_that_is_only_made_before_the_training_shares_no_evaluation():
    script = f"""{HEAD}
def again(loader):
    while True:
        for batch in loader:
            yield batch
batches = again(DataLoader(data, batch_size=8, shuffle=True))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    x, y = next(batches)
    (model(x) - y).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
"""
    assert port(script).text.count("dl.broadcast(") == 1


def test_a_model_that_is_loaded_where_it_is_evaluated_first_is_the_same_on_all_ranks_already():
    script = f"""{HEAD}
opt = torch.optim.SGD(model.parameters(), lr=0.1)
held = DataLoader(other, batch_size=8)
def evaluate():
    total = 0.0
    with torch.no_grad():
        for x, y in held:
            total += (model(x) - y).pow(2).sum().item()
    return total
best = 0.0
if resume:
    model.load_state_dict(torch.load("last.pt"))
    best = evaluate()
for x, y in DataLoader(data, shuffle=True):
    (model(x) - y).pow(2).mean().backward()
    opt.step()
print(best, evaluate())
"""
    assert port(script).text.count("dl.broadcast(") == 1
