"""Files that a script fetches, or makes, where they are missing: rank 0 does, the others find them there."""

import textwrap

import pytest
from running import ran
from small import HEAD, LOOP, SERIAL

from dlrun.port import port
from dlrun.port.files import read_and_port

FETCHED = """
import os
import urllib.request
import requests
def corpus(path):
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(requests.get("https://example.org/corpus").content)
    return open(path).read()
text = corpus("corpus.txt")
"""
RETURNS = """
import pathlib, urllib.request, zipfile
def fetch(path):
    if path.exists():
        print("there")
        return
    urllib.request.urlretrieve("https://example.org/corpus", path)
    zipfile.ZipFile(path).extractall()
fetch(pathlib.Path("corpus.zip"))
"""
CACHED = """
import os, numpy as np
if os.path.isfile("x.npy"):
    x = np.load("x.npy")
else:
    x = compute()
    np.save("x.npy", x)
"""
WRITTEN = """
import json, os
if os.path.exists("found.json"):
    with open("found.json") as file:
        found = json.loads(file.read())
else:
    found = search()
    with open("found.json", "w") as file:
        file.write(json.dumps(found))
"""
ATTEMPT = """
import numpy as np, scipy.sparse as sp
def adjacency():
    try:
        x = sp.load_npz("x.npz")
    except Exception:
        x = compute()
        sp.save_npz("x.npz", x)
    return x
x = adjacency()
"""
FILLED = """
import os, random
if not os.path.exists("data/train.index"):
    with open("data/train.index", "w") as file:
        file.write(str(random.sample(range(9), 5)))
for part in ("train",):
    with open("data/" + part + ".index") as file:
        print(file.read())
"""
SESSION = """
import tensorflow as tf
from six.moves import urllib
if not tf.gfile.Exists("x.gz"):
    path, _ = urllib.request.urlretrieve("https://example.org/x.gz", "x.gz")
x = tf.placeholder(tf.float32, [None, 2])
train = tf.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.layers.dense(x, 1)))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for i in range(0, len(data), 8):
        session.run(train, {x: data[i:i + 8]})
"""


@pytest.mark.parametrize(
    "source",
    [FETCHED + SERIAL, CACHED + SERIAL, WRITTEN + SERIAL, ATTEMPT + SERIAL, FILLED + SERIAL, SESSION],
    ids=["fetched", "cached", "written", "attempt", "filled in", "session"],
)
def test_a_rank_looks_for_a_file_once_rank_0_has_fetched_or_made_it(source):
    before, after = source.splitlines(), port(source).text.splitlines()
    at = next(i for i, line in enumerate(after) if "with dl.rank0_first():" in line)
    body = [line.removeprefix("    ") for line in after[at + 1 :]]
    first = before.index(body[0])
    assert before[first].lstrip().startswith(("if ", "try:"))
    assert body[:3] == before[first : first + 3]  # the lines themselves stay as they are


def test_a_function_that_returns_where_the_file_is_there_runs_on_rank_0_first():
    text = port(RETURNS + SERIAL).text
    assert 'dl.rank0_first(fetch)(pathlib.Path("corpus.zip"))' in text
    assert text.count("rank0_first") == 1


def test_a_function_that_returns_what_is_kept_and_keeps_what_it_makes_runs_on_rank_0_first():
    kept = "import os, numpy as np\ndef squares(n):\n    if os.path.exists('x.npy'):\n        return np.load('x.npy')\n"
    kept += "    x = np.arange(n) ** 2\n    np.save('x.npy', x)\n    return x\n"
    text = port(f"{kept}{SERIAL}data = squares(9)\n").text
    assert "dl.rank0_first(squares)(9)" in text
    assert text.count("rank0") == 1


MISSING = "if not os.path.exists('x'):\n    requests.get('x')\n"
NOT_IN_TURNS = {
    "a folder": "if not os.path.exists('x'):\n    os.makedirs('x')\n" + SERIAL,
    "a worker process": "class X:\n    def __getitem__(self, i):\n" + textwrap.indent(MISSING, " " * 8) + SERIAL,
    "a training loop": SERIAL + textwrap.indent(MISSING, "    "),
    "a mean over the ranks": SERIAL + "loss = model(x).mean().item()\nif not os.path.exists('x'):\n"
    "    with open('x', 'w') as file:\n        file.write(f'{loss:.3f}')\n",
    "training": MISSING + textwrap.indent(SERIAL, "    "),
}


