"""Files that libraries out of sight write, read, and make on their first use."""

import pytest
from small import HEAD, LOOP

from dlrun.port import port

IMPORTS = """import os, tarfile, nltk
from transformers import GPT2LMHeadModel
from tokenizers import Tokenizer
from torch_geometric.datasets import TUDataset
from torch_geometric.data import InMemoryDataset
from ogb.nodeproppred import PygNodePropPredDataset
from medmnist import PathMNIST
import mylib, prepare
"""


def _ported(before: str, after: str = "") -> str:
    return port(f"{IMPORTS}{HEAD}{before}{LOOP}{after}").text


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("tok.save('tok.json')", "dl.rank0(tok.save)('tok.json')"),
        ("tok.save(os.path.join(args.out, 'tok.json'))", "dl.rank0(tok.save)(os.path.join(args.out, 'tok.json'))"),
        ("config.to_json_file(args.path)", "dl.rank0(config.to_json_file)(args.path)"),
        ("tok.save_vocabulary(folder)", "dl.rank0(tok.save_vocabulary)(folder)"),
        ("mylib.export_graph(model, 'graph.bin')", "dl.rank0(mylib.export_graph)(model, 'graph.bin')"),
        ("files = tok.save_model('vocab/')", "files = dl.rank0_first(tok.save_model)('vocab/')"),
    ],
)
def test_what_is_given_a_path_and_saves_writes_on_rank_0(line, becomes):
    assert f"\n{becomes}\n" in _ported("tok = Tokenizer(1)\nconfig = mylib.config()\n", f"{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "memory.save(state, reward)",  # it keeps them
        "own.save('own.pt')",  # a method of the script's own, whose torch.save() is rank 0's
        "text = mylib.dump_text(model)",
        "y = torch.export.export(model, (x,))",
        "ctx.save_for_backward(x)",
    ],
)
def test_what_keeps_or_is_looked_into_stays(line):
    own = (
        "class Own:\n    def save(self, path):\n        torch.save(model, path)\nown = Own()\nmemory = mylib.Memory()\n"
    )
    text = _ported(own, f"{line}\n")
    assert f"\n{line}\n" in text
    assert "dl.save(model, path)" in text


@pytest.mark.parametrize("made", ["torch.nn.DataParallel(Net()).module", 'nets["small"]()'])
def test_a_model_of_the_scripts_own_saves_itself_on_all_ranks_by_whatever_name_it_is_made(made):
    net = "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    net += "        self.norm = torch.nn.BatchNorm1d(2)\n    def forward(self, x):\n        return self.norm(x)\n"
    net += "    def save(self, path):\n        torch.save(self.state_dict(), path)\n"
    source = HEAD.replace("model = ", f"{net}nets = load_nets()\nmodel = {made}  # ") + LOOP
    text = port(f"{source}model.save('net.pt')\n").text
    assert "\nmodel.save('net.pt')\n" in text  # what all ranks average in it, rank 0 alone would wait for
    assert "        dl.average(self)  # BatchNorm's statistics: of all ranks' samples\n        dl.save(" in text


def test_what_a_library_reads_back_waits_for_rank_0():
    after = "model.save_pretrained('out')\nmodel = GPT2LMHeadModel.from_pretrained('out')\n"
    text = _ported("older = GPT2LMHeadModel.from_pretrained('gpt2')\n", after + "tok.save(p)\nt = mylib.Table(p)\n")
    assert "model = dl.rank0_first(GPT2LMHeadModel.from_pretrained)('out')" in text
    assert "older = GPT2LMHeadModel.from_pretrained('gpt2')" in text
    assert "t = dl.rank0_first(mylib.Table)(p)" in text


@pytest.mark.parametrize(
    ("made", "becomes"),
    [
        (
            "TUDataset('data/TU', name='MUTAG').shuffle()",
            "dl.rank0_first(TUDataset)('data/TU', name='MUTAG').shuffle()",
        ),
        ("PygNodePropPredDataset(name='arxiv')", "dl.rank0_first(PygNodePropPredDataset)(name='arxiv')"),
        ("PathMNIST(split='train', download=True)", "dl.rank0_first(PathMNIST)(split='train', download=True)"),
        ("PathMNIST(split='train', download=False)", "PathMNIST(split='train', download=False)"),
        ("nltk.download('punkt')", "dl.rank0_first(nltk.download)('punkt')"),
        ("tarfile.open('a.tgz').extractall('a')", "dl.rank0_first(tarfile.open('a.tgz').extractall)('a')"),
        ("Mine('data')", "dl.rank0_first(Mine)('data')"),
        ("torch.utils.data.TensorDataset(x)", "torch.utils.data.TensorDataset(x)"),
    ],
)
def test_data_that_are_prepared_on_first_use_are_made_by_rank_0_first(made, becomes):
    own = "class Mine(InMemoryDataset):\n    def process(self):\n        self.save([], self.processed_paths[0])\n"
    assert f"\ndata = {becomes}\n" in _ported(f"{own}data = {made}\n")


