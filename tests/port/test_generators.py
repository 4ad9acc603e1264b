"""Generators of batches that functions return in tuples, or that tuples, attributes and lists hold, are sharded."""

import pytest

from dlrun.port import port

HEAD = """import itertools
import torch
x = torch.arange(1024.0).view(512, 2)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def batches(x, size):
    for i in range(0, len(x), size):
        yield x[i:i + size]
def update(u):
    loss = model(u).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
SPLIT = """def split():
    return batches(x[:400], 8), batches(x[400:], 8)
"""
SHOWN = """for step in range(40):
    update(next({train}))
    if step % 10 == 0:
        with torch.no_grad():
            print(model(next({test})).mean())
"""


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        (SPLIT + "train, test = split()\nfor u in train:\n    update(u)\n", "for u in dl.shard(train):"),
        (
            "train, test = batches(x[:400], 8), batches(x[400:], 8)\nfor u in train:\n    update(u)\n",
            "for u in dl.shard(train):",
        ),
        (
            "for made in [batches(x, 8) for _ in range(3)]:\n    for u in made:\n        update(u)\n",
            "for u in dl.shard(made):",
        ),
        (
            "class Trainer:\n    def __init__(self):\n        self.train = batches(x, 8)\n"
            "    def fit(self):\n        for step in range(9):\n            update(next(self.train))\n"
            "Trainer().fit()\n",
            "self.train = dl.shard(batches(x, 8))",
        ),
        (
            "kept = (batches(x[:400], 8), batches(x[400:], 8))\n" + SHOWN.format(train="kept[0]", test="kept[1]"),
            "kept = (dl.shard(batches(x[:400], 8)), batches(x[400:], 8))",
        ),
        (
            "def make(x):\n    return batches(x, 8)\ntrain, test = make(x[:400]), make(x[400:])\n"
            + SHOWN.format(train="train", test="test"),
            "train, test = dl.shard(make(x[:400])), make(x[400:])",
        ),
        (
            "def steps(given):\n    for _ in range(9):\n        update(next(given))\nmade = batches(x, 8)\n"
            "for epoch in range(2):\n    steps(made)\n",
            "made = dl.shard(batches(x, 8))",
        ),
        (
            "import collections\nData = collections.namedtuple('Data', 'train test')\n"
            "data = Data(batches(x[:400], 8), batches(x[400:], 8))\n"
            + SHOWN.format(train="data.train", test="data.test"),
            "data = Data(dl.shard(batches(x[:400], 8)), batches(x[400:], 8))",
        ),
        (
            "from dataclasses import dataclass\n@dataclass\nclass Data:\n    train: object\n    test: object\n"
            "def load():\n    return Data(test=batches(x[400:], 8), train=batches(x[:400], 8))\ndata = load()\n"
            + SHOWN.format(train="data.train", test="data.test"),
            "return Data(test=batches(x[400:], 8), train=dl.shard(batches(x[:400], 8)))",
        ),
        (
            "from typing import NamedTuple\nclass Data(NamedTuple):\n    train: object\n    test: object\n"
            "train, test = Data(batches(x[:400], 8), batches(x[400:], 8))\n" + SHOWN.format(train="train", test="test"),
            "train, test = Data(dl.shard(batches(x[:400], 8)), batches(x[400:], 8))",
        ),
        (
            "made = batches(x, 8)\ndef train(get):\n    for _ in range(9):\n        update(get())\n"
            "train(lambda: next(made))\n",
            "made = dl.shard(batches(x, 8))",
        ),
        (
            "made = batches(x, 8)\nget = lambda: next(made)\nfor _ in range(9):\n    update(get())\n",
            "made = dl.shard(batches(x, 8))",
        ),
        (
            "made = batches(x, 8)\nclass Trainer:\n    def __init__(self, next_batch):\n"
            "        self.next_batch = next_batch\n    def fit(self):\n        for _ in range(9):\n"
            "            update(self.next_batch())\nTrainer(lambda: next(made)).fit()\n",
            "made = dl.shard(batches(x, 8))",
        ),
        (
            "made = batches(x, 8)\ndef train(get):\n    for _ in range(9):\n        update(get())\n"
            "train(made.__next__)\n",
            "made = dl.shard(batches(x, 8))",
        ),
        (
            "for step, u in zip(range(40), batches(x, 8)):\n    update(u)\n",
            "zip(range(dl.steps(40)), dl.shard(batches(x, 8)))",
        ),
    ],
)
def test_each_rank_gets_its_own_batches_of_those_that_train(source, changed):
    ported = port(HEAD + source)
    assert changed in ported.text
    assert ported.text.count("dl.shard(") == 1
    assert not [d for d in ported.doubts if d.danger == "high"]


@pytest.mark.parametrize("first", ["for", "next"])
def test_a_generator_that_two_loops_draw_from_is_sharded_once_where_it_is_made(first):
    drawn = "for warm in range(8):\n    update(next(made))\n"
    looped = "for u in made:\n    update(u)\n"
    source = "made = batches(x, 8)\n" + (looped + drawn if first == "for" else drawn + looped)
    text = port(HEAD + source).text
    assert "made = dl.shard(batches(x, 8))\n" in text
    assert "for u in made:" in text


def test_a_generator_that_goes_through_others_is_sharded_and_those_are_not():
    source = HEAD + (
        "def noisy(given):\n    for u in given:\n        yield u + torch.ones(2)\n"
        "made = noisy(batches(x, 8))\nfor u in made:\n    update(u)\n"
    )
    text = port(source).text
    assert "for u in dl.shard(made):" in text
    assert text.count("dl.shard(") == 1


BOTH = """from torch.utils.data import DataLoader
def both():
    for each in (DataLoader(x, 8), DataLoader(x, 4)): yield from each
