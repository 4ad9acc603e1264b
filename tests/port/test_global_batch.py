"""``--batch global``: n ranks take 1/n of every batch each, and leave the serial script's parameters."""

from importlib.util import find_spec

import pytest
import torch
from click.testing import CliRunner
from projects import PROJECT, lay
from running import ran, started

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port import Options, port
from dlrun.port.files import port_tree

GLOBAL = Options(batch="global")
LOOP = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1000)
for x, y in DataLoader(data, batch_size, shuffle=True):
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    opt.step()
    sched.step()
"""

MOVED = """
class Moved:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        for x, y in self.loader:
            yield x.float(), y.float()
class Read:
    def __init__(self, data):
        self.data = data
    def __iter__(self):
        yield from zip(self.data, self.data)
"""


def test_rate_and_steps_stay_and_the_loader_divides_its_batches():
    ported = port(LOOP, GLOBAL)
    assert 'dl.shard(DataLoader(data, batch_size, shuffle=True), batch="global")' in ported.text
    assert "lr=0.1)" in ported.text
    assert "step_size=1000)" in ported.text
    assert "keeps the global batch" in ported.report()
    assert "n times the learning rate" in port(LOOP).report()


@pytest.mark.parametrize(
    ("old", "new", "doubt"),
    [
        ("    opt.step()", "    noise = torch.zeros(batch_size)\n    opt.step()", "batch_size is the global batch"),
        ("torch.nn.Linear(2, 1)", "torch.nn.BatchNorm1d(2)", "dl.sync_batchnorm(model)"),
    ],
)
def test_what_depends_on_the_batch_is_doubted(old, new, doubt):
    assert doubt in port(LOOP.replace(old, new), GLOBAL).report()
    assert "doubts" in port(LOOP, GLOBAL).report()
    assert doubt not in port(LOOP, GLOBAL).report()


def test_a_batch_size_that_counts_or_weighs_samples_is_not_doubted():
    counted = "    total, seen = 0.0, 0\n    opt.step()\n    total += 2 * batch_size\n    seen += batch_size\n"
    assert "is the global batch" not in port(LOOP.replace("    opt.step()\n", counted), GLOBAL).report()
    own = "    batch_size = len(x)\n    noise = torch.zeros(batch_size)\n    opt.step()\n"
    assert "is the global batch" not in port(LOOP.replace("    opt.step()\n", own), GLOBAL).report()


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        (
            "np.array_split(np.random.permutation(96), 8)",
            "dl.shard(iter(np.array_split(dl.broadcast(np.random.permutation(96)), 8)), batch=",
        ),
        ("torch.randperm(96).split(12)", "dl.shard(iter(dl.broadcast(torch.randperm(96)).split(12)), batch="),
        ("Moved(DataLoader(data, 12))", "dl.shard(Moved(DataLoader(data, 12)), batch="),
        ("zip(data.split(9), data.split(9))", "dl.shard(iter(zip(data.split(9), data.split(9))), batch="),
        (
            "zip(np.array_split(data, 4), xs.chunk(4))",
            "dl.shard(iter(zip(np.array_split(data, 4), xs.chunk(4))), batch=",
        ),
    ],
)
def test_orders_cut_into_batches_and_loaders_that_are_wrapped_are_divided_batch_by_batch(batches, expected):
    loop = LOOP.replace("import torch\n", "import torch\nimport numpy as np\n" + MOVED, 1)
    loop = loop.replace("for x, y in DataLoader(data, batch_size, shuffle=True):", f"for x, y in {batches}:")
    ported = port(loop, GLOBAL)
    assert expected in ported.text and not ported.doubts


@pytest.mark.parametrize(
    "batches",
    (
        "random.sample(kept, 8)",
        "Read(data)",
        "TensorDataset(data, data)",
        "zip(data.split(9), kept)",
        "data.reshape(8, 12, 2)",
    ),
)
def test_what_may_be_samples_is_not_divided_globally(batches):
    loop = LOOP.replace(
        "import torch\n", "import torch\nimport random\nfrom torch.utils.data import TensorDataset\n" + MOVED, 1
    )
    loop = loop.replace("model =", "data = torch.randn(96, 2)\nkept = list(data)\nmodel =")
    loop = loop.replace("for x, y in DataLoader(data, batch_size, shuffle=True):", f"for x, y in {batches}:")
    with pytest.raises(DlrunError, match="here they are the entries of a list"):
        port(loop, GLOBAL)


@pytest.mark.parametrize("batches", ("list(loader)", "sorted(loader)", "kept", "kept[:6]", "enumerate(kept)"))
def test_batches_that_are_all_drawn_before_the_first_iteration_are_not_divided_globally(batches):
    loop = LOOP.replace("model =", "loader = DataLoader(data, 12)\nkept = list(loader)\nmodel =")
    target = "i, (x, y)" if "enumerate" in batches else "x, y"
    loop = loop.replace("for x, y in DataLoader(data, batch_size, shuffle=True):", f"for {target} in {batches}:")
    with pytest.raises(DlrunError, match="has drawn all before the first iteration"):
        port(loop, GLOBAL)


def test_a_loss_that_is_a_sum_is_that_over_the_batch_where_it_trains():
    score = "error = torch.nn.functional.mse_loss(model(x), y, reduction='sum').item()\n"
    ported = port(LOOP.replace(".pow(2).mean()", ".pow(2).sum()") + score, GLOBAL)
    assert "loss = dl.partial_sum((model(x) - y).pow(2).sum())" in ported.text
    assert ported.text.count("partial_sum") == 1 and not ported.doubts


def test_a_sum_that_an_evaluation_between_epochs_takes_too_is_not_n_times_there():
    between = (
        "def of(x, y):\n    return (model(x) - y).pow(2).sum(), len(x)\n\n\nEVALUATION\n\nfor epoch in range(2):\n"
    )
    with_block = "def evaluate():\n    with torch.no_grad():\n        return of(a, b)[0].item()\n"
    decorated = "@torch.no_grad()\ndef evaluate():\n    return of(a, b)[0].item()\n"
    head, loop = LOOP.split("for x, y", 1)
    steps = f"for x, y{loop}".replace("loss = (model(x) - y).pow(2).mean()", "loss, n = of(x, y)")
    body = "".join(f"    {line}\n" for line in steps.splitlines())
    for evaluation in (with_block, decorated):
        source = f"{head}{between.replace('EVALUATION', evaluation)}{body}    print(evaluate())\n"
        ported = port(source, GLOBAL)
        assert "partial_sum(" not in ported.text and "is 1/n of the serial one" in ported.report()


def test_a_penalty_beside_a_sum_counts_once():
    text = port(LOOP.replace(".pow(2).mean()", ".pow(2).sum() + 0.1 * model.weight.norm()"), GLOBAL).text
    assert "loss = dl.partial_sum((model(x) - y).pow(2).sum()) + 0.1 * model.weight.norm()" in text
    apart = LOOP.replace("loss = (model(x) - y).pow(2).mean()", "loss = of(x, y)").replace(
        "for x, y", "def of(x, y):\n    return (model(x) - y).pow(2).sum() + model.weight.norm()\n\n\nfor x, y"
    )
    doubted = port(apart + "print(of(x, y).item())\n", GLOBAL)
    assert "partial_sum(" not in doubted.text and "is 1/n of the serial one" in doubted.report()


def test_batches_that_are_no_loaders_are_refused():
    source = LOOP.replace(
        "for x, y in DataLoader(data, batch_size, shuffle=True):",
        "for i in range(100):\n    x, y = a[i], b[i]",
    )
    assert "dl.shard(range(100))" in port(source).text
    with pytest.raises(DlrunError, match=r"script:7: --batch global divides the batches of a DataLoader; .* by number"):
        port(source, GLOBAL)
    with pytest.raises(DlrunError, match="its model is made out of sight"):
        port("import tensorflow as tf\ntf.estimator.Estimator(model_fn).train(input_fn)\n", GLOBAL)


FIT = """import numpy as np
import keras
model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1000, 0.9)
model.compile(keras.optimizers.SGD(schedule), "mse")
model.fit(x, y, steps_per_epoch=50)
for step in range(100):
    rows = np.random.randint(0, len(x), 32)
    loss = model.train_on_batch(x[rows], y[rows])
    print(loss)
