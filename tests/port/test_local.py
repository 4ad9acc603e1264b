"""Local imports: a script and the modules beside it are read as one program, and ported together."""

import os

import pytest
import torch
from click.testing import CliRunner
from projects import PROJECT, lay
from running import ran

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port.files import port_file, port_tree, read_and_port


@pytest.fixture
def script(tmp_path):
    return lay(tmp_path / "project")


@pytest.fixture
def ported(script, tmp_path):
    """The project, ported; its files by path."""
    port_tree(script, tmp_path / "out")
    return {name: (tmp_path / "out" / name).read_text() for name in PROJECT}


def test_facts_cross_the_borders_of_modules(ported):
    assert (
        "return dl.shard(DataLoader(train, batch_size, shuffle=True)), DataLoader(test, batch"
        in (ported["lab/data/digits.py"])
    )
    assert "SGD(model.parameters(), lr=dl.lr_scale(lr)" in ported["lab/utils.py"]
    assert "dl.save(model.state_dict(), path)" in ported["lab/utils.py"]
    assert "dl.gradients(optimizer)  # mean over the ranks\n        torch.nn.utils.clip" in ported["lab/engine.py"]
    assert "    dl.broadcast(model, optimizer)" in ported["train.py"]
    assert "    total = dl.total(total)" in ported["lab/engine.py"]
    assert "return total / dl.serial_steps(len(loader))" in ported["lab/engine.py"]
    assert "loss {loss:.4f} accuracy {accuracy:.3f}" in ported["train.py"]


def test_what_needs_no_change_and_what_nothing_calls_stays_as_it_is(ported):
    for name in ("lab/__init__.py", "lab/data/__init__.py", "lab/model.py"):
        assert ported[name] == PROJECT[name].lstrip("\n")
    tail = ported["lab/engine.py"].partition("def never_called")[2]
    assert tail.partition("# dlrun port ")[0] == PROJECT["lab/engine.py"].partition("def never_called")[2]


def test_only_the_script_joins_and_leaves_the_ranks(ported):
    assert [n for n, text in ported.items() if "dl.init()" in text or "dl.finalize()" in text] == ["train.py"]
    changed = [n for n, text in ported.items() if "import dl_comm.torch as dl" in text]
    assert changed == ["train.py", "lab/data/digits.py", "lab/engine.py", "lab/utils.py"]
    assert ported["lab/engine.py"].startswith('"""The loops."""\nimport torch\n')
    assert "print = dl.print" in ported["lab/engine.py"]


def test_without_a_folder_the_modules_and_the_command_are_named(script):
    with pytest.raises(DlrunError) as error:
        port_file(script)
    assert "3 local modules that it imports must change too" in error.value.message
    assert "lab/engine.py: 7 edits (gradients, metrics, shard)" in error.value.message
    assert f"dlrun port {script} --out-dir train_dist" in error.value.hint
    assert not list(script.parent.glob("*_dist*"))


def test_a_script_whose_modules_need_nothing_is_one_file(tmp_path):
    files = {
        "train.py": "import torch\nfrom net import Net\nfrom torch.utils.data import DataLoader\nmodel = Net()\n"
        "opt = torch.optim.SGD(model.parameters(), lr=1.0)\nfor x, y in DataLoader(data):\n"
        "    model(x).sum().backward()\n    opt.step()\n",
        "net.py": "import torch\nclass Net(torch.nn.Linear):\n    pass\nprint('made')\n",
    }
    ported = port_file(lay(tmp_path, files))
    assert ported.path.name == "train_dist.py"
    assert "dl.broadcast(model, opt)" in ported.text


def test_the_source_is_never_overwritten(script, tmp_path):
    with pytest.raises(DlrunError, match="holds the script itself"):
        port_tree(script, script.parent)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.py").write_text("print()\n")
    with pytest.raises(DlrunError, match="is no port"):
        port_tree(script, tmp_path / "other")


