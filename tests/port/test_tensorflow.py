"""Ports of TensorFlow scripts in the styles that people write: tapes, sessions, Estimators, Keras models by hand."""

from __future__ import annotations

import pytest

from dlrun.errors import DlrunError
from dlrun.port import Options, port

HEAD = "import numpy as np\nimport tensorflow.compat.v1 as tf\n"
SESSION = f"""{HEAD}
x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
w = tf.get_variable("w", [3, 1])
loss = tf.reduce_mean((tf.matmul(x, w) - y) ** 2)
data = np.load("data.npz")
rows, targets = data["x"], data["y"]
train_op = tf.train.AdamOptimizer(1e-3).minimize(loss)
saver = tf.train.Saver()
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(5):
        for i in range(len(rows) // 8):
            sess.run(train_op, feed_dict={{x: rows[i * 8 : i * 8 + 8], y: targets[i * 8 : i * 8 + 8]}})
    saver.save(sess, "model")
"""
TAPE = """
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
critic = tf.keras.Sequential([tf.keras.layers.Dense(1)])
first, second = tf.keras.optimizers.Adam(1e-4), tf.keras.optimizers.Adam(1e-4)
data = tf.data.TFRecordDataset("a").map(tf.io.parse_tensor).batch(8)

@tf.function
def step(x):
    with tf.GradientTape() as outer, tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            score = critic(x)
        slope = inner.gradient(score, x)
        loss = tf.reduce_mean(critic(model(x))) + tf.reduce_mean(slope**2)
    first.apply_gradients(zip(tape.gradient(loss, critic.trainable_variables), critic.trainable_variables))
    grads = outer.gradient(-loss, model.trainable_variables)
    second.apply_gradients(zip([tf.clip_by_norm(g, 1.0) for g in grads], model.trainable_variables))
    return loss

for epoch in range(3):
    for x in data:
        loss = step(x)
"""


def added(source: str) -> list[str]:
    """The lines that only the port has."""
    before = set(source.splitlines())
    return [line.strip() for line in port(source).text.splitlines() if line not in before and line.strip()]


def test_each_gradient_of_an_update_is_averaged_and_that_of_an_input_is_not() -> None:
    text = port(TAPE).text
    assert "slope = inner.gradient(score, x)" in text
    assert "zip(dl.gradients(tape.gradient(loss, critic.trainable_variables)), critic" in text
    assert "grads = dl.gradients(outer.gradient(-loss, model.trainable_variables))" in text
    assert "dl.broadcast_variables(model, critic, first, second)" in text
    assert "for x in dl.shard(data):" in text


def test_a_loss_that_is_returned_beside_gradients_brings_none_of_its_own_into_the_mean() -> None:
    text = port("""
import tensorflow as tf
net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.Adam(1e-4)
data = tf.data.TFRecordDataset("a").map(tf.io.parse_tensor).batch(8)

@tf.function
def residual(x):
    u = net(x)
    return tf.gradients(u, x)[0] - u

def gradients(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(residual(x) ** 2)
    return loss, tape.gradient(loss, net.trainable_variables)

for x in data:
    loss, grads = gradients(x)
    opt.apply_gradients(zip(grads, net.trainable_variables))
""").text
    assert "return loss, dl.gradients(tape.gradient(loss, net.trainable_variables))" in text
    assert "return tf.gradients(u, x)[0] - u" in text


def test_a_session_starts_alike_feeds_its_share_and_saves_on_rank_0() -> None:
    assert added(SESSION)[2:] == [
        "train_op = dl.DistributedOptimizer(tf.train.AdamOptimizer(dl.lr_scale(1e-3))).minimize(loss)",
        "sess.run(dl.broadcast_variables())  # every rank starts from rank 0's variables",
        "dl.reseed()  # from here on each rank draws random numbers of its own",
        "for i in dl.shard(range(len(rows) // 8)):",
        'dl.rank0(saver.save)(sess, "model")',
        "dl.finalize()  # leave together",
    ]


def test_a_script_that_imports_something_of_pytorch_too_is_what_trains_in_it() -> None:
    text = port("from torch.autograd import Variable\n" + SESSION).text
    assert "import dl_comm.tensorflow as dl" in text


