"""Ports of TensorFlow 1 scripts whose sessions, models and loops lie apart: in classes, functions, other modules."""

from __future__ import annotations

import pytest

from dlrun.errors import DlrunError
from dlrun.port import port
from dlrun.port.files import read_and_port

MODEL = """import numpy as np
import tensorflow.compat.v1 as tf

class Model:
    def __init__(self, sess, name):
        self.sess = sess
        with tf.variable_scope(name):
            self.x = tf.placeholder(tf.float32, [None, 3])
            self.cost = tf.reduce_mean(tf.layers.dense(self.x, 1) ** 2)
        self.update = tf.train.AdamOptimizer(1e-3).minimize(self.cost)

    def train(self, rows):
        return self.sess.run([self.cost, self.update], feed_dict={self.x: rows})

rows = np.load("rows.npy")
sess = tf.Session()
"""
LOOP = """sess.run(tf.global_variables_initializer())
for epoch in range(5):
    for i in range(len(rows) // 8):
        c, _ = model.train(rows[i * 8 : i * 8 + 8])
"""
ONE = f'{MODEL}model = Model(sess, "a")\n{LOOP}'
MANY = (
    MODEL
    + 'models = []\nfor k in range(3):\n    models.append(Model(sess, "m" + str(k)))\n'
    + LOOP.replace("        c, _ = model", "        for model in models:\n            c, _ = model")
)


@pytest.mark.parametrize(("source", "session"), [(ONE, "model.sess"), (MANY, "sess")])
def test_a_model_that_trains_by_a_method_starts_alike_before_the_loop_that_calls_it(source, session) -> None:
    text = port(source).text
    assert f"\n{session}.run(dl.broadcast_variables())  # every rank" in text
    assert text.index("broadcast_variables") < text.index("for epoch in range(5)")
    assert "for i in dl.shard(range(len(rows) // 8)):" in text
    assert "self.update = dl.DistributedOptimizer(tf.train.AdamOptimizer(dl.lr_scale(1e-3))).minimize(" in text


def test_the_steps_of_a_decay_that_is_part_of_a_sum_are_divided() -> None:
    rate = "tf.train.exponential_decay(1e-3, counter, decay_steps=900, decay_rate=0.1) + floor"
    text = port(ONE.replace("AdamOptimizer(1e-3)", f"AdamOptimizer({rate})")).text
    assert "decay_steps=dl.steps(900)" in text
    falling = ONE.replace("AdamOptimizer(1e-3)", "AdamOptimizer(rate)").replace("\nclass", "\nrate = 1e-3\nclass")
    assert "AdamOptimizer(dl.lr_scale(rate))" in port(falling + "    rate = rate * 0.5\n").text
    assert f"AdamOptimizer(dl.lr_scale({rate.replace('900', 'dl.steps(900)')}))" in text


FED = """import math
import tensorflow as tf
a, rate = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [])
op = tf.train.AdamOptimizer(rate).minimize(tf.reduce_mean(tf.layers.dense(a, 1)))
with tf.Session() as sess:
    def train_step(x, lr):
        feed = {a: x, rate: lr}
        sess.run(op, feed)
    sess.run(tf.global_variables_initializer())
    done = 0
    for epoch in range(3):
        for i in range(0, len(rows), 8):
            lr = 0.1 * math.exp(-done / 20)
            done += 1
            train_step(rows[i:i + 8], lr)
"""


def test_a_weight_that_a_run_is_fed_follows_the_serial_steps() -> None:
    weight = FED.replace("Optimizer(rate)", "Optimizer(1e-3)").replace("a, 1)))", "a, 1)) * rate)")
    assert "lr = 0.1 * math.exp(-dl.serial_steps(done) / 20)" in port(weight).text
    assert "serial_steps" not in port(weight.replace("(-done", "(-epoch")).text


def test_a_rate_that_a_run_is_fed_follows_the_serial_steps() -> None:
    assert "lr = 0.1 * math.exp(-dl.serial_steps(done) / 20)" in port(FED).text
    assert "serial_steps" not in port(FED.replace("(-done", "(-epoch")).text


@pytest.mark.parametrize(
    ("shown", "written"),
    [
        ("sess.run(count)", "dl.serial_steps(sess.run(count))"),
        ("tf.train.global_step(sess, count)", "dl.serial_steps(tf.train.global_step(sess, count))"),
        ("count.eval(session=sess)", "dl.serial_steps(count.eval(session=sess))"),
        ('sess.run(held["count"])', 'dl.serial_steps(sess.run(held["count"]))'),
        ('sess.run({"at": count})["at"]', 'dl.serial_steps(sess.run({"at": count})["at"])'),
    ],
)
def test_updates_so_far_that_a_run_beside_the_training_fetches_are_the_serial_ones(shown, written) -> None:
    counted = ONE.replace(".minimize(self.cost)", ".minimize(self.cost, global_step=count)")
    made = '\ncount = tf.train.get_or_create_global_step()\nheld = {"count": count}\n\nclass Model'
    text = port(counted.replace("\nclass Model", made, 1) + f"    print('epoch', epoch, {shown})\n").text
    assert f"print('epoch', epoch, {written})" in text


