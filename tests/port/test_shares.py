"""What the ranks share: loaders, arrays, lists, batches picked by number."""

import pytest
from running import ran
from small import HEAD, LOOP, SERIAL, refused

from dlrun.port import port
from dlrun.port.files import read_and_port


def test_a_loader_inside_a_class_is_shared():
    text = port(
        """
import torch
from torch.utils.data import DataLoader

class Endless:
    def __init__(self, dataset):
        self.loader = DataLoader(dataset, sampler=torch.utils.data.RandomSampler(dataset, replacement=True))
        self.batches = iter(self.loader)

    def next(self):
        return next(self.batches)

model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
batches = Endless(data)
for step in range(1000):
    x, y = batches.next()
    (model(x) - y).pow(2).mean().backward()
    opt.step()
"""
    ).text
    assert "self.loader = dl.shard(DataLoader(" in text
    assert "range(dl.steps(1000))" in text


FULL = """
import torch
x = torch.randn(64, 3)
y = load()
x_test = load()
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    inputs = x
    loss = (model(inputs) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        print(model(x_test).mean())
"""


def test_a_loader_from_elsewhere_is_shared_where_it_is_assigned():
    text = port(
        SERIAL.replace("DataLoader(data, shuffle=True)", "train_loader").replace(
            "model =", "from helpers import loaders\ntrain_loader, test_loader = loaders()\nmodel ="
        )
    ).text
    assert "train_loader = dl.shard(train_loader)  # this rank's part of every epoch" in text


def test_doubts_come_with_the_line_to_write_the_most_dangerous_first():
    source = (
        FULL.replace("loss = (model(inputs) - y).pow(2).mean()", "loss = mse(model(inputs), y)")
        .replace(
            "model = torch.nn.Linear(3, 1)",
            "model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1))\n"
            "mse = torch.nn.MSELoss(reduction='sum')",
        )
        .replace("opt.step()", "print(torch.sqrt(loss))\n    torch.sqrt(loss).backward()\n    opt.step()")
    )
    ported = port(source)
    dangers = [d["danger"] for d in ported.as_json()["doubts"]]
    assert dangers == sorted(dangers, key=["high", "medium", "low"].index)
    assert "write: let the loss be a mean over the samples" in ported.report()
    assert "write: dl.average(model)" in ported.report()


INDEXED = """
import numpy as np
import torch
x, y = load()
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
order = np.arange(len(x))
for epoch in range(10):
    np.random.shuffle(order)
    for start in range(0, len(x), 32):
        batch = order[start:start + 32]
        loss = (model(x[batch]) - y[batch]).pow(2).mean()
        loss.backward()
        opt.step()
"""


def test_batches_picked_by_number_are_sharded_in_one_order():
    text = port(INDEXED).text
    assert "for start in dl.shard(range(0, len(x), 32)):" in text
    assert "np.random.shuffle(order)\n    order = dl.broadcast(order)" in text
    assert "for epoch in range(10):" in text


def test_where_an_environment_is_played_nothing_is_sharded():
    shows = "def show(net):\n    env = gym.make('CartPole-v1')\n    state, _ = env.reset(seed=7)\n"
    env = "env = gym.make('CartPole-v1')\nenv.reset(seed=args.seed)\n"
    ported = port(f"import gymnasium as gym\n{shows}{env}{INDEXED}")
    assert "dl.shard" not in ported.text
    assert "env.reset(seed=args.seed + dl.get_rank())" in ported.report()


PLAYED = """import torch
{env}
net = torch.nn.Linear(4, 2)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda done: 1 - done / turns)
env.train()
for turn in range(turns):
    state, reward, done = env.step(net(state).argmax().item())
    loss = -reward * net(state).max()
    loss.backward()
    opt.step()
    sched.step()
"""