def test_gradients_of_a_graph_are_averaged_before_they_are_clipped() -> None:
    by_hand = """grads, _ = tf.clip_by_global_norm(tf.gradients(loss, [w]), 5.0)
train_op = tf.train.AdamOptimizer(1e-3).apply_gradients(zip(grads, [w]))"""
    text = port(SESSION.replace("train_op = tf.train.AdamOptimizer(1e-3).minimize(loss)", by_hand)).text
    assert "tf.clip_by_global_norm(dl.gradients(tf.gradients(loss, [w])), 5.0)" in text
    assert "DistributedOptimizer" not in text


def test_a_monitored_session_gets_the_broadcast_as_a_hook() -> None:
    monitored = "tf.train.MonitoredTrainingSession(checkpoint_dir=where, hooks=[tf.train.StopAtStepHook(100)])"
    text = port(SESSION.replace("tf.Session()", monitored)).text
    assert text.count("    dl.reseed()  # from here on each rank draws samples of its own\n    for epoch in") == 1
    assert "checkpoint_dir=where if dl.is_rank0() else None, hooks=[dl.BroadcastHook(), tf" in text
    assert "tf.train.StopAtStepHook(dl.steps(100))]" in text
    assert "broadcast_variables" not in text


def test_a_supervisor_starts_alike_by_itself_and_the_ranks_draw_apart_before_its_loop() -> None:
    text = port(SESSION.replace("tf.Session()", "tf.train.Supervisor(logdir=where).managed_session()")).text
    assert "with dl.Supervisor(logdir=where).managed_session() as sess:" in text
    assert "    dl.reseed()  # from here on each rank draws samples of its own\n    for epoch in range(5):" in text


def test_an_input_function_that_is_evaluated_too_is_shared_where_it_trains() -> None:
    source = f"""{HEAD}
def model_fn(features, labels, mode):
    loss = tf.losses.mean_squared_error(labels, tf.layers.dense(features, 1))
    op = tf.train.AdamOptimizer(1e-3).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=op)

def input_fn():
    return tf.data.Dataset.from_tensor_slices(np.load("x.npy")).batch(8)

estimator = tf.estimator.Estimator(model_fn, "model")
estimator.train(input_fn, max_steps=1000)
estimator.evaluate(input_fn)
"""
    text = port(source).text
    train = "estimator.train(lambda: dl.shard(input_fn()), max_steps=dl.steps(1000), hooks=[dl.BroadcastHook()])"
    assert train in text
    assert 'tf.estimator.Estimator(model_fn, dl.model_dir("model"))' in text
    assert "estimator.evaluate(input_fn)" in text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("tf.Session()", "tf.train.Supervisor(is_chief=task == 0).managed_session()"), "already distributed"),
        (("sess.run(train_op, feed", "_, rows = sess.run([train_op, loss], feed"), "carried from batch to batch"),
    ],
)
def test_what_cannot_be_ported_is_refused_with_its_line(change, reason) -> None:
    with pytest.raises(DlrunError, match=reason) as refused:
        port(SESSION.replace(*change))
    assert "script:" in refused.value.message


def test_updates_that_a_function_of_the_backend_runs_are_refused() -> None:
    source = """from keras import backend as K
critic.compile("adam", "mse")
actor = K.function([critic.input], [], updates=optimizer.get_updates(critic.weights, [], loss))
critic.fit(x, y)
"""
    with pytest.raises(DlrunError, match=r"script:3: optimizer\.get_updates\(\) makes updates"):
        port(source)


def test_a_model_that_takes_optimizers_of_its_own_averages_in_each() -> None:
    source = """import keras
gan.compile(d_optimizer=keras.optimizers.Adam(1e-4), g_optimizer=keras.optimizers.Adam(1e-4))
gan.fit(x, y)
"""
    text = port(source).text
    assert text.count("dl.DistributedOptimizer(keras.optimizers.Adam(dl.lr_scale(1e-4)))") == 2
    assert "dl.distribute(gan)" in text


def test_a_session_that_only_says_how_much_of_the_gpu_is_taken_leaves_a_fit_a_fit() -> None:
    text = port("""import os
import tensorflow as tf
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
tf.compat.v1.Session(config=tf.compat.v1.ConfigProto())
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y)
""").text
    assert "dl.distribute(model)" in text
    assert 'os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")' in text


def test_an_optimizer_named_by_a_string_is_written_out_with_its_import() -> None:
    text = port('from keras.models import Sequential\nmodel = Sequential()\nmodel.compile("adam")\nmodel.fit(x)\n').text
    assert text.startswith("import keras\nfrom keras.models import Sequential\nimport dl_comm.keras as dl")
    assert "model.compile(keras.optimizers.Adam(learning_rate=dl.lr_scale(0.001)))" in text