def test_each_session_in_which_a_loop_trains_starts_alike() -> None:
    source = ONE.replace('model = Model(sess, "a")', 'model, critic = Model(sess, "a"), Model(other, "b")')
    text = port(source.replace("c, _ = model.train(", "critic.train(rows[i * 8 : i * 8 + 8]); model.train(")).text
    assert "\nmodel.sess.run(dl.broadcast_variables())" in text
    assert "\ncritic.sess.run(dl.broadcast_variables())" in text


def test_a_session_that_an_argument_brings_is_named_as_the_caller_does() -> None:
    head = MODEL.replace("self.sess.run([self.cost, self.update]", "tell([self.cost]")
    source = f"""{head}
def update(session, op, rows):
    session.run(op, feed_dict={{model.x: rows}})

model = Model(sess, "a")
for i in range(len(rows) // 8):
    update(sess, model.update, rows[i * 8 : i * 8 + 8])
"""
    assert "\nsess.run(dl.broadcast_variables())" in port(source).text


def test_models_with_sessions_of_their_own_out_of_a_list_are_refused() -> None:
    source = MANY.replace("self.sess = sess", "self.sess = tf.Session()")
    with pytest.raises(DlrunError, match=r"no loop around this run in which self\.sess can be named"):
        port(source)


ENTRY = """import numpy as np
import tensorflow.compat.v1 as tf

class Net:
    def __init__(self, sess):
        self.sess = sess
        self.x = tf.placeholder(tf.float32, [None, 3])
        self.loss = tf.reduce_mean(tf.layers.dense(self.x, 1) ** 2)

    def train(self, rows):
        update = tf.train.AdamOptimizer(1e-3).minimize(self.loss)
        self.sess.run(tf.global_variables_initializer())
        for i in range(len(rows) // 8):
            self.sess.run(update, feed_dict={self.x: rows[i * 8 : i * 8 + 8]})
"""


def test_a_method_that_holds_the_whole_loop_is_ported_for_the_script_that_calls_it(tmp_path) -> None:
    for name, text in {"net.py": ENTRY, "main.py": "import sys\nfrom net import Net\nNet(sess).train(rows)\n"}.items():
        (tmp_path / name).write_text(text)
    ported = read_and_port(tmp_path / "net.py")
    assert "        self.sess.run(dl.broadcast_variables())  # every rank" in ported.text
    assert "dl.DistributedOptimizer(tf.train.AdamOptimizer(dl.lr_scale(1e-3))).minimize(self.loss)" in ported.text
    assert "for i in dl.shard(range(len(rows) // 8)):" in ported.text
    assert "dl.init()" not in ported.text
    assert "dl.finalize()" not in ported.text
    (told,) = [d for d in ported.doubts if "nothing in this file calls train()" in d.why]
    assert told.danger == "high"
    assert "dlrun port main.py --out-dir FOLDER takes this file along" in told.write


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("        for i in range(len(rows) // 8):\n    ", "", r"nothing in this file calls train\(\)"),
        ("self.sess.run(update", "self.sess.run(self.train_op", r"nothing in this file calls train\(\)"),
        ("self.sess.run(update", "self.sess.run(self.loss", "makes an update that nothing in this file runs"),
    ],
)
def test_half_of_what_trains_is_refused_with_the_file_to_port_in_its_place(old, new, reason, tmp_path) -> None:
    (tmp_path / "net.py").write_text(ENTRY.replace(old, new))
    (tmp_path / "main.py").write_text("import net\n")
    with pytest.raises(DlrunError, match=reason) as refused:
        read_and_port(tmp_path / "net.py")
    assert "Port main.py, which imports it: dlrun port main.py" in refused.value.hint


BRANCHES = """
import tensorflow.compat.v1 as tf
from privacy import noisy
x = tf.placeholder(tf.float32, [None, 3])
if FLAGS.private:
    optimizer = noisy.NoisyAdam(learning_rate=0.1)
else:
    optimizer = tf.train.AdamOptimizer(0.1)
update = optimizer.minimize(tf.reduce_mean(tf.layers.dense(x, 1) ** 2))
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(len(rows) // 8):
        sess.run(update, feed_dict={x: rows[i * 8 : i * 8 + 8]})
"""


def test_an_optimizer_of_a_foreign_class_averages_where_it_takes_anothers_place() -> None:
    assert port(BRANCHES).text.count("    optimizer = dl.DistributedOptimizer(optimizer)") == 2


