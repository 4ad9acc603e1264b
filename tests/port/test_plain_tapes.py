"""Tapes over variables alone, without a model of Keras: what they make of a rank's samples is averaged."""

import pytest

from dlrun.port import Options, port

HEAD = """import numpy as np
import tensorflow as tf
rows, wanted = np.load("rows.npy"), np.load("wanted.npy")
weight = tf.Variable(tf.random.normal([4, 3]))
def model(x):
    return tf.matmul(x, weight)
"""


def test_a_number_of_a_functions_outputs_that_ends_the_training_is_the_mean_over_the_ranks() -> None:
    source = f"""{HEAD}best, opt = 0, tf.keras.optimizers.SGD(0.1)
for epoch in range(10):
    for x, y in tf.data.Dataset.from_tensor_slices((rows, wanted)).batch(8):
        with tf.GradientTape() as tape:
            out = model(x)
            loss = tf.reduce_sum(tf.square(out - y)) / 8
        opt.apply_gradients(zip(tape.gradient(loss, [weight]), [weight]))
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(out, 1), tf.argmax(y, 1)), tf.float32))
    if right > best:
        best = right
    else:
        break
"""
    text = port(source).text
    assert text.index("right = dl.average(right)") < text.index("if right > best:")


def test_so_is_a_loss_that_is_divided_and_summed_up_in_an_epoch() -> None:
    source = f"""{HEAD}kept = []
for epoch in range(100):
    order = np.arange(len(rows))
    np.random.shuffle(order)
    total = 0.0
    for i in range(0, len(rows), 32):
        x, y = rows[order[i : i + 32]], wanted[order[i : i + 32]]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - y) ** 2) / 32
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        total += loss.numpy() * len(x)
    kept.append(total / len(rows))
    if len(kept) > 5 and abs(kept[-1] - kept[-2]) < 1e-6:
        break
np.savetxt("weight_%.3f.txt" % kept[-1], weight.numpy())
"""
    text = port(source).text
    assert "    total = dl.total(total)  #" in text and "kept.append(total / len(rows))" in text
    assert "dl.total(weight" not in text and "weight_before" not in text  # gradients are those of all ranks already


@pytest.mark.parametrize(
    ("part", "averaged"),
    [
        ("tf.add_n(net.losses)", True),
        ("tf.norm(net(x))", True),
        ("tf.norm(net(x), axis=1)", False),
        ("tf.add_n([x, x])", False),
    ],
)
def test_losses_of_layers_and_a_norm_of_all_leave_one_number_to_show(part, averaged) -> None:
    source = f"""import tensorflow as tf
net = tf.keras.Sequential([tf.keras.layers.Dense(3, kernel_regularizer="l2")])
opt = tf.keras.optimizers.SGD(0.1)
for x in tf.data.Dataset.from_tensor_slices(rows).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(net(x) ** 2) + {part}
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    print(loss)
"""
    assert ("print(dl.average(loss))" in port(source).text) == averaged


def test_so_do_the_losses_that_a_graph_collects() -> None:
    source = """import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
x = tf.placeholder(tf.float32, [None, 4])
out = tf.layers.dense(x, 8, kernel_regularizer=tf.keras.regularizers.l2(1e-4))
collected = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
loss = tf.reduce_mean(out ** 2) + tf.add_n(collected)
train = tf.train.AdamOptimizer(1e-3).minimize(loss)
rows = np.load("rows.npy")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(10000):
        _, value = session.run([train, loss], {x: rows[np.random.choice(len(rows), 32)]})
        print(step, value)
"""
    assert "print(step, dl.average(value))" in port(source).text