"""


def test_keras_divides_the_batches_in_its_steps_and_rate_schedule_and_loops_stay():
    ported = port(FIT, GLOBAL)
    assert 'dl.distribute(model, batch="global")' in ported.text
    assert "ExponentialDecay(0.1, 1000, 0.9)" in ported.text and "range(100)" in ported.text
    assert not any(word in ported.text for word in ("lr_scale", "dl.steps", "dl.shard", "dl.reseed", "dl.average"))
    assert "keeps the global batch" in ported.report()
    normed = FIT.replace("keras.layers.Dense(1)]", "keras.layers.BatchNormalization(), keras.layers.Dense(1)]")
    assert [d.name for d in port(normed, GLOBAL).doubts] == ["batchnorm-statistics"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("class Own(keras.Model):\n    def train_step(self, data):\n        return {}\n", "train_step"),
        ("layer = keras.layers.LSTM(4, stateful=True)\n", "states that go on"),
        ("import gym\nenv = gym.make('CartPole-v1')\nstate, reward, done, info = env.step(0)\n", "playing for itself"),
    ],
)
def test_batches_of_keras_that_no_weights_make_whole_are_refused(more, why):
    with pytest.raises(DlrunError, match=why):
        port(FIT + more, GLOBAL)


def test_scaling_the_rate_and_keeping_the_global_batch_exclude_each_other(tmp_path):
    script = lay(tmp_path)
    result = CliRunner().invoke(command, ["--batch", "global", "--lr-scaling", "sqrt", str(script)])
    assert result.exit_code == 2
    assert "go with --batch local" in result.output.replace("\n", " ")


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The project's folder, and what the serial script left."""
    folder = tmp_path_factory.mktemp("serial")
    script = lay(folder / "project", PROJECT)
    return script, *ran(script, folder / "run")