@pytest.mark.parametrize(("given", "scaled"), [('loss="mse"', True), ("", False), ("**options", False)])
def test_an_optimizer_that_compile_takes_where_it_is_given_none_is_written_out_with_its_rate_scaled(given, scaled):
    text = port(
        f"import keras\nmodel = keras.Sequential([keras.layers.Dense(1)])\nmodel.compile({given})\nmodel.fit(x, y)\n"
    ).text
    written = 'model.compile(optimizer=keras.optimizers.RMSprop(learning_rate=dl.lr_scale(0.001)), loss="mse")'
    assert (written in text) == scaled and ("lr_scale" in text) == scaled


def test_the_rate_of_an_optimizer_that_a_name_chooses_is_scaled_where_the_model_is_compiled() -> None:
    text = port("""import keras
import argparse
args = argparse.ArgumentParser().parse_args()
model = keras.Sequential()
model.compile(optimizer=args.optimizer, loss="mse")
model.fit(x, y)
""").text
    assert "model.optimizer.learning_rate = dl.lr_scale(float(model.optimizer.learning_rate))" in text


@pytest.mark.parametrize(
    ("schedule", "scaled"),
    [
        (
            "CosineDecay(0.1, 90, warmup_target=0.2, warmup_steps=9)",
            "CosineDecay(dl.lr_scale(0.1), dl.steps(90), warmup_target=dl.lr_scale(0.2), warmup_steps=dl.steps(9))",
        ),
        (
            "PiecewiseConstantDecay([30, 60], [0.1, 0.05, 0.01])",
            "PiecewiseConstantDecay(dl.steps([30, 60]), dl.lr_scale([0.1, 0.05, 0.01]))",
        ),
        ("ExponentialDecay(0.1, len(x) // 8, 0.9)", "ExponentialDecay(dl.lr_scale(0.1), dl.steps(len(x) // 8), 0.9)"),
    ],
)
def test_the_rates_of_a_schedule_are_scaled_and_its_steps_divided_once(schedule, scaled) -> None:
    source = f"""import keras
rate = keras.optimizers.schedules.{schedule}
one, two = keras.Sequential(), keras.Sequential()
one.compile(keras.optimizers.SGD(rate))
two.compile(keras.optimizers.SGD(rate))
one.fit(x, y)
two.fit(x, y)
"""
    assert f"rate = keras.optimizers.schedules.{scaled}\n" in port(source).text
    kept = port(source, Options(lr_scaling="none")).text
    assert "dl.lr_scale" not in kept
    assert kept.count("dl.steps") == scaled.count("dl.steps"), "fewer steps, also where the rate stays"


def test_a_class_that_trains_by_train_on_batch_and_that_nothing_runs_is_a_module_of_another_script() -> None:
    source = """import keras
import numpy as np
class Gan:
    def __init__(self):
        self.net = keras.Sequential([keras.layers.Dense(1)])
        self.net.compile(keras.optimizers.SGD(0.1), "mse")
    def train(self, n):
        for step in range(n):
            self.net.train_on_batch(*draw(np.random.randint(9)))
"""
    text = port(source).text
    assert "dl.init()" not in text
    assert "dl.finalize()" not in text
    assert "for step in range(dl.steps(n)):" in text
    assert "dl.init()" in port(source + "Gan().train(9)\n").text


def test_a_decay_by_steps_follows_the_serial_ones_and_one_that_no_rate_multiplies_is_a_rate() -> None:
    source = """import keras
import tensorflow_addons as tfa
model = keras.Sequential()
model.compile(tfa.optimizers.AdamW(lambda: 1e-4 * when(), learning_rate=0.1))
model.fit(x, y)
other = keras.Sequential()
other.compile(keras.optimizers.SGD(lr=0.1, decay=0.1 / 50, momentum=0.9, ema_momentum=0.99))
other.fit(x, y)
"""
    text = port(source).text
    assert "SGD(lr=dl.lr_scale(0.1), decay=dl.serial_steps(0.1 / 50), momentum=0.9, " in text
    assert "ema_momentum=dl.compound(0.99))" in text
    assert "AdamW(dl.lr_scale(lambda: 1e-4 * when()), learning_rate=dl.lr_scale(0.1))" in text


