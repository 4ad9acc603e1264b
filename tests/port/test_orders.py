"""Splits and orders of the data are those of rank 0 on all ranks, whenever they are drawn."""

import pytest
from running import ran
from small import HEAD

from dlrun.port import Options, port

ALIKE = "dl.reseed(alike=True)  # what follows all ranks draw alike, from rank 0's random numbers\n"
OWN = "dl.reseed()  # from here on each rank draws random numbers of its own\n"


FOLDS = """
import torch
from torch.utils.data import DataLoader, random_split
def run(data):
    train, test = random_split(data, [40, 8])
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in DataLoader(train, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
"""


def test_each_run_splits_the_data_as_rank_0_does():
    text = port(FOLDS + "for seed in range(5):\n    run(data)\n").text
    assert f"    {ALIKE}    train, test = random_split(" in text
    assert "alike" not in port(FOLDS + "run(data)\n").text  # PyTorch's numbers are the same in each process
    seeded = port(FOLDS + "for seed in range(5):\n    torch.manual_seed(seed)\n    run(data)\n").text
    assert "alike" not in seeded


BAR = """
import random
from tqdm import tqdm
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    order = list(range(8))
    random.shuffle(order)
    bar = tqdm(order)
    for k in bar:
        (model(x[k * 4 : (k + 1) * 4]) - 1).pow(2).mean().backward()
        opt.step()
"""


def test_an_order_behind_a_bar_is_sharded_where_it_is_gone_through_and_its_batches_are_cut_by_the_global_batch():
    text = port(HEAD + BAR).text
    assert "order = list(range(8))\n" in text  # of which all ranks would take rank 0's part
    assert "bar = tqdm(dl.shard(order), " in text
    text = port(HEAD + BAR, Options(batch="global")).text
    assert "bar = tqdm(order, " in text
    assert "model(dl.part(x[k * 4 : (k + 1) * 4]))" in text


STRIDES = """
import random
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    stride = random.randint(2, 9)
    for at in range(random.randint(0, 5), len(x), stride):
        model(x[at:at + 8]).mean().backward()
        opt.step()
"""


def test_where_an_epoch_begins_and_its_stride_are_rank_0s():
    text = port(HEAD + STRIDES).text
    assert f"    {ALIKE}    stride = random.randint(2, 9)\n    {OWN}" in text
    assert "for at in dl.shard(range(dl.broadcast(random.randint(0, 5)), len(x), stride)):" in text


RESEEDED = """
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    torch.manual_seed(step)
    model(torch.randn(4, 2)).mean().backward()
    opt.step()
"""


def test_a_seed_inside_the_training_leaves_each_rank_numbers_of_its_own():
    text = port(HEAD + RESEEDED).text
    assert f"    torch.manual_seed(step)\n    {OWN}" in text


SHUFFLED = """
import random
import numpy as np
import torch

class Batches:
    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        np.random.shuffle(self.numbers)
        for i in range(0, 24, 2):
            yield self.numbers[i:i + 2]

torch.manual_seed(3)
np.random.seed(3)
random.seed(3)
batches = Batches(np.arange(24))
pairs = [[float(n)] for n in range(24)]
model = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters(), lr=1e-4)
seen = torch.zeros(8, 24)
for epoch in range(2):
    for x in batches:
        seen[epoch, torch.as_tensor(x)] += 1
        model(torch.as_tensor(x)[:, None].float() + torch.rand(2, 1)).mean().backward()
        opt.step()
for epoch in range(2):
    random.shuffle(pairs)
    for x in pairs:
        seen[2 + epoch, int(x[0])] += 1
        model(torch.tensor([x]) + torch.rand(1, 1)).mean().backward()
        opt.step()
mixed = True
for epoch in range(2):
    order = (torch.randperm if mixed else torch.arange)(24)
    for i in range(0, 24, 2):
        seen[4 + epoch, order[i:i + 2]] += 1
        model(order[i:i + 2, None] + torch.rand(2, 1)).mean().backward()
        opt.step()

def maker(rows):
    def read():
        np.random.shuffle(rows)
        for i in range(0, 24, 2):
            yield rows[i:i + 2]
    return read

read = maker(np.arange(24))
for epoch in range(2):
    for x in read():
        seen[6 + epoch, torch.as_tensor(x)] += 1
        model(torch.as_tensor(x)[:, None].float()).mean().backward()
        opt.step()
"""