@pytest.mark.parametrize("source", NOT_IN_TURNS.values(), ids=NOT_IN_TURNS)
def test_what_needs_all_ranks_or_makes_no_file_is_not_done_in_turns(source):
    assert "with dl.rank0_first()" not in port("import os, requests\n" + source).text


def test_pictures_films_and_foreign_logs_are_written_by_rank_0_also_where_they_save_themselves():
    text = port(
        f"""from PIL import Image
from matplotlib.animation import FuncAnimation
import tensorflow as tf
log = tf.summary.FileWriter("runs")
one = tf.summary.FileWriterCache.get("one")
{SERIAL}picture = Image.fromarray(pixels)
picture.save("a.png")
Image.fromarray(pixels).convert("L").save("b.png")
FuncAnimation(figure, draw, frames=9).save("c.gif")
model.save("mine")
"""
    ).text
    assert 'log = dl.rank0(tf.summary.FileWriter)("runs")' in text
    assert 'one = dl.rank0(tf.summary.FileWriterCache.get)("one")' in text
    assert 'dl.rank0(picture.save)("a.png")' in text
    assert 'dl.rank0(Image.fromarray(pixels).convert("L").save)("b.png")' in text
    assert 'dl.rank0(FuncAnimation(figure, draw, frames=9).save)("c.gif")' in text
    assert 'dl.rank0(model.save)("mine")' in text  # out of sight, and given a path


def test_a_folder_that_must_be_new_is_made_by_rank_0_before_the_others_find_it():
    text = port(f"import os\n{SERIAL}os.makedirs(folder, exist_ok=False)\nos.makedirs(other, exist_ok=True)\n").text
    assert "dl.rank0_first(os.makedirs)(folder, exist_ok=not dl.is_rank0())" in text
    assert "\nos.makedirs(other, exist_ok=True)" in text
    text = port(f"import os\n{SERIAL}os.makedirs(folder, exist_ok=name == '')\n").text
    assert "dl.rank0_first(os.makedirs)(folder, exist_ok=name == '' or not dl.is_rank0())" in text


def test_a_folder_that_a_property_names_by_the_clock_is_rank_0s():
    run = """class Run:
    def __init__(self):
        self._folder = "runs/" + time.strftime("%H%M%S")
        os.makedirs(self.folder, exist_ok=True)
    @property
    def folder(self):
        return self._folder
Run()
"""
    assert 'dl.broadcast(time.strftime("%H%M%S"))' in port(f"import os, time\n{SERIAL}{run}").text


def test_a_name_by_the_clock_of_before_the_ranks_meet_is_doubted():
    imports, made, _ = HEAD.rsplit("\n", 2)
    main = textwrap.indent(f"{made}\nopen(run + '/x', 'w')\n{LOOP}", "    ")
    ported = port(f"import time\n{imports}\nrun = time.strftime('%H%M')\nif __name__ == '__main__':\n{main}")
    assert "run = time.strftime('%H%M')" in ported.text
    assert any("the clock of each rank" in d.why for d in ported.doubts)


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ('f"run{random.randint(0, 999)}"', 'f"run{dl.broadcast(random.randint(0, 999))}"'),
        ('"run" + str(np.random.randint(99))', '"run" + dl.broadcast(str(np.random.randint(99)))'),
        ('"".join(random.choices(letters, k=8))', 'dl.broadcast("".join(random.choices(letters, k=8)))'),
        ('"".join(random.choice(letters) for c in y)', 'dl.broadcast("".join(random.choice(letters) for c in y))'),
        ('"run%d" % torch.randint(9, (1,)).item()', '"run%d" % dl.broadcast(torch.randint(9, (1,)).item())'),
    ],
)
def test_a_name_that_is_drawn_after_the_training_is_rank_0s(name, one):
    imports, letters = "import os, random\nimport numpy as np\n", "letters = 'abcdefgh'\n"
    drawn = f"run = {name}\nos.makedirs(run, exist_ok=True)\n"
    assert f"run = {one}\n" in port(f"{imports}{letters}{SERIAL}{drawn}").text
    assert f"run = {name}\n" in port(f"{imports}{HEAD}{letters}{drawn}{LOOP}").text  # all ranks draw alike so far