def test_a_schedule_of_the_scripts_own_class_is_scaled_as_a_whole() -> None:
    source = """import keras
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step): return step ** -0.5
model = keras.Sequential()
model.compile(keras.optimizers.Adam(Noam()))
model.fit(x, y)
"""
    assert "keras.optimizers.Adam(dl.lr_scale(Noam()))" in port(source).text
    assert 'keras.optimizers.Adam(dl.lr_scale(Noam(), "none"))' in port(source, Options(lr_scaling="none")).text


def test_a_rate_that_is_a_schedule_of_keras_or_something_else_is_scaled_as_a_whole() -> None:
    source = """import keras
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step): return step ** -0.5
if own: rate = Noam()
else: rate = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)
model = keras.Sequential()
model.compile(keras.optimizers.SGD(rate))
model.fit(x, y)
"""
    text = port(source).text
    assert "SGD(dl.lr_scale(rate))" in text and "ExponentialDecay(0.1, 100, 0.9)" in text
    plain = source.replace("Noam()", "0.1")
    assert "SGD(dl.lr_scale(rate))" in port(plain).text
    assert 'SGD(dl.lr_scale(rate, "none"))' in port(plain, Options(lr_scaling="none")).text


def test_what_a_session_runs_from_some_step_on_it_runs_from_the_one_that_stands_for_it() -> None:
    chosen = "            op = train_op if i < 50 else other\n            sess.run(op,"
    script = SESSION.replace("            sess.run(train_op,", chosen)
    script = script.replace("range(len(rows) // 8)", "range(50 + 70)")
    script = script.replace("saver =", "other = tf.train.AdamOptimizer(1e-4).minimize(loss)\nsaver =")
    script = script.replace("rows[i * 8 : i * 8 + 8]", "rows[np.random.choice(99, 8)]")
    script = script.replace("i * 8 : i * 8 + 8", ":8")
    ported = port(script)
    assert "range(dl.steps(50 + 70))" in ported.text or "range(dl.steps(120))" in ported.text
    assert "train_op if i < dl.steps(50) else other" in ported.text
    assert not [d for d in ported.doubts if "changes at this step" in d.why]


def test_the_steps_of_a_decay_of_tensorflow_1_are_divided_and_what_it_returns_is_scaled() -> None:
    made = "rate = tf.train.piecewise_constant(step, [100, 200], [0.1, 0.05, 0.01])\ntrain_op = "
    given = SESSION.replace("train_op = ", made).replace("AdamOptimizer(1e-3)", "AdamOptimizer(rate)")
    text = port(given).text
    assert "tf.train.piecewise_constant(step, dl.steps([100, 200]), [0.1, 0.05, 0.01])" in text
    assert "AdamOptimizer(dl.lr_scale(rate))" in text


def test_what_rank_0_has_written_is_read_by_rank_0_first_and_parts_of_a_model_are_saved_by_it_alone() -> None:
    source = """import keras
model = Autoencoder()
model.compile("adam")
model.fit(x, y, callbacks=[keras.callbacks.ModelCheckpoint("best.weights.h5")])
model.load_weights("best.weights.h5")
model.encoder.save("encoder.keras")
"""
    text = port(source).text
    refuses = [d for d in port(source.replace("ModelCheckpoint", "BackupAndRestore")).doubts if d.danger == "high"]
    assert "restores on one rank what the others lack" in refuses[0].why
    assert 'dl.rank0_first(model.load_weights)("best.weights.h5")' in text
    assert 'dl.rank0(model.encoder.save)("encoder.keras")' in text


def test_what_a_session_fetched_is_shown_as_all_ranks_have_it() -> None:
    shown = "            cost += c / (len(rows) // 8)\n            print(i, c)\n        print(cost)\n"
    script = SESSION.replace("sess.run(train_op,", "_, c = sess.run([train_op, loss],")
    script = script.replace("        for i in", "        cost = 0.0\n        for i in")
    script = script.replace("    saver.save", f"{shown}    saver.save")
    ported = port(script)
    assert "print(i, dl.average(c))" in ported.text
    assert "        cost = dl.total(cost)  # sums over all ranks' samples\n        print(cost)" in ported.text
    assert "adds up its share" not in ported.report()


def test_a_rate_that_a_tape_loop_sets_by_its_steps_is_told_those_of_all_ranks() -> None:
    text = port("""import tensorflow as tf
data = tf.data.TFRecordDataset("a").map(tf.io.parse_tensor).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
def rate(step):
    return 0.1 * min(1.0, step / 100)
step = 0
for x in data:
    opt.learning_rate.assign(rate(step))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    step += 1
""").text
    assert "opt.learning_rate.assign(dl.lr_scale(rate(dl.serial_steps(step))))" in text