def test_a_rate_that_is_assigned_under_a_test_of_the_loss_is_the_same_on_all_ranks() -> None:
    source = """import numpy as np
import tensorflow as tf
x = np.random.randn(96, 6).astype("float32")
net = tf.keras.Sequential([tf.keras.layers.Dense(2)])
opt = tf.keras.optimizers.SGD(0.1)
for a in tf.data.Dataset.from_tensor_slices(x).batch(8).repeat(4):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(net(a) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    if loss > 4.0:
        opt.learning_rate.assign(opt.learning_rate * 0.5)
"""
    assert "if dl.average(loss) > 4.0:" in port(source).text


def test_a_step_that_a_function_is_given_is_followed_where_other_objects_are_called_too() -> None:
    text = port("""import tensorflow as tf
class Head(tf.Module):
    def __init__(self):
        self.w = tf.Variable(tf.ones([3, 2]))
    def __call__(self, x):
        return x @ self.w
head, opt = Head(), tf.keras.optimizers.SGD(0.1)
data = tf.data.Dataset.from_tensor_slices(rows).batch(8)
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(head(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, [head.w]), [head.w]))
    return loss
def run(update, batches):
    for x in batches:
        update(x)
for epoch in range(3):
    run(step, data)
""").text
    assert "    for x in dl.shard(batches):\n" in text


def test_samples_that_an_object_draws_by_a_method_it_has_chosen_are_seen() -> None:
    text = port("""import numpy as np
import tensorflow as tf
class Waves:
    def __init__(self):
        self.draw = self.draw_waves
    def draw_waves(self):
        return np.random.uniform(-1, 1, [8, 3]).astype("float32")
waves, opt, w = Waves(), tf.keras.optimizers.SGD(0.1), tf.Variable(tf.ones([3, 2]))
for step in range(80):
    x = waves.draw()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, [w]), [w]))
""").text
    assert "for step in range(dl.steps(80)):" in text


KEEPS = """import time
import numpy as np
import tensorflow as tf
w, opt, rows, step, took = tf.Variable(tf.ones([3, 2])), tf.keras.optimizers.SGD(0.0), [], 0, 0.0
data = tf.data.Dataset.from_tensor_slices(np.load("rows.npy")).batch(8)
for i, x in enumerate(data):
    begin = time.time()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, [w]), [w]))
    step += 1
    KEEP
    took += (time.time() - begin) / 60
print(SHOW)
"""


@pytest.mark.parametrize(
    ("keep", "written"),
    [
        ("(step, float(loss))", "(dl.serial_iteration(step, 1), float(loss))"),
        ("[i, float(loss)]", "[dl.serial_iteration(i), float(loss)]"),
        ("{'step': step}", "{'step': dl.serial_iteration(step, 1)}"),
        ("step", "dl.serial_iteration(step, 1)"),
        ("int(opt.iterations)", "int(dl.serial_iteration(opt.iterations, 1))"),
        ("i / 10", "dl.serial_iteration(i) / 10"),
        ("(step * loss, i % 7)", "(dl.serial_iteration(step, 1) * loss, dl.serial_iteration(i) % 7)"),
    ],
)
@pytest.mark.parametrize("show", ["rows", "np.array(rows)"])
def test_numbers_of_iterations_that_are_kept_are_those_of_the_serial_iterations(keep, written, show) -> None:
    made = port(KEEPS.replace("KEEP", f"rows.append({keep})").replace("SHOW", show))
    assert f"rows.append({written})" in made.text and "dl.gather(rows" in made.text
    assert not [d.name for d in made.doubts if d.danger != "low"]


def test_what_is_no_number_of_an_iteration_is_told_where_it_is_kept() -> None:
    doubts = port(KEEPS.replace("KEEP", "rows.append((np.sqrt(i), float(loss)))").replace("SHOW", "rows")).doubts
    assert [d.name for d in doubts if d.danger != "low"] == ["unknown-placement"]


def test_the_time_that_iterations_take_together_is_that_of_rank_0() -> None:
    made = port(KEEPS.replace("KEEP", "rows.append(float(loss))").replace("SHOW", "took, took / 60"))
    assert not made.doubts
    assert "print(took, took / 60)" in made.text


