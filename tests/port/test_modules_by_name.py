"""Modules that are imported by a text: followed where it is written out, else their package is copied whole."""

import pytest
from projects import lay
from running import started
from small import SERIAL

from dlrun.port import port
from dlrun.port.files import port_tree

NET = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        torch.save(self.layer.state_dict(), "first.pt")
    def forward(self, x):
        return self.layer(x)
"""
TRAIN = """
import importlib, pkgutil
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
which = "small"
IMPORT
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    optimizer.zero_grad()
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
print("done")
"""


def _project(tmp_path, imports):
    files = {
        "train.py": TRAIN.replace("IMPORT", imports),
        "nets/__init__.py": "",
        "nets/small.py": NET,
        "nets/deep/__init__.py": "",
        "nets/deep/large.py": NET,
        "other/tool.py": "",
    }
    return lay(tmp_path / "serial", files), tmp_path / "out"


@pytest.mark.parametrize(
    "imports",
    [
        'model = importlib.import_module("nets.small").Model()',
        'from importlib import import_module\nmodel = import_module(".small", "nets").Model()',
        'net = importlib.import_module("nets.small")\nmodel = net.Model()',
    ],
)
def test_a_module_that_is_imported_by_a_text_is_one_of_the_program(tmp_path, imports):
    script, out = _project(tmp_path, imports)
    port_tree(script, out)
    assert "dl.save(self.layer.state_dict()" in (out / "nets/small.py").read_text()
    assert not (out / "nets/deep/large.py").exists()


@pytest.mark.parametrize(
    ("imports", "others"),
    [
        ('model = importlib.import_module(f"nets.{which}").Model()', False),
        ('model = importlib.import_module("nets." + which).Model()', False),
        ('model = importlib.import_module("nets.{}".format(which)).Model()', False),
        ("name = 'nets.' + which\nmodel = importlib.import_module(name).Model()", True),
        (
            "import nets\nnames = pkgutil.iter_modules(nets.__path__)\n"
            'found = [importlib.import_module("nets." + m.name) for m in names]\n'
            "model = found[-1].Model()",
            True,
        ),
    ],
)
def test_a_package_whose_modules_are_chosen_when_it_runs_is_copied_whole(tmp_path, imports, others):
    script, out = _project(tmp_path, imports)
    port_tree(script, out)
    assert (out / "nets/small.py").exists()
    assert (out / "nets/deep/large.py").exists()
    assert (out / "other/tool.py").exists() is others


def test_a_port_of_a_script_that_imports_by_a_text_starts(tmp_path):
    script, out = _project(tmp_path, 'model = importlib.import_module(f"nets.{which}").Model()')
    port_tree(script, out)
    assert started(out, ["train.py"], 2) == "done\n"


@pytest.mark.parametrize(
    "loads",
    [
        "from importlib.util import spec_from_file_location\nspec = spec_from_file_location('nets', 'nets.py')",
        "import importlib.machinery\nnets = importlib.machinery.SourceFileLoader('nets', path).load_module()",
        "import runpy\nnets = runpy.run_path('nets.py')",
    ],
)
def test_a_module_that_is_loaded_by_its_path_is_told(loads: str) -> None:
    assert "unseen-module" in [d.name for d in port(f"{loads}\n{SERIAL}").doubts]
    assert "unseen-module" not in [d.name for d in port(SERIAL).doubts]
