"""Several iterators, of which a loop draws from another one in each turn: all ranks draw from the same one."""

import pytest

from dlrun.port import port

HEAD = """import itertools
import torch
from torch.utils.data import DataLoader
tasks = {}
for name in ("a", "b", "c"):
    tasks[name] = DataLoader(torch.arange(96.0).view(48, 2), batch_size=4, shuffle=True)
body = torch.nn.Linear(2, 4)
heads = torch.nn.ModuleDict({name: torch.nn.Linear(4, 1) for name in tasks})
opt = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.01)
def endless(loader):
    while True:
        yield from loader
"""
LOOP = """for step in range(90):
    {draws}
    loss = heads[name](body(x)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("made", "draws"),
    [
        (
            "its = {name: endless(loader) for name, loader in tasks.items()}\nnames = list(tasks)",
            "name = names[step % len(names)]\n    x = next(its[name])",
        ),
        (
            "names = ['a', 'b', 'c']\nits = {name: endless(tasks[name]) for name in names}",
            "name = names[step % 3]\n    x = next(its[name])",
        ),
        ("its = [endless(loader) for loader in tasks.values()]", "x = next(its[step % len(its)])"),
        ("a, b = endless(tasks['a']), endless(tasks['b'])", "x = next(a if step % 2 else b)"),
    ],
)
def test_the_number_of_a_step_that_picks_an_iterator_is_that_of_all_ranks(made, draws):
    ported = port(f"{HEAD}{made}\n{LOOP.format(draws=draws)}")
    assert "for step in range(dl.steps(90)):" in ported.text
    assert "tasks[name] = dl.shard(DataLoader(" in ported.text
    assert not [d for d in ported.doubts if d.danger == "high"]


@pytest.mark.parametrize(
    ("made", "draws"),
    [
        ("its = itertools.cycle([endless(loader) for loader in tasks.values()])", "x = next(next(its))"),
        ("its = list(map(endless, tasks.values()))", "x = next(its[step % 3])"),
    ],
)
def test_iterators_that_nothing_shows_the_making_of_are_doubted(made, draws):
    ported = port(f"{HEAD}{made}\n{LOOP.format(draws=draws)}")
    assert any("out of sight" in d.why for d in ported.doubts if d.danger == "high")


def test_samples_picked_by_a_position_beside_a_draw_are_sharded_once():
    made = "noise = endless(tasks['a'])\nz = torch.arange(96.0).view(48, 2)\n"
    loop = f"{made}for i in range(0, 48, 4):\n    x = next(noise)\n"
    text = port(HEAD + loop + LOOP.format(draws="x = x + z[i:i + 4]").split("\n", 1)[1]).text
    assert "for i in dl.shard(range(0, 48, 4)):" in text


def test_batches_of_shared_iterators_that_only_evaluate_are_doubted():
    made = "its = {name: endless(loader) for name, loader in tasks.items()}\nname = 'a'\n"
    check = "@torch.no_grad()\ndef check():\n    return heads['a'](body(next(its['b']))).mean().item()\n"
    ported = port(HEAD + made + check + LOOP.format(draws="x = next(its['a'])") + "    print(check())\n")
    assert [d.danger for d in ported.doubts if "this rank's share alone" in d.why] == ["medium"]


HOLDER = """class Endless:
    def __init__(self, loader):
        self.loader = loader
        self.it = iter(loader)
    def __iter__(self):
        return self
    def __next__(self):
        try:
            return next(self.it)
        except StopIteration:
            self.it = iter(self.loader)
            return next(self.it)
name, it = "a", Endless(DataLoader(torch.arange(96.0).view(48, 2), batch_size=4, shuffle=True))
"""


def test_an_object_that_is_its_own_iterator_leaves_the_sharing_to_its_loader():
    text = port(HEAD + HOLDER + LOOP.format(draws="x = next(it)")).text
    assert 'name, it = "a", Endless(dl.shard(DataLoader(' in text
