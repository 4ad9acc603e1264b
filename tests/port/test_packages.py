"""Scripts in packages and beside them: relative imports, and packages at the root of the project around a script."""

import pytest
import torch
from click.testing import CliRunner
from projects import PROJECT, lay
from running import ran, started
from small import SERIAL

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.package import home_of
from dlrun.port import Options, port
from dlrun.port.files import port_tree, read_and_port

INSIDE = {
    **{f"task/{name}": text for name, text in PROJECT.items()},
    "task/__init__.py": "",
    "task/train.py": PROJECT["train.py"].replace("from lab", "from .lab"),
}
BESIDE = {**PROJECT, "setup.py": "", "jobs/digits/train.py": PROJECT["train.py"]}
del BESIDE["train.py"]


@pytest.fixture
def inside(tmp_path):
    """A script that lies in a package and says so by relative imports."""
    lay(tmp_path / "serial", INSIDE)
    return tmp_path / "serial" / "task" / "train.py"


@pytest.fixture
def beside(tmp_path):
    """A script whose package lies at the project's root, two folders above it."""
    lay(tmp_path / "project", BESIDE)
    return tmp_path / "project" / "jobs" / "digits" / "train.py"


def as_module(folder, ranks=0, **env):
    """Run ``task.train`` from ``folder`` by ``python -m``; return what it printed and left."""
    return started(folder, ["-m", "task.train"], ranks, **env), torch.load(folder / "last.pt")


def test_a_script_in_a_package_keeps_its_package_and_trains_as_the_serial_one(inside, tmp_path):
    result = CliRunner().invoke(command, [str(inside), "--out-dir", str(tmp_path / "out")])
    assert f"next: cd {tmp_path / 'out'} && dlrun launch -n 2 -m task.train\n" in result.output
    assert "task/lab/engine.py: 7 edits" in result.output
    assert "dl.gradients(optimizer)" in (tmp_path / "out/task/lab/engine.py").read_text()
    said, serial = as_module(tmp_path / "serial")
    _, twins = as_module(tmp_path / "out", 2, DL_COMM_REPLICATE="1")
    assert "seen 24" in said
    assert all(torch.equal(serial[k], twins[k]) for k in serial)


def test_the_port_of_a_package_is_checked_where_it_lies(inside, tmp_path):
    given = [str(inside), "--out-dir", str(tmp_path / "out")]
    assert CliRunner().invoke(command, ["--check", *given]).exit_code == 1
    assert CliRunner().invoke(command, given).exit_code == 0
    assert CliRunner().invoke(command, ["--check", *given]).exit_code == 0


def test_a_package_of_the_project_around_the_script_is_ported_to_lie_beside_it(beside, tmp_path):
    port_tree(beside, tmp_path / "out")
    assert "dl.gradients(optimizer)" in (tmp_path / "out/lab/engine.py").read_text()
    # Also where the serial package is on the path, the port imports its own.
    shared, _ = ran(tmp_path / "out/train.py", tmp_path / "run", 2, PYTHONPATH=str(beside.parents[2]))
    assert shared.count("seen 24") == 2


def test_a_script_inside_the_package_that_it_imports_by_its_name_needs_no_mark_of_a_root(tmp_path):
    lay(tmp_path, {f"lab/{name}".replace("lab/lab", "lab"): text for name, text in PROJECT.items()})
    assert "lab/engine.py" in {part.file for part in read_and_port(tmp_path / "lab/train.py").modules}


@pytest.mark.parametrize("script", ["run.py", "jobs/run.py"])
def test_a_project_below_a_folder_that_is_called_as_its_package_keeps_its_own(script, tmp_path):
    files = {f"src/{name}": text for name, text in PROJECT.items() if name.startswith("lab/")} | {"setup.py": ""}
    files[script] = PROJECT["train.py"].replace("from lab", "from src.lab").replace("import lab", "import src.lab")
    lay(tmp_path / "src" / "project", files)
    assert "src/lab/engine.py" in {part.file for part in read_and_port(tmp_path / "src/project" / script).modules}


@pytest.mark.parametrize(
    "change",
    [{"setup.py": None}, {"src/lab/__init__.py": ""}, {"jobs/digits/pyproject.toml": ""}],
    ids=["no root above", "two places", "the script's folder is the root"],
)
def test_where_a_package_above_is_not_surely_meant_it_stays_foreign(change, tmp_path):
    files = {name: text for name, text in {**BESIDE, **change}.items() if text is not None}
    lay(tmp_path, files)
    with pytest.raises(DlrunError, match="no training loop"):
        read_and_port(tmp_path / "jobs/digits/train.py")


PATHS = {
    "insert": "root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))\n"
    'sys.path.insert(0, os.path.join(root, "shared"))',
    "append": 'sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))',
    "f-string": 'HERE = os.path.split(__file__)[0]\nsys.path += [f"{HERE}/../shared"]',
    "cwd": 'sys.path.append("../shared")',
    "in a module": "import where",
}


@pytest.mark.parametrize("way", PATHS)
def test_modules_in_folders_that_the_script_puts_on_its_path_are_ported_to_lie_beside_it(way, tmp_path):
    files = {f"shared/{name}": text for name, text in PROJECT.items() if name.startswith("lab/")}
    files["jobs/train.py"] = f"import os, sys\nfrom pathlib import Path\n{PATHS[way]}\n" + PROJECT["train.py"]
    files["jobs/where.py"] = f"import os, sys\n{PATHS['insert']}\n"
    lay(tmp_path, files)
    ported = port_tree(tmp_path / "jobs/train.py", tmp_path / "out")
    assert "dl.gradients(optimizer)" in (tmp_path / "out/lab/engine.py").read_text()
    assert "sys.path.insert(0" not in "".join(part.text for part in (ported.script_part, *ported.modules))
    if way == "insert":  # the others differ in how the folder is read, not in what comes out
        _, serial = ran(tmp_path / "jobs/train.py", tmp_path / "alone")
        _, twins = ran(tmp_path / "out/train.py", tmp_path / "twins", 2, DL_COMM_REPLICATE="1")
        assert all(torch.equal(serial[k], twins[k]) for k in serial)