def test_an_update_after_each_stretch_of_an_episode_is_doubted_and_one_after_the_episode_is_not():
    episode = """    done = False
    while not done:
        for step in range(20):
            state, reward, done = env.step(net(state).argmax().item())
            if done:
                break
        loss = -reward * net(state).max()
        loss.backward()
        opt.step()
"""
    start = "import gymnasium\n" + PLAYED[: PLAYED.index("sched")].format(env="env = gymnasium.make('CartPole-v1')")
    why = "episodes differ in length"
    assert why in port(f"{start}for turn in range(99):\n{episode}").report()
    after = episode.replace("        loss = ", "    loss = ").replace("        loss.", "    loss.")
    assert why not in port(f"{start}for turn in range(99):\n{after.replace('        opt.', '    opt.')}").report()


@pytest.mark.parametrize(
    "env",
    [
        "import gymnasium\nenv = gymnasium.make('CartPole-v1')",
        "class Env:\n    def train(self):\n        self.on = True\nenv = Env()",
    ],
)
def test_ranks_that_play_take_as_many_steps_as_one_and_so_do_their_schedules(env):
    ported = port(PLAYED.format(env=env))
    assert "for turn in range(turns):" in ported.text
    assert "LambdaLR(opt, lambda done: 1 - done / turns)" in ported.text
    assert "dl.broadcast(net, opt)" in ported.text
    assert "env.reset(seed=seed + dl.get_rank())" in ported.report()
    assert "as many steps as before, each with episodes of n ranks" in ported.report()


def test_a_keras_loop_that_plays_is_told_that_ranks_may_train_less_often_than_others():
    ported = port("""import gym, keras
import numpy as np
env = gym.make("CartPole-v1")
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("adam", "mse")
actions = np.zeros(8)
for update in range(100):
    for step in range(8):
        state, reward, done, info = env.step(int(actions[step]))
    model.train_on_batch(state, actions[:step])
""")
    assert "dl.shard(" not in ported.text
    assert "a rank that trains less often leaves the others waiting" in ported.report()


FOLDS = """
import torch
from sklearn.model_selection import KFold
from torch.utils.data import DataLoader, Subset
for fold, (train, test) in enumerate(KFold(5).split(data)):
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in DataLoader(Subset(data, train), shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
"""


def test_folds_are_not_samples_and_each_fold_starts_alike():
    text = port(FOLDS).text
    assert "enumerate(KFold(5).split(data)):" in text
    assert "for x, y in dl.shard(DataLoader(Subset(data, train), shuffle=True)):" in text
    assert "    dl.broadcast(model, opt)  # every rank starts from rank 0's state\n" in text
    assert text.index("opt = torch") < text.index("dl.broadcast") < text.index("for epoch")


ORDER = HEAD + LOOP.replace("opt =", "{}\nopt =", 1)


@pytest.mark.parametrize(
    ("line", "doubt", "sound"),
    [
        (
            "import os\nfiles = os.listdir('data')",
            "list files in different orders",
            "import os\nfiles = sorted(os.listdir('data'))",
        ),
        (
            "import glob\nfiles = glob.glob('data/*')",
            "list files in different orders",
            "import glob\nfiles = glob.glob('data/*')\nfiles.sort()",
        ),
        (
            "import glob\nfiles = glob.glob('ckpt/*')\nlast = files[-1] if files else None",
            "list files in different orders",
            "import glob\nfiles = glob.glob('ckpt/*')\nlast = max(files, key=len) if files else None",
        ),
        (
            "import os\nclass Pictures:\n    def __init__(self):\n        self.files = os.listdir('data')\n"
            "    def __len__(self):\n        return len(self.files)\n"
            "    def __getitem__(self, i):\n        return self.files[i]",
            "list files in different orders",
            "import os\nfiles = os.listdir('data')\nprint(len(files))",
        ),
        (
            "number = {w: i for i, w in enumerate(set(words))}",
            "a set has another order in each process",
            "number = {w: i for i, w in enumerate(sorted(set(words)))}",
        ),
        (
            "names = list(set(words))\nnumber = {w: i for i, w in enumerate(names)}",
            "a set has another order",
            "names = list(set(words))\nnames.sort()\nnumber = {w: i for i, w in enumerate(names)}",
        ),
        (
            "lengths = list(set(w for w in words))",
            "a set has another order",
            "lengths = list(set(len(w) for w in words).union(range(9)))\nlabels = list({1, 2})\n"
            "kept = torch.arange(9)\nclasses = list(enumerate(set(kept.tolist())))",
        ),
    ],
)
def test_what_each_process_would_order_in_its_own_way_is_doubted(line, doubt, sound):
    assert doubt in port(ORDER.format(line)).report()
    assert doubt not in port(ORDER.format(sound)).report()