EPOCHS = """import numpy as np
import tensorflow.compat.v1 as tf
batches, n = read()
x = tf.data.make_one_shot_iterator(batches.repeat()).get_next()
loss = tf.reduce_mean(tf.layers.dense(x, 1) ** 2)
train_op = tf.train.AdamOptimizer(1e-3).minimize(loss)
saver = tf.train.Saver()
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    turns = len(rows) // 8
    for i in range(turns):
        sess.run(loss, feed_dict={x: rows[i * 8 : i * 8 + 8]})
    turns = 5 * n
    for i in range(turns):
        sess.run(train_op)
        if (i + 1) % n == 0:
            saver.save(sess, "model", (i + 1) // n)
        if (i + 1) % 100 == 0:
            print(i, sess.run(loss, {x: rows}) / n)
"""


def test_the_end_of_an_epoch_is_told_by_a_ranks_steps_where_they_count_to_a_multiple_of_them() -> None:
    text = port(EPOCHS).text
    assert "    turns = len(rows) // 8\n" in text  # a pass over other samples, with the same name
    assert "    turns = 5 * dl.steps(n)\n" in text
    assert "if dl.should_stop() or (i + 1) % dl.steps(n) == 0:" in text
    assert '(sess, "model", (i + 1) // dl.steps(n))' in text
    assert (
        "(i + 1) % dl.steps(100) == 0" in text
        and "print(dl.serial_steps(i + 1) - 1, sess.run(loss, {x: rows}) / n)" in text
    )


GOES_ON = (
    EPOCHS[: EPOCHS.index("    turns = len")]
    + """    step = begin = start = 0
    if restored():
        step = int(tf.train.latest_checkpoint("model").split("-")[-1])
        start = int(step / n)
        begin = step - start * n
    for epoch in range(start, 5):
        for i in range(begin, n):
            sess.run(train_op)
            step += 1
        begin = 0
        saver.save(sess, "model", step)
        print(epoch, step / n)
"""
)


def test_a_run_that_goes_on_finds_its_place_by_a_ranks_own_steps() -> None:
    text = port(GOES_ON).text
    assert "start = int(step / dl.steps(n))\n        begin = step - start * dl.steps(n)\n" in text
    assert "for i in range(begin, dl.steps(n)):" in text and "print(epoch, dl.serial_steps(step) / n)" in text
    assert '(sess, "model", step)' in text  # a run goes on by the count of its own steps
    assert any("names of its files" in doubt.why for doubt in port(GOES_ON).doubts)
    fed = GOES_ON.replace("sess.run(train_op)", "sess.run(train_op, {x: rows[i * 8 : i * 8 + 8]})")
    iterated = "tf.data.make_one_shot_iterator(batches.repeat()).get_next()"
    fed = fed.replace(iterated, "tf.placeholder(tf.float32)")
    assert "in dl.shard(range(dl.serial_steps(begin), n)):" in port(fed).text
    fed = fed.replace("            step += 1", "            step += 1\n            print(i) if i % 9 == 0 else None")
    text = port(fed).text
    assert "start * dl.steps(n)" in text and "in dl.turns(range(dl.serial_steps(begin), n)):" in text


def test_both_ends_of_a_range_that_goes_on_from_epoch_to_epoch_are_a_ranks_own_steps() -> None:
    head, tail = EPOCHS.split("    turns = 5 * n\n    for i in range(turns):")

    def spanning(ends: str) -> str:
        return port(f"{head}    for epoch in range(5):\n      for i in range({ends}):{tail}").text

    text = spanning("epoch * n, (epoch + 1) * n")
    assert "for i in range(epoch * dl.steps(n), (epoch + 1) * dl.steps(n)):" in text
    text = spanning("epoch * self.n, epoch * self.n + self.n")
    assert "in range(epoch * dl.steps(self.n), epoch * dl.steps(self.n) + dl.steps(self.n)):" in text
    assert "for i in range(begin + 1, dl.steps(n)):" in spanning("begin + 1, n")


BEHIND = """import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [None, 3])
w = tf.Variable(tf.zeros([3, 1]))
loss = tf.reduce_mean((x @ w - 1) ** 2)
step = tf.train.get_or_create_global_step()
last = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
means = tf.train.ExponentialMovingAverage(0.99, step)
with tf.control_dependencies([last]):
    fetched = FETCHED
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(1000):
        sess.run(fetched, {x: data.next_batch(32)})
"""


@pytest.mark.parametrize("fetched", ["tf.no_op()", "means.apply(tf.trainable_variables())", "tf.identity(loss)"])
def test_what_is_run_behind_an_update_is_the_step_and_means_of_weights_forget_as_in_the_serial_run(fetched) -> None:
    text = port(BEHIND.replace("FETCHED", fetched)).text
    assert "for i in range(dl.steps(1000)):" in text
    assert "ExponentialMovingAverage(dl.compound(0.99), step)" in text


