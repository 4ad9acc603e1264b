"""What writes files, by whatever way, writes on rank 0 alone."""

import pytest
from running import started
from small import HEAD

from dlrun.port import port

LOOP = (
    HEAD
    + """opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=8, shuffle=True)
BEFORE
for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
    AT
"""
)


def ported(before: str, at: str) -> str:
    return port(LOOP.replace("BEFORE", before).replace("AT", at)).text


@pytest.mark.parametrize(
    ("before", "at", "becomes"),
    [
        ("import threading", "threading.Thread(target=torch.save, args=(model, 'm.pt')).start()", "target=dl.save,"),
        ("from functools import partial\nsave = partial(torch.save, f='m.pt')", "save(model)", "partial(dl.save,"),
        ("import numpy as np", "pool.submit(np.save, 'w.npy', w)", "pool.submit(dl.rank0(np.save), 'w.npy', w)"),
        ("import tarfile", "tarfile.open('m.tgz', 'w:gz').add('m.pt')", "dl.rank0(tarfile.open)('m.tgz', 'w:gz')"),
        ("import cv2\nfilm = cv2.VideoWriter('o.avi', 0, 5, (8, 8))", "film.write(w)", "dl.rank0(cv2.VideoWriter)("),
        ("import imageio\ngif = imageio.get_writer('o.gif')", "gif.append_data(w)", "dl.rank0(imageio.get_writer)("),
        ("from pathlib import Path", "Path('last').symlink_to(f'{epoch}')", "dl.rank0(Path('last').symlink_to)("),
        ("from pathlib import Path\nlast = Path('runs') / 'last'", "last.unlink()", "dl.rank0(last.unlink)()"),
        ("import os", "os.symlink(f'{epoch}', 'last')", "dl.rank0(os.symlink)("),
        ("", "frame.to_sql('runs', engine)", "dl.rank0(frame.to_sql)("),
        ("from loguru import logger\nlogger.add('t.log')", "logger.info('done')", "dl.rank0(logger.add)('t.log')"),
        ("from loguru import logger", "logger.info('done')", "dl.rank0(logger.info)('done')"),
        (
            "import sqlite3\ndb = sqlite3.connect('r.db')",
            "db.execute('insert into r values (1)')",
            "dl.rank0(sqlite3.connect)('r.db')",
        ),
        (
            "import numpy as np\nkept = np.memmap('k', mode='w+', shape=(3,))",
            "kept[epoch] = 1.0",
            "dl.rank0(np.memmap)('k', mode='w+', shape=(3,))",
        ),
    ],
)
def test_what_writes_writes_on_rank_0(before, at, becomes):
    assert becomes in ported(before, at)


@pytest.mark.parametrize(
    ("before", "at", "stays"),
    [
        (
            "import sqlite3\ndb = sqlite3.connect('r.db')\nrows = db.execute('SELECT * FROM r')",
            "pass",
            "db = sqlite3.connect('r.db')",
        ),
        (
            "import numpy as np\nkept = np.memmap('k', mode='w+', shape=(3,))",
            "kept[epoch] = kept[0] + 1",
            "kept = np.memmap('k', mode='w+', shape=(3,))",
        ),
        ("name = 'loss'.replace('l', 'L')", "pass", "name = 'loss'.replace('l', 'L')"),
        (
            "from torch.utils.tensorboard import SummaryWriter",
            "isinstance(w, SummaryWriter)",
            "isinstance(w, SummaryWriter)",
        ),
    ],
)
def test_what_is_read_too_or_writes_nothing_stays(before, at, stays):
    assert stays in ported(before, at)


def test_an_array_in_a_new_file_that_is_read_too_is_doubted():
    made = "import os\nimport numpy as np\nkept = np.memmap('k', mode='MODE', shape=(3,))"
    cached = made.replace("\nkept", "\nif not os.path.exists('k'):\n    kept") + "\nkept = np.memmap('k', shape=(3,))"
    told = []
    for text in (made.replace("MODE", "w+"), made.replace("MODE", "r"), cached.replace("MODE", "w+")):
        source = LOOP.replace("BEFORE", text).replace("AT", "kept[epoch] = kept[0] + 1")
        told.append(any("each rank makes this file anew" in d.why for d in port(source).doubts))
    assert told == [True, False, False]


@pytest.mark.parametrize(
    ("opened", "doubted"),
    [
        ("sqlite3.connect('h.db').execute('insert into h values (1)'), 'select'", True),
        ("sqlite3.connect('h.db').execute('select * from h')", False),
        ("sqlite3.connect(':memory:').execute('insert into h values (1)'), 'select'", False),
        ("sqlite3.connect('file:h.db?mode=ro', uri=True).execute('drop table h'), 'select'", False),
        ("sqlite3.connect('file:h.db').execute('drop table h'), 'select'", True),
        ("(a := sqlite3.connect('a.db')).cursor().execute(f'select {epoch}'), 'drop'", False),
        ("shelve.open('kept')", True),
        ("shelve.open('kept', 'r')", False),
        ("shelve.open('kept', flag='r')", False),
    ],
)
def test_a_file_that_each_rank_would_write_and_read_by_one_connection_is_doubted(opened, doubted):
    found = port(LOOP.replace("BEFORE", "import shelve, sqlite3").replace("AT", opened)).doubts
    assert any("every rank writes into this file" in d.why for d in found) is doubted


