"""Checkpoints of TensorFlow and Keras: rank 0 writes them, and all ranks read what it has written."""

from __future__ import annotations

import pytest

from dlrun.errors import DlrunError
from dlrun.port import port

TAPE = """
import tensorflow as tf
model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
checkpoint = tf.train.Checkpoint(model=model)
manager = tf.train.CheckpointManager(checkpoint, "saved", max_to_keep=3)
{start}
for x in tf.data.TFRecordDataset("a").map(tf.io.parse_tensor).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    {step}
{end}
"""
LATEST = "manager.latest_checkpoint"
TOLD = f"dl.broadcast({LATEST})"


def tape(start: str = "", step: str = "", end: str = "") -> str:
    return port(TAPE.format(start=start, step=step, end=end)).text


def test_rank_0_tells_the_others_which_checkpoint_it_saved_last() -> None:
    text = tape(step="manager.save()", end=f"checkpoint.restore({LATEST})\nprint({LATEST}, manager.checkpoints)")
    assert f"dl.rank0_first(checkpoint.restore)({TOLD})" in text
    assert f"print({TOLD}, dl.broadcast(manager.checkpoints))" in text


def test_what_is_there_before_the_first_save_every_rank_finds_by_itself() -> None:
    resumed = f"if {LATEST}:\n    checkpoint.restore({LATEST})"
    text = tape(start=resumed, step="manager.save()")
    assert resumed in text
    assert "rank0_first" not in text


@pytest.mark.parametrize(
    ("start", "step", "end"),
    [
        (f"def again():\n    checkpoint.restore({LATEST})", "manager.save()", "again()"),
        (f"def again():\n    checkpoint.restore({LATEST})", "manager.save()\n    again()", ""),
        ("def keep():\n    manager.save()", f"checkpoint.restore({LATEST})\n    keep()", ""),
    ],
    ids=["a function that runs after it", "a function in its loop", "the next turn"],
)
def test_what_may_run_after_a_save_waits_for_it(start: str, step: str, end: str) -> None:
    assert f"dl.rank0_first(checkpoint.restore)({TOLD})" in tape(start, step, end)


def test_a_function_that_only_runs_before_the_first_save_waits_for_none() -> None:
    assert "rank0_first" not in tape(f"def again():\n    checkpoint.restore({LATEST})\nagain()", "manager.save()")


def test_a_path_that_a_save_returned_is_that_of_rank_0_where_it_is_read() -> None:
    saved = 'path = checkpoint.save("saved/at")'
    text = tape(step=saved, end="checkpoint.restore(path)")
    assert 'path = dl.broadcast(dl.rank0(checkpoint.save)("saved/at"))' in text
    assert 'path = dl.rank0(checkpoint.save)("saved/at")' in tape(step=saved, end="print(path)")


@pytest.mark.parametrize("used", ["os.path.basename(path)", 'open(path + ".index")', "path.split('/')"])
def test_so_it_is_where_a_rank_looks_at_what_the_path_tells(used: str) -> None:
    text = tape(start="import os", step="path = manager.save()", end=f"print({used})")
    assert "path = dl.broadcast(dl.rank0(manager.save)())" in text


def test_the_folder_of_a_manager_is_listed_when_rank_0_has_written() -> None:
    made = 'import os\nkept = tf.train.CheckpointManager(checkpoint, directory="kept", max_to_keep=2)'
    text = tape(start=made, step="kept.save()", end='print(os.listdir("kept"))')
    assert 'print(dl.rank0_first(os.listdir)("kept"))' in text


def test_what_write_has_left_read_finds_on_all_ranks() -> None:
    text = tape(step='path = checkpoint.write("saved/at")', end="checkpoint.read(path)")
    assert 'path = dl.broadcast(dl.rank0(checkpoint.write)("saved/at"))' in text
    assert "dl.rank0_first(checkpoint.read)(path)" in text


def test_a_session_restores_from_the_path_that_its_saver_returned() -> None:
    text = port("""
import numpy as np
import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [None, 3])
train_op = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(tf.layers.dense(x, 1) ** 2))
saver, rows = tf.train.Saver(), np.load("rows.npy")
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(len(rows) // 8):
        sess.run(train_op, feed_dict={x: rows[i * 8 : i * 8 + 8]})
    path = saver.save(sess, "model")
    saver.restore(sess, path)
""").text
    assert 'path = dl.broadcast(dl.rank0(saver.save)(sess, "model"))' in text
    assert "dl.rank0_first(saver.restore)(sess, path)" in text