NESTED = """import numpy as np
import tensorflow.compat.v1 as tf
rows = np.load("rows.npy")
x = tf.placeholder(tf.float32, [None, 3])
train = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(tf.layers.dense(x, 1) ** 2))
saver = tf.train.Saver()
most = 400
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(most):
        def is_last():
            return step == most - 1
        sess.run(train, {x: rows[np.random.randint(0, 640, 32)]})
        if is_last():
            saver.save(sess, "model")
"""


def test_a_bound_that_a_function_reads_is_divided_once() -> None:
    text = port(NESTED).text
    assert text.count("dl.steps(") == 1 and "return step == most - 1" in text


STREAMING = """import numpy as np
import tensorflow.compat.v1 as tf
rows, labels = np.load("rows.npy"), np.load("labels.npy")
x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.int64, [None])
logits = tf.layers.dense(x, 3)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
right, update = tf.metrics.accuracy(y, tf.argmax(logits, 1))
anew = tf.local_variables_initializer()
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(3):
        sess.run(anew)
        for i in range(0, len(rows), 8):
            sess.run(FETCHED, {x: rows[i : i + 8], y: labels[i : i + 8]})
BEHIND
"""


@pytest.mark.parametrize(
    ("fetched", "behind", "doubts"),
    [
        ("[train, update]", "        print(sess.run(right))", ["unknown-placement"]),
        ("train", "        print(sess.run(update, {x: rows, y: labels}), sess.run(right))", []),
        ("[train, update]", "        sess.run([anew])\n        sess.run(update, {x: rows, y: labels})", []),
        ("[train, update]", "        sess.run(anew)\n        print(sess.run(right))", []),
    ],
)
def test_a_streaming_metric_of_a_ranks_own_samples_is_told_of(fetched, behind, doubts) -> None:
    made = port(STREAMING.replace("FETCHED", fetched).replace("BEHIND", behind))
    assert [d.name for d in made.doubts if d.danger != "low"] == doubts


TALLIED = STREAMING.replace(
    "right, update = tf.metrics.accuracy(y, tf.argmax(logits, 1))",
    "seen = tf.Variable(0, trainable=False)\nmore = UPDATE",
)


@pytest.mark.parametrize(
    ("update", "fetched", "shown", "doubts"),
    [
        ("tf.assign_add(seen, tf.shape(x)[0])", "[train, more]", "sess.run(seen)", ["unknown-placement"]),
        ("seen.assign_add(tf.size(y))", "tf.group(train, more)", "sess.run(seen)", ["unknown-placement"]),
        ("tf.assign(seen, tf.reduce_max(y))", "[train, more]", "sess.run([seen, loss], feed)", ["unknown-placement"]),
        ("tf.assign_add(seen, tf.shape(x)[0])", "[train, more]", "sess.run(logits, {x: rows})", []),
        ("tf.assign_add(seen, 2)", "train", "sess.run(seen)", []),
    ],
)
def test_what_a_graph_keeps_of_a_ranks_own_samples_in_a_variable_is_told_of(update, fetched, shown, doubts) -> None:
    source = TALLIED.replace("UPDATE", update).replace("FETCHED", fetched)
    made = port(source.replace("BEHIND", f"        feed = {{x: rows, y: labels}}\n        print({shown})"))
    assert [d.name for d in made.doubts if d.danger != "low"] == doubts


STEPS = """import numpy as np
import tensorflow.compat.v1 as tf
rng = np.random.default_rng(3)
x, held = rng.normal(size=(96, 4)).astype("float32"), np.ones((8, 4), "float32")
feed = tf.placeholder(tf.float32, [None, 4])
loss = tf.reduce_mean(tf.layers.dense(feed, 1) ** 2)
count = tf.train.get_or_create_global_step()
train_op = tf.train.AdamOptimizer(1e-3).minimize(loss, global_step=count)
best, bad = 1e9, 0
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(3):
        for i in range(12):
            _, step = sess.run([train_op, count], {feed: x[i * 8 : i * 8 + 8]})
            if step % 6 == 0:
                found = sess.run(loss, {feed: held})
                print("step", step, found)
                if found < best:
                    best, bad = found, 0
                else:
                    bad += 1
        if bad > 3:
            break
    print(best, bad)
"""


def test_what_a_run_fetches_of_the_global_step_is_shown_as_the_serial_number_and_as_often() -> None:
    made = port(STEPS)
    assert "if step % dl.steps(6) == 0:" in made.text
    assert 'print("step", dl.serial_steps(step), found)' in made.text


