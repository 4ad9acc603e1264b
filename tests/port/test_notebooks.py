"""Notebooks, and scripts made of them: their cells in order, without what only a notebook can do."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from running import ran, rounded

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port import port
from dlrun.port.files import port_file, port_tree, read_and_port
from dlrun.port.program.notebooks import of_converted, of_notebook

START = """%matplotlib inline
%load_ext autoreload
!pip install torch
import torch
from torch.utils.data import DataLoader, TensorDataset"""
TRAINING = """for epoch in range(2):
    total = 0.0
    for a, b in DataLoader(data, batch_size=8):
        loss = ((model(a) - b) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print('loss', epoch, total)
print('%d of %d'
      % (epoch + 1, 2))"""
CELLS = (
    START,
    "name = 'rows.txt'\n!echo 64 > {name}\nrows = !cat $name\nprint('rows', rows[0])\n!nvidia-smi",
    "%%writefile net.txt\n4 1\n",
    "torch.manual_seed(0)\nx = torch.randn(int(rows[0]), 4)\nx.shape",
    "data = TensorDataset(x, x.sum(1, keepdim=True))\nsizes = [int(n) for n in open('net.txt').read().split()]\n"
    "model = torch.nn.Linear(*sizes)\nopt = torch.optim.SGD(model.parameters(), lr=0.01)\nmodel?\ndisplay(sizes)",
    "%%time\n" + TRAINING.replace("    print", "    %time print"),
    "torch.save(model.state_dict(), 'last.pt')",
)


def _book(*cells: str, language: str = "python") -> str:
    kinds = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    text = {"cell_type": "markdown", "source": ["# A title\n"]}
    return json.dumps({"cells": [text, *kinds], "metadata": {"kernelspec": {"language": language}}, "nbformat": 4})


def test_a_notebook_is_ported_and_trains_on_two_ranks_as_its_script_does(tmp_path):
    book = tmp_path / "train.ipynb"
    book.write_text(_book(*CELLS))
    ported = port_file(book)
    assert ported.path == tmp_path / "train_dist.py"
    assert 'dl.rank0(subprocess.run)(f"echo 64 > {name}", shell=True)' in ported.text
    assert "# pip install torch\n" in ported.text
    (tmp_path / "train.py").write_text(of_notebook(book.read_bytes(), "train.ipynb"))
    serial, parameters = ran(tmp_path / "train.py", tmp_path / "serial")
    alone, same = ran(ported.path, tmp_path / "alone")
    assert alone == serial and all(same[k].equal(parameters[k]) for k in same)
    both, _ = ran(ported.path, tmp_path / "both", ranks=2)
    assert [line.split()[0] for line in both.splitlines()] == [line.split()[0] for line in serial.splitlines()]
    assert rounded(both.splitlines()[0]) == ["rows", 64.0]


def test_what_a_notebook_displays_rank_0_shows_whatever_comes_before_its_imports(tmp_path):
    book = tmp_path / "train.ipynb"
    book.write_text(_book("!true\n" + START, *CELLS[1:]))
    ported = port_file(book)
    both, _ = ran(ported.path, tmp_path / "both", ranks=2)
    assert both.count("[4, 1]") == 1


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("%cd data", 'import os\nos.chdir("data")\n'),
        ("%env CUDA_VISIBLE_DEVICES=0", 'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\n'),
        ("%run common.py", "from common import *\n"),
        ("%run common.py --fast", "# left out: %run common.py --fast\n"),
        ("if x:\n    %store x", "if x:\n    pass  # left out: %store x\n"),
        ("%%bash\nmkdir -p a\ncd a", 'import subprocess\nsubprocess.run("""mkdir -p a\ncd a""", shell=True)\n'),
        ("%%javascript\nalert(1)\n", None),
        ("x = (7\n%2)", "x = (7\n%2)\n"),
        (
            "!wget https://a.org/b.zip \\\n  -O b.zip",
            'import subprocess\nsubprocess.run("wget https://a.org/b.zip -O b.zip", shell=True)\n',
        ),
        ("for i in range(2):\n    !ls", "for i in range(2):\n    pass\n"),
        ("from tqdm.notebook import tqdm", "from tqdm.auto import tqdm\n"),
        (
            "from google.colab import drive\ndrive.mount('/d')",
            "# left out: from google.colab import drive\n# left out: drive.mount('/d')\n",
        ),
        (
            "IN = 'google.colab' in str(get_ipython())",
            "\nget_ipython = lambda: None  # no notebook\nIN = 'google.colab' in str(get_ipython())\n",
        ),
    ],
)
def test_what_is_no_python_is_written_as_a_script_has_it(line, becomes):
    text = of_notebook(_book(line, "x = 1"), "a.ipynb")
    assert text == f"{becomes}\nx = 1\n".replace("\n\nx = 1", "\n\nx = 1") if becomes else text == "x = 1\n"


def test_a_script_that_was_made_of_a_notebook_is_seen_through(tmp_path):
    text = f"""# coding: utf-8
# In[1]:
get_ipython().run_line_magic('matplotlib', 'inline')
import torch
from torch.utils.data import DataLoader, TensorDataset
get_ipython().system('pip install torch')
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
get_ipython().run_cell_magic('time', '', {TRAINING!r})
get_ipython().run_line_magic('store', 'model')
torch.save(model.state_dict(), 'last.pt')
"""
    ported = port(text, name="train.py")
    assert "    for a, b in dl.shard(DataLoader(data, batch_size=8)):\n" in ported.text
    assert "get_ipython" not in ported.text and "get_ipython" in ported.script_part.source
    assert [(d.name, d.danger) for d in ported.doubts if d.name == "notebook-line"] == [("notebook-line", "medium")]
    (tmp_path / "train_dist.py").write_text(ported.text)
    printed, _ = ran(tmp_path / "train_dist.py", tmp_path / "both", ranks=2)
    assert printed.splitlines()[-2].startswith("loss 1 ")
    assert of_converted("x = 1\n") == "x = 1\n"


COLAB = '''# -*- coding: utf-8 -*-
"""lstm.ipynb

Automatically generated by Colaboratory.
"""

!pip install torch
%matplotlib inline
import torch
!mkdir -p out
'''


def test_lines_that_colab_leaves_in_a_script_are_those_of_its_notebook():
    made = of_converted(COLAB)
    assert "# pip install torch\n" in made and "matplotlib" not in made
    assert made.index("Automatically") < made.index("import subprocess")
    assert 'subprocess.run("mkdir -p out", shell=True)\n' in made
    compile(made, "made", "exec")


def test_a_notebook_has_its_script_s_name_in_a_folder(tmp_path):
    (tmp_path / "train.ipynb").write_text(_book(*CELLS))
    assert port_tree(tmp_path / "train.ipynb", tmp_path / "out").path == tmp_path / "out" / "train.py"
    checked = [str(tmp_path / "train.ipynb"), "--check", "--out-dir", str(tmp_path / "out")]
    assert CliRunner().invoke(command, checked).exit_code == 0


@pytest.mark.parametrize(
    ("book", "says"),
    [
        ("[1]", "no notebook"),
        ("not json", "no notebook"),
        (_book("x <- 1", language="R"), "in R, not in Python"),
        (_book(), "without code"),
    ],
)
def test_what_is_no_notebook_of_python_is_refused(book, says):
    with pytest.raises(DlrunError, match=says):
        port(book, name="train.ipynb")


def test_a_notebook_is_not_run(tmp_path):
    (tmp_path / "train.ipynb").write_text(_book(*CELLS))
    done = subprocess.run(
        [sys.executable, "-m", "dlrun", "port", "--verify", "train.ipynb"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2 and "is a notebook" in done.stderr


def test_async_as_an_argument_is_spelt_as_it_is_today():
    text = (
        f"import torch\n{START.splitlines()[-1]}\n"
        + """
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for a, b in DataLoader(data, batch_size=8):
    a, b = a.cuda(async=True), b.to(0, async = True)
    opt.zero_grad()
    ((model(a) - b) ** 2).mean().backward()
    opt.step()
"""
    )
    ported = port(text, name="train.py")
    assert "a.cuda(non_blocking=True), b.to(dl.current" in ported.text or "a.cuda(non_blocking=True)" in ported.text
    assert "async" not in ported.text and "a.cuda(async=True)" in ported.script_part.source
    assert [e.why for e in ported.edits if "3.7" in e.why] == ["`async` is a keyword since Python 3.7"] * 2


def test_modules_of_old_are_read_as_scripts_are(tmp_path):
    (tmp_path / "steps.py").write_text(
        "def step(model, opt, a, b):\n    opt.zero_grad()\n"
        "    (model(a.cuda(async=True)) - b).pow(2).mean().backward()\n    opt.step()\n"
    )
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader\nimport steps\nmodel = torch.nn.Linear(2, 1)\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for a, b in DataLoader(data, shuffle=True):\n    steps.step(model, opt, a, b)\n"
    )
    (module,) = read_and_port(script).modules
    assert "a.cuda(non_blocking=True)" in module.text and "dl.gradients(opt)" in module.text
    assert "a.cuda(async=True)" in module.source