TURN = "with dl.rank0_first():  # the others come when it is done, and find what it leaves\n    "


@pytest.mark.parametrize(
    ("lines", "in_turn"),
    [
        (
            "if os.path.exists('t.json'):\n    tok = Tokenizer.from_file('t.json')\nelse:\n    tok = Tokenizer(1)\n"
            "    tok.save('t.json')\n",
            True,
        ),
        ("if not os.path.exists(cache):\n    build(cache)\n", True),
        ("if not os.path.isdir('data/bin'):\n    prepare.main()\n", True),
        ("if not os.path.exists(cache):\n    raise FileNotFoundError(cache)\n", False),
        ("if not os.path.exists(cache):\n    print('no', cache)\n    logger.info(cache)\n", False),
        ("if not os.path.exists(cache):\n    os.makedirs(cache)\n", False),
        ("if os.path.exists('t.json'):\n    tok = Tokenizer.from_file('t.json')\n", False),
    ],
)
def test_what_makes_a_file_where_it_is_missing_does_so_in_turn(lines, in_turn):
    assert (TURN in _ported(lines)) is in_turn


@pytest.mark.parametrize(
    ("writes", "reads", "becomes"),
    [
        (
            "(out / 'a.txt').write_text('1')",
            "(out / 'a.txt').read_text()",
            "dl.rank0_first((out / 'a.txt').read_text)()",
        ),
        ("path.write_bytes(b'1')", "path.read_bytes()", "dl.rank0_first(path.read_bytes)()"),
        ("path.open('w').write('1')", "path.open().read()", "dl.rank0_first(path.open)().read()"),
        ("np.save(out / 'a.npy', 1)", "np.load(out / 'a.npy')", "dl.rank0_first(np.load)(out / 'a.npy')"),
        ("path.write_text('1')", "(out / 'b.txt').read_text()", "(out / 'b.txt').read_text()"),
    ],
)
def test_what_a_path_reads_back_waits_for_rank_0(writes, reads, becomes):
    made = "import numpy as np\nfrom pathlib import Path\nout = Path('out')\npath = out / 'c.txt'\n"
    assert f"\nfound = {becomes}\n" in _ported(made, f"{writes}\nfound = {reads}\n")


def test_what_a_class_has_written_its_other_methods_wait_for():
    own = """class Table:
    def __init__(self, root):
        self.root = root
        self.prepare()
        self.x = np.load(self.root / 'x.npy')
    def prepare(self):
        np.save(self.root / 'x.npy', 1)
"""
    text = _ported(f"import numpy as np\n{own}table = Table('data')\n")
    assert "self.x = dl.rank0_first(np.load)(self.root / 'x.npy')" in text


def test_files_that_a_path_lists_are_removed_by_rank_0():
    made = "from pathlib import Path\nout = Path('out')\n"
    for listed in ("sorted(out.glob('*.pt'))[:-2]", "out.iterdir()"):
        assert "    dl.rank0(old.unlink)()\n" in _ported(made, f"for old in {listed}:\n    old.unlink()\n")


def test_what_a_method_looks_for_is_made_in_turn():
    own = """class Table:
    def there(self):
        return os.path.exists('x.npy')
    def make(self):
        np.save('x.npy', 1)
    def __init__(self, download=True):
        if download and not self.there():
            self.make()
"""
    text = _ported(f"import numpy as np\n{own}table = Table()\n")
    assert "        with dl.rank0_first():  # the others" in text


def test_a_look_that_only_complains_is_no_turn():
    own = "def picture(path):\n    if not os.path.isfile(path):\n        raise mylib.NoPicture('no {}'.format(path))\n"
    assert "rank0_first" not in _ported(f"import mylib\n{own}", "    picture('a.png')\n")


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("data = mylib.memo('cache/x.pkl', make, 3)", "data = dl.rank0_first(mylib.memo)('cache/x.pkl', make, 3)"),
        ("keep = mylib.Keeper(os.path.join(args.out, 'k'))", "keep = dl.rank0_first(mylib.Keeper)(os.path.join"),
        ("data = mylib.read_fields('x.dat')", "data = mylib.read_fields('x.dat')"),  # it is there
        ("keep = mylib.Keeper(3)", "keep = mylib.Keeper(3)"),
    ],
)
def test_what_a_library_may_make_where_it_is_missing_is_made_by_rank_0_first(line, becomes):
    assert f"\n{becomes}" in _ported(f"{line}\n")