def test_a_global_step_that_a_function_is_handed_is_read_as_the_updates_so_far() -> None:
    source = """import numpy as np
import tensorflow.compat.v1 as tf
rows = np.load("rows.npy")
def training(x, loss, train, global_step):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        iteration = global_step.eval()
        for i in range(0, 64, 8):
            c, _ = sess.run([loss, train], {x: rows[i : i + 8]})
            if (iteration + 1) % 4 == 0:
                print("step", iteration, c)
            iteration += 1
def main():
    x = tf.placeholder(tf.float32, [None, 3])
    loss = tf.reduce_mean(tf.layers.dense(x, 1) ** 2)
    step = tf.Variable(0, trainable=False)
    training(x, loss, tf.train.AdamOptimizer(1e-3).minimize(loss, global_step=step), step)
main()
"""
    text = port(source).text
    assert 'print("step", dl.serial_steps(iteration + 1) - 1, dl.average(c))' in text


def test_a_run_between_updates_is_of_local_samples_where_it_is_fed_them_and_whole_where_it_is_not() -> None:
    source = """import numpy as np
import tensorflow.compat.v1 as tf
from settings import cfg
feed = tf.placeholder(tf.float32, [None, 3])
cost = tf.reduce_mean(tf.layers.dense(feed, 1) ** 2) * cfg.scale
update = tf.train.AdamOptimizer(1e-3).minimize(cost)
def fed(rows):
    return {feed: rows}
def batches(rows, size):
    rows = rows[np.random.permutation(len(rows))]
    for i in range(len(rows) // size):
        yield rows[i * size : (i + 1) * size]
def evaluate(sess, rows):
    total = 0.0
    for part in batches(rows, 16):
        total += sess.run(cost, feed_dict=fed(part)) * len(part)
    return total / len(rows)
def train(rows, held):
    best = at = count = 0
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for part in batches(rows, 8):
            if count % 4 == 0:
                now = sess.run(cost, feed_dict=fed(part))
                found = evaluate(sess, held)
                if found > best:
                    best, at = found, count
                print(count, now, found)
            sess.run(update, feed_dict=fed(part))
            count += 1
            if count - at > 1000:
                break
train(np.load("rows.npy"), np.load("held.npy"))
"""
    made = port(source)
    assert "print(dl.serial_steps(count), dl.average(now), found)" in made.text
    assert "may-hang" not in {doubt.name for doubt in made.doubts}  # all ranks find one number, and stop together


def test_the_best_of_what_all_ranks_find_of_whole_data_every_so_often_is_one_number() -> None:
    made = port(STEPS)
    assert "    if bad > 3:\n" in made.text and "    print(best, bad)\n" in made.text
    assert not [d for d in made.doubts if d.danger != "low"]


ONE_OF_TWO = """import numpy as np
import tensorflow.compat.v1 as tf
rng = np.random.default_rng(3)
x = rng.normal(size=(96, 4)).astype("float32")
ds = tf.data.Dataset.from_tensor_slices(x).batch(8)
held = tf.data.Dataset.from_tensor_slices(x[:24]).batch(8)
it = tf.data.Iterator.from_structure(tf.data.get_output_types(ds), tf.data.get_output_shapes(ds))
start_train, start_val = it.make_initializer(ds), it.make_initializer(held)
loss = tf.reduce_mean(tf.layers.dense(it.get_next(), 1) ** 2)
train_op = tf.train.AdamOptimizer(1e-3).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(3):
        sess.run(start_train)
        try:
            while True:
                sess.run(train_op)
        except tf.errors.OutOfRangeError:
            pass
"""


def test_of_initializers_that_one_line_makes_that_of_the_training_is_shared_and_no_generator_is_cut() -> None:
    made = port(ONE_OF_TWO)
    assert "= it.make_initializer(dl.shard(ds)), it.make_initializer(held)\n" in made.text
    assert "dl.shard(rng" not in made.text
    unnamed = port(ONE_OF_TWO.replace("start_train", "first").replace("start_val", "second"))
    assert "= it.make_initializer(dl.shard(ds)), it.make_initializer(held)\n" in unnamed.text


def test_what_an_iterator_draws_that_is_set_to_data_later_is_of_an_iterations_samples() -> None:
    run = "sess.run(train_op)\n"
    told = "_, value = sess.run([train_op, loss])\n                total, n = total + value, n + 1\n"
    shown = "                print(value)\n        except tf.errors.OutOfRangeError:\n            print(total / n)\n"
    source = ONE_OF_TWO.replace(run, told).replace(
        "        except tf.errors.OutOfRangeError:\n            pass\n", shown
    )
    source = source.replace("        sess.run(start_train)", "        total, n = 0.0, 0\n        sess.run(start_train)")
    for named in ("", ", name='loss'"):
        made = port(source.replace(" ** 2)", f" ** 2{named})"))
        assert "print(dl.average(value))" in made.text
        assert "total, n = dl.total(total, n)" in made.text