VOCABULARY = """import torch
words = "the quick brown fox jumps over the lazy dog and runs to a river of cold grey water".split()
known = set(words)
number = {word: i for i, word in enumerate(known)}
model = torch.nn.Embedding(len(number), 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for word in words:
        opt.zero_grad()
        (model(torch.tensor([number[word]])) - len(word)).pow(2).sum().backward()
        opt.step()
torch.save(sorted(number, key=number.get), "last.pt")
"""


def test_all_ranks_number_the_words_of_a_set_alike(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    whole = port(VOCABULARY).text.replace("dl.save(", "assert dl.broadcast(list(number)) == list(number)\ndl.save(")
    (tmp_path / "dist.py").write_text(whole)
    _, order = ran(tmp_path / "dist.py", tmp_path / "two", 2)
    assert len(order) == 17


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("batch_size=4", "batch_size=20", True),
        ("batch_size=4, shuffle=False", "batch_size=4 * k", True),
        ("batch_size=4", "batch_size=4", False),
        ("batch_size=4, shuffle=True", "batch_size=20, shuffle=True", False),
    ],
)
def test_loaders_that_keep_their_order_and_differ_in_their_batches_are_doubted(one, other, apart):
    loaders = f"zip(DataLoader(data, {one}), DataLoader(rows, {other}))"
    text = SERIAL.replace("DataLoader(data, shuffle=True)", loaders)
    assert ("what belongs together comes apart" in port(text).report()) is apart


def test_a_split_that_is_drawn_above_the_main_guard_is_one_for_all_ranks(tmp_path):
    (tmp_path / "dist.py").write_text(
        port("""
import numpy as np
import torch
from torch.utils.data import DataLoader
order = np.random.permutation(16)
loader = DataLoader(torch.tensor(order[:8, None], dtype=torch.float), batch_size=2)
model = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-3)

def train():
    for x in loader:
        model(x).mean().backward()
        opt.step()
    torch.save(order.tolist(), "last.pt")

if __name__ == "__main__":
    train()
""").text.replace("order.tolist()", "[dl.total(int(i)) for i in order]")
    )
    _, order = ran(tmp_path / "dist.py", tmp_path / "two", 2)
    assert sorted(order) == list(range(0, 32, 2))


def test_a_split_that_is_drawn_where_a_module_is_imported_is_doubted(tmp_path):
    split = "from sklearn.model_selection import train_test_split\na, b = train_test_split(x)\n"
    (tmp_path / "lab.py").write_text(split)
    (tmp_path / "train.py").write_text("from lab import a\n" + SERIAL)
    assert "this runs before the ranks meet" in read_and_port(tmp_path / "train.py").report()
    assert "this runs before the ranks meet" not in port(HEAD + split + LOOP).report()


def test_a_list_of_training_samples_is_sharded_and_a_method_of_that_name_calls_no_function():
    loop = LOOP.replace("DataLoader(data, shuffle=True)", "training_data")
    listed = f"{HEAD}training_data = [(a, b), (c, d)]\n{loop}"
    assert "for x, y in dl.shard(training_data):" in port(listed).text
    settings = listed.replace("training_data", "settings").replace("(model(x) - y)", "(model(z) * y)")
    assert "found no samples" in refused(settings).message
    module = (
        "import torch\ndef train(model, opt, loader):\n    model.train()\n    for x in loader:\n"
        "        model(x).mean().backward()\n        opt.step()\n"
    )
    assert "nothing in this file calls train()" in port(module).report()