@pytest.mark.parametrize(
    ("use", "told"), [("size = os.path.getsize(path)", True), ("print(path)", False)], ids=["goes on", "is shown"]
)
def test_where_a_library_has_written_is_known_to_all_ranks_where_that_goes_on(use, told):
    loop = (
        LOOP.replace("for x", "for epoch in range(2):\n  for x")
        .replace("    (", "      (")
        .replace("    opt", "      opt")
    )
    save = f"  path = keep.save(model, 'out/model.bin')\n  {use}\n"
    text = port(f"{IMPORTS}{HEAD}keep = mylib.keeper()\n{loop}{save}").text
    assert ("path = dl.broadcast(dl.rank0(keep.save)(model, 'out/model.bin'))" in text) == told


def test_a_number_that_is_bound_anew_to_its_remainder_is_no_name_of_a_file():
    turn = "    seed = (seed + 1) % 4\n    rng = np.random.RandomState(seed)\n"
    assert turn in _ported("seed = 0\nfor epoch in range(3):\n" + turn)


def test_samples_in_memory_their_loaders_and_a_quotient_that_is_no_path_wait_for_nobody():
    source = (
        "from spektral.data import DisjointLoader, Graph\nfrom torch_geometric.data import Data\nimport mylib\n"
        "graphs = [Graph(x=x, a=a), Data(x=x)]\nothers = DisjointLoader(graphs, batch_size=4)\n"
        "event = mylib.Event(size / 600)\n"
    )
    assert "rank0_first" not in port(source + HEAD + LOOP).text


def test_the_order_of_files_that_are_only_removed_is_nobodys():
    removes = "import glob, os\nold = glob.glob('out/*')\nfor name in old:\n    os.remove(name)\n"
    assert "dl.broadcast(glob" not in port(removes + HEAD + LOOP).text
    kept = removes.replace("os.remove(name)", "names.append(name)")
    assert "old = dl.broadcast(glob.glob('out/*'))" in port(kept + HEAD + LOOP).text


LISTED = """import os
class Files(torch.utils.data.Dataset):
    def __init__(self, folder):
        if not folder:
            raise ValueError
        self.names = [n for n in os.listdir(folder) if n != "x"]
    def __getitem__(self, i):
        return self.names[i], {}
def main():
    data = Files("data")
    {}train({})
def train(data):
    for x, y in DataLoader(data, shuffle=True):
        opt.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        opt.step()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
main()
"""


@pytest.mark.parametrize(
    ("item", "head", "data", "told"),
    [
        ("i", "", "data", False),
        ("i", "if late:\n        ", "Files('more')", True),
        ("os.listdir(i)", "", "data", True),
    ],
)
def test_all_ranks_take_rank_0s_order_of_a_folder_where_they_come_together(item, head, data, told):
    found = port(HEAD + LISTED.format(item, head, data))
    assert ("order-differs" in {doubt.name for doubt in found.doubts}) is told
    assert ("for n in dl.broadcast(os.listdir(folder))" in found.text) is (not head)


def test_what_makes_no_files_is_made_by_all_at_once() -> None:
    source = """
import csv
import torch
from einops import rearrange
from torch_geometric.data import Data
from torchvision.datasets import MNIST, VisionDataset
class Pairs(MNIST):
    def __getitem__(self, i): return super().__getitem__(i), i
class Own(VisionDataset):
    def __init__(self, root): super().__init__(root)
data = Pairs("data", train=True, download=True)
known = Own("data")
x = torch.rand(64, 4)
at = rearrange((x - 32 // 2) / x.max(), "... n -> ... n 1")
graphs = [Data(x=row, y=row.sum()) for row in x]
file = open("log.csv", "w")
log = csv.DictWriter(file, fieldnames=["epoch", "loss"])
log.writeheader()
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(3):
    total = 0
    for a in torch.utils.data.DataLoader(x, 8):
        loss = net(a).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        total += loss.item()
    log.writerow({"epoch": epoch, "loss": total})
"""
    text = port(source).text
    assert 'data = dl.rank0_first(Pairs)("data", train=True, download=True)' in text
    assert text.count("dl.rank0_first(") == 1