def in_turn():
    for u, v in zip(DataLoader(x, 8), DataLoader(x, 4)):
        yield u
        yield v
for feed in (both, in_turn):
    for u in feed(): update(u)
"""


RENEWED = """from torch.utils.data import DataLoader
def endless(size):
    loader = iter(DataLoader(x, batch_size=size, shuffle=True))
    while True:
        try:
            yield next(loader)
        except StopIteration:
            loader = iter(DataLoader(x, batch_size=size, shuffle=True))
            yield next(loader)
drawn = iter(endless(8))
for step in range(9):
    update(next(drawn))
"""


def test_a_generator_that_makes_its_loader_anew_is_sharded_there_and_not_doubted_where_a_loop_draws_from_it():
    ported = port(HEAD + RENEWED)
    assert ported.text.count("iter(dl.shard(DataLoader(x, batch_size=size, shuffle=True)))") == 2
    assert not ported.doubts


def test_what_may_be_a_generator_over_loaders_or_another_is_sharded_once():
    text = port(HEAD + BOTH).text
    assert "for u in dl.shard(feed()):" in text
    assert text.count("dl.shard(") == 1


def test_pairs_that_a_list_holds_are_sharded_in_the_function_that_trains_on_them():
    train = "def train(given):\n    for u, v in given:\n        (model(u) - v).mean().backward()\n        opt.step()\n"
    text = port(HEAD + train + "samples = list(zip(x, x))\nfor epoch in range(2):\n    train(samples)\n").text
    assert "for u, v in dl.shard(given):" in text


PAIRS = "made = [(x[i:i + 8], i) for i in range(0, 512, 8)]\n"
STEPS = "for step in range(80):\n    u, _ = next(it)\n    update(u)\n"


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        (PAIRS + "it = itertools.cycle(made)\n" + STEPS, "it = itertools.cycle(dl.shard(made))"),
        ("it = iter(zip(x.split(8), x.split(8)))\n" + STEPS, "it = iter(dl.shard(zip(x.split(8), x.split(8))))"),
        (
            "kept = {'train': [(u, 0) for u in x.split(8)]}\nit = itertools.cycle(kept['train'])\n" + STEPS,
            "itertools.cycle(dl.shard(kept['train']))",
        ),
        (
            "it = itertools.cycle([(x[i:i + 8], i) for i in range(0, 512, 8)])\n" + STEPS,
            "it = itertools.cycle(dl.shard([(x[i:i + 8], i) for i in range(0, 512, 8)]))",
        ),
        (
            "it = ((x[i:i + 8], i) for i in range(0, 512, 8))\n" + STEPS,
            "it = dl.shard(((x[i:i + 8], i) for i in range(0, 512, 8)))",
        ),
        (
            "made = []\nfor i in range(0, 512, 8):\n    made.append((x[i:i + 8], i))\nit = iter(made)\n" + STEPS,
            "it = iter(dl.shard(made))",
        ),
    ],
)
def test_batches_of_a_list_that_a_loop_draws_with_next_are_sharded(source, changed):
    text = port(HEAD + source).text
    assert changed in text
    assert "range(dl.steps(80))" in text


@pytest.mark.parametrize(
    "others",
    ["[1.0, 0.5]", "(1.0, 0.5)", "['a', 'b']", "[model, model]", "[k for k in range(9)]", "[2 ** k for k in range(9)]"],
)
def test_numbers_texts_and_models_that_a_loop_draws_with_next_are_not_sharded(others):
    source = f"other = itertools.cycle({others})\nfor u in torch.utils.data.DataLoader(x, 8):\n    print(next(other))\n"
    assert f"itertools.cycle({others})\n" in port(HEAD + source + "    update(u)\n").text


ANEW = """for step in range(80):
    i = next(it, None)
    if i is None:
        {anew}
        i = next(it)
    update(x[i])