HOOKED = """import numpy as np
import tensorflow.compat.v1 as tf
x, y = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices((xs, ys)).repeat(3).batch(8)).get_next()
loss = tf.losses.sparse_softmax_cross_entropy(y, tf.layers.dense(x, 3))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=tf.train.get_or_create_global_step())


class Hook(BASE):
    def begin(self):
        self.losses, self.steps = [], 0

    def before_run(self, context):
        return tf.train.SessionRunArgs(loss)

    def after_run(self, context, values):
        BODY


with tf.train.MonitoredTrainingSession(hooks=[Hook()]) as sess:
    while not sess.should_stop():
        sess.run(train)
"""


@pytest.mark.parametrize("base", ["tf.train.SessionRunHook", "tf.estimator.SessionRunHook"])
@pytest.mark.parametrize(
    ("body", "doubted"),
    [("self.losses.append(values.results)", True), ("self.steps += 1", True), ("context.session.graph", False)],
)
def test_what_a_hook_of_the_script_keeps_of_the_runs_that_it_sees_is_doubted(base, body, doubted) -> None:
    doubts = port(HOOKED.replace("BASE", base).replace("BODY", body)).doubts
    assert ("sees this rank's runs alone" in " ".join(d.why for d in doubts)) is doubted
    assert "may-hang" not in [d.name for d in doubts]


def test_sums_of_a_loop_that_an_exception_ends_in_another_function_are_told() -> None:
    source = """import tensorflow.compat.v1 as tf
it = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(rows).batch(4))
loss = tf.reduce_mean(tf.square(tf.layers.dense(it.get_next(), 1)))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)

def epoch(sess, sums):
    while True:
        _, value = sess.run([train, loss])
        sums["loss"] += value

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(it.initializer)
    sums = {"loss": 0.0}
    try:
        epoch(sess, sums)
    except tf.errors.OutOfRangeError:
        pass
    print(sums["loss"])
"""
    made = port(source)
    assert "dl.total" not in made.text
    assert any("it ends by an exception" in doubt.why for doubt in made.doubts)


def test_a_count_of_a_loop_that_an_exception_ends_is_known_behind_it_from_epoch_to_epoch() -> None:
    source = ONE_OF_TWO.replace("    for epoch in range(3):", "    step = 0\n    for epoch in range(3):")
    source = source.replace("sess.run(train_op)\n", "sess.run(train_op)\n                step += 1\n")
    made = port(f"{source}        print('end of epoch', epoch, step)\n    print(step)\n")
    assert "print('end of epoch', epoch, dl.serial_steps(step))\n    print(dl.serial_steps(step))\n" in made.text
    assert {d.danger for d in made.doubts} == {"low"}


RESUMES = """import os
import numpy as np
import tensorflow.compat.v1 as tf
rows = np.load("rows.npy")
feed = tf.placeholder(tf.float32, [None, 3])
rate = tf.placeholder(tf.float32)
cost = tf.reduce_mean(tf.layers.dense(feed, 1) ** 2)
update = tf.train.MomentumOptimizer(rate, 0.9).minimize(cost)
saver = tf.train.Saver()
batches = len(rows) // 8
def load(sess):
    ckpt = tf.train.get_checkpoint_state("kept")
    if ckpt and ckpt.model_checkpoint_path:
        name = os.path.basename(ckpt.model_checkpoint_path)
        saver.restore(sess, os.path.join("kept", name))
        return True, int(name.split("-")[-1])
    return False, 0
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    found, counter = load(sess)
    lr, begin, at = 0.1, 0, 0
    if found:
        begin = int(counter / batches)
        at = counter - begin * batches
        if begin >= 5:
            lr = lr * 0.1
        print("goes on at", begin)
    for epoch in range(begin, 10):
        for i in range(at, batches):
            c, _ = sess.run([cost, update], {feed: rows[i * 8 : i * 8 + 8], rate: lr})
            counter += 1
            if counter % 100 == 0:
                print(counter, c)
        at = 0
        saver.save(sess, "kept/model", global_step=counter)
"""


def test_an_epoch_that_is_made_of_the_steps_in_a_checkpoints_name_is_the_serial_one() -> None:
    text = port(RESUMES).text
    assert "begin = int(counter / dl.steps(batches))" in text and "        if begin >= 5:" in text
    assert 'print("goes on at", begin)' in text and "print(dl.serial_steps(counter), dl.average(c))" in text


READER = """import numpy as np
import tensorflow.compat.v1 as tf
FLAGS = tf.flags.FLAGS
class Reader:
    def __init__(self, rows):
        self.rows, self.at, self.epochs = rows, 0, 0
    def next_batch(self, size):
        start = self.at
        self.at += size
        if self.at > self.rows.shape[0]:
            self.rows = self.rows[np.random.permutation(len(self.rows))]
            start, self.at = 0, size
        return self.rows[start : self.at]
feed = tf.placeholder(tf.float32, [None, 3])
queue = tf.FIFOQueue(8, [tf.float32])
cost = tf.reduce_mean(tf.square(tf.layers.dense(feed, 1)))
update = tf.train.AdamOptimizer(1e-3).minimize(cost)
reader = Reader(np.load("rows.npy"))
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(100):
        sess.run(update, {feed: reader.next_batch(FLAGS.batch_size)})
"""