def test_an_order_that_is_drawn_by_what_was_chosen_is_that_of_rank_0():
    head, tail = SHUFFLED.split("mixed = True")
    for call in (
        "draw = torch.randperm if mixed else torch.arange\n    order = draw(24)",
        "order = list(range(24))\n    (random.shuffle if mixed else sorted)(order)",
    ):
        line = "order = (torch.randperm if mixed else torch.arange)(24)"
        text = port(head + "mixed = True" + tail.replace(line, call)).text
        assert "order = dl.broadcast(draw(24))" in text or "sorted)(order)\n    order = dl.broadcast(order)" in text


def test_lists_and_batches_that_are_shuffled_each_epoch_are_sharded_without_repeats(tmp_path):
    ported = port(SHUFFLED).text
    assert ported.count(ALIKE) == 1 and ported.count("= dl.broadcast(") == 3
    assert "    rows[:] = dl.broadcast(rows)" in ported  # not bound in its function
    kept = ported.replace("dl.finalize()", "seen = dl.average(seen)\ndl.save(seen, 'last.pt')\ndl.finalize()")
    (tmp_path / "train.py").write_text(kept)
    for ranks in (0, 3):
        _, seen = ran(tmp_path / "train.py", tmp_path / str(ranks), ranks)
        assert (seen * max(1, ranks)).round().eq(1).all()


FITTED = """
import torch
from sklearn.cluster import KMeans
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.rand(48, 2)
model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x), batch_size=8, shuffle=True)

def pretrain():
    for x, in loader:
        (model(x) - x).pow(2).mean().backward()
        opt.step()

def train():
    parts = [KMeans(n_clusters=6, n_init=1).fit_predict(x.numpy())]
    for epoch in range(2):
        groups = KMeans(n_clusters=6, n_init=1)
        parts.append(groups.fit_predict(x.numpy()))
        for z, in loader:
            (model(z) - z).pow(2).mean().backward()
            opt.step()
    return parts

pretrain()
parts = torch.tensor(train()).float()
"""


def test_models_of_scikit_learn_are_fitted_alike_between_phases_and_epochs(tmp_path):
    ported = port(FITTED).text
    assert ported.count(ALIKE) == 2
    fixed = port(FITTED.replace("n_init=1", "random_state=0")).text
    assert "alike" not in fixed
    kept = ported.replace("dl.finalize()", "dl.save((parts, dl.average(parts)), 'last.pt')\ndl.finalize()")
    (tmp_path / "train.py").write_text(kept)
    _, (parts, mean) = ran(tmp_path / "train.py", tmp_path / "2", 2)
    assert parts.equal(mean) and not parts[0].equal(parts[1])


CHOSEN = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

class Strategy:
    def __init__(self, data, net):
        self.data, self.net = data, net
        self.known = np.arange(96) < 8

    def train(self):
        self.net.train(Subset(self.data, np.where(self.known)[0]))

class Chance(Strategy):
    def query(self, n):
        return np.random.choice(np.where(~self.known)[0], n, replace=False)

class First(Strategy):
    def query(self, n):
        return np.where(~self.known)[0][:n]

class Net:
    def train(self, data):
        self.model = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for epoch in range(2):
            for x, in DataLoader(data, batch_size=4, shuffle=True):
                opt.zero_grad()
                (self.model(x) - 1).pow(2).mean().backward()
                opt.step()

def get_strategy(name):
    if name == "chance":
        return Chance
    return First

