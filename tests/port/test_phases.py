"""Loaders in a table, one for each phase: a loop over the table trains and evaluates by turns."""

import pytest
import torch
from running import ran

from dlrun.port import port

SCRIPT = """import torch
from torch.utils.data import DataLoader, TensorDataset

def data(phase):
    x = torch.randn(32 if phase == "train" else 16, 4)
    return TensorDataset(x, (x.sum(1) > 0).long())

def get():
{made}    return loaders

def train(model, loaders, opt):
    for epoch in range(2):
        for phase, loader in loaders.items():
            running = 0.0
            for x, y in loader:
                with torch.set_grad_enabled(phase == "train"):
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                if phase == "train":
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                running += loss.item()
            print(phase, running / len(loader))

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, get(), opt)
torch.save(model.state_dict(), "last.pt")
"""
FILLED = """    loaders = {}
    for phase in ["train", "val"]:
        loader = DataLoader(data(phase), batch_size=4, shuffle=phase == "train")
        loaders[phase] = loader
"""
MADE = '    loaders = {p: DataLoader(data(p), batch_size=4, shuffle=p == "train") for p in ["train", "val"]}\n'


@pytest.mark.parametrize("made", [FILLED, FILLED.replace("{}", "dict()"), MADE])
def test_the_loaders_of_a_table_are_shared_however_it_is_filled(made):
    text = port(SCRIPT.replace("{made}", made)).text
    assert ("loader = dl.shard(DataLoader(" in text) != ("for x, y in dl.shard(loader):" in text)
    assert "            running = dl.total(running)" in text
    assert "print(phase, running / dl.serial_steps(len(" in text


def test_ranks_that_repeat_the_serial_run_over_a_table_of_loaders_leave_its_parameters(tmp_path):
    source = SCRIPT.replace("{made}", FILLED)
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "train_dist.py").write_text(port(source).text)
    said, serial = ran(tmp_path / "train.py", tmp_path / "serial")
    alike, twins = ran(tmp_path / "train_dist.py", tmp_path / "twins", 2, DL_COMM_REPLICATE="1")
    assert all(torch.equal(serial[k], twins[k]) for k in serial)
    assert alike == said
    _, shared = ran(tmp_path / "train_dist.py", tmp_path / "shared", 2)
    assert not torch.equal(serial["weight"], shared["weight"])


def test_the_name_of_a_phase_that_is_written_beside_its_loader_is_alike_on_all_ranks() -> None:
    head = SCRIPT.partition("def get():")[0]
    made = 'one, other = DataLoader(data("train"), 4, shuffle=True), DataLoader(data("val"), 4)\n'
    body = SCRIPT.partition("loaders, opt):\n")[2].replace("\n    ", "\n").partition("\n\ntorch.manual")[0]
    loop = body.replace("    for epoch", "for epoch", 1).replace("loaders.items()", '(("train", one), ("val", other))')
    start = "model = torch.nn.Linear(4, 2)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    ported = port(head + made + start + loop + "\n")
    assert "dl.gradients(opt)" in ported.text and [doubt.name for doubt in ported.doubts] == []


@pytest.mark.parametrize(
    "made",
    [
        FILLED,
        MADE,
        '    names = "train", "val"\n    loaders = {p: DataLoader(data(p), batch_size=4) for p in names}\n',
        '    sets = {"train": data("train"), "val": data("val")}\n'
        "    loaders = {p: DataLoader(d, batch_size=4) for p, d in sets.items()}\n",
    ],
)
def test_the_names_of_phases_that_are_keys_of_loaders_are_alike_on_all_ranks(made) -> None:
    source = SCRIPT.replace("{made}", made).replace("phase, loader in loaders.items()", "phase in loaders")
    ported = port(source.replace("in loader:", "in loaders[phase]:").replace("len(loader)", "len(loaders[phase])"))
    assert "dl.gradients(opt)" in ported.text and [doubt.name for doubt in ported.doubts] == []


def test_keys_that_chance_orders_are_rank_0s_on_all_ranks(tmp_path) -> None:
    drawn = 'random.sample(["train", "val"], 2)'
    source = SCRIPT.replace("{made}", MADE.replace('["train", "val"]', drawn))
    source = source.replace("phase, loader in loaders.items()", "phase in loaders")
    source = "import random\n" + source.replace("in loader:", "in loaders[phase]:")
    ported = port(source.replace("len(loader)", "len(loaders[phase])"))
    assert f"for p in dl.broadcast({drawn})" in ported.text
    assert [doubt.name for doubt in ported.doubts] == []
    (tmp_path / "train_dist.py").write_text(ported.text)
    said, _ = ran(tmp_path / "train_dist.py", tmp_path / "shared", 2)
    assert sorted(line.split()[0] for line in said.splitlines()) == ["train", "train", "val", "val"]
