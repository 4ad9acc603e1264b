"""What loops that run sessions save, print and summarise at some of their steps."""

import pytest

from dlrun.port import port

NET = """import numpy as np
import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [None, 8])
loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 8) - x))
merged = tf.summary.merge([tf.summary.scalar("loss", loss)])
train = tf.train.AdamOptimizer(0.01).minimize(loss)
saver, sess = tf.train.Saver(), tf.Session()
sess.run(tf.global_variables_initializer())
writer = tf.summary.FileWriter("logs")
data, held = np.load("data.npy"), np.load("held.npy")
for step in range(1000):
    batch = data[np.random.randint(0, 1024, 32)]
    _, mean, summary = sess.run([train, loss, merged], feed_dict={x: batch})
"""


@pytest.mark.parametrize(
    ("test", "divided"),
    [
        ("step % 100 == 0", "step % dl.steps(100) == 0"),
        ("np.mod(step, 500) == 2", "np.mod(step, dl.steps(500)) == dl.steps(2) % dl.steps(500)"),
        ("np.mod(step + 1, 500) == 0", "np.mod(step + 1, dl.steps(500)) == 0"),
        ("not np.mod(step, 500)", "not np.mod(step, dl.steps(500))"),
        ("step % 100 == 50", "step % dl.steps(100) == dl.steps(50) % dl.steps(100)"),
        ("np.mod(step, 100) == 99", "np.mod(step, dl.steps(100)) == dl.steps(100) - 1"),
    ],
)
def test_a_loop_saves_as_often_an_epoch_on_n_ranks_however_it_asks_for_the_step(test, divided):
    assert (
        f"    if dl.should_stop() or {divided}:\n"
        in port(f'{NET}    if {test}:\n        saver.save(sess, "net")\n').text
    )


def test_a_loop_saves_as_often_an_epoch_by_the_step_that_tensorflow_counts():
    counts = NET.replace("minimize(loss)", "minimize(loss, done)").replace(
        "train =", "done = tf.train.create_global_step()\ntrain ="
    )
    fetched = counts.replace("mean, summary", "at, summary").replace("loss, merged]", "done, merged]")
    text = port(fetched + "    if at % 250 == 0:\n        saver.save(sess, 'net')\n").text
    assert "if dl.should_stop() or at % dl.steps(250) == 0:" in text


def test_what_counts_the_saves_of_a_loop_counts_them_by_the_same_number_of_steps():
    saves = "    if (step + 1) % 100 == 0:\n        saver.save(sess, 'net', global_step=(step + 1) // 100)\n"
    assert "global_step=(step + 1) // dl.steps(100))" in port(NET + saves).text


@pytest.mark.parametrize(("last", "divided"), [(50, "dl.steps(50) % dl.steps(100)"), (99, "dl.steps(100) - 1")])
def test_a_loop_that_goes_on_but_at_one_of_some_steps_saves_as_often_an_epoch(last, divided):
    text = port(f'{NET}    if step % 100 != {last}:\n        continue\n    saver.save(sess, "net")\n').text
    assert f"if step % dl.steps(100) != {divided}:" in text


def test_what_a_tensor_is_on_a_batch_is_averaged_however_the_batch_is_fed():
    shown = "    print(loss.eval({x: batch}, sess))\n    print(loss.eval({x: held}, sess))\n"
    text = port(NET + shown).text
    assert "print(dl.average(loss.eval({x: batch}, sess)))" in text
    assert "print(loss.eval({x: held}, sess))" in text


def summarised(lines):
    """Return the port of a loop that goes on with ``lines``, and whether a summary in it is doubted."""
    ported = port(NET + lines)
    return ported.text, any("this summary" in doubt.why for doubt in ported.doubts)


def test_a_summary_of_a_ranks_own_batch_is_doubted_and_one_of_what_all_ranks_hold_is_not():
    assert summarised("    writer.add_summary(summary, step)\n")[1]
    assert not summarised("    writer.add_summary(sess.run(merged, {x: held}), step)\n")[1]


def test_a_number_that_is_put_into_a_summary_by_hand_is_the_mean_over_the_ranks():
    value = 'tf.Summary.Value(tag="loss", simple_value={})'
    lines = f"    told = tf.Summary(value=[{value}])\n    writer.add_summary(told, step)\n"
    text, doubted = summarised(lines.format("mean"))
    assert value.format("dl.average(mean)") in text
    assert not doubted


def test_a_summary_of_every_step_stands_at_the_serial_one() -> None:
    assert (
        "writer.add_summary(summary, dl.serial_steps(step + 1) - 1)"
        in port(NET + "    writer.add_summary(summary, step)\n").text
    )


CURVES = """
import tensorflow as tf
from tensorflow import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
opt, loss_of = keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
writer = tf.summary.create_file_writer("logs")
with writer.as_default():
    for step, (x, y) in enumerate(tf.data.Dataset.from_tensor_slices((xs, ys)).shuffle(96).batch(8)):
        with tf.GradientTape() as tape:
            out = model(x)
            loss = loss_of(y, out)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        tf.summary.scalar("loss", loss, step=opt.iterations)
        tf.summary.histogram("out", out, step=opt.iterations)
        print(step, loss.numpy())
"""


def test_curves_of_every_step_are_of_all_ranks_at_the_serial_steps() -> None:
    text = port(CURVES).text
    assert 'tf.summary.scalar("loss", dl.average(loss), step=dl.serial_steps(opt.iterations))' in text
    assert 'tf.summary.histogram("out", out, step=dl.serial_steps(opt.iterations))' in text
    assert "print(step, dl.average(loss.numpy()))" in text


@pytest.mark.parametrize(
    ("how", "number"), [("'none'", False), ("keras.losses.Reduction.NONE", False), ("'sum'", True)]
)
def test_a_loss_object_of_keras_returns_one_number_but_where_it_is_told_not_to(how, number) -> None:
    text = port(CURVES.replace("from_logits=True", f"from_logits=True, reduction={how}")).text
    assert ("dl.average(loss.numpy())" in text) is number


def test_curves_of_pytorch_stand_at_the_serial_steps_too() -> None:
    text = port(
        """import torch
from torch.utils.tensorboard import SummaryWriter
model, writer = torch.nn.Linear(4, 1), SummaryWriter("logs")
opt = torch.optim.SGD(model.parameters(), 0.1)
for step, x in enumerate(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)):
    opt.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    opt.step()
    writer.add_scalar("loss", loss.item(), step)
    writer.add_histogram("weight", model.weight, step)
    print(step, loss.item())
"""
    ).text
    assert 'writer.add_scalar("loss", dl.average(loss.item()), dl.serial_steps(step + 1) - 1)' in text
    assert 'writer.add_histogram("weight", model.weight, dl.serial_steps(step + 1) - 1)' in text
    assert "print(step, dl.average(loss.item()))" in text
