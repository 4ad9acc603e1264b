"""Numbers of TensorFlow scripts: what sessions and tapes keep, show in functions, and weigh their losses with."""

import pytest

from dlrun.port import port

GRAPH = """import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()


class Net:
    def __init__(self):
        self.x = tf.placeholder(tf.float32, [None, 4])
        self.step = tf.train.get_or_create_global_step()
        out = tf.layers.dense(self.x, 1)
        self.loss = tf.reduce_mean(tf.square(out)) + WEIGHT * tf.reduce_mean(tf.abs(out))
        self.train = tf.train.AdamOptimizer(1e-3).minimize(self.loss, global_step=self.step)
        self.losses = []

    def tell(self, i, loss):
        self.losses.append(loss)
        print("it %d, loss %.3e" % (i, loss))

    def fit(self, rows):
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        for i in range(100):
            batch = rows[np.random.choice(len(rows), 32)]
            _, loss = session.run([self.train, self.loss], {self.x: batch})
            self.tell(i, loss)


net = Net()
net.fit(np.load("rows.npy"))
np.save("losses.npy", np.array(net.losses))
"""


@pytest.mark.parametrize(
    ("weight", "written"),
    [
        (
            "tf.minimum(1.0, tf.cast(self.step, tf.float32) / 500)",
            "tf.minimum(1.0, tf.cast(dl.serial_steps(self.step), tf.float32) / 500)",
        ),
        (
            "tf.cond(self.step < 50, lambda: 0.0, lambda: 1.0)",
            "tf.cond(dl.serial_steps(self.step) < 50, lambda: 0.0, lambda: 1.0)",
        ),
        (
            "tf.train.exponential_decay(1.0, self.step, 100, 0.9)",
            "tf.train.exponential_decay(1.0, dl.serial_steps(self.step), 100, 0.9)",
        ),
    ],
)
def test_weights_that_a_graph_makes_of_its_steps_follow_the_serial_ones(weight, written) -> None:
    text = port(GRAPH.replace("WEIGHT", weight)).text
    assert f"+ {written} * tf.reduce_mean" in text
    assert text.count("dl.serial_steps") == written.count("dl.serial_steps")


def test_so_do_those_of_an_estimators_model() -> None:
    source = """import tensorflow as tf
def model_fn(features, labels, mode):
    out = tf.compat.v1.layers.dense(features, 1)
    step = tf.compat.v1.train.get_global_step()
    weight = tf.minimum(1.0, tf.cast(step, tf.float32) / 500.0)
    loss = tf.reduce_mean(out - labels) + weight * tf.reduce_mean(out ** 2)
    opt = tf.compat.v1.train.AdamOptimizer(0.01)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=opt.minimize(loss, global_step=step))
def input_fn():
    return tf.data.Dataset.from_tensor_slices((rows, labels)).batch(8).repeat()
tf.estimator.Estimator(model_fn, model_dir="made").train(input_fn, steps=100)
"""
    assert "tf.cast(dl.serial_steps(step), tf.float32) / 500.0" in port(source).text


def test_what_a_session_fetched_is_averaged_where_a_function_shows_it_and_where_all_of_it_is_saved() -> None:
    text = port(GRAPH.replace("WEIGHT", "tf.minimum(1.0, tf.cast(self.step, tf.float32) / 500)")).text
    assert 'print("it %d, loss %.3e" % (i, dl.average(loss)))' in text
    assert "        self.losses = dl.gather(self.losses)  #" in text
    several = port(GRAPH.replace("WEIGHT", "tf.abs(out)")).text  # a loss of each sample is no number to average
    assert "np.array(net.losses)" in several


TAPE = """import json
import numpy as np
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.01)
losses, history = [], {"loss": []}
for epoch in range(3):
    for x, y in tf.data.Dataset.from_tensor_slices((xs, ys)).shuffle(640).batch(32):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
        losses.append(float(loss))
    history["loss"].append(np.mean(losses[-20:]))
np.save("losses.npy", losses)
json.dump(history, open("history.json", "w"))
"""


def test_histories_of_a_tape_loop_are_kept_and_saved_as_means_over_the_ranks() -> None:
    text = port(TAPE).text
    assert "    losses = dl.gather(losses, since=losses_before)" in text
    assert '    history["loss"].append(np.mean(losses[-20:]))' in text  # the serial run's last 20
    assert 'np.save)("losses.npy", losses)' in text


@pytest.mark.parametrize("shown", [True, False])
def test_a_function_that_some_ranks_alone_come_to_shows_a_ranks_own(shown) -> None:
    told = GRAPH.replace("WEIGHT", "0.1")
    if not shown:
        told = told.replace("self.tell(i, loss)", "if loss > 1:\n                self.tell(i, loss)")
    assert ("dl.average(loss)" in port(told).text) == shown