BOTH = """
import torch
from torch.utils.data import DataLoader

def make(train):
    return DataLoader(data(train), batch_size=4, shuffle=train)

model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader, test_loader = make(True), make(False)
for epoch in range(2):
    for i, (x, y) in enumerate(train_loader):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        if i % 3 == 2 or i + 1 == len(train_loader):
            opt.step()
"""


@pytest.mark.parametrize(
    "evaluation",
    [
        "for x, y in test_loader:\n    print(model.forward(x).mean())",
        "print(sum(model(x).sum() for x, _ in test_loader))",
        "x, y = next(iter(test_loader))\nprint(model(x))",
        "from measures import evaluate\nevaluate(model, test_loader)",
    ],
)
def test_of_the_loaders_of_one_function_the_trained_one_is_cut_where_it_is_made_and_the_others_stay_whole(evaluation):
    text = port(BOTH + evaluation).text
    assert "train_loader, test_loader = dl.shard(make(True)), make(False)" in text
    assert text.count("dl.shard(") == 1


def test_a_loader_that_is_evaluated_too_is_cut_at_the_loop_which_counts_its_own_batches():
    text = port(BOTH + "for x, y in train_loader:\n    print(model.forward(x).mean(), len(train_loader))").text
    assert "enumerate(dl.shard(train_loader))" in text
    assert "i + 1 == len(dl.shard(train_loader)):" in text
    assert text.count("dl.shard(") == 2


COUNTED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
y = torch.randint(3, (48,))
data = TensorDataset(torch.randn(48, 4), y)
def make():
    return DataLoader(data, batch_size=8, shuffle=True)
def add(counts, some):
    return counts + torch.bincount(some, minlength=3)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
EACH
torch.save(kept, "last.pt")
"""
TRAINED = """
for x, y in LOADER:
    torch.nn.functional.cross_entropy(model(x), y, weight=COUNTS / 48.0).backward()
    opt.step()
"""
WAYS = {
    "a": "A = torch.zeros(3)\nfor _, y in a:\n    A = add(A, y)",
    "b": "B = {}\nfor _, y in b:\n    for k in y.tolist():\n        B[k] = B.get(k, 0) + 1\n"
    "B = torch.tensor([B[k] for k in range(3)])",
    "c": "C = torch.bincount(torch.cat([y for _, y in c]), minlength=3)",
    "d": "D = sum(torch.bincount(y, minlength=3) for _, y in d)",
}


def test_what_is_counted_in_the_batches_before_the_training_is_of_all_samples(tmp_path):
    each = [
        f"{n} = make()\n{way}{TRAINED}".replace("LOADER", n).replace("COUNTS", n.upper()) for n, way in WAYS.items()
    ]
    source = COUNTED.replace("EACH", "\n".join([*each, "kept = [A, B, C, D]"]))
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "dist.py").write_text(port(source).text)
    _, serial = ran(tmp_path / "train.py", tmp_path / "one")
    _, shared = ran(tmp_path / "dist.py", tmp_path / "two", 2)
    assert [n.tolist() for n in shared] == [n.tolist() for n in serial]
    foreign = source.replace(WAYS["c"], "from elsewhere import class_weights\nC = class_weights(c)")
    assert "in dl.shard(c):" in port(foreign).text


LONGEST = """
import torch
import iterators
train_iter, valid_iter = iterators.splits(sets, batch_size=8)
EACH
model = torch.nn.Sequential(torch.nn.Embedding(9, longest))
opt = torch.optim.Adam(model.parameters())
for batch in train_iter:
    text = batch.text[:, :longest] if batch.text.size(1) > longest else batch.text
    if text.size(1) > longest:
        text = text[:, :longest]
    loss = model(text).mean()
    loss.backward()
    opt.step()