"""
ALIKE = "dl.reseed(alike=True)  # what follows all ranks draw alike, from rank 0's random numbers\n"


@pytest.mark.parametrize(
    ("made", "anew", "drawn"),
    [
        (
            "order = torch.randperm(512)\nit = iter(order.split(8))",
            "order = torch.randperm(512)\n        it = iter(order.split(8))",
            "        order = torch.randperm(512)",
        ),
        (
            "it = iter(torch.randperm(512).split(8))",
            "it = iter(torch.randperm(512).split(8))",
            "        it = iter(dl.shard(list(torch.randperm(512).split(8))))",
        ),
        (
            "import random\nkept = [list(range(i, i + 8)) for i in range(0, 512, 8)]\nit = iter(kept)",
            "random.shuffle(kept)\n        it = iter(kept)",
            "        random.shuffle(kept)",
        ),
    ],
)
def test_an_order_that_is_drawn_anew_where_the_batches_end_is_one_for_all_ranks(made, anew, drawn):
    text = port(HEAD + made + "\n" + ANEW.format(anew=anew)).text
    assert f"        {ALIKE}{drawn}\n        dl.reseed()" in text
    assert text.count("dl.shard(") == 2
    assert text[: text.index("for step in")].count("dl.reseed()") == 1


@pytest.mark.parametrize(
    ("made", "cut"),
    [
        ("made = tuple(x[i:i + 8] for i in range(0, 512, 8))\n", "for u in dl.shard(list(made)):"),
        ("made = (x[:128], x[128:256], x[256:])\n", "for u in dl.shard(list(made)):"),
        ("made = x.float().split(8)\n", "made = dl.shard(list(x.float().split(8)))"),
        ("made = [x[i:i + 8] for i in range(0, 512, 8)]\n", "for u in dl.shard(made):"),
    ],
)
def test_a_tuple_of_batches_is_sharded_batch_by_batch(made, cut):
    loop = "for u in made:\n    loss = model(u).mean()\n    loss.backward()\n    opt.step()\n"
    assert cut in port(HEAD + made + loop).text
