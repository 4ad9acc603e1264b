"""Ports of sessions whose runs evaluate beside those that train, and of searches by SciPy."""

from __future__ import annotations

import pytest

from dlrun.errors import DlrunError
from dlrun.port import port

GRAPH = """import numpy as np
import tensorflow.compat.v1 as tf
X, Y = np.load("x.npy"), np.load("y.npy")
x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
pred = tf.matmul(x, tf.get_variable("w", [3, 1]))
loss = tf.reduce_mean(tf.square(pred - y))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
sess = tf.Session()
sess.run(tf.global_variables_initializer())
"""
BATCHES = """history = []
for i in range(12):
    bx, by = X[i * 10 : (i + 1) * 10], Y[i * 10 : (i + 1) * 10]
    sess.run(train, {x: bx, y: by})
    now = sess.run(loss, feed_dict={x: bx, y: by})
    history.append(now)
    print(i, now, loss.eval(feed_dict={x: bx, y: by}, session=sess))
    if now < 1e-3:
        break
    print("all", sess.run(loss, {x: X, y: Y}))
np.save("history.npy", history)
"""
WHOLE = """feed = {x: X, y: Y}
for i in range(12):
    sess.run(train, feed)
    print(i, sess.run(loss, feed))
print(sess.run(pred, {x: X}))
"""


def test_what_a_run_makes_of_the_batch_that_another_trains_on_is_averaged() -> None:
    text = port(GRAPH + BATCHES).text
    assert "if dl.average(now) < 1e-3:" in text and "\nhistory = dl.gather(history)" in text
    assert "dl.average(loss.eval(feed_dict={x: bx, y: by}, session=sess))" in text
    assert 'dl.rank0(np.save)("history.npy", history)' in text
    assert 'print("all", sess.run(loss, {x: X, y: Y}))' in text  # all samples, on every rank


def test_arrays_in_a_dict_that_all_runs_are_fed_are_cut_there() -> None:
    text = port(GRAPH + WHOLE).text
    assert 'feed = {x: dl.shard(X, batch="global"), y: dl.shard(Y, batch="global")}' in text
    assert "print(i, dl.average(sess.run(loss, feed)))" in text
    assert "print(sess.run(pred, {x: X}))" in text


def test_what_a_run_makes_of_each_sample_of_a_share_is_doubted() -> None:
    ported = port(GRAPH + WHOLE.replace("sess.run(pred, {x: X})", "sess.run(pred, feed)"))
    (doubt,) = [d for d in ported.doubts if d.danger == "high"]
    assert "this rank's samples alone" in doubt.why


PINN = """import numpy as np
import tensorflow as tf

class PINN:
    def __init__(self, X, u, layers):
        self.x, self.u = X[:, 0:1], u
        self.lb = X.min(0)
        self.rate = 1e-3
        self.w = tf.Variable(tf.zeros([1, 1]))
        self.sess = tf.Session()
        self.x_tf = tf.placeholder(tf.float32, shape=[None, self.x.shape[1]])
        self.u_tf = tf.placeholder(tf.float32, shape=[None, 1])
        self.lb_tf, self.rate_tf = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
        self.pred = tf.matmul(self.x_tf - self.lb_tf, self.w)
        self.loss = tf.reduce_mean(tf.square(self.pred - self.u_tf))
        self.optimizer = tf.contrib.opt.ScipyOptimizerInterface(self.loss, method="L-BFGS-B")
        self.adam = tf.train.AdamOptimizer(self.rate_tf).minimize(self.loss)
        self.sess.run(tf.global_variables_initializer())

    def train(self, steps):
        tf_dict = {self.x_tf: self.x, self.u_tf: self.u, self.lb_tf: self.lb, self.rate_tf: self.rate}
        for it in range(steps):
            self.sess.run(self.adam, tf_dict)
            if it % 10 == 0:
                value = self.sess.run(self.loss, tf_dict)
                print("It: %d, Loss: %.3e" % (it, value))
        self.optimizer.minimize(self.sess, feed_dict=tf_dict, fetches=[self.loss])

X = np.load("x.npy")
PINN(X, np.sin(X[:, 0:1]), [1, 1]).train(100)
"""
FED = (
    'tf_dict = {self.x_tf: dl.shard(self.x, batch="global"), self.u_tf: dl.shard(self.u, batch="global"), '
    "self.lb_tf: self.lb, self.rate_tf: self.rate}"
)