"""


def test_a_length_that_all_batches_decide_is_one_number_on_all_ranks():
    text = port(LONGEST.replace("EACH", "longest = max([batch.text.size(1) for batch in train_iter])")).text
    assert "for batch in dl.shard(train_iter):" in text and text.count("dl.shard(") == 1
    assert "dl.average(longest)" not in text
    assert "train_iter = dl.shard(train_iter)" in port(LONGEST.replace("EACH", "longest = 9")).text


def test_an_iterator_of_a_loader_that_is_evaluated_too_is_made_of_its_share():
    loop = "    batches = iter(train_loader)\n    for i in range(9):\n        x, y = next(batches)\n"
    drawn = BOTH.replace("    for i, (x, y) in enumerate(train_loader):\n", loop)
    text = port(drawn + "for x, y in train_loader:\n    print(model(x).mean())").text
    assert "batches = iter(dl.shard(train_loader))" in text


APART = (
    HEAD
    + """
import threading
import numpy as np
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader, step = DataLoader(data, shuffle=True), 0
for i, (x, y) in enumerate(loader):
    {}
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
"""
)
LOSS = "loss = (model(x) - y).pow(2).mean()"


@pytest.mark.parametrize(
    ("line", "doubt", "sound"),
    [
        (
            f"mask = y > 0\n    if not mask.any():\n        continue\n    {LOSS}",
            "local samples decide whether it updates",
            f"if len(x) < 4 or x.shape[0] < 4 or i % 2:\n        continue\n    {LOSS}",
        ),
        (
            f"{LOSS} * rng.random()\nrng = np.random.default_rng(0)",
            "rng has one seed on all ranks",
            f"{LOSS} * np.random.random()",
        ),
        (
            f"beta = min(1.0, step / 500)\n    {LOSS} + beta * model(x).mean()",
            "follows the serial steps",
            f"beta = min(1.0, step / len(loader))\n    {LOSS} + beta * model(x).mean()",
        ),
        (
            f"{LOSS} + model(next(noise)).mean()",
            "draws from what comes from out of sight",
            f"{LOSS} + next(model.parameters()).mean()",
        ),
        (
            f"{LOSS}\ndef fill():\n    np.random.choice(9)\nthreading.Thread(target=fill).start()",
            "this thread draws",
            f"{LOSS}\ndef fill():\n    print(9)\nthreading.Thread(target=fill).start()",
        ),
    ],
)
def test_ranks_that_part_or_draw_alike_are_told(line, doubt, sound):
    def report(text):
        inner, _, outer = text.partition("\nrng" if "\nrng" in text else "\ndef")
        made = ("rng" if "\nrng" in text else "def") + outer if outer else ""
        head, loop = APART.split("for i,")
        source = f"from elsewhere import noise\n{head}{made}\nfor i,{loop}".replace("{}", inner)
        return port(source).report()

    assert doubt in report(line)
    assert doubt not in report(sound)


@pytest.mark.parametrize(
    "line", ["known = set(rows)", "known = Counter(rows)", "known = rows[0]", "known = kinds(rows)", "len(rows)", ""]
)
def test_data_of_which_something_else_is_made_are_shared_at_the_loop(line):
    source = f"""import json
from collections import Counter
{HEAD}
def kinds(rows):
    return sorted(set(rows))
rows = json.load(open("rows.json"))
{line}
{LOOP.replace("DataLoader(data, shuffle=True)", "rows")}"""
    text = port(source).text
    assert ("for x, y in dl.shard(rows):" in text) is ("known" in line)
    assert ("rows = dl.shard(json.load(open(" in text) is ("known" not in line)


def test_the_number_of_batches_of_a_loader_that_two_loops_take_is_of_one_share():
    loop = """for epoch in range(3):
    for x, y in loader:
        (model(x) - y).pow(2).mean().backward()
        opt.step()
        print(len(loader))
    print(right(loader))
"""
    source = f"""{HEAD}def right(rows):
    return sum((model(x) > y).sum() for x, y in rows)
opt = torch.optim.Adam(model.parameters())
loader = DataLoader(data, shuffle=True)
"""
    text = port(source + loop + loop).text
    assert text.count("print(len(dl.shard(loader)))") == text.count("for x, y in dl.shard(loader):") == 2
