"""After how many steps each hooks, monitored sessions and callbacks save or show, and what an Estimator has counted."""

import pytest

from dlrun.port import Options, port

SESSION = """import tensorflow.compat.v1 as tf
import numpy as np

x = tf.placeholder(tf.float32, [None, 3])
loss = tf.reduce_mean(tf.layers.dense(x, 1) ** 2)
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=tf.train.get_or_create_global_step())
data = np.zeros((64, 3))
with {made} as sess:
    for i in range(0, 64, 8):
        sess.run(train, {{x: data[i : i + 8]}})
"""
ESTIMATOR = """import tensorflow.compat.v1 as tf


def model(features, labels, mode):
    loss = tf.reduce_mean(tf.layers.dense(features, 1) ** 2)
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def data():
    return tf.data.Dataset.from_tensor_slices([[1.0]] * 64).repeat().batch(8)


estimator = tf.estimator.Estimator(model, config=tf.estimator.RunConfig(save_checkpoints_steps=100))
estimator.train(data, steps=1000)
found = estimator.evaluate(data, steps=4)
{shown}
"""


@pytest.mark.parametrize(
    ("made", "written"),
    [
        ("tf.train.MonitoredTrainingSession(save_checkpoint_steps=60)", "save_checkpoint_steps=dl.steps(60)"),
        ("tf.train.MonitoredSession(hooks=[tf.train.CheckpointSaverHook('c', None, 60)])", "None, dl.steps(60)"),
        ("tf.train.MonitoredSession(hooks=[tf.train.StepCounterHook(60)])", "StepCounterHook(dl.steps(60))"),
        (
            "tf.train.MonitoredSession(hooks=[tf.train.SummarySaverHook(save_secs=60)])",
            "SummarySaverHook(save_secs=60)",
        ),
    ],
)
def test_what_saves_every_so_many_steps_saves_as_often_as_in_the_serial_run(made, written) -> None:
    assert written in port(SESSION.format(made=made)).text


def test_hooks_keep_their_steps_where_ranks_keep_the_serial_batch() -> None:
    made = "tf.train.MonitoredTrainingSession(save_checkpoint_steps=60)"
    assert "save_checkpoint_steps=60" in port(SESSION.format(made=made), Options(batch="global")).text


@pytest.mark.parametrize(
    ("shown", "written"),
    [
        ("print(found['global_step'])", "print(dl.serial_steps(found['global_step']))"),
        ("print(found.get('global_step'))", "print(dl.serial_steps(found.get('global_step')))"),
        (
            "print(estimator.get_variable_value('global_step'))",
            "print(dl.serial_steps(estimator.get_variable_value('global_step')))",
        ),
        ("print(found['loss'])", "print(found['loss'])"),
        ("print('{loss}'.format(**found))", "print('{loss}'.format(**found))"),
    ],
)
def test_the_global_step_of_an_estimator_is_shown_as_the_serial_one(shown, written) -> None:
    ported = port(ESTIMATOR.format(shown=shown))
    assert written in ported.text and "save_checkpoints_steps=dl.steps(100)" in ported.text
    assert not [d for d in ported.doubts if d.name == "unknown-placement"]


@pytest.mark.parametrize("shown", ["print(found)", "print('{global_step}'.format(**found))"])
def test_a_whole_evaluation_that_is_shown_is_told_to_hold_a_step_of_the_ranks(shown) -> None:
    told = [d.why for d in port(ESTIMATOR.format(shown=shown)).doubts if d.name == "unknown-placement"]
    assert told == ["found: its global_step counts steps of n ranks, 1/n of the serial ones"]


@pytest.mark.parametrize(("given", "written"), [("100", "dl.steps(100)"), ("'epoch'", "'epoch'")])
def test_tensorboard_writes_batches_as_often_as_in_the_serial_run(given, written) -> None:
    text = port(
        "import keras\nmodel = keras.Sequential([keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
        f"model.fit(x, y, callbacks=[keras.callbacks.TensorBoard('logs', update_freq={given})])\n"
    ).text
    assert f"update_freq={written}" in text


TAPE = """import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
data = tf.data.Dataset.from_tensor_slices(tf.zeros((64, 3))).batch(8)
kept = tf.train.Checkpoint(step=tf.Variable(0), model=model, iterator=iter(data))
for x in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    kept.step.assign_add(1)
    if int(kept.step) % 4 == 0:
        print("step", int(kept.step))
"""


def test_a_step_in_a_checkpoint_beside_an_iterator_is_a_count_of_steps() -> None:
    text = port(TAPE).text
    assert "if int(kept.step) % dl.steps(4) == 0:" in text and "dl.serial_steps(int(kept.step))" in text