def test_samples_that_a_class_keeps_and_feeds_whole_are_cut_where_they_are_fed() -> None:
    text = port(PINN).text
    assert FED in text
    assert "(it, dl.average(value))" in text
    assert "lr_scale" not in text  # the global batch stays
    unlike = port(PINN.replace('np.load("x.npy")', "np.random.rand(100, 2)")).text
    assert (
        "self.x_tf: dl.shard(dl.broadcast(self.x), " in unlike and "self.u_tf: dl.shard(dl.broadcast(self.u)" in unlike
    )


def test_samples_that_a_class_draws_anew_at_times_are_rank_0s_of_which_each_takes_a_share() -> None:
    again = "            if it % 50 == 0:\n                self.x = np.random.rand(100, 1)\n"
    fed = PINN[PINN.index("        tf_dict") : PINN.index("        for it")]
    source = PINN.replace(fed, "").replace("range(steps):\n", f"range(steps):\n{again}    {fed}")
    text = port(source).text
    assert "for it in range(steps):" in text and "if it % 50 == 0:" in text and "lr_scale" not in text
    assert 'self.x_tf: dl.shard(dl.broadcast(self.x), batch="global")' in text


def test_sums_over_a_share_are_doubted_where_a_run_evaluates_other_samples() -> None:
    sums = PINN.replace("reduce_mean", "reduce_sum")
    ported = port(sums)
    assert "dl.partial_sum(tf.reduce_sum(" in ported.text and "(it, dl.average(value))" in ported.text
    assert not [d for d in ported.doubts if "n times" in d.why]
    other = sums.replace(
        "\nX = ", "        print(self.sess.run(self.loss, {self.x_tf: X[:9, 0:1], self.u_tf: self.u[:9]}))\n\nX = "
    )
    assert [d for d in port(other).doubts if "n times" in d.why]


def test_the_search_of_a_graph_by_scipy_is_one_that_averages() -> None:
    text = port(PINN).text
    assert "self.optimizer = dl.DistributedOptimizer(self.optimizer)" in text
    assert text.count("broadcast_variables()") == 1
    start, loop, search = (PINN.index(part) for part in ("        for it", "        self.optimizer.minimize", "\nX = "))
    alone = port(PINN[:start] + PINN[loop:search].replace("for it", "") + PINN[search:]).text
    assert FED in alone
    assert alone.index("self.sess.run(dl.broadcast_variables())") < alone.index("self.optimizer.minimize(")


def test_a_search_that_a_loop_over_experiments_makes_again_is_each_times_one_of_all_ranks() -> None:
    begin = PINN.index("X = np.load")
    again = (
        "errors = np.zeros(3)\nnoise = [0.0, 0.1, 0.2]\nfor j in range(len(noise)):\n    X = np.load('x.npy')\n"
        "    PINN(X, X[:, 0:1] + noise[j], [1, 1]).train(100)\n"
    )
    text = port(PINN[:begin] + again).text
    assert "for j in range(len(noise)):" in text and FED in text
    assert text.count("broadcast_variables()") == 1


def test_losses_that_take_single_entries_of_what_is_fed_are_refused() -> None:
    loss = "tf.reduce_mean(tf.square(self.pred - self.u_tf))"
    edges = f"{loss} + tf.reduce_mean(tf.square(self.pred[0, :] - self.pred[1, :]))"
    with pytest.raises(DlrunError, match=r"takes a part, self\.pred"):
        port(PINN.replace(loss, edges))


COPY = """import scipy.optimize

class ScipyOptimizerInterface:
    def __init__(self, loss, method=None):
        self._loss, self._packed_loss_grad = loss, tf.gradients(loss, tf.trainable_variables())[0]

    def minimize(self, session=None, feed_dict=None, fetches=None):
        def f(x):
            return session.run([self._loss, self._packed_loss_grad], feed_dict)
        scipy.optimize.minimize(f, np.zeros(1), jac=True)

class PINN:"""


