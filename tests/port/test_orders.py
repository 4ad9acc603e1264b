"""Splits and orders of the data are those of rank 0 on all ranks, whenever they are drawn."""

from running import ran
from small import HEAD

from dlrun.port import port

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
    for call in ("draw = torch.randperm if mixed else torch.arange\n    order = draw(24)",
                 "order = list(range(24))\n    (random.shuffle if mixed else sorted)(order)"):
        line = "order = (torch.randperm if mixed else torch.arange)(24)"
        text = port(head + "mixed = True" + tail.replace(line, call)).text
        assert "order = dl.broadcast(draw(24))" in text or "sorted)(order)\n    order = dl.broadcast(order)" in text


def test_lists_and_batches_that_are_shuffled_each_epoch_are_dealt_out_without_repeats(tmp_path):
    ported = port(SHUFFLED).text
    assert ported.count(ALIKE) == 1 and ported.count("= dl.broadcast(") == 3
    assert "    rows[:] = dl.broadcast(rows)" in ported  # not bound in its function
    kept = ported.replace("dl.finalize()", "seen = dl.average(seen)\ndl.save(seen, 'last.pt')\ndl.finalize()")
    (tmp_path / "train.py").write_text(kept)
    for ranks in (0, 3):
        _, seen = ran(tmp_path / "train.py", tmp_path / str(ranks), ranks)
        assert (seen * max(1, ranks)).round().eq(1).all()