@pytest.mark.parametrize("put", ["feed[c] = state", "feed.update({})"])
def test_a_session_that_feeds_back_what_it_fetched_goes_through_a_stretch(put: str) -> None:
    head, _ = SESSION.split("        for i in range")
    text = port(f"""{head}        for i in range(0, len(rows), 8):
            feed = {{x: rows[i : i + 8], c: {"state" if "update" in put else "0"}}}
            {put}
            _, state = sess.run([train_op, loss], feed_dict=feed)
""").text
    assert "rows = dl.stretch(rows)  # a stream" in text
    assert "dl.shard" not in text


HELD = """
import tensorflow as tf

class Trainer:
    def __init__(self, net):
        self.kept = tf.train.Checkpoint(step=tf.Variable(0), net=net, optimizer=tf.keras.optimizers.Adam(0.01))

    def train(self, data):
        kept = self.kept
        for x in data:
            kept.step.assign_add(1)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.kept.net(x) ** 2)
            weights = self.kept.net.trainable_variables
            self.kept.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

Trainer(tf.keras.Sequential([tf.keras.layers.Dense(1)])).train(tf.data.TFRecordDataset("a").map(f).batch(8))
"""


def test_a_model_and_an_optimizer_that_a_checkpoint_holds_are_broadcast_as_its_attributes() -> None:
    text = port(HELD).text
    assert "dl.broadcast_variables(kept.step, kept.net, kept.optimizer)  #" in text
    assert "optimizer=tf.keras.optimizers.Adam(dl.lr_scale(0.01))" in text
    named = HELD.replace("        self.kept =", "        self.net = net\n        self.kept =")
    named = named.replace("self.kept.net", "self.net").replace("    self.kept.optimizer", "    kept.optimizer")
    line = next(line for line in port(named).text.splitlines() if "dl.broadcast_variables(" in line)
    assert line.count(".net") == 1 and line.count(".optimizer") == 1


TO_A_STEP = """import tensorflow as tf
data = tf.data.TFRecordDataset("a").map(tf.io.parse_tensor).batch(8).repeat()
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
kept = tf.train.Checkpoint(done=tf.Variable(0), model=model)
for x in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    kept.done.assign_add(1)
    step = opt.iterations.numpy()
    if END:
        break
"""
TO_A_STEP_OF_A_SESSION = """import numpy as np
import tensorflow as tf
rows = np.load("rows.npy")
x = tf.placeholder(tf.float32, [None, 8])
done = tf.Variable(0, trainable=False)
op = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(tf.layers.dense(x, 1)), global_step=done)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(99):
        for i in range(0, len(rows), 8):
            _, count = sess.run([op, done], {x: rows[i : i + 8]})
            step = tf.train.global_step(sess, done)
            if END:
                break
"""


@pytest.mark.parametrize(
    ("script", "end", "written"),
    [
        (TO_A_STEP, "step >= 900", "step >= dl.steps(900)"),
        (TO_A_STEP, "int(kept.done) == most", "int(kept.done) == dl.steps(most)"),
        (TO_A_STEP, "float(loss) < 900", "dl.average(float(loss)) < 900"),
        (TO_A_STEP_OF_A_SESSION, "step == 900", "step == dl.steps(900)"),
        (TO_A_STEP_OF_A_SESSION, "count > 900", "count > dl.steps(900)"),
        (TO_A_STEP_OF_A_SESSION, "sess.run(done) > 900", "sess.run(done) > dl.steps(900)"),
    ],
)
def test_a_number_of_steps_that_tensorflow_counts_ends_the_training_after_as_many_samples(script, end, written) -> None:
    assert f"if {written}:" in port(script.replace("END", end)).text


def test_steps_that_a_ranks_number_of_them_in_an_epoch_turns_into_epochs_are_divided() -> None:
    text = port("""import numpy as np
import tensorflow as tf
def load():
    rows = np.load("rows.npy")
    return rows, len(rows)
rows, count = load()
x = tf.placeholder(tf.float32, [None, 8])
op = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(tf.layers.dense(x, 1)))
batches = count // 32
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    epochs = int(900 / batches)
    for epoch in range(epochs):
        for i in range(batches):
            sess.run(op, {x: rows[np.random.choice(count, 32)]})
""").text
    assert "batches = dl.steps(count // 32)" in text
    assert "epochs = int(dl.steps(900) / batches)" in text