def test_a_copy_of_what_hands_a_graphs_loss_to_scipy_is_left_as_it_is() -> None:
    text = port(PINN.replace("tf.contrib.opt.", "").replace("class PINN:", COPY)).text
    assert "scipy.optimize.minimize(f, np.zeros(1), jac=True)" in text
    assert "self.optimizer = dl.DistributedOptimizer(self.optimizer)" in text and FED in text


SEARCH = """import numpy as np
import scipy.optimize
import tensorflow as tf
x = tf.constant(np.load("x.npy"))
model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.Adam(1e-3)

def get_grad():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    return loss, tape.gradient(loss, model.trainable_variables)

for i in range(100):
    loss, grads = get_grad()
    opt.apply_gradients(zip(grads, model.trainable_variables))

def f(w):
    model.set_weights([w.reshape(3, 1), np.zeros(1)])
    loss, grads = get_grad()
    return loss.numpy(), grads[0].numpy().ravel()

scipy.optimize.minimize(f, np.zeros(3), jac=True, method="L-BFGS-B")
"""


def test_what_a_function_tells_scipys_search_is_averaged() -> None:
    text = port(SEARCH).text
    assert "scipy.optimize.minimize(lambda *given: dl.average(f(*given)), np.zeros(3), jac=True" in text
    apart = port(SEARCH.replace("f, np", "lambda w: f(w), np")).text
    assert "scipy.optimize.minimize(lambda w: dl.average(f(w)), np.zeros(3)" in apart
    plain = port(SEARCH.replace("minimize(f,", "minimize(lambda w: (w ** 2).sum(),").replace("jac=True, ", "")).text
    assert "scipy.optimize.minimize(lambda w: (w ** 2).sum(), np" in plain


def test_a_search_by_scipy_alone_is_refused() -> None:
    begin, end = SEARCH.index("for i in"), SEARCH.index("def f")
    with pytest.raises(DlrunError, match="trains out of sight"):
        port(SEARCH[:begin] + SEARCH[end:])


SOFT = """import numpy as np
import tensorflow.compat.v1 as tf
TAU = 0.01
x = tf.placeholder(tf.float32, [None, 3])
with tf.variable_scope("eval"):
    loss = tf.reduce_mean(tf.layers.dense(x, 1) ** 2)
with tf.variable_scope("target"):
    slow = tf.layers.dense(x, 1)
here = tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES, scope="eval")
there = tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES, scope="target")
soft = [tf.assign(t, (1 - TAU) * t + TAU * e) for t, e in zip(there, here)]
once = [tf.assign(t, 0.1 * t + 0.9 * e) for t, e in zip(there, here)]
train = tf.train.AdamOptimizer(1e-3).minimize(loss, var_list=here)
rows = np.load("rows.npy")
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(once)
    for step in range(600):
        sess.run(train, {x: rows[np.random.choice(len(rows), 32)]})
        sess.run(soft)
"""


def test_soft_updates_that_a_graph_makes_forget_as_in_the_serial_run() -> None:
    text = port(SOFT).text
    assert "tf.assign(t, dl.compound(1 - TAU) * t + (1 - dl.compound(1 - TAU)) * e)" in text
    assert "0.1 * t + 0.9 * e" in text  # made before the training
    grouped = SOFT.replace("e in zip(there, here)]\nonce", "e in zip(there, here)]\nsoft = tf.group(*soft)\nonce")
    assert "tf.assign(t, dl.compound(1 - TAU) * t" in port(grouped).text


DRAWN = """import numpy as np
import tensorflow.compat.v1 as tf
rows = np.load("rows.npy")
count = rows.shape[0]
x = tf.placeholder(tf.float32, [None, 3])
loss = tf.reduce_mean(tf.layers.dense(x, 1) ** 2)
train = tf.train.AdamOptimizer(1e-3).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(5):
        mean = 0.0
        batches = int(count / 32)
        for i in range(batches):
            _, c = sess.run([train, loss], {x: rows[np.random.choice(count, 32)]})
            mean += c / count * 32
        print(epoch, mean)
"""