@pytest.mark.parametrize("seeded", [False, True])
def test_a_name_that_a_module_draws_before_the_ranks_meet_is_doubted_where_nothing_is_seeded(tmp_path, seeded):
    seeds = "random.seed(0)\n" if seeded else ""
    (tmp_path / "names.py").write_text(f"import random\n{seeds}run = str(random.random())\n")
    (tmp_path / "train.py").write_text(f"import os\nfrom names import run\n{SERIAL}os.makedirs(run, exist_ok=True)\n")
    doubts = read_and_port(tmp_path / "train.py").doubts
    assert any("draws a name" in d.why for d in doubts) != seeded


def test_a_draw_that_picks_data_is_each_ranks_own():
    picks = "part = open(f'part{random.randint(0, 9)}').read()\nsample = data[random.randint(0, 9)]\n"
    assert picks in port(f"import random\n{SERIAL}{picks}").text


def test_where_rank_0s_writer_writes_is_told_to_the_others_however_the_script_asks():
    asked = "run = writer.file_writer.get_logdir()\nother = writer.log_dir\n"
    text = port(f"from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter()\n{SERIAL}{asked}").text
    assert "run = dl.broadcast(writer.file_writer.get_logdir())\nother = dl.broadcast(writer.log_dir)\n" in text


@pytest.mark.parametrize(
    ("call", "quiet"),
    [
        ('wandb.init(project="a")', 'wandb.init(project="a", mode=None if dl.is_rank0() else "disabled")'),
        ("wandb.init(\n    a=1,\n    b=2\n)", '    b=2,\n    mode=None if dl.is_rank0() else "disabled"\n)'),
        ("wandb.init(**chosen)", 'wandb.init(**chosen if dl.is_rank0() else {**chosen, "mode": "disabled"})'),
        ('wandb.init(mode="disabled")', 'wandb.init(mode="disabled")\n'),
        ('wandb.init(mode="offline")', 'wandb.init(mode="offline" if dl.is_rank0() else "disabled")'),
        ("tools.mkdir(folder)", "tools.mkdir(folder)\n"),
    ],
)
def test_one_run_is_logged_whatever_it_was_to_be_and_a_modules_own_mkdir_gets_no_words_it_may_not_know(call, quiet):
    assert quiet in port(f"import tools, wandb\n{SERIAL}{call}\n").text


SCRATCH = """
import os
import tempfile
import torch
x, y = torch.randn(16, 2), torch.randn(16, 1)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "best.pt")
        torch.save(model.state_dict(), path)
        for a, b in torch.utils.data.DataLoader(list(zip(x, y)), 4, shuffle=True):
            (model(a) - b).pow(2).mean().backward()
            opt.step()
        model.load_state_dict(torch.load(path))
        return model
torch.save(train().state_dict(), "last.pt")
"""


def test_what_rank_0_keeps_in_a_temporary_folder_all_ranks_find(tmp_path):
    text = port(SCRATCH).text
    assert text.count("dl.barrier()") == 1
    (tmp_path / "train.py").write_text(text)
    ran(tmp_path / "train.py", tmp_path / "two", 2)
    named = "if scratch := tempfile.TemporaryDirectory().name:"
    plain = SCRATCH.replace("with tempfile.TemporaryDirectory() as scratch:", named)
    assert "each rank makes a folder of its own" in port(plain).report()


READS_BACK = """import glob, os, pandas
import nibabel as nib
import numpy as np
if os.path.exists("best.pt"):
    model.load_state_dict(torch.load("best.pt"))
torch.save(model.state_dict(), "best.pt")
print(os.path.getsize("best.pt"))
with open("log.txt", "w") as file:
    file.write("done")
with open("log.txt") as file:
    print(file.read())
np.savetxt(path, losses)
losses = np.loadtxt(path)
other = np.loadtxt(given)
def dump(rows, to):
    with open(to, "w") as file:
        file.write(str(rows))
def rows_of(name):
    return np.genfromtxt(name)
dump(losses, "rows.txt")
table.to_csv("table.csv")
os.system(f"rm -rf {folder}")
os.system("nvidia-smi")
first, second = rows_of("rows.txt"), pandas.read_csv("table.csv")
for i, image in enumerate(images):
    nib.save(image, os.path.join(made, f"{i}.nii"))
names = sorted(glob.glob(os.path.join(made, "*.nii")))
kept = np.load(os.path.join(made, "older.npy"))
def note(where, fold):
    with open(os.path.join(where, f"fold{fold}", "scores.json"), "w") as file:
        file.write(str(fold))
note(made, 0)
scores = open(os.path.join(args.folder, "fold0", "scores.json")).read()
import matplotlib.pyplot as plt
plt.savefig(folder + "/curve.png")
picture = plt.imread(folder + "/curve.png")
import json
json.dump(found, open("results.json", "w"))
found = truth.loadRes("results.json")
"""