@pytest.mark.parametrize("ranks", [2, 4])
def test_n_ranks_leave_the_serial_parameters_to_rounding(ranks, serial, tmp_path):
    script, said, parameters = serial
    port_tree(script, tmp_path / "out", GLOBAL)
    shown, shared = ran(tmp_path / "out" / "train.py", tmp_path / "run", ranks)
    for name, value in parameters.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-6)
    assert "seen 24" in said
    assert shown.count("seen 24") == 2
    assert [line for line in shown.splitlines() if "epoch" in line] == [s for s in said.splitlines() if "epoch" in s]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_batch_that_the_ranks_do_not_divide_leaves_the_serial_parameters(serial, tmp_path, ranks):
    script, _, _ = serial
    for folder in ("one", "many"):
        port_tree(script, tmp_path / folder, GLOBAL)
        data = tmp_path / folder / "lab" / "data" / "digits.py"
        data.write_text(data.read_text().replace("train, batch_size, shuffle", "train, 61, shuffle"))
    _, alone = ran(tmp_path / "one" / "train.py", tmp_path / "alone")
    _, shared = ran(tmp_path / "many" / "train.py", tmp_path / "run", ranks)
    for name, value in alone.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-4, atol=1e-6)


ALL = """import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(10, 3)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for a, b in DataLoader(data, batch_size=SIZE, shuffle=True):
        loss = (model(a) - b).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
torch.save(model.state_dict(), "last.pt")
odd = x[:9]
for (a,) in DataLoader(TensorDataset(odd), batch_size=len(odd)):
    model(a).mean().backward()
    opt.step()
"""