ANNEALED = """import tensorflow as tf
train = tf.data.Dataset.from_tensor_slices(samples).batch(16)
net = tf.keras.Sequential([tf.keras.layers.Dense(4)])
opt = tf.keras.optimizers.Adam(1e-3)
done, seen, best = 0, tf.Variable(0.0), 0
def losses(x, weight):
    rest = tf.reduce_mean((net(x) - x) ** 2)
    size = tf.reduce_mean(net(x) ** 2)
    return rest + weight * size, rest
@tf.function
def train_step(x, weight):
    with tf.GradientTape() as tape:
        loss, rest = losses(x, weight)
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    return loss
for epoch in range(3):
    for i, x in enumerate(train):
        loss = train_step(x, WEIGHT)
        done += 1
        seen.assign_add(1.0)
        if done % 20 == 0:
            print(f"step {done} loss {loss.numpy():.3f}")
    print(losses(x, 1.0)[0])
"""


@pytest.mark.parametrize(
    ("weight", "written"),
    [
        ("min(1.0, done / 500)", "min(1.0, dl.serial_steps(done) / 500)"),
        ("tf.minimum(1.0, seen / 500)", "tf.minimum(1.0, dl.serial_steps(seen) / 500)"),
        ("tf.cast(opt.iterations, tf.float32) / 9", "tf.cast(dl.serial_steps(opt.iterations), tf.float32) / 9"),
        ("0.99 ** i", "0.99 ** dl.serial_steps(i)"),
        ("table[done]", "table[dl.serial_steps(done)]"),
        ("table[done % 9]", "table[done % 9]"),
        ("0.99 ** epoch", "0.99 ** epoch"),
    ],
)
def test_weights_of_a_tape_loops_losses_follow_the_serial_steps(weight, written):
    text = port(ANNEALED.replace("WEIGHT", weight)).text
    assert f"train_step(x, {written})" in text and text.count("serial_steps") == 1 + ("serial_steps" in written)
    assert "if done % dl.steps(20) == 0:" in text and 'print(f"step {dl.serial_steps(done)} loss' in text


def test_a_loss_that_a_function_of_the_samples_makes_beside_others_is_averaged_where_it_is_shown():
    assert "loss {dl.average(loss.numpy()):.3f}" in port(ANNEALED.replace("WEIGHT", "1.0")).text


@pytest.mark.parametrize(
    ("compiled", "made", "written"),
    [
        ("first, keras.optimizers.Adam(0.2)", "second", "Net().compile(first, dl.DistributedOptimizer(keras."),
        ("first, second=keras.optimizers.Adam(0.2)", "second", "second=dl.DistributedOptimizer(keras."),
        ("first", "keras.optimizers.Adam(0.2)", "self.critics = dl.DistributedOptimizer(keras."),
    ],
)
def test_what_a_train_step_applies_gradients_with_beside_the_models_optimizer_averages(compiled, made, written):
    text = port(f"""import keras, tensorflow as tf
first = keras.optimizers.SGD(0.1)
class Net(keras.Model):
    def compile(self, first, second=None):
        super().compile(optimizer=first)
        self.critics = {made}
        self.size = 3
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(data))
        self.critics.apply_gradients(zip(tape.gradient(loss, self.variables), self.variables))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.variables), self.variables))
        return {{"loss": loss}}
model = Net()
model.compile({compiled})
model.fit(x)
""").text
    assert written.replace("Net()", "model") in text and text.count("DistributedOptimizer") == 1


BY_EPOCHS = """import tensorflow as tf
data = tf.data.Dataset.from_tensor_slices(tf.random.normal((512, 4))).shuffle(512).repeat().batch(8)
model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
batches, epoch, step = iter(data), 1, 1
while epoch <= 3:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(next(batches)) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    if step % 16 == 0:
        print(epoch, step, float(loss))
    step += 1
    epoch = step // 64 + 1
"""


def test_the_epochs_that_steps_make_end_the_training_after_as_many_samples() -> None:
    ported = port(BY_EPOCHS)
    assert "epoch = step // dl.steps(64) + 1" in ported.text
    assert "print(epoch, dl.serial_steps(step), dl.average(float(loss)))" in ported.text
    assert not [doubt for doubt in ported.doubts if doubt.danger != "low"]