def test_keras_loads_the_latest_checkpoint_that_rank_0_wrote() -> None:
    text = port("""
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, callbacks=[tf.keras.callbacks.ModelCheckpoint("saved/at", save_weights_only=True)])
model.load_weights(tf.train.latest_checkpoint("saved"))
""").text
    assert 'dl.rank0_first(model.load_weights)(dl.rank0_first(tf.train.latest_checkpoint)("saved"))' in text


REUSED = """
import os
import keras
if os.path.exists("model.h5"):
    model = keras.models.load_model("model.h5")
else:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit(x, y)
"""


def test_a_model_that_is_trained_as_its_file_had_it_averages_too() -> None:
    text = port(REUSED).text
    assert 'model = keras.models.load_model("model.h5")\n    dl.distribute(model)' in text
    assert text.count("dl.distribute(model)") == 2
    alone = 'import keras\ndef again():\n    return keras.models.load_model("m.h5")\nmodel = again()\nmodel.fit(x, y)\n'
    ported = port(alone)
    assert "model = again()\ndl.distribute(model)" in ported.text
    assert ["keeps the rate that its file has" in doubt.why for doubt in ported.doubts] == [True]
    compiled = alone.replace("model.fit", 'model.compile("sgd", "mse")\nmodel.fit')
    assert "model = again()\nmodel.compile" in port(compiled).text  # another optimizer than the file's
    with pytest.raises(DlrunError, match="compiled elsewhere"):
        port(alone.replace('"m.h5"', '"m.h5", compile=False'))


def test_what_a_model_has_saved_others_read_when_it_is_written() -> None:
    text = port("""import h5py, keras, sys
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y)
path = sys.argv[1] + "weights.h5"
model.save_weights(path)
def to_text(file):
    with h5py.File(file, "r") as weights:
        print(weights.keys())
to_text(path)
""").text
    assert 'with dl.rank0_first(h5py.File)(file, "r") as weights:' in text


FREE = """import os
import keras
n = 0
while os.path.exists(f"runs/{n}"):
    n += 1
os.makedirs(f"runs/{n}")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, callbacks=[keras.callbacks.ModelCheckpoint(f"runs/{n}/best.keras")])
model.load_weights(f"runs/{n}/best.keras")
"""


def test_the_first_name_that_is_free_is_rank_0s() -> None:
    assert "    n += 1\nn = dl.broadcast(n)" in port(FREE).text  # the next rank may find it taken
    counted = FREE.replace('n = 0\nwhile os.path.exists(f"runs/{n}"):\n    n += 1', "n = len(os.listdir('runs'))")
    assert "n = dl.broadcast(len(os.listdir('runs')))" in port(counted).text
    until = 'while True:\n    if not os.path.exists(f"runs/{n}"): break'
    left = FREE.replace('while os.path.exists(f"runs/{n}"):', until)
    assert "    n += 1\nn = dl.broadcast(n)" in port(left).text
    read = FREE.replace("    n += 1\n", "    rows = open(f'runs/{n}').read()\n    n += 1\n")
    assert "dl.broadcast(" not in port(read).text  # files that are there


def test_a_search_that_each_rank_makes_by_itself_is_doubted() -> None:
    ported = port("""import keras, keras_tuner
def build(hp):
    model = keras.Sequential([keras.layers.Dense(hp.Int("units", 8, 64))])
    model.compile("sgd", "mse")
    return model
tuner = keras_tuner.RandomSearch(build, objective="val_loss")
tuner.search(x, y, validation_split=0.2)
build(tuner.get_best_hyperparameters()[0]).fit(x, y)
""")
    assert [d.danger for d in ported.doubts if "searches by itself" in d.why] == ["high"]


def test_a_count_of_steps_that_a_checkpoint_holds_is_told() -> None:
    counted = TAPE.replace("Checkpoint(model=model)", "Checkpoint(step=tf.Variable(0), model=model)")
    step = "checkpoint.step.assign_add(1)\n    if int(checkpoint.step) % 10 == 0:\n        manager.save()"
    made = port(counted.format(start="", step=step, end="print(int(checkpoint.step))"))
    assert "print(dl.serial_steps(int(checkpoint.step)))" in made.text
    (told,) = [doubt for doubt in made.doubts if "checkpoints hold" in doubt.why]
    assert told.danger == "low"