data, net = TensorDataset(torch.rand(96, 2)), Net()
strategy = get_strategy("chance")(data, net)
known = []
for turn in range(3):
    strategy.train()
    known.append(net.model.weight.detach().flatten())
    strategy.known[strategy.query(8)] = True
"""


def test_what_a_strategy_that_was_asked_for_by_name_draws_is_alike_and_so_is_what_each_round_begins_with(tmp_path):
    ported = port(CHOSEN).text
    assert f"{ALIKE}        return np.random.choice(" in ported
    assert "        dl.broadcast(self.model, opt)" in ported and "dl.broadcast(net.model" not in ported
    table = 'KINDS = {"chance": Chance, "first": First}\nstrategy = KINDS["chance"]'
    assert ALIKE in port(CHOSEN.replace('strategy = get_strategy("chance")', table)).text
    kept = "known = torch.cat([torch.cat(known), torch.tensor(strategy.known).float()])\n"
    kept = ported.replace("dl.finalize()", kept + "dl.save((known, dl.average(known)), 'last.pt')\ndl.finalize()")
    (tmp_path / "train.py").write_text(kept)
    _, (known, mean) = ran(tmp_path / "train.py", tmp_path / "2", 2)
    assert known.equal(mean)


def test_samples_that_a_model_made_are_doubted_and_those_that_a_function_made_of_samples_are_not():
    for made, doubted in (("model(x).detach()", True), ("torch.nn.functional.normalize(x)", False)):
        found = port(FITTED.replace("TensorDataset(x)", f"TensorDataset({made})"))
        assert any("a model chose or made these samples" in doubt.why for doubt in found.doubts) == doubted


HARD = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
def update(x, y):
    opt.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
for epoch in range(4):
    kept = []
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        update(x, y)
        kept.append(x[model(x).argmax(1) != y])
    hard = TAKEN
    for i in range(0, len(hard), 16):
        update(hard[i:i + 16], labels[i:i + 16])
"""


@pytest.mark.parametrize(("taken", "doubted"), [("torch.cat(kept)", True), ("held_out", False)])
def test_samples_that_each_rank_kept_of_its_share_are_doubted_where_they_are_sharded_again(taken, doubted):
    found = [d for d in port(HARD.replace("TAKEN", taken)).doubts if "a model chose or made these samples" in d.why]
    assert bool(found) == doubted
    listed = HARD.replace("TAKEN", taken).replace("range(0, len(hard), 16)", "hard.split(16)")
    found = port(listed.replace("hard[i:i + 16], labels[i:i + 16]", "i, labels[:16]")).doubts
    assert any("a model chose or made these samples" in d.why for d in found) == doubted


POOL = """
import torch
from torch.utils.data import DataLoader, TensorDataset
known, left = list(range(100)), list(range(100, 1500))
for turn in range(3):
    model = torch.nn.Linear(8, 2)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(X[known], Y[known]), batch_size=20, shuffle=True)
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    with torch.no_grad():
        unsure = model(X[left]).softmax(1).max(1).values.argsort()[:50].tolist()
    new = [left[k] for k in unsure]
    known += new
    left = [k for k in left if k not in new]
"""


def test_a_pool_that_a_model_takes_its_samples_from_weighs_no_losses() -> None:
    found = port(POOL).doubts
    assert [d.danger for d in found if "a model chose or made these samples" in d.why] == ["medium"]
    assert not [d for d in found if d.danger == "high"]


BEGINS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
def made(n):
    x = torch.randn(n, 2)
    return TensorDataset(x, x.sum(1, keepdim=True))
def trained(loader):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        yield loss.item()
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for loss in trained(DataLoader(made(96), 8)):
    pass
