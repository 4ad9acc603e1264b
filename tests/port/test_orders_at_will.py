"""Orders that differ between the processes of Keras and of Estimators: files, sets, data sets that keep no order."""

import pytest

from dlrun.port import port

KERAS = """import glob
import numpy as np
import keras
import tensorflow as tf
LINE
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(rows, wanted, epochs=3)
"""


def doubted(source: str) -> list[str]:
    """Return what the port of ``source`` proposes to write where an order is doubted."""
    return [d.write for d in port(source).doubts if "order" in d.why]


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("files = glob.glob('rows/*.npy')", []),  # all ranks take rank 0's
        ("if many:\n    files = glob.glob('rows/*.npy')", ["sorted(glob.glob('rows/*.npy'))"]),
        ("def load():\n    return {w: i for i, w in enumerate(set(words))}\nload()", ["enumerate(sorted(set(words)))"]),
        ("if many:\n    words = list(set(text))\nprint(words)", ["list(sorted(set(text)))"]),
        ("words = [list(set(line)) for line in lines]", ["list(sorted(set(line)))"]),
        ("files = sorted(glob.glob('rows/*.npy'))", []),
    ],
)
def test_keras_scripts_are_told_of_orders_that_each_process_makes(line, written) -> None:
    assert doubted(KERAS.replace("LINE", line)) == written


@pytest.mark.parametrize(
    ("line", "written"),
    [
        (
            "words = list(set(words))\nnumbers = dict(zip(words, range(9)))",
            "words = dl.broadcast(list(set(words)))\nnumbers = dict(zip(words, range(9)))",
        ),
        ("words = set(words)\nnumbers = {w: i for i, w in enumerate(words)}", "enumerate(dl.broadcast(list(words)))}"),
        ("pairs = tuple({a + b for a in x for b in y})", "tuple(dl.broadcast(list({a + b for a in x for b in y})))"),
        ("numbers = {n: i for i, n in enumerate(sorted(set(words)))}", "enumerate(sorted(set(words)))"),
    ],
)
def test_all_ranks_take_rank_0s_order_of_a_set_where_they_meet(line, written) -> None:
    ported = port(KERAS.replace("LINE", line))
    assert written in ported.text
    assert ported.text.count("dl.broadcast(list(") == written.count("dl.broadcast(list(")
    assert not [d for d in ported.doubts if "order" in d.why]


def test_they_do_not_before_they_meet() -> None:
    source = KERAS.replace("LINE", "words = list(set(text))\nprint(words)").replace(
        "model =", "def main():\n    model ="
    )
    source = source.replace("\nmodel.", "\n    model.") + "if __name__ == '__main__':\n    main()\n"
    assert doubted(source) == ["list(sorted(set(text)))"]


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("rows = tf.data.TextLineDataset(x).map(parsed, deterministic=False)", ["deterministic=True"]),
        ("rows = files.interleave(tf.data.TFRecordDataset, deterministic=not training)", ["deterministic=True"]),
        ("how = tf.data.Options()\nhow.experimental_deterministic = False", ["how.experimental_deterministic = True"]),
        ("how = tf.data.Options()\nhow.deterministic = fast", ["how.deterministic = True"]),
        ("import torch\ntorch.backends.cudnn.deterministic = fast", []),
        ("rows = files.interleave(tf.data.TFRecordDataset, deterministic=True)", []),
        ("rows = files.interleave(tf.data.TFRecordDataset)", []),
    ],
)
def test_data_sets_that_keep_no_order_are_doubted(line, written) -> None:
    assert doubted(KERAS.replace("LINE", line)) == written


def test_so_are_files_that_tensorflow_datasets_reads_in_any_order_also_for_a_tape() -> None:
    source = """import tensorflow as tf
import tensorflow_datasets as tfds
data = tfds.load("mnist", split="train", as_supervised=True, shuffle_files=True).batch(8)
model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
for x, y in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""
    assert doubted(source) == ["shuffle_files=False, and shuffle() what it loads"]
    assert not doubted(source.replace(", shuffle_files=True", ""))


ESTIMATOR = """import glob
import tensorflow.compat.v1 as tf
def model_fn(features, labels, mode):
    out = tf.layers.dense(NORMALIZED, 1)
    loss = tf.reduce_mean(tf.square(out - labels))
    train = tf.train.AdamOptimizer(1e-3).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)
def input_fn():
    return tf.data.TFRecordDataset(glob.glob("rows/*")).batch(8)
made, best = tf.estimator.Estimator(model_fn, "out"), 9.0
for epoch in range(100):
    made.train(input_fn)
    loss = made.evaluate(input_fn)["loss"]
    made.evaluate(input_fn)
    if loss > best:
        break
    best = loss
"""


def test_estimators_are_told_of_listed_files_and_end_on_one_loss_where_they_normalize_batches() -> None:
    normalized = ESTIMATOR.replace("NORMALIZED", "tf.layers.batch_normalization(features, training=mode == 'train')")
    assert doubted(normalized) == ['sorted(glob.glob("rows/*"))']
    text = port(normalized).text
    assert 'loss = dl.average(made.evaluate(input_fn))["loss"]' in text
    assert "    made.evaluate(input_fn)\n" in text
    assert "dl.average" not in port(ESTIMATOR.replace("NORMALIZED", "features")).text