def test_parts_of_a_mean_over_all_samples_of_which_a_rank_draws_its_share_are_added_up() -> None:
    text = port(DRAWN).text
    assert "batches = dl.steps(int(count / 32))" in text and "\n        mean = dl.total(mean)  #" in text
    own = port(DRAWN.replace("c / count * 32", "c / batches")).text
    assert "\n        mean = dl.average(mean)  #" in own


EPOCHS = """import numpy as np
import tensorflow.compat.v1 as tf

class Model:
    def __init__(self):
        self.x, self.y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 1])
        self.pred = tf.matmul(self.x, tf.get_variable("w", [3, 1]))
        self.loss = tf.reduce_mean(tf.square(self.pred - self.y))
        self.train_op = tf.train.AdamOptimizer(1e-3).minimize(self.loss)

    def feed(self, x, y=None):
        given = {self.x: x}
        if y is not None:
            given[self.y] = y
        return given

    def error(self, sess, x, y):
        return np.mean(np.abs(sess.run(self.pred, feed_dict=self.feed(x)) - y))

    def train_on_batch(self, sess, x, y):
        return sess.run([self.train_op, self.loss], feed_dict=self.feed(x, y))[1]

    def run_epoch(self, sess, X, Y):
        for k in range(len(X) // 8):
            x, y = X[k * 8 : k * 8 + 8], Y[k * 8 : k * 8 + 8]
            self.train_on_batch(sess, x, y)
            print(k, self.error(sess, x, y))

    def fit(self, sess, X, Y):
        for epoch in range(5):
            self.run_epoch(sess, X, Y)

model = Model()
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    model.fit(sess, np.load("x.npy"), np.load("y.npy"))
"""


def test_batches_that_functions_hand_on_to_a_run_are_a_ranks_own_and_training_begins_before_the_first_epoch() -> None:
    text = port(EPOCHS).text
    assert "print(k, dl.average(self.error(sess, x, y)))" in text
    assert text.index("sess.run(dl.broadcast_variables())") > text.index("def fit(")


INITIALIZED = """import numpy as np
import tensorflow.compat.v1 as tf
rows = tf.placeholder(tf.float32, [None, 3])
again = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(rows).batch(8))
loss = tf.reduce_mean(tf.square(tf.matmul(again.get_next(), tf.get_variable("w", [3, 1]))))
train = tf.train.AdamOptimizer(1e-3).minimize(loss)
X, V = np.load("x.npy"), np.load("v.npy")
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(5):
        sess.run(again.initializer, {rows: X})
        while True:
            try:
                got = sess.run({"loss": loss, "train": train})
            except tf.errors.OutOfRangeError:
                break
        sess.run(again.initializer, {rows: V})
        print(epoch, sess.run(loss))
"""


def test_what_a_run_makes_of_samples_of_the_graph_itself_is_averaged() -> None:
    text = port(INITIALIZED).text
    assert "make_initializable_iterator(dl.shard(" in text
    assert "print(epoch, dl.average(sess.run(loss)))" in text


WITHIN = """import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.rand(640, 10), torch.randint(2, (640,))), batch_size=32, shuffle=True)
held = torch.rand(20, 10)
model = torch.nn.Linear(10, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
best, waited, judged = 1e9, 0, 1e9
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    now = NOW
    if now < best:
        best, waited = now, 0
        torch.save(model.state_dict(), "best.pt")
    else:
        waited += 1
        if waited > 3:
            break
print(best)
"""


@pytest.mark.parametrize(
    ("now", "doubts"),
    [("model(held).mean().item()", set()), ("judged * loss.item() ** 2 - y[0].item()", {"may-hang"})],
)
def test_the_best_of_what_all_ranks_evaluate_is_one_number(now, doubts) -> None:
    assert {d.name for d in port(WITHIN.replace("NOW", now)).doubts} == doubts