def test_an_epoch_that_a_saver_puts_into_a_name_is_no_number_of_updates() -> None:
    source = """import numpy as np
import tensorflow.compat.v1 as tf
x, rate = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [])
loss = tf.reduce_mean(tf.layers.dense(x, 1))
train, saver = tf.train.GradientDescentOptimizer(rate).minimize(loss), tf.train.Saver()
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for epoch in range(9):
        for i in range(20):
            session.run(train, {x: rows[np.random.choice(640, 32)], rate: 0.1 * 0.95 ** epoch})
        saver.save(session, "made/model", global_step=epoch)
"""
    assert "0.1 * 0.95 ** epoch" in port(source).text


def test_a_dict_of_lists_and_a_running_mean_are_those_of_all_ranks_where_they_are_saved_and_shown() -> None:
    kept = TAPE.replace(
        "losses.append(float(loss))",
        """losses.append(float(loss))
        history["loss"].append(float(loss))
        mean = float(loss) if mean is None else 0.9 * mean + 0.1 * float(loss)
        step += 1
        if step % 50 == 49:
            model.save_weights("made.weights.h5")
            print("mean", mean)""",
    ).replace('    history["loss"].append(np.mean(losses[-20:]))\n', "")
    kept = kept.replace("for epoch", "mean, step = None, 0\nfor epoch", 1).replace(
        "dump(history,", "dump({k: [round(v, 3) for v in vs] for k, vs in history.items()},"
    )
    text = port(kept).text
    gathered = '    losses, history["loss"] = dl.gather(losses, history["loss"], since=losses_before)'
    assert gathered in text and "for k, vs in history.items()" in text
    assert 'print("mean", dl.average(mean))' in text
    assert "if step % dl.steps(50) == dl.steps(50) - 1:" in text
    assert gathered in port(kept.replace("{k: [round(v, 3) for v in vs] for k, vs in history.items()}", "history")).text


def test_the_steps_that_a_session_fetched_are_alike_and_what_is_shown_at_some_of_them_is_averaged() -> None:
    source = """import numpy as np
import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [None, 4])
loss, count = tf.reduce_mean(tf.layers.dense(x, 1)), tf.train.get_or_create_global_step()
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=count)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for i in range(200):
        _, lost, step = session.run([train, loss, count], {x: rows[np.random.choice(640, 32)]})
        if step % 20 == 0:
            print(f"step {step} loss {lost:.3f}")
"""
    assert 'print(f"step {dl.serial_steps(step)} loss {dl.average(lost):.3f}")' in port(source).text
    named = source.replace("_, lost, step =", "out =").replace(
        "[train, loss, count]", '{"train": train, "loss": loss, "step": count}'
    )
    named = named.replace("if step %", 'if out["step"] %').replace(
        "{step} loss {lost:.3f}", "{out['step']} {out['loss']:.3f}"
    )
    assert """print(f"step {dl.serial_steps(out['step'])} {dl.average(out['loss']):.3f}")""" in port(named).text


def test_a_loss_that_a_function_makes_which_also_evaluates_is_a_ranks_own_where_a_tape_differentiates_it() -> None:
    source = """import tensorflow as tf
model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.01)
def loss_of(x, y):
    return tf.reduce_mean((model(x) - y) ** 2)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(x, y)
    opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    return loss
for epoch in range(3):
    total, seen = 0.0, 0
    for i in range(0, 640, 32):
        total += float(step(xs[i : i + 32], ys[i : i + 32])) * 32
        seen += 32
    print(total / seen, float(loss_of(held, labels)))
"""
    text = port(source).text
    assert "    total, seen = dl.total(total, seen)" in text
    assert "    print(total / seen, float(loss_of(held, labels)))" in text


PRINTED = """import tensorflow as tf
from tensorflow import keras
model, opt = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.Adam(1e-3)

@tf.function
def step(x, k):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    if k % 10 == 0:
        tf.print("step", k, "loss", loss)
    return loss

for k, x in enumerate(data):
    loss = step(x, tf.constant(k))
tf.print("last", loss)
"""


def test_what_tensorflow_prints_is_the_mean_over_the_ranks_too() -> None:
    text = port("data = read()\n" + PRINTED).text
    assert 'dl.rank0(tf.print)("step", dl.serial_steps(k), "loss", dl.average(loss))' in text
    assert "\nloss = dl.average(loss)" in text and 'dl.rank0(tf.print)("last", loss)' in text