"""


def test_samples_that_are_made_in_the_line_in_which_training_begins_are_told():
    assert [doubt.name for doubt in port(BEGINS).doubts if doubt.danger == "high"] == ["order-differs"]
    before = BEGINS.replace("for loss in", "data = made(96)\nfor loss in").replace(
        "DataLoader(made(96)", "DataLoader(data"
    )
    assert not [doubt for doubt in port(before).doubts if doubt.danger == "high"]


WORDS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
text = open("a.txt").read().split()
{numbers}
x = torch.tensor([ids[word] for word in text])
model = torch.nn.Embedding(len(ids), 3)
opt = torch.optim.SGD(model.parameters(), 0.1)
for (a,) in DataLoader(TensorDataset(x), 8):
    loss = model(a).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.parametrize(
    ("numbers", "line"),
    [
        (
            "ids = {}\nfor word in set(text): ids[word] = len(ids)",
            "for word in dl.broadcast(list(set(text))): ids[word] = len(ids)",
        ),
        (
            "ids = {}\nfor i, word in enumerate(set(text)): ids[word] = i",
            "for i, word in enumerate(dl.broadcast(list(set(text)))): ids[word] = i",
        ),
        (
            "seen = set()\nfor word in text: seen.add(word)\nids = {word: i for i, word in enumerate(seen)}",
            "ids = {word: i for i, word in enumerate(dl.broadcast(list(seen)))}",
        ),
        (
            "words = set(text) - {'the'}\nids = {}\nfor word in words: ids.setdefault(word, len(ids))",
            "for word in dl.broadcast(list(words)): ids.setdefault(word, len(ids))",
        ),
        (
            "words = [word for word in set(text)]\nids = {word: i for i, word in enumerate(words)}",
            "ids = {word: i for i, word in enumerate(dl.broadcast(list(words)))}",
        ),
    ],
)
def test_all_ranks_number_the_texts_of_a_set_in_rank_0s_order(numbers, line):
    ported = port(WORDS.replace("{numbers}", numbers))
    assert f"{line}\n" in ported.text and not ported.doubts


def test_a_set_that_a_function_numbers_is_left_to_the_launcher_and_told():
    numbers = """def numbered(words):
    ids = {}
    for word in set(words): ids[word] = len(ids)
    return ids
ids = numbered(text)"""
    (doubt,) = port(WORDS.replace("{numbers}", numbers)).doubts
    assert (doubt.name, doubt.danger) == ("order-differs", "low") and "dlrun launch" in doubt.why


@pytest.mark.parametrize(
    "numbers",
    [
        "ids = {word: i for i, word in enumerate(sorted(set(text)))}",
        "ids = {word: i for i, word in enumerate(dict.fromkeys(text))}",
        "seen, ids = set(), {}\nfor word in text:\n    if word not in seen: seen.add(word); ids[word] = len(ids)",
    ],
)
def test_an_order_that_is_one_in_all_processes_is_left_alone(numbers):
    ported = port(WORDS.replace("{numbers}", numbers))
    assert numbers in ported.text and not ported.doubts


HANDED = """
import random
import torch

class Rows:
    def __init__(self, rows):
        self.rows = rows

    def mix(self):
        {mixes}

def mix(rows):
    random.shuffle(rows)

model = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x = [[float(i)] for i in range(24)]
kept = Rows(x)
for epoch in range(2):
    {call}
    for i in range(0, 24, 2):
        model(torch.tensor(x[i:i + 2])).mean().backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("mixes", "call", "line"),
    [
        ("pass", "mix(x)", "    rows[:] = dl.broadcast(rows)"),
        ("random.shuffle(self.rows)", "kept.mix()", "    self.rows[:] = dl.broadcast(self.rows)"),
        ("own = self.rows\n        random.shuffle(own)", "kept.mix()", "    own[:] = dl.broadcast(own)"),
        ("pass", "own = x\n    random.shuffle(own)", "    own[:] = dl.broadcast(own)"),
    ],
)
def test_what_has_another_name_is_shuffled_where_it_lies(mixes, call, line):
    assert line in port(HANDED.format(mixes=mixes, call=call)).text
