"""Ports of Estimators: optimizers that ready-made ones make themselves, input functions that take arguments."""

from __future__ import annotations

import re

import pytest

from dlrun.errors import DlrunError
from dlrun.port import Options, port

READY = """import numpy as np
import tensorflow as tf
columns = [tf.feature_column.numeric_column("x")]
model = tf.estimator.{made}
model.train(lambda: tf.data.Dataset.from_tensor_slices(np.load("x.npy")).batch(8), steps=100)
"""
UNASKED = "DNNClassifier(\n    feature_columns=columns,\n    # two layers\n    hidden_units=[10, 10])"


def test_the_optimizer_that_an_estimator_makes_unasked_is_given_to_it_averaged() -> None:
    text = port(READY.format(made=UNASKED)).text
    assert "hidden_units=[10, 10],\n    optimizer=dl.default_optimizer(tf.estimator.DNNClassifier))" in text
    assert text.count("# two layers") == 1
    assert "hooks=[dl.BroadcastHook()]" in text
    kept = port(READY.format(made=UNASKED), Options(lr_scaling="none")).text
    assert 'dl.default_optimizer(tf.estimator.DNNClassifier, rule="none")' in kept


def test_an_optimizer_that_an_estimator_is_given_by_name_is_made_to_average() -> None:
    text = port(READY.format(made='LinearRegressor(columns, optimizer="SGD")')).text
    assert 'LinearRegressor(columns, optimizer=dl.default_optimizer(tf.estimator.LinearRegressor, name="SGD"))' in text


def test_a_wide_and_deep_estimator_makes_two_and_keeps_the_one_it_is_given() -> None:
    made = "DNNLinearCombinedClassifier(linear_feature_columns=columns, dnn_hidden_units=[4]{})"
    kind = "dl.default_optimizer(tf.estimator.DNNLinearCombinedClassifier"
    text = port(READY.format(made=made.format(""))).text
    assert f'linear_optimizer={kind}, "linear_optimizer"), dnn_optimizer={kind}, "dnn_optimizer"))' in text
    given = ", dnn_optimizer=tf.compat.v1.train.AdamOptimizer(0.1)"
    text = port(READY.format(made=made.format(given))).text
    assert "dnn_optimizer=dl.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(dl.lr_scale(0.1)))" in text
    assert f'linear_optimizer={kind}, "linear_optimizer"))' in text


@pytest.mark.parametrize(
    "made",
    [
        "BoostedTreesClassifier(columns, 1)",
        "DNNClassifier([4], columns, optimizer=chosen)",
        "DNNClassifier([4], columns, folder, 3)",
        "DNNClassifier(*given)",
    ],
)
def test_an_optimizer_out_of_reach_is_refused(made) -> None:
    with pytest.raises(DlrunError, match="makes its optimizer itself, out of reach"):
        port(READY.format(made=made))


def test_the_ranks_take_the_place_of_a_strategy_from_out_of_sight() -> None:
    config = "config=tf.estimator.RunConfig(train_distribute={})"
    given = READY.format(made=f'LinearRegressor(columns, optimizer="SGD", {config})')
    assert "RunConfig(train_distribute=None)" in port(given.format("official.strategy(flags.num_gpus)")).text
    with pytest.raises(DlrunError, match=r"already distributed, with tf\.distribute\.MirroredStrategy"):
        port(given.format("tf.distribute.MirroredStrategy()"))


def test_an_input_function_is_given_what_it_takes() -> None:
    text = port("""import tensorflow as tf
def builder(files):
    def input_fn(params):
        return tf.data.TFRecordDataset(files).batch(params["batch_size"])
    return input_fn

def model_fn(features, labels, mode, params):
    op = tf.compat.v1.train.AdamOptimizer(1e-3).minimize(loss)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=op)

estimator = tf.estimator.Estimator(model_fn, params={"batch_size": 8})
train_input_fn = builder(["a"])
estimator.train(input_fn=train_input_fn, max_steps=100)
""").text
    assert "estimator.train(input_fn=lambda params: dl.shard(train_input_fn(params)), max_steps=dl.steps(100)" in text