FETCHES = """import numpy as np
import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [None, 4])
loss, rows = tf.reduce_mean(tf.layers.dense(x, 1) ** 2), tf.layers.dense(x, 1)
opt = tf.train.AdamOptimizer(1e-3)
pairs = opt.compute_gradients(loss)
fetches = FETCHES
samples = np.load("rows.npy")
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(100):
        r = sess.run(fetches, {x: samples[i * 8 : i * 8 + 8]})
        print(i, SHOWN)
"""
BY_NAME = (
    '{"loss": loss, "norm": tf.global_norm([g for g, _ in pairs]), "train": opt.apply_gradients(pairs), "rows": rows}'
)


@pytest.mark.parametrize(
    ("fetches", "shown", "written"),
    [
        (BY_NAME, 'r["loss"], r["norm"]', 'dl.average(r["loss"]), r["norm"]'),  # the norm of averaged gradients
        (BY_NAME, 'r["rows"]', 'r["rows"]'),  # one of each sample
        ("[opt.apply_gradients(pairs), loss, rows]", "r[1]", "dl.average(r[1])"),
        ("[opt.apply_gradients(pairs), loss, rows]", "r[2]", "r[2]"),
    ],
)
def test_entries_of_what_a_session_fetched_are_averaged_where_they_are_one_number(fetches, shown, written) -> None:
    text = port(FETCHES.replace("FETCHES", fetches).replace("SHOWN", shown)).text
    assert f"print(i, {written})" in text


PAIRS = """import tensorflow as tf
from tensorflow import keras
data = tf.data.Dataset.from_tensor_slices(tf.ones((64, 4))).batch(8)
net, opt = keras.Sequential([keras.layers.Dense(4)]), keras.optimizers.SGD(0.1)
def pairs(a, b):
    logits = tf.matmul(a, b, transpose_b=True)
    MADE
for x in data:
    with tf.GradientTape() as tape:
        loss = pairs(net(x), net(x + 1))
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
"""
COMPARED = "compares the samples of a batch"
BY_CLASS = "tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))"


@pytest.mark.parametrize(
    ("made", "doubted"),
    [
        (f"labels = tf.range(tf.shape(a)[0])\n    return {BY_CLASS}", True),
        (f"labels = tf.argmax(b, axis=1)\n    return {BY_CLASS}", False),
        ("return keras.losses.CategoricalCrossentropy()(tf.one_hot(tf.range(8), 8), logits)", True),
        ("return keras.losses.categorical_crossentropy(tf.concat([tf.eye(8), tf.eye(8)], 0), logits)", True),
        ("return keras.losses.CategoricalCrossentropy()(b, tf.nn.softmax(a))", False),
    ],
)
def test_a_loss_whose_targets_are_the_numbers_of_the_samples_is_doubted_on_a_tape_too(made, doubted) -> None:
    assert (COMPARED in port(PAIRS.replace("MADE", made)).report()) is doubted


@pytest.mark.parametrize(
    ("loss", "doubted"), [("nt_xent", True), ("tfa.losses.TripletSemiHardLoss()", True), ("mse", False)]
)
def test_so_is_one_that_a_keras_model_is_compiled_with(loss, doubted) -> None:
    source = f"""import keras
import tensorflow_addons as tfa
from losses import mse, nt_xent
model = keras.Sequential([keras.layers.Dense(4)])
model.compile("adam", loss={loss})
model.fit(x, y)
"""
    assert (COMPARED in port(source).report()) is doubted


TABLE = """import numpy as np
import tensorflow as tf
from sklearn.metrics import roc_auc_score
net, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
data = tf.data.Dataset.from_tensor_slices((rows, labels)).batch(8)
means = {name: tf.keras.metrics.Mean() for name in ("loss", "size")}
losses = []
def train_step(x):
    with tf.GradientTape() as tape:
        out = net(x)
        loss = tf.reduce_mean(out ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, net.variables), net.variables))
    return {"loss": loss, "size": tf.reduce_mean(out)}, out
for epoch in range(9):
    outs, targets = [], []
    for x, y in data:
        parts, out = train_step(x)
        for name, part in parts.items():
            means[name].update_state(part)
        outs.append(out.numpy())
        targets.append(y.numpy())
    print(", ".join(f"{name} {mean.result().numpy():.4f}" for name, mean in means.items()))
    losses.append(float(means["loss"].result()))
    auc = roc_auc_score(np.concatenate(targets), np.concatenate(outs))
np.save("losses.npy", np.array(losses))
"""


def test_metrics_in_a_table_that_a_step_fills_by_name_are_those_of_all_ranks() -> None:
    ported = port(TABLE)
    assert "    dl.total(means, since=means_before)" in ported.text
    assert "    outs, targets = dl.gather(outs, targets" in ported.text
    assert not ported.doubts