def test_a_database_that_is_made_where_it_is_missing_is_read_by_all_ranks():
    made = """import os, sqlite3
def make():
    made = sqlite3.connect('h.db')
    made.execute('create table h (x real)')
    made.commit()
if not os.path.exists('h.db'):
    make()
rows = sqlite3.connect('h.db').execute('select x from h').fetchall()
"""
    found = port(LOOP.replace("BEFORE", made).replace("AT", "print(rows)"))
    assert "with dl.rank0_first():" in found.text
    assert not any("every rank writes into this file" in d.why for d in found.doubts)


def test_a_job_that_is_told_to_end_ends_behind_the_line_that_saves_whatever_else_it_does():
    text = ported("", "torch.save(model, 'm.pt'); print(epoch)")
    assert "    dl.save(model, 'm.pt'); print(epoch)\n    if dl.should_stop():" in text
    assert (
        "should_stop"
        not in port(
            HEAD
            + """opt = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for x, y in DataLoader(data, shuffle=True):
        (model(x) - y).pow(2).mean().backward()
        opt.step()
for epoch in range(3): train(); torch.save(model, 'm.pt')
"""
        ).text
    )


@pytest.mark.parametrize(
    ("command", "alone"),
    [
        ('["gsutil", "cp", tmp_model, "gs://bucket/model.pt"]', True),  # a name tells nothing
        ('["cp", local, "more.tar"]', False),  # it is in /tmp, by whatever name
        ('["cp", local, "gs://bucket/more.tar"]', True),
        ('f"aws s3 cp {local} s3://bucket/free/"', True),
        ('"tar xf data.tar -C " + os.environ["SLURM_TMPDIR"]', False),
        ('"python prepare.py --free --clear"', True),
        ('"nvidia-smi -q | head"', False),
        ('"cp data.tar {}/".format(tempfile.gettempdir())', False),
        ('shlex.split("scp out.pt me@host:runs/")', True),
    ],
)
def test_a_command_is_each_ranks_own_by_what_it_does_not_by_what_its_variables_are_called(command, alone):
    names = 'import os, shlex, subprocess, tempfile\ntmp_model = "/var/model.pt"\nlocal = "/tmp/data.tar"'
    text = port(LOOP.replace("BEFORE", names).replace("AT", "pass") + f"subprocess.check_call({command})\n").text
    assert ("dl.rank0(subprocess.check_call)(" in text) is alone


ANSWERED = """import os
import pathlib
import shutil
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
def kept(epoch):
    torch.save(model.state_dict(), out / f"{epoch}.pt")
    return shutil.copyfile(out / f"{epoch}.pt", out / "last.pt")
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        opt.step()
    last = kept(epoch)
    print(os.path.basename(last), os.path.getsize(last) > 0)
archive = shutil.make_archive("all", "zip", out)
moved = shutil.move(archive, "moved.zip")
print(os.path.basename(archive), os.path.exists(moved))
"""


def test_where_rank_0_has_copied_packed_or_moved_a_file_all_ranks_know(tmp_path) -> None:
    (tmp_path / "train.py").write_text(ANSWERED)
    (tmp_path / "dist.py").write_text(port(ANSWERED).text)
    serial = started(tmp_path, ["train.py"])
    (tmp_path / "moved.zip").unlink()
    assert started(tmp_path, ["dist.py"], ranks=3) == serial


ENDED = """import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
start, best = time.time(), 1e9
for epoch in range(100):
    total = 0.0
    for x, y in DataLoader(TensorDataset(torch.randn(96, 4), torch.zeros(96).long()), 8):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    DUE
"""


@pytest.mark.parametrize(
    ("due", "asked", "leaves"),
    [
        ("if epoch % 10 == 9:", "    if dl.should_stop() or epoch % 10 == 9:\n", True),
        ("if (last := epoch % 10 == 9):", "    if dl.should_stop() or (last := epoch % 10 == 9):\n", True),
        ("if time.time() - start > 60:", "    if dl.should_stop() or dl.agree(time.time() - start > 60):\n", False),
        ("if epoch % 10 == 9 and epoch > 20:", "    if dl.should_stop() or epoch % 10 == 9 and epoch > 20:\n", True),
        ("if total < best:", "    if total < best:\n", True),  # not the best so far because the job ends
        ("if epoch % 10 == 9 and total < best:", "    if epoch % 10 == 9 and total < best:\n", True),
        ("if time.time() > start and total < best:", "    if time.time() > start and total < best:\n", True),
        ("if total + torch.rand(1).item() < best:", "    if total + torch.rand(1).item() < best:\n", True),
        ("if total < 0.1:", "    if total < 0.1:\n", True),
    ],
)
def test_what_saves_at_times_saves_where_the_job_is_told_to_end(due, asked, leaves):
    save = "\n        torch.save(model.state_dict(), 'last.pt')" + ("" if leaves else "\n        break")
    text = port(ENDED.replace("DUE", due + save)).text
    assert asked in text
    assert ("    if dl.should_stop():  # the scheduler ends the job" in text) is leaves
    saves_too = "should_stop() or" in asked  # then it leaves in the branch: not where it was told a moment later
    assert ("\n        if dl.should_stop():" in text) is (leaves and saves_too)