RETURNED = """import os
def keep(state, folder, tag):
    name = os.path.join(folder, f"{tag}.pt")
    torch.save(state, name)
    return name
for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        opt.step()
    name = keep(model.state_dict(), "kept", epoch)
    print(os.path.basename(name), os.path.getsize(name), os.path.exists(name))
"""


def test_the_size_of_a_file_that_a_function_has_written_is_asked_after_it():
    text = port(HEAD + RETURNED).text
    assert "dl.rank0_first(os.path.getsize)(name), os.path.exists(name))" in text


def test_what_rank_0_has_written_is_read_by_the_others_after_it():
    text = port(SERIAL + READS_BACK).text
    assert 'if os.path.exists("best.pt"):' in text  # what an earlier run left
    assert 'print(dl.rank0_first(os.path.getsize)("best.pt"))' in text
    assert 'with dl.rank0_first(open)("log.txt") as file:' in text
    assert "losses = dl.rank0_first(np.loadtxt)(path)" in text
    assert "other = np.loadtxt(given)" in text
    assert "return dl.rank0_first(np.genfromtxt)(name)" in text
    assert 'dl.rank0_first(pandas.read_csv)("table.csv")' in text
    assert "dl.rank0(nib.save)(image, os.path.join(made, f" in text
    assert 'names = sorted(dl.rank0_first(glob.glob)(os.path.join(made, "*.nii")))' in text
    assert 'kept = np.load(os.path.join(made, "older.npy"))' in text
    assert 'scores = dl.rank0_first(open)(os.path.join(args.folder, "fold0", "scores.json")).read()' in text
    assert 'dl.rank0(os.system)(f"rm -rf {folder}")\nos.system("nvidia-smi")' in text
    assert 'picture = dl.rank0_first(plt.imread)(folder + "/curve.png")' in text
    assert 'found = dl.rank0_first(truth.loadRes)("results.json")' in text


RECORDS = """import os
import tensorflow as tf
from tensorflow import keras
path = "train.tfrecord"
WRITES
def data(files):
    return tf.data.TFRecordDataset(files).map(parse).batch(8)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data([path]))
"""
WRITTEN = """with tf.io.TFRecordWriter(path) as out:
    for x in rows:
        out.write(record(x))
"""


def test_records_of_tensorflow_are_written_by_rank_0_before_the_others_read_them() -> None:
    text = port(RECORDS.replace("WRITES", WRITTEN)).text
    assert "with dl.rank0(tf.io.TFRecordWriter)(path) as out:" in text
    assert "return dl.rank0_first(tf.data.TFRecordDataset)(files).map(parse)" in text
    missing = "if not os.path.exists(path):\n" + textwrap.indent(WRITTEN, "    ")
    text = port(RECORDS.replace("WRITES", missing)).text
    assert "with dl.rank0_first():  # the others come when it is done, and find what it leaves\n    if not" in text
    assert "tf.io.TFRecordWriter(path)" in text


LISTED = """import os
import tensorflow as tf
from tensorflow import keras
folder = "records"
def write(name, rows):
    with tf.io.TFRecordWriter(name) as out:
        for x in rows:
            out.write(record(x))
def write_all(parts):
    for i, rows in enumerate(parts):
        write(WRITTEN, rows)
def data(names):
    return LISTED.interleave(tf.data.TFRecordDataset).map(parse).batch(8)
write_all(parts)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data(READ))
"""