CUSTOM = """
import numpy as np
import tensorflow as tf
def model_fn(features, labels, mode):
    loss = tf.reduce_mean(features)
    train_op = tf.compat.v1.train.AdamOptimizer(0.1).minimize(loss)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
def read():
    return tf.data.Dataset.from_tensor_slices(np.load("x.npy")).batch(8).make_one_shot_iterator().get_next()
def train_input():
    {made}
    return features, labels
tf.estimator.Estimator(model_fn).train(train_input, steps=9)
"""


def test_a_function_that_makes_the_input_functions_of_both_shares_what_training_is_given() -> None:
    text = port("""import tensorflow as tf
def inputs(x, train):
    def read():
        data = tf.data.Dataset.from_tensor_slices(x)
        return (data.repeat(2) if train else data).batch(8)
    return read

model = tf.estimator.LinearRegressor(columns, optimizer="SGD")
model.train(inputs(x, True))
print(model.evaluate(inputs(held, False)))
""").text
    assert "model.train(lambda: dl.shard(inputs(x, True)())" in text
    assert "else data).batch(8)\n" in text and "model.evaluate(inputs(held, False))" in text


def test_a_tuple_that_an_input_function_returns_without_brackets_is_shared_whole() -> None:
    text = port(CUSTOM.format(made="features, labels = np.load('x.npy')")).text
    assert "return dl.shard((features, labels))" in text


def test_the_data_set_of_an_iterator_that_a_function_of_the_input_function_makes_is_shared() -> None:
    text = port(CUSTOM.format(made="features, labels = read()")).text
    assert 'dl.shard(tf.data.Dataset.from_tensor_slices(np.load("x.npy")).batch(8)).make_one_shot_iterator()' in text
    assert "return features, labels" in text
    made = (
        CUSTOM.format(made="features, labels = read()")
        .replace("return tf", "data = tf")
        .replace(
            ".make_one_shot_iterator().get_next()",
            "\n    return tf.compat.v1.data.make_one_shot_iterator(data).get_next()",
        )
    )
    assert "tf.compat.v1.data.make_one_shot_iterator(dl.shard(data)).get_next()" in port(made).text


def test_hooks_that_write_do_so_on_rank_0_and_keep_checkpoints_of_other_ranks_elsewhere() -> None:
    hooks = """[tf.compat.v1.train.StepCounterHook(10, output_dir=folder), tf.train.CheckpointSaverHook(folder, 60),
         tf.train.SummarySaverHook(5, None, "more", summary_op=scalars), tf.train.SummarySaverHook(5, None, None)]"""
    text = port(CUSTOM.format(made="features, labels = read()").replace("steps=9", f"hooks={hooks}, steps=9")).text
    assert "StepCounterHook(dl.steps(10), output_dir=folder if dl.is_rank0() else None)" in text
    assert "CheckpointSaverHook(dl.model_dir(folder), 60)" in text
    assert '(dl.steps(5), None, "more" if dl.is_rank0() else None, summary_op=scalars), ' in text
    assert "tf.train.SummarySaverHook(dl.steps(5), None, None)]" in text


def test_a_hook_that_logs_what_a_rank_computed_is_doubted() -> None:
    serial = CUSTOM.format(made="features, labels = read()")
    hook = 'hooks=[tf.estimator.LoggingTensorHook({"loss": "loss"}, every_n_iter=20)], steps=9'
    found = port(serial.replace("steps=9", hook)).doubts
    assert ["each rank logs numbers" in doubt.why for doubt in found if "dl.average(loss)" in doubt.write] == [True]
    assert not any("each rank logs numbers" in doubt.why for doubt in port(serial).doubts)


def test_tensors_that_are_one_batch_at_every_step_are_refused() -> None:
    made = "features, labels = tf.constant(np.load('x.npy')), tf.constant(np.load('y.npy'))"
    with pytest.raises(DlrunError, match=r"train_input\(\) returns tensors, not a data set"):
        port(CUSTOM.format(made=made))


def test_a_model_that_is_fitted_beside_an_estimator_is_distributed_unless_in_a_loop_or_compiled_out_of_sight() -> None:
    made = "tf.keras.Sequential([tf.keras.layers.Dense(1)])"
    fit = f"""
model = {made}
model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
model.fit(np.ones((8, 3)), np.ones(8), epochs=2)
"""
    serial = CUSTOM.format(made="features, labels = np.load('x.npy')") + fit
    assert "dl_comm.keras.distribute(model)" in port(serial).text
    looped = serial.replace("model.fit(", "for fold in range(5):\n    model.fit(")
    unseen = re.sub("model.compile.*", "", serial).replace(made, "library.compiled()")
    for script in (looped, unseen):
        found = port(script)
        doubt = next(doubt for doubt in found.doubts if doubt.danger == "high")
        assert "it trains on each rank by itself" in doubt.why
        assert found.script.code(doubt.node).startswith("model.fit(")