FIT = """import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
for epoch in range(90):
    model.fit(x, y)
    if epoch % 3 == 2:
        model.save_weights("last.weights.h5")
"""
BY_HAND = """import keras
def build():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model
class Trainer:
    def __init__(self):
        self.net = build()
    def epoch(self):
        for i in range(0, 64, 8):
            self.net.train_on_batch(x[i:i + 8], y[i:i + 8])
    def run(self):
        for epoch in range(90):
            self.epoch()
            if epoch % 3 == 2:
                self.net.save("last.keras")
Trainer().run()
"""
TAPE = """import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "saved", max_to_keep=3)
for epoch in range(90):
    for x, y in data.batch(8):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    if epoch % 3 == 2:
        manager.save()
"""
SESSION = """import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [None, 4])
train = tf.train.AdamOptimizer(0.01).minimize(tf.reduce_mean(tf.layers.dense(x, 1) ** 2))
saver = tf.train.Saver()
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(90):
        for i in range(0, 64, 8):
            sess.run(train, {x: rows[i:i + 8]})
        if epoch % 3 == 2:
            saver.save(sess, "last.ckpt")
"""


@pytest.mark.parametrize("script", [FIT, BY_HAND, TAPE, SESSION], ids=["fit", "train_on_batch", "tape", "session"])
def test_models_and_checkpoints_of_tensorflow_and_keras_are_saved_where_the_job_is_told_to_end(script):
    lines = [line.strip() for line in port(script).text.splitlines()]
    at = lines.index("if dl.should_stop() or epoch % 3 == 2:")
    assert "save" in lines[at + 1]
    assert lines[at + 2 : at + 4] == [
        "if dl.should_stop():  # the scheduler ends the job: this was its last checkpoint",
        "break",
    ]


@pytest.mark.parametrize(
    "changed",
    [
        ("if epoch % 3 == 2:", "if epoch > 99:\n        break\n    model = build()\n    if epoch % 3 == 2:"),
        ("model.save_weights(", "figure.save("),
    ],
)
def test_what_is_no_checkpoint_of_the_model_that_is_trained_ends_no_loop(changed):
    made = "def build():\n    m = keras.Sequential([])\n    m.compile('sgd', 'mse')\n    return m\n"
    text = port(FIT.replace("for epoch", f"{made}for epoch").replace(*changed)).text
    assert "should_stop" not in text


def test_a_path_that_a_save_is_given_and_returns_is_read_once():
    saves = "path = saver.save(sess, path)"
    kept = SESSION.replace('saver.save(sess, "last.ckpt")', saves).replace("with tf", 'path = "last"\nwith tf')
    assert "dl.rank0(saver.save)(sess, path)" in port(f"{kept}print(path)\n").text


NAMED = """
import cv2, imageio, os, soundfile, torch, torchvision
import numpy as np
from torch.utils.data import DataLoader, TensorDataset

def keep(picture, path):
    imageio.imwrite(path, picture)

model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
for x, y in DataLoader(TensorDataset(torch.randn(64, 2), torch.randn(64, 1)), batch_size=8, shuffle=True):
    (model(x) - y).pow(2).mean().backward()
    opt.step()
    step += 1
    if step % 4 == 0:
        picture = np.ones((4, 4)) * x.shape[0]
        keep(picture, os.path.join("out", "a-%d.png" % step))
        cv2.imwrite(f"b-{step}.png", picture)
        torchvision.utils.save_image(x, "c-{}.png".format(step))
        soundfile.write("d-%d.wav" % step, picture, 16000)
        with open("e-%d.txt" % step, "w") as f:
            f.write("done")
        with open("notes.txt") as f:
            print(f.read())
"""


def test_the_steps_so_far_in_the_names_of_files_are_the_serial_ones() -> None:
    ported = port(NAMED)
    for name in (
        'os.path.join("out", "a-%d.png" % dl.serial_steps(step))',
        'f"b-{dl.serial_steps(step)}.png", picture',
        '(x, "c-{}.png".format(dl.serial_steps(step)))',
        '"d-%d.wav" % dl.serial_steps(step), picture, 16000',
        '"e-%d.txt" % dl.serial_steps(step), "w"',
        "np.ones((4, 4)) * x.shape[0]\n",
    ):
        assert name in ported.text
    assert not ported.doubts