@pytest.mark.parametrize("written", ["os.path.join(folder, f'{i}.rec')", "folder + '/%d.rec' % i", "f'{folder}/{i}'"])
@pytest.mark.parametrize(
    ("listed", "names"),
    [("tf.data.Dataset.list_files", "os.path.join(folder, '*')"), ("tf.io.gfile.glob", "folder + '/*.rec'")],
)
def test_what_rank_0_has_written_is_listed_by_the_others_after_it(written, listed, names) -> None:
    source = LISTED.replace("WRITTEN", written).replace("READ", names)
    assert f"dl.rank0_first({listed})(names)" in port(source.replace("LISTED", f"{listed}(names)")).text
    source = source.replace(f"data({names})", f"data({names.replace('folder', 'other')})").replace("parse", "other")
    assert "rank0_first" not in port(source.replace("LISTED", f"{listed}(names)")).text


RUN = """from gymnasium.wrappers import RecordVideo
import argparse, bz2, gymnasium, logging, os, pathlib, sys, time, torch, visdom, yaml
args = argparse.ArgumentParser().parse_args()
args.save = "run-" + time.strftime("%H%M%S")
if os.path.exists(args.save):
    sys.exit("is there")
else:
    os.makedirs(args.save)
where = pathlib.Path(args.save, "more")
if not where.is_dir():
    where.mkdir()
else:
    raise RuntimeError("is there")
number = 0
while os.path.exists(f"shot{number}"):
    number += 1
def fresh(root):
    while True:
        folder = pathlib.Path(root, str(torch.get_num_threads()))
        if not folder.exists():
            folder.mkdir(exist_ok=False)
            return folder
mine = fresh(args.save)
env = gymnasium.make("CartPole-v1")
env = RecordVideo(env, args.save, name_prefix=args.save)
logging.basicConfig(filename=os.path.join(args.save, "log"), filemode="w")
viz = visdom.Visdom()
assert viz.check_connection()
pathlib.Path(args.save, "args").write_text(yaml.safe_dump({"a": 1}))
with bz2.open(os.path.join(args.save, "kept"), "wb") as file:
    file.write(b"")
"""


FOLDERS = """import os
from os import mkdir, path
if not path.exists("a"): mkdir("a")
os.mkdir("b")
tf.io.gfile.mkdir("c")
tf.keras.utils.save_img("d.png", x)
tf.keras.utils.array_to_img(x).save("e.png")
kept = tf.data.Dataset.range(9).cache().cache("f" if x else "g")
"""


def test_a_folder_is_made_by_whichever_rank_comes_first_and_pictures_by_rank_0():
    text = port(SESSION + FOLDERS).text
    assert 'dl.rank0(tf.keras.utils.save_img)("d.png"' in text
    assert 'dl.rank0(tf.keras.utils.array_to_img(x).save)("e.png")' in text
    assert '.cache().cache(("f" if x else "g") + ("" if dl.is_rank0() else f"-{dl.get_rank()}"))' in text
    made = [line for line in text.splitlines() if "mkdir" in line or "makedirs" in line]
    assert made == [
        "from os import makedirs as mkdir, path",
        'if not path.exists("a"): mkdir("a", exist_ok=True)',
        'os.makedirs("b", exist_ok=True)',
        'tf.io.gfile.makedirs("c")',
    ]


def test_what_one_run_has_once_is_rank_0s():
    text = port(RUN + SERIAL).text
    assert 'args.save = "run-" + dl.broadcast(time.strftime("%H%M%S"))' in text
    assert "if dl.broadcast(os.path.exists(args.save)):" in text
    assert "if not dl.broadcast(where.is_dir()):\n    where.mkdir(exist_ok=True)\n" in text
    assert 'while dl.broadcast(os.path.exists(f"shot{number}")):' in text
    assert "        if not dl.broadcast(folder.exists()):\n            dl.rank0_first(folder.mkdir)" in text
    assert 'filename=os.path.join(args.save, "log") if dl.is_rank0() else None, filemode' in text
    assert "viz = dl.rank0(visdom.Visdom)()\nassert dl.broadcast(bool(viz.check_connection()))" in text
    assert "with dl.rank0(bz2.open)(" in text
    assert "env = RecordVideo(env, args.save, name_prefix=args.save) if dl.is_rank0() else env" in text
    assert '.write_text)(yaml.safe_dump({"a": 1}))' in text


def test_a_run_that_ends_where_its_folder_is_there_already_asks_rank_0():
    fresh = port("import os\nassert not os.path.exists('run'), 'there already'\n" + SERIAL).text
    assert "assert not dl.broadcast(os.path.exists('run')), 'there already'" in fresh
    needed = port("import os\nassert os.path.exists('data'), 'no data'\n" + SERIAL).text
    assert "assert os.path.exists('data'), 'no data'" in needed