def test_tensors_that_begin_as_one_and_are_added_to_are_sums_of_their_own() -> None:
    source = f"""{HEAD}opt = tf.keras.optimizers.SGD(0.1)
for epoch in range(10):
    total = seen = tf.constant(0.0)
    kept = [tf.zeros(())] * 2
    for x, y in tf.data.Dataset.from_tensor_slices((rows, wanted)).batch(8):
        with tf.GradientTape() as tape:
            each = tf.reduce_sum(tf.square(model(x) - y), 1)
            loss = tf.reduce_mean(each)
        opt.apply_gradients(zip(tape.gradient(loss, [weight]), [weight]))
        total += tf.reduce_sum(each)
        seen += len(x)
        kept[0] += tf.reduce_max(each)
        kept[1] += loss
    print(total / seen, kept[0], kept[1])
"""
    text = port(source).text
    assert "total, seen, kept[0], kept[1] = dl.total(total, seen, kept[0], kept[1])  #" in text


def test_averages_of_weights_that_a_list_holds_are_the_serial_ones_where_the_global_batch_is_kept() -> None:
    source = f"""{HEAD}net = tf.keras.Sequential([tf.keras.layers.Dense(3)])
opt, average = tf.keras.optimizers.SGD(0.1), [tf.Variable(v) for v in net.trainable_variables]
for x, y in tf.data.Dataset.from_tensor_slices((rows, wanted)).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(net(x) - y))
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    for a, w in zip(average, net.trainable_variables):
        a.assign(0.9 * a + 0.1 * w)
print([float(tf.reduce_sum(a)) for a in average])
"""
    ported = port(source, Options(batch="global"))
    assert not ported.doubts and "0.9 * a + 0.1 * w" in ported.text and "in average])\n" in ported.text


def test_a_mask_that_is_made_at_drawn_places_of_its_own_leaves_a_loss_of_this_iteration() -> None:
    source = f"""{HEAD}opt, seen = tf.keras.optimizers.SGD(0.1), np.zeros(4)
def mask_of(row):
    mask = np.zeros(4, dtype=bool)
    mask[np.random.choice(4, size=2, replace=False)] = True
    return mask[None]
for step in range(400):
    x = rows[np.random.randint(0, len(rows), size=8)]
    mask = np.concatenate([mask_of(row) for row in x])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weight @ tf.transpose(weight) - x)[mask])
    opt.apply_gradients(zip(tape.gradient(loss, [weight]), [weight]))
    seen[np.random.randint(4)] = 1
    if step % 100 == 0:
        print(step, loss.numpy())
print(seen)
"""
    ported = port(source)
    assert "print(dl.serial_steps(step), dl.average(loss.numpy()))" in ported.text
    assert [d.name for d in ported.doubts if "seen" in d.why] == ["unknown-placement"]  # older than the iterations


def test_a_decoder_that_is_stepped_with_its_state_plays_no_environment() -> None:
    source = f"""{HEAD}import tensorflow_addons as tfa
opt, decoder = tf.keras.optimizers.SGD(0.1), tfa.seq2seq.BasicDecoder(None)
for step in range(400):
    x = rows[np.random.randint(0, len(rows), size=8)]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, [weight]), [weight]))
    if step % 100 == 0:
        out, state, given, done = decoder.step(time=0, inputs=x[:1], state=None)
        print(step, out)
"""
    assert "for step in range(dl.steps(400)):" in port(source).text


@pytest.mark.parametrize("log", ["from absl import logging", "from tensorflow.compat.v1 import logging"])
def test_what_other_loggers_show_in_the_loop_is_of_all_ranks(log) -> None:
    source = f"""{HEAD}{log}
opt = tf.keras.optimizers.SGD(0.1)
for x in tf.data.Dataset.from_tensor_slices(rows).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, [weight]), [weight]))
    logging.info("loss %s", loss.numpy())
"""
    assert 'logging.info("loss %s", dl.average(loss.numpy()))' in port(source).text