def test_what_the_modules_read_comes_along_and_a_second_port_changes_nothing(script, tmp_path):
    (script.parent / "lab" / "names.txt").write_text("a\n")
    (script.parent / "conf.yaml").write_text("a: 1\n")
    script.write_text(script.read_text().replace("best = 0.0", "best = float(open('conf.yaml').read()[3:])"))
    out = tmp_path / "out"
    port_tree(script, out)
    before = {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    assert {"names.txt", "conf.yaml"} <= {p.name for p in before}
    port_tree(script, out)
    assert {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()} == before
    result = CliRunner().invoke(command, ["--check", str(script), "--out-dir", str(out)])
    assert result.exit_code == 0, result.output
    (out / "lab" / "utils.py").write_text("")
    result = CliRunner().invoke(command, ["--check", str(script), "--out-dir", str(out)])
    assert "utils.py would change" in result.output


@pytest.mark.parametrize("name", ["train.py", "lab/utils.py", "lab/names.txt"])
def test_no_file_that_somebody_edited_in_the_folder_of_a_port_is_replaced_unless_asked(script, tmp_path, name):
    (script.parent / "lab" / "names.txt").write_text("a\n")
    out = tmp_path / "out"
    port_tree(script, out)
    (out / name).write_text((out / name).read_text() + "# mine\n")
    later = (out / name).stat().st_mtime + 10
    os.utime(out / name, (later, later))
    with pytest.raises(DlrunError, match=f"{name}: edited since dlrun port wrote it"):
        port_tree(script, out)
    assert (out / name).read_text().endswith("# mine\n")
    port_tree(script, out, overwrite=True)
    assert "# mine" not in (out / name).read_text()


@pytest.mark.parametrize(
    "imports",
    [
        "from lab.utils import make_optimizer as made",
        "import lab.utils\nmade = lab.utils.make_optimizer",
        "from lab.utils import *\nmade = make_optimizer",
        "import lab.utils as u\nmade = u.make_optimizer",
    ],
)
def test_an_optimizer_from_a_factory_is_found_however_it_is_imported(imports, tmp_path):
    text = PROJECT["train.py"].replace("from lab import engine, utils", f"from lab import engine, utils\n{imports}")
    script = lay(tmp_path, {**PROJECT, "train.py": text.replace("utils.make_optimizer(", "made(")})
    ported = read_and_port(script)
    assert "dl.broadcast(model, optimizer)" in ported.text
    (utils,) = [m for m in ported.modules if m.file == "lab/utils.py"]
    assert "lr=dl.lr_scale(lr)" in utils.text


def test_circular_imports_and_modules_that_do_not_parse_are_no_obstacle(tmp_path):
    files = {
        **PROJECT,
        "lab/model.py": PROJECT["lab/model.py"] + "\nfrom lab.engine import evaluate\nfrom lab.old import x\n",
        "lab/engine.py": "from lab.model import Net\n" + PROJECT["lab/engine.py"],
        "lab/old.py": "print 'x'\n",
    }
    assert len(read_and_port(lay(tmp_path, files)).modules) == 3


def test_the_ported_project_runs_and_trains_as_the_serial_one(script, tmp_path):
    port_tree(script, tmp_path / "out")
    said, serial = ran(script, tmp_path / "a")
    alone, one = ran(tmp_path / "out" / "train.py", tmp_path / "b")
    assert alone == said
    _, twins = ran(tmp_path / "out" / "train.py", tmp_path / "c", 2, DL_COMM_REPLICATE="1")
    shared, _ = ran(tmp_path / "out" / "train.py", tmp_path / "d", 2)
    assert all(torch.equal(serial[k], one[k]) and torch.equal(serial[k], twins[k]) for k in serial)
    assert said.count("seen 24") == shared.count("seen 24") == 2


TRAINER = {
    "train.py": """
import torch
from data import train_loader
from trainer import Trainer
from utils import *
import config as cfg

if __name__ == "__main__":
    net = torch.nn.Linear(2, 1)
    Trainer(net, build(net, cfg), train_loader).fit(cfg.EPOCHS)
""",
    "config.py": "LR = 0.1\nEPOCHS = 2\nBATCH = 4\n",
    "data.py": "from torch.utils import data\nfrom config import BATCH\n"
    "train_loader = data.DataLoader(samples, batch_size=BATCH, shuffle=True)\n",
    "utils.py": "import torch\ndef build(net, cfg):\n    return torch.optim.SGD(net.parameters(), lr=cfg.LR)\n",
    "trainer.py": """
class Trainer:
    def __init__(self, net, opt, train):
        self.net, self.opt, self.train = net, opt, train

    def fit(self, epochs):
        for epoch in range(epochs):
            print(epoch, self.epoch())

    def epoch(self):
        total = 0.0
        for x, y in self.train:
            loss = (self.net(x) - y).pow(2).mean()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total / len(self.train)
""",
}


def test_a_trainer_class_of_a_module_gets_what_other_modules_made(tmp_path):
    port_tree(lay(tmp_path / "project", TRAINER), tmp_path / "out")
    trainer, data, utils, config = (
        (tmp_path / "out" / f).read_text() for f in ("trainer.py", "data.py", "utils.py", "config.py")
    )
    assert "        dl.broadcast(self.net, self.opt)" in trainer
    assert "            dl.gradients(self.opt)  # mean over the ranks\n            self.opt.step()" in trainer
    assert "        total = dl.total(total)" in trainer
    assert "        return total / dl.serial_steps(len(self.train))" in trainer
    assert "train_loader = dl.shard(data.DataLoader(" in data
    assert "lr=dl.lr_scale(cfg.LR))" in utils
    assert config == TRAINER["config.py"]


CHOSEN = """
import sys
import torch
{imports}

def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    samples = torch.utils.data.TensorDataset(torch.randn(40, 2), torch.randn(40, 1))
    loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {chosen}
    for epoch in range(2):
        print(train(model, loader, optimizer))

main()
"""
EPOCH = """
def {name}(model, loader, optimizer):
    for x, y in loader:
        loss = (model(x) - y).{by}().mean()
        loss.backward()
        optimizer.step()
    return loss.item()
"""
SQUARED, PLAIN = EPOCH.format(name="squared", by="square"), EPOCH.format(name="plain", by="abs")


@pytest.mark.parametrize(
    ("imports", "chosen"),
    [
        ("if len(sys.argv) > 1:\n    from one import squared as train\nelse:\n    from two import plain as train", ""),
        ("if len(sys.argv) > 1:\n    import one as way\nelse:\n    import two as way", "train = way.main"),
        (
            "from one import squared\nfrom two import plain",
            "if len(sys.argv) > 1:\n        train = squared\n    else:\n        train = plain",
        ),
        ("import one\nfrom two import plain", "train = plain\n    if len(sys.argv) > 1:\n        train = one.squared"),
    ],
)
def test_each_function_that_branches_choose_from_trains_for_the_same_loop(imports, chosen, tmp_path):
    main = "main = squared\n", "main = plain\n"
    files = {
        "train.py": CHOSEN.format(imports=imports, chosen=chosen),
        "one.py": SQUARED + main[0],
        "two.py": PLAIN + main[1],
    }
    ported = read_and_port(lay(tmp_path, files))
    assert "dl.broadcast(model, optimizer)" in ported.text
    assert len(ported.modules) == 2
    for module in ported.modules:  # the loader is sharded once, and nothing begins anew in each epoch
        assert "dl.gradients(optimizer)" in module.text and "    loss = dl.average(loss)" in module.text
        assert not any(word in module.text for word in ("shard", "broadcast", "reseed"))


WITHOUT = """
import torch
from lab.gone import draw
from lab.engine import fit, prepare
from lab.model import Net
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
TRAIN
"""
STEP = """for epoch in range(3):
    x, y = prepare()
    (model(x) - y).abs().mean().backward()
    opt.step()
"""


@pytest.mark.parametrize("train", ["fit(model, opt)", STEP])
def test_a_refusal_names_the_modules_of_the_project_that_are_not_there(train, tmp_path):
    script = lay(tmp_path, {"lab/model.py": PROJECT["lab/model.py"], "train.py": WITHOUT.replace("TRAIN", train)})
    with pytest.raises(DlrunError) as error:
        read_and_port(script)
    assert f"nor installed: lab.gone ({script}:2), lab.engine ({script}:3). What it takes" in error.value.hint