def test_a_loader_of_one_batch_keeps_the_serial_parameters(tmp_path):
    for size in ("len(data)", "data.__len__()", "x.shape[0]", "x.size(0)"):
        text = port(ALL.replace("SIZE", size)).text
        assert 'batch="global")' in text and "lr_scale" not in text
    assert "lr_scale" in port(ALL.replace("SIZE", "len(x) // 3")).text
    (tmp_path / "train.py").write_text(ALL.replace("SIZE", "len(data)"))
    (tmp_path / "dist.py").write_text(port(ALL.replace("SIZE", "len(data)")).text)
    _, serial = ran(tmp_path / "train.py", tmp_path / "one")
    _, shared = ran(tmp_path / "dist.py", tmp_path / "two", 2)
    for name, value in serial.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-5, atol=1e-6)


CLOSURE = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(48, 3)
model = torch.nn.Linear(3, 1)
opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 12):
    def closure():
        opt.zero_grad(); loss = (model(a) - b).square().mean(); loss.backward(); return loss
    print(opt.step(closure).item())
    def closure(): opt.zero_grad(); loss = (model(a) - b).square().mean(); loss.backward(); return loss
    print(opt.step(closure).item())
"""


def test_the_gradients_of_a_closure_are_averaged_before_it_returns_on_the_same_line(tmp_path):
    text = port(CLOSURE, GLOBAL).text
    lines = ("loss.backward()", "dl.gradients(opt)  # mean over the ranks", "return dl.average(loss)")
    assert "".join(f"{line}\n        " for line in lines).rstrip() in text
    (tmp_path / "train.py").write_text(CLOSURE)
    (tmp_path / "dist.py").write_text(text)
    serial = [float(line) for line in started(tmp_path, ["train.py"]).split()]
    assert [float(line) for line in started(tmp_path, ["dist.py"], ranks=2).split()] == pytest.approx(
        serial, rel=1e-4, abs=1e-6
    )


TRAINED = """import keras
import numpy as np

keras.utils.set_random_seed(3)
x = np.random.randn(43, 6)
y = (x.sum(1, keepdims=True) > 0).astype("float32")
hidden = keras.layers.Dense(8, activation="tanh")
model = keras.Sequential([keras.layers.Input((6,)), hidden, keras.layers.Dense(1, activation="sigmoid")])
counts = keras.metrics.FalsePositives(name="fp")
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=[counts])
history = model.fit(x, y, batch_size=10, epochs=3, verbose=0).history
print(history["fp"])
for step in range(10):
    rows = np.random.randint(0, len(x), 7)
    model.train_on_batch(x[rows], y[rows])
print(*[float(w) for weights in model.get_weights() for w in weights.ravel()])
"""


@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.wide), 3])
def test_ranks_leave_the_serial_parameters_of_keras_where_they_do_not_divide_the_batch(n, tmp_path):
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    (tmp_path / "serial.py").write_text(TRAINED)
    (tmp_path / "dist.py").write_text(port(TRAINED, GLOBAL).text)
    serial = started(tmp_path, ["serial.py"], KERAS_BACKEND="torch").splitlines()
    ranks = started(tmp_path, ["dist.py"], ranks=n, KERAS_BACKEND="torch").splitlines()
    assert ranks[0] == serial[0]
    ours, theirs = ([float(word) for word in lines[1].split()] for lines in (ranks, serial))
    assert len(theirs) == 65 and ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


DECAYED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(48, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=12, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD([{"params": model.parameters(), "initial_lr": 0.1}], lr=0.1)
def rate(step, last):
    return 0.1 * (1 - step / last)
total, step = 2 * len(loader), 0
for epoch in range(2):
    for a, b in loader:
        for group in opt.param_groups:
            RATE
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(a), b).backward()
        opt.step()
        step += 1
torch.save(model.state_dict(), "last.pt")
"""


@pytest.mark.parametrize(
    "rate",
    ["group['lr'] = group['initial_lr'] * (1 - step / total)", "group['lr'] = rate(step, total)"],
    ids=["in place", "by a function"],
)
def test_a_rate_that_follows_the_steps_is_the_serial_one_where_all_ranks_take_as_many(rate, tmp_path):
    (tmp_path / "serial.py").write_text(DECAYED.replace("RATE", rate))
    (tmp_path / "ranks.py").write_text(port(DECAYED.replace("RATE", rate), GLOBAL).text)
    _, serial = ran(tmp_path / "serial.py", tmp_path / "alone")
    _, two = ran(tmp_path / "ranks.py", tmp_path / "two", 2)
    for name, value in serial.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-6)