def test_what_draws_this_ranks_samples_counts_them_as_it_is_and_a_queue_that_threads_fill_is_told() -> None:
    made = port(READER)
    assert "dl.average" not in made.text and "dl.shard(reader.next_batch)(FLAGS.batch_size)" in made.text
    assert "not-shared" in {doubt.name for doubt in made.doubts}


NORM = """import numpy as np
import tensorflow.compat.v1 as tf
rows = np.load("rows.npy")
x = tf.placeholder(tf.float32, [None, 3])
class Norm:
    def __init__(self, width):
        self.mean = tf.Variable(np.zeros(width).astype(np.float32), trainable=False)
    def forward(self, out, training, decay=0.9):
        if training:
            mean, var = tf.nn.moments(out, [0])
            moved = tf.assign(self.mean, self.mean * decay + mean * (1 - decay))
            with tf.control_dependencies([moved]):
                return tf.nn.batch_normalization(out, mean, var, None, None, 1e-4)
        return tf.nn.batch_normalization(out, self.mean, 1.0, None, None, 1e-4)
class Net:
    def set_session(self, session):
        self.session = session
    def fit(self, rows):
        norm, self.x = Norm(3), tf.placeholder(tf.float32, [None, 3])
        loss = tf.reduce_mean(norm.forward(tf.layers.dense(self.x, 3), True) ** 2)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        self.test = tf.reduce_mean(norm.forward(tf.layers.dense(self.x, 3), False) ** 2)
        print(self.test, loss)
        self.session.run(tf.global_variables_initializer())
        for i in range(0, 64, 8):
            self.session.run(train, {self.x: rows[i : i + 8]})
        print(self.session.run(self.test, {self.x: rows}))
net = Net()
net.set_session(tf.InteractiveSession())
net.fit(rows)
"""


def test_a_mean_that_a_graph_moves_by_local_samples_and_tests_with_is_told() -> None:
    told = [doubt for doubt in port(NORM).doubts if doubt.danger != "low"]
    assert len(told) == 1 and "self.mean" in told[0].why  # and nothing of the tensors that are printed before a run
    still = NORM.replace("self.mean * decay + mean * (1 - decay)", "self.mean * decay")
    assert not [doubt for doubt in port(still).doubts if "self.mean" in doubt.why]


def test_a_tape_that_trains_beside_a_session_is_told() -> None:
    tape = """model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
for i in range(100):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(rows[np.random.randint(64, size=8)]) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
"""
    found = [doubt.name for doubt in port(RESUMES + tape).doubts if "beside a session's runs" in doubt.why]
    assert found == ["not-shared"]
    assert "beside a session's runs" not in str([doubt.why for doubt in port(RESUMES).doubts])


FILLED = """import numpy as np
import tensorflow.compat.v1 as tf
def train(names, shape=(4, 8)):
    x = tf.placeholder(tf.float32, shape)
    loss = tf.reduce_mean(tf.layers.dense(x, 1) ** 2)
    with tf.Session() as sess:
        update = tf.train.AdamOptimizer(0.01).minimize(loss)
        sess.run(tf.global_variables_initializer())
        done = 0
        while done * 4 < len(names):
            batch = np.zeros(shape, dtype=np.float32)
            for j, name in enumerate(names[done * 4 : done * 4 + 4]):
                batch[j] = np.load(name)
            done += 1
            update.run(feed_dict={x: batch})
train(open("names.txt").read().split())
"""


def test_the_shape_of_an_array_that_is_filled_is_no_data() -> None:
    with pytest.raises(DlrunError, match="found no samples to share"):
        port(FILLED)


PENALTY = """import numpy as np
import tensorflow.compat.v1 as tf
x = FEED
w, v = tf.get_variable("w", [4, 1]), tf.get_variable("v", [4, 1])
value = tf.matmul(x, w)
slopes = tf.gradients(value, [x])[0]
loss = tf.reduce_mean(value) + tf.reduce_mean(tf.square(slopes))
rest = tf.reduce_mean(tf.matmul(x, v) - tf.stop_gradient(value))
critic = tf.train.AdamOptimizer(0.001)
actor = tf.train.AdamOptimizer(0.001)
update = critic.apply_gradients(critic.compute_gradients(loss, var_list=[w]))
turn = actor.apply_gradients(actor.compute_gradients(rest, var_list=[v]))
losses, total = [loss, rest], 0
rows = np.load("rows.npy")
sess = tf.Session()
sess.run(tf.global_variables_initializer())
for i in range(64):
    batch = rows[np.random.randint(512, size=8)]
    for _ in range(5):
        sess.run([update]FED)
    out = sess.run([turn] + losses FED)
    if i % 16 == 0:
        print(i + 1, out[1], out[2])
"""
OF_BATCHES = ", {x: batch}"
QUEUE = "tf.train.batch([tf.constant(np.load('rows.npy'))], 8, enqueue_many=True)"