def test_a_folder_that_is_only_made_where_it_is_missing_needs_no_word_of_rank_0():
    for look in (
        "if not os.path.exists(out):\n    os.makedirs(out)\n",
        "if os.path.exists(out):\n    print('there')\nelse:\n    os.makedirs(out)\n",
    ):
        assert "dl.broadcast(os" not in port(f"import os\n{look}{SERIAL}").text


def test_what_a_function_writes_that_runs_in_turn_alone_every_node_has():
    fetch = """def fetch(path):
    with open(path, "wb") as file:
        file.write(requests.get(URL).content)
def note(path):
    with open(path, "w") as file:
        file.write("1")
if not os.path.exists("corpus"):
    fetch("corpus")
    note("a")
note("b")
"""
    text = port(f"import os, requests\n{HEAD}{fetch}{LOOP}").text
    assert 'with open(path, "wb") as file:' in text and 'with dl.rank0(open)(path, "w") as file:' in text


@pytest.mark.parametrize(
    ("mode", "written"),
    [('"a" if begun else "w"', True), ("mode", True), ('"r" if begun else "w"', False), ("other", False)],
)
def test_a_file_is_opened_to_write_by_either_of_two_modes_and_by_a_name(mode, written):
    text = port(f"""{HEAD}begun = False
mode = "a" if begun else "x"
def note(line, other):
    with open("log.csv", {mode}) as file:
        file.write(line)
{LOOP}note("done", input())
""").text
    assert (f'with dl.rank0(open)("log.csv", {mode}) as file:' in text) is written


def test_what_one_module_writes_and_another_reads_by_the_same_option_is_read_when_it_is_there(tmp_path):
    (tmp_path / "making.py").write_text(
        "import h5py\ndef make(out):\n    with h5py.File(out, 'w') as file:\n"
        "        file.create_dataset('x', data=[1])\n"
    )
    (tmp_path / "data.py").write_text(
        "import h5py\nclass Corpus:\n    def __init__(self, path):\n"
        "        with h5py.File(path, 'r') as file:\n            self.x = file['x'][:]\n"
    )
    (tmp_path / "train.py").write_text(
        f"from data import Corpus\nfrom making import make\n{HEAD}make(config['file'])\n"
        f"corpus = Corpus(path=config['file'])\n{LOOP}"
    )
    texts = {part.file: part.text for part in read_and_port(tmp_path / "train.py").modules}
    assert "with dl.rank0(h5py.File)(out, 'w')" in texts["making.py"]
    assert "with dl.rank0_first(h5py.File)(path, 'r')" in texts["data.py"]


def test_what_a_decorator_keeps_in_files_is_looked_for_by_each_rank():
    kept = """import pickle
def kept(func):
    def wrapper(x):
        try:
            return pickle.load(open(x, "rb"))
        except FileNotFoundError:
            pickle.dump(func(x), open(x, "wb"))
    return wrapper
"""
    assert "rank0_first" not in port(f"{kept}{SERIAL}").text


def test_rank_0_sorts_files_out_before_the_others_list_what_is_left() -> None:
    loop = "for folder in ('a', 'b'):\n    for name in os.listdir(folder):\n        if name[0] == '.':\n"
    loop += "            os.remove(os.path.join(folder, name))\n"
    first = "with dl.rank0_first():  # the others come when it is done, and find what it leaves\n"
    ported = port("import os\n" + loop + SERIAL)
    assert first + textwrap.indent(loop, "    ") in ported.text
    assert "in different orders" not in ported.report()
    kept = "import os\nkept = []\n" + loop + "        kept.append(name)\n" + SERIAL
    assert "in different orders" in port(kept).report()
    kept = SERIAL + "    for old in os.listdir('kept'):\n        os.remove(old)\n"  # in the loop that trains
    text = port("import os\n" + kept).text
    assert "dl.rank0(os.remove)(old)" in text
    assert "rank0_first" not in text