def test_names_that_everything_of_a_module_brings_along_are_known(tmp_path):
    brings = "import torch\nfrom torch.optim import *\nfrom torch.utils.data import *\n"
    main = "from net import *\nfrom parts import *\nmodel = Net()\nopt = Adam(model.parameters(), lr=0.1)\n"
    loop = "for x in DataLoader(data):\n    model(x).mean().backward()\n    opt.step()\n"
    one, other = (
        f"import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n{way}\n"
        for way in ("        return x", "        return batch_norm(x)")
    )
    other = f"from brings import *\n{other}"
    lay(tmp_path, {"train.py": main + loop, "net.py": one, "parts.py": other, "brings.py": brings})
    ported = read_and_port(tmp_path / "train.py")
    assert "dl.shard(DataLoader(data))" in ported.text
    assert any("Adam mostly wants less" in d.why for d in ported.doubts)
    assert ported.script.class_of(ported.script.root.lookup("Net")[0][0].node.body) is not None
    assert "batch_norm" in ported.script.code(ported.script.root.lookup("Net")[0][0].node), "the last one counts"


def test_the_scripts_own_folder_comes_before_what_is_appended_and_after_what_is_inserted(tmp_path):
    main = PROJECT["train.py"]
    files = {f"{at}/{name}": text for name, text in PROJECT.items() if name.startswith("lab/") for at in ("a", "b")}
    lay(tmp_path, {**files, "a/lab/engine.py": "def train_one_epoch(*given): pass\ndef evaluate(*given): pass\n"})
    for place, first in (("append(", False), ("insert(1, ", False), ("insert(0, ", True)):
        (tmp_path / "a/train.py").write_text(f'import sys\nsys.path.{place}"../b")\n{main}')
        if first:
            assert "lab/engine.py" in [part.file for part in read_and_port(tmp_path / "a/train.py").modules]
        else:
            with pytest.raises(DlrunError, match="no training loop"):
                read_and_port(tmp_path / "a/train.py")


def test_what_is_installed_under_the_name_of_a_package_above_is_meant(tmp_path):
    files = {name.replace("lab/", "sklearn/"): text.replace("lab", "sklearn") for name, text in BESIDE.items()}
    lay(tmp_path, files)
    with pytest.raises(DlrunError, match="no training loop"):
        read_and_port(tmp_path / "jobs/digits/train.py")


def test_nothing_of_the_project_is_overwritten(beside, inside):
    for script, folder in ((beside, beside.parents[2]), (inside, inside.parents[1])):
        with pytest.raises(DlrunError, match="holds the script"):
            port_tree(script, folder)


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("from . import x", "b"),
        ("from .. import x", "a.b"),
        ("def f():\n    from .x import y", "b"),
        ("import x", ""),
        ("try:\n    from . import x\nexcept ImportError:\n    import x", ""),
    ],
)
def test_relative_imports_tell_the_package_of_a_script(source, package, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    home = home_of(tmp_path / "a" / "b" / "train.py", source)
    assert (home.package, home.folder / home.inside) == (package, tmp_path / "a" / "b")


def test_the_outermost_package_is_the_last_one_with_an_init_file(tmp_path):
    lay(tmp_path, {"a/__init__.py": "", "a/b/__init__.py": "", "a/b/train.py": ""})
    assert home_of(tmp_path / "a/b/train.py", "from . import x").package == "a.b"
    (tmp_path / "a.c").mkdir()
    assert home_of(tmp_path / "a.c/train.py", "from . import x").package == "", "no name that python -m takes"


def test_a_module_that_prints_is_quiet_on_other_ranks_where_modules_are_written_anyway(tmp_path):
    """Without another change the port stays one file."""
    shows = {"show.py": "def show(text):\n    print('shown', text)\n"}
    main = PROJECT["train.py"].replace("from lab", "from show import show\nfrom lab", 1) + "\nshow(1)\n"
    lay(tmp_path / "serial", {**PROJECT, **shows, "train.py": main})
    written = {part.file: part.text for part in read_and_port(tmp_path / "serial" / "train.py").modules}
    assert "print = dl.print" in written["show.py"]
    lay(tmp_path / "alone", {**shows, "train.py": "from show import show\n" + SERIAL + "show(1)\n"})
    assert not read_and_port(tmp_path / "alone" / "train.py").modules


def test_modules_that_import_each_other_are_followed(tmp_path):
    package = tmp_path / "rows"
    package.mkdir()
    (package / "__init__.py").write_text("size = 8\nfrom .made import Made\n")
    (package / "made.py").write_text(
        "import torch\nimport rows\nclass Made(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 64\n    def __getitem__(self, i): return torch.ones(rows.size) * i\n"
    )
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nimport rows\nfrom rows import Made\nnet = torch.nn.Linear(8, 1)\n"
        "opt = torch.optim.SGD(net.parameters(), 0.1)\ntotal = 0\n"
        "for x in torch.utils.data.DataLoader(Made(), 8):\n    loss = net(x).pow(2).mean()\n"
        "    opt.zero_grad(); loss.backward(); opt.step()\n    total += loss.item()\nprint(total)\n"
    )
    ported = port(script.read_bytes(), Options(), script.name, script)
    assert not ported.doubts and "total = dl.total(total)" in ported.text