def test_a_gradient_in_the_loss_of_an_optimizer_that_computes_its_own_is_not_averaged() -> None:
    text = port(PENALTY.replace("FEED", "tf.placeholder(tf.float32, [None, 4])").replace("FED", OF_BATCHES)).text
    assert "slopes = tf.gradients(value, [x])[0]" in text
    assert "critic = dl.DistributedOptimizer(critic)" in text and "actor = dl.DistributedOptimizer(actor)" in text


def test_what_is_fetched_in_two_lists_at_once_trains_and_is_shown_of_all_ranks() -> None:
    text = port(PENALTY.replace("FEED", "tf.placeholder(tf.float32, [None, 4])").replace("FED", OF_BATCHES)).text
    assert "for i in range(dl.steps(64)):" in text and "for _ in range(5):" in text
    assert "print(dl.serial_steps(i) + 1, dl.average(out[1]), dl.average(out[2]))" in text
    queue = port(PENALTY.replace("FEED", QUEUE).replace("FED", "").replace("losses ", "losses")).text
    assert "for i in range(dl.steps(64)):" in queue and "for _ in range(5):" in queue


def test_a_sum_in_the_graph_that_begins_as_a_number_is_followed_to_its_end() -> None:
    added = PENALTY.replace("FEED", "tf.placeholder(tf.float32, [None, 4])").replace("FED", OF_BATCHES)
    added = added.replace("rows = np", "for k in range(2):\n    total = total + k\n    loss = loss + total\nrows = np")
    assert "for i in range(dl.steps(64)):" in port(added).text


ONE_BY_ONE = """import numpy as np
import tensorflow.compat.v1 as tf
rows = np.load("rows.npy")
x = tf.placeholder(tf.float32, [None, 4])
train = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.layers.dense(x, 1) ** 2))
sess = tf.Session()
sess.run(tf.global_variables_initializer())
done = 0
def optimize(more):
    global done
    for i in range(done, done + more):
        sess.run(train, {x: rows[np.random.randint(512, size=8)]})
    done += more
optimize(20)
optimize(180)
"""


def test_a_range_of_steps_that_goes_on_where_the_call_before_has_stopped_is_divided_at_both_ends() -> None:
    assert "for i in range(dl.steps(done), dl.steps(done + more)):" in port(ONE_BY_ONE).text


def test_next_of_six_draws_a_batch_and_what_a_run_returns_is_no_data() -> None:
    drawn = ONE_BY_ONE.replace("x: rows[np.random.randint(512, size=8)]", "x: next(batches)").replace(
        "range(done, done + more)", "range(more)"
    )
    drawn = (
        drawn.replace("done = 0\n", "batches = Batches(rows)\n")
        .replace("    global done\n", "")
        .replace("    done += more\n", "")
    )
    drawn = drawn.replace(
        "rows = np",
        """from six import next
class Batches:
    def __init__(self, rows):
        self.rows = rows
    def __iter__(self):
        return self
    def __next__(self):
        return self.rows[np.random.randint(512, size=8)]
rows = np""",
    )
    assert "batches = dl.shard(Batches(rows))" in port(drawn).text
    unseen = drawn.replace("x: next(batches)", "x: state").replace(
        "range(more):", "range(more):\n        state = sess.run(zero)"
    )
    with pytest.raises(DlrunError, match="found no samples to share"):
        port(unseen.replace("done = 0", "zero = tf.zeros([8, 4])"))


def test_the_root_of_a_mean_over_all_iterations_so_far_is_no_mean_of_the_ranks_roots() -> None:
    kept = PENALTY.replace("FEED", "tf.placeholder(tf.float32, [None, 4])").replace("FED", OF_BATCHES)
    kept = kept.replace("total = [loss, rest], 0", "kept = [loss, rest], []")
    kept = kept.replace("    if i % 16", "    kept.append(out[1])\n    if i % 16").replace("out[1], out[2])", "WHAT)")
    assert "np.sqrt(dl.average(np.mean(kept)))" in port(kept.replace("WHAT", "np.sqrt(np.mean(kept))")).text
    named = kept.replace("        print", "        root = np.sqrt(np.mean(kept))\n        print")
    named = named.replace("WHAT", "root")
    assert ["root: local to rank 0" in doubt.why for doubt in port(named).doubts if doubt.danger != "low"] == [True]
    last = kept.replace("[loss, rest], []", "[loss, rest], deque(maxlen=100)").replace("WHAT", "np.mean(kept)")
    told = [doubt.why for doubt in port("from collections import deque\n" + last).doubts if doubt.danger != "low"]
    assert len(told) == 1 and "of the last so many iterations of this rank" in told[0]