def test_the_optimizer_of_an_entry_that_may_be_missing_is_its_default() -> None:
    text = port("""import tensorflow as tf
def model_fn(features, labels, mode, params):
    loss = tf.reduce_mean((tf.compat.v1.layers.dense(features, 1) - labels) ** 2)
    optimizer = params.get("optimizer", tf.compat.v1.train.AdamOptimizer)
    optimizer = optimizer(params.get("rate", 0.01))
    train = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

model = tf.estimator.Estimator(model_fn, params={"rate": 0.02})
model.train(lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(8), steps=100)
""").text
    assert 'optimizer = optimizer(dl.lr_scale(params.get("rate", 0.01)))' in text
    assert text.count("optimizer = dl.DistributedOptimizer(optimizer)") == 1
    assert 'optimizer = params.get("optimizer", tf.compat.v1.train.AdamOptimizer)' in text  # the class stays a class


BOTH = """import tensorflow as tf
def input_fn(batch, epochs=None):
    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat(epochs).batch(batch)
    return data.make_one_shot_iterator().get_next()
def plain():
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8).make_one_shot_iterator().get_next()
def train_input():
    return input_fn(32)
def model_fn(features, labels, mode):
    loss = tf.reduce_mean((tf.compat.v1.layers.dense(features, 1) - labels) ** 2)
    op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=op)
model = tf.estimator.Estimator(model_fn)
model.train(TRAIN, steps=100)
model.evaluate(EVALUATE, steps=10)
"""


@pytest.mark.parametrize(
    ("train", "evaluate", "after"),
    [
        ("train_input", "lambda: input_fn(64, 1)", "return input_fn(32, share=dl.shard)"),
        ("lambda: input_fn(32)", "lambda: input_fn(64, 1)", "model.train(lambda: input_fn(32, share=dl.shard), "),
        ("plain", "plain", "model.train(lambda: plain(share=dl.shard), "),
    ],
)
def test_a_function_that_makes_the_iterators_of_both_shares_where_training_calls_it(train, evaluate, after):
    text = port(BOTH.replace("TRAIN", train).replace("EVALUATE", evaluate)).text
    assert after in text
    assert f"model.evaluate({evaluate}, " in text
    assert "def input_fn(batch, epochs=None" + (", share=lambda data: data):" if train != "plain" else "):") in text
    shared = "share(data).make_one_shot_iterator()" if train != "plain" else ".batch(8)).make_one_shot_iterator()"
    assert shared in text


def test_a_function_of_training_alone_shares_the_data_set_that_it_iterates():
    text = port(
        BOTH.replace("TRAIN", "lambda: input_fn(32)")
        .replace("EVALUATE", "plain")
        .replace("train_input", "_")
        .replace("    return input_fn(32)\n", "    pass\n")
    ).text
    assert "return dl.shard(data).make_one_shot_iterator().get_next()" in text


def test_an_input_function_with_arguments_given_early_takes_none_of_them_again():
    given = """import functools
import tensorflow as tf
def input_fn(files, params=None, train=False):
    data = tf.data.TextLineDataset(files).batch(8)
    return data.repeat() if train else data
def model_fn(features, labels, mode):
    op = tf.compat.v1.train.AdamOptimizer(1e-3).minimize(loss)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=op)
inputs = functools.partial(input_fn, "a.txt", {}, train=True)
model = tf.estimator.Estimator(model_fn)
model.train(inputs, steps=100)
print(model.evaluate(functools.partial(input_fn, "b.txt")))
"""
    text = port(given).text
    assert "model.train(lambda: dl.shard(inputs()), steps=dl.steps(100)" in text, text
    by_name = given.replace('"a.txt", {}, train=True', '"a.txt", train=True')
    assert "model.train(lambda params: dl.shard(inputs(params)), steps=dl.steps(100)" in port(by_name).text