def test_the_ranks_meet_where_rank_0_has_removed_what_they_would_list() -> None:
    head = "import os, shutil\nfrom torchvision import datasets\n"
    removes = 'shutil.rmtree("a/unsup")\nos.system(f"rm -r {folder}/*.txt")\nos.system("rm -r a/other")\n'
    lists = 'data = datasets.ImageFolder("a")\n'
    done = 'dl.rank0(os.system)("rm -r a/other")\ndl.barrier()  # what was removed no rank lists any more\ndata ='
    text = port(head + removes + lists + SERIAL).text
    assert done in text and text.count("dl.barrier()") == 2  # as there are two ways to remove
    looked = removes.replace("shutil", "if os.path.exists(folder):\n    shutil")
    assert port(head + looked + lists + SERIAL).text.count("dl.barrier()") == 1  # not all ranks find it
    assert "dl.barrier()" not in port(head + lists + removes + SERIAL).text


@pytest.mark.parametrize(
    ("written", "listed", "waits"),
    [
        ("f'data/{i}.npy'", "glob.glob('data/*.npy')", True),
        ("f'data/{i}.npy'", "os.listdir('data')", True),
        ("f'data/{i}.npy'", "os.listdir('data/')", True),
        ("'data/a.npy'", "glob.glob('data/*.npy')", True),
        ("f'{folder}/{i}.npy'", "glob.glob(f'{folder}/*.npy')", True),
        ("f'{folder}/{i}.npy'", "glob.glob(f'{other}/*.npy')", False),
        ("'made/a.npy'", "glob.glob('data/*.npy')", False),
        ("'a.npy'", "glob.glob('*.npy')", False),
    ],
)
def test_a_folder_that_rank_0_has_filled_is_listed_after_it(written, listed, waits):
    made = f"for i in range(9):\n    np.save({written}, np.ones(3))\nnames = LISTED\n"
    source = f"{SERIAL}import glob, os\nimport numpy as np\n{made}"
    assert f"names = dl.broadcast({listed})" in port(source.replace("LISTED", listed)).text  # rank 0's, in its order
    text = port(source.replace("LISTED", f"sorted({listed})")).text
    lists, _, rest = listed.partition("(")
    assert (f"names = sorted(dl.rank0_first({lists})({rest}" in text) == waits
    assert waits or f"names = sorted({listed})" in text


COMMANDS = """import os, subprocess
os.system("mkdir -p out")
subprocess.call(["tar", "xf", "data.tar"])
os.system("cp data.tar /tmp")
if not os.path.exists("more"):
    os.system("unzip more.zip")
revision = subprocess.check_output(["git", "rev-parse", "HEAD"])
"""


def test_rank_0_runs_the_commands_of_which_nothing_is_asked_and_the_others_wait_for_what_they_leave():
    source = HEAD + COMMANDS + LOOP.replace("    opt.step()\n", "    opt.step()\n    os.system('python plot.py &')\n")
    text = port(source).text
    first, last = 'dl.rank0(os.system)("mkdir -p out")\n', 'dl.rank0(subprocess.call)(["tar", "xf", "data.tar"])\n'
    assert f'{first}{last}dl.barrier()  # what it leaves is there for all\nos.system("cp data.tar /tmp")\n' in text
    turns = "with dl.rank0_first():  # the others come when it is done, and find what it leaves\n"
    assert f'{turns}    if not os.path.exists("more"):\n        os.system("unzip more.zip")\nrevision = sub' in text
    assert "    dl.rank0(os.system)('python plot.py &')\n" in text


@pytest.mark.parametrize("unpack", ['ZipFile("a.zip").extractall(".")', 'shutil.unpack_archive("a.zip", ".")'])
def test_an_archive_is_unpacked_where_it_is_missing_before_the_others_look(unpack):
    looks = f"if not os.path.exists('a'):\n    {unpack}\n"
    text = port(f"import os, shutil\nfrom zipfile import ZipFile\n{looks}{SERIAL}").text
    at = next(i for i, line in enumerate(text.splitlines()) if "with dl.rank0_first():" in line)
    assert text.splitlines()[at + 1 : at + 3] == [f"    {line}" for line in looks.splitlines()]


def test_a_path_that_is_made_of_a_path_is_renamed_on_rank_0():
    kept = "def keep(path):\n    part = path.with_suffix('.tmp')\n    part.write_text('done')\n    part.rename(path)\n"
    text = port(f"from pathlib import Path\n{kept}{SERIAL}keep(Path('a.txt'))\n").text
    assert "    dl.rank0(part.rename)(path)\n" in text