def test_the_rate_that_a_group_starts_from_is_scaled_as_the_one_that_it_trains_with():
    text = port(DECAYED.replace("RATE", "group['lr'] = group['initial_lr'] * 0.9**epoch")).text
    assert '"initial_lr": dl.lr_scale(0.1)}], lr=dl.lr_scale(0.1))' in text
    assert "group['lr'] = group['initial_lr'] * 0.9**epoch" in text


SIZED = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
samples, batch_size = 72, 12
xs = torch.randn(samples, 4)
ys = (xs.sum(1) > 0).long()
loader = DataLoader(TensorDataset(xs, ys), batch_size=batch_size, drop_last=True)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.GRU(1, 5, batch_first=True), nn.Linear(5, 2)
    def forward(self, x, h):
        return self.fc(self.rnn(x.unsqueeze(-1), h)[0][:, -1])
    def init_hidden(self, bsz):
        return torch.zeros(1, bsz, 5)

def noise(n, d=4):
    return torch.full((n, d), 0.01)

net, D, G = Net(), nn.Linear(4, 1), nn.Linear(3, 4)
opt = torch.optim.SGD([*net.parameters(), *D.parameters()], lr=0.05)
opt_g = torch.optim.SGD(G.parameters(), lr=0.05)
bce = nn.BCEWithLogitsLoss()
real, onehot, rows = torch.ones(batch_size, 1), torch.zeros(batch_size, 2), torch.arange(batch_size)
fixed = torch.ones(batch_size, 3)

def train(loader, bs):
    total = 0.0
    for x, y in loader:
        pick = torch.randint(0, samples, (batch_size,))
        out = net(x.view(bs, 2, 2).reshape(bs, -1) + noise(bs), net.init_hidden(bs))
        onehot.zero_()
        onehot.scatter_(1, y[:, None], 1)
        z = torch.full((bs, 3), 0.1)
        loss = (onehot - out).pow(2).mean() - out.log_softmax(1)[rows, y].mean()
        loss = loss + bce(D(x), real) + bce(D(G(z).detach()), torch.zeros(bs, 1))
        opt.zero_grad(); loss.backward(); opt.step()
        fooled = bce(D(G(z)), real)
        opt_g.zero_grad(); fooled.backward(); opt_g.step()
        total += loss.item() + fooled.item()
    return total / len(loader)

for epoch in range(2):
    print(f"{train(loader, batch_size):.4f}")
with torch.no_grad():
    print(f"{G(fixed).sum():.4f}", len(fixed))
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_has_as_many_rows_as_a_batch_has_those_of_this_ranks_part(ranks, tmp_path):
    ported = port(SIZED, GLOBAL)
    assert "real, onehot, rows = torch.ones(dl.part(batch_size), 1), torch.zeros(dl.part(batch_size)" in ported.text
    assert "train(loader, dl.part(batch_size))" in ported.text and "fixed = torch.ones(batch_size, 3)" in ported.text
    assert "torch.randint(0, samples, (dl.part(batch_size),))" in ported.text and not ported.doubts
    (tmp_path / "train.py").write_text(SIZED)
    (tmp_path / "dist.py").write_text(ported.text)
    assert started(tmp_path, ["dist.py"], ranks=ranks) == started(tmp_path, ["train.py"])


def test_numbers_like_the_batch_size_that_are_no_rows_stay():
    script = SIZED.replace("batch_size = 72, 12", "batch_size = 72, 5 + 7").replace("nn.GRU(1, 5", "nn.GRU(1, 12")
    text = port(script.replace("nn.Linear(5, 2)", "nn.Linear(12, 2)").replace("bsz, 5", "bsz, 12"), GLOBAL).text
    assert "torch.zeros(1, bsz, 12)" in text and "nn.Linear(12, 2)" in text and "len(fixed))" in text
