"""What TensorFlow scripts move with local samples, and what all their ranks must have alike."""

from __future__ import annotations

import pytest

from dlrun.errors import DlrunError
from dlrun.port import Options, port

TAPE = """
import tensorflow as tf
{before}
model = {model}
opt = tf.keras.optimizers.SGD(0.1)
data = tf.data.TFRecordDataset("a").map(tf.io.parse_tensor).batch(8)
{start}
for x in data:
    with tf.GradientTape() as tape:
        loss = {loss}
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    {after}
"""
DENSE = "tf.keras.Sequential([tf.keras.layers.Dense(1)])"
CODEBOOK = """
class Coded(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(4)
        self.book = tf.Variable(tf.zeros([4, 8]), trainable=False)
        self.seen = tf.Variable(0, trainable=False)
    def call(self, x):
        z = self.dense(x)
        hot = tf.one_hot(tf.argmin(z @ self.book, 1), 8)
        {update}
        return z - tf.matmul(hot, self.book, transpose_b=True)
"""
EMA = "self.book.assign(0.9 * self.book + 0.1 * tf.matmul(z, hot, transpose_a=True))"
CENTERS = """
import numpy as np
import tensorflow.compat.v1 as tf

def center_loss(features, labels):
    centers = tf.get_variable("centers", [3, 4], trainable=False)
    diff = tf.gather(centers, labels) - features
    diff = 0.5 * diff
    return tf.nn.l2_loss(diff), tf.scatter_sub(centers, labels, diff)

x, y = tf.placeholder(tf.float32, [None, 6]), tf.placeholder(tf.int32, [None])
loss, update = center_loss(tf.layers.dense(x, 4), y)
train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
X, Y = np.load("x.npy"), np.load("y.npy")
with tf.Session() as sess:
    for epoch in range(3):
        for i in range(0, 300, 30):
            sess.run([train_op, update], feed_dict={x: X[i:i + 30], y: Y[i:i + 30]})
"""


def tape(loss="tf.reduce_mean(model(x) ** 2)", model=DENSE, before="", start="", after="") -> str:
    return TAPE.format(loss=loss, model=model, before=before, start=start, after=after)


def moved(source: str) -> list[str]:
    """The lines of the doubts about what a rank moves by itself."""
    ported = port(source)
    found = [d for d in ported.doubts if "moves with this rank's samples" in d.why]
    return [ported.script.code(d.node).strip() for d in found]


def test_a_codebook_that_a_layer_moves_with_its_batch_is_doubted() -> None:
    assert moved(tape(model="Coded()", before=CODEBOOK.format(update=EMA))) == [EMA]
    counts = "self.seen.assign_add(1)"  # alike on all ranks
    assert moved(tape(model="Coded()", before=CODEBOOK.format(update=counts))) == []


def test_so_is_one_of_a_model_that_fit_trains() -> None:
    source = CODEBOOK.format(update=EMA) + "model = Coded()\nmodel.compile('sgd', 'mse')\nmodel.fit(x, y)\n"
    assert moved("import tensorflow as tf\nimport keras\n" + source) == [EMA]


def test_a_queue_of_a_ranks_own_samples_is_said_to_be_one_and_is_not_averaged() -> None:
    queue = CODEBOOK.format(update="self.book.assign(tf.concat([tf.transpose(z), self.book[:, :-8]], 1))")
    (doubt,) = [d for d in port(tape(model="Coded()", before=queue)).doubts if "self.book" in d.why]
    assert doubt.why.startswith("self.book: each rank keeps those of its own samples")
    assert (doubt.danger, doubt.write) == ("low", "")


def test_centers_of_classes_in_a_graph_are_doubted() -> None:
    assert moved(CENTERS) == ["tf.scatter_sub(centers, labels, diff)"]


def test_a_baseline_that_a_loss_reads_is_the_same_on_all_ranks() -> None:
    line = "base = 0.9 * base + 0.1 * loss.numpy()"
    source = tape(loss="tf.reduce_mean(model(x) - base)", start="base = 0.0", after=line)
    assert moved(source) == []  # and it forgets as in the serial script
    assert "base = dl.average(dl.compound(0.9) * base + (1 - dl.compound(0.9)) * loss.numpy())" in port(source).text
    assert moved(tape(start="base = 0.0", after=f"{line}; print(base)")) == []


BALANCED = """
import numpy as np

class Balancer:
    def __init__(self):
        self.before, self.weight = None, 1.0

    def update(self, loss):
        now = float(loss)
        if self.before is not None:
            self.weight = np.exp(now / self.before)
        self.before = now

balancer = Balancer()
"""


def test_so_is_the_weight_of_a_loss_that_an_object_makes_of_two_iterations() -> None:
    loss = "balancer.weight * tf.reduce_mean(model(x) ** 2)"
    source = tape(loss=loss, before=BALANCED, after="balancer.update(loss)")
    ported = port(source)
    assert "self.weight = dl.average(np.exp(now / self.before))" in ported.text
    assert not [d for d in ported.doubts if "weight" in d.why]
    (doubt,) = [d for d in port(source, Options(batch="global")).doubts if "weighs later losses" in d.why]
    assert doubt.name == "unknown-placement"  # the mean of what each rank makes of its part of the batch


def test_averages_of_the_weights_are_alike_by_themselves() -> None:
    after = "[e.assign(0.9 * e + 0.1 * w) for e, w in zip(ema, model.trainable_variables)]"
    assert moved(tape(start="ema = [tf.Variable(w) for w in model.variables]", after=after)) == []


FITTED = """
import keras, tensorflow as tf
from keras import layers
class Averaged(keras.Model):
    def __init__(self, network, copy):
        super().__init__()
        self.network, self.copy = network, copy
    def compile(self, step_optimizer, **options):
        super().compile(**options)
        self.step_optimizer = step_optimizer
    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.network(x) ** 2)
        grads = tape.gradient(loss, self.network.trainable_variables)
        self.step_optimizer.apply_gradients(zip(grads, self.network.trainable_variables))
        for weight, kept in zip(self.network.weights, self.copy.weights):
            kept.assign(0.9 * kept + 0.1 * {moved})
        return {{"loss": loss}}
x = layers.Input(shape=(3,))
network = keras.Model(x, layers.Dense(1)(x))
model = Averaged(network, keras.models.clone_model(network))
model.compile(step_optimizer=keras.optimizers.Adam())
model.fit(data)
"""


def test_averages_of_the_weights_of_a_model_that_is_made_from_its_inputs_are_alike() -> None:
    assert moved(FITTED.format(moved="weight")) == []
    text = port(FITTED.format(moved="weight")).text
    assert "step_optimizer=dl.DistributedOptimizer(keras.optimizers.Adam(learning_rate=dl.lr_scale(0.001))))" in text


def test_an_input_is_no_model_that_starts_alike() -> None:
    made = "x = tf.keras.layers.Input(shape=(3,))\n"
    text = port(tape(before=made, model="tf.keras.Model(x, tf.keras.layers.Dense(1)(x))")).text
    assert "dl.broadcast_variables(model, opt)" in text


ORDERS = """
import tensorflow as tf
model, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
x = tf.random.normal([64, 3])
for epoch in range(3):
    order = tf.random.shuffle({shuffled})
    for {loop}:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model({batch}) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
"""


@pytest.mark.parametrize(
    ("shuffled", "loop", "batch"),
    [
        ("tf.range(64)", "i in range(0, 64, 8)", "tf.gather(x, order[i : i + 8])"),
        ("x", "b in tf.data.Dataset.from_tensor_slices(order).batch(8)", "b"),
    ],
)
def test_an_order_that_tensorflow_draws_between_the_batches_is_rank_0s(shuffled, loop, batch) -> None:
    text = port(ORDERS.format(shuffled=shuffled, loop=loop, batch=batch)).text
    assert f"order = dl.broadcast(tf.random.shuffle({shuffled}))" in text


AGENT = """
import gym, tensorflow as tf

class Part:
    def __init__(self):
        self.model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        self.opt = tf.keras.optimizers.Adam(1e-3)
    def train(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(x) ** 2)
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.opt.apply_gradients(zip(grads, self.model.trainable_variables))

class Agent{base}:
    def __init__(self, env):
        self.env = env
        self.actor, self.critic, self.target = Part(), Part(), Part()
    def train(self):
        for episode in range(9):
            state, done = self.env.reset(), False
            while not done:
                state, reward, done, _ = self.env.step(self.actor.model(state))
            self.actor.train(state)
            self.critic.train(state)
    def run(self):
        self.train()

Agent(gym.make("CartPole-v1")).run()
"""


def test_the_models_of_an_agents_parts_start_alike_each_for_itself() -> None:
    ported = port(AGENT.format(base=""))
    things = "self.actor.model, self.critic.model, self.target.model"
    assert f"        dl.broadcast_variables({things}, self.actor.opt, " in ported.text
    assert any("plays episodes of its own" in d.why for d in ported.doubts)


def test_training_in_threads_is_refused() -> None:
    with pytest.raises(DlrunError, match="Agent trains in threads or processes of its own"):
        port("from threading import Thread\n" + AGENT.format(base="(Thread)"))


def test_what_has_trainable_variables_is_a_model_wherever_it_comes_from() -> None:
    text = port(tape(before="import lab\nwhole = lab.make()", model="whole.encoder")).text
    assert "dl.broadcast_variables(model, opt)" in text


def test_an_update_whose_gradients_nothing_in_sight_computes_is_refused() -> None:
    source = """
import tensorflow as tf, lab
def step(optimizer, x):
    optimizer.apply_gradients(optimizer.compute_gradients(lambda: x, model.trainable_variables))
model, other = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
for x in tf.data.TFRecordDataset("a").batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x))
    other.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    step(lab.optimizer(), x)
"""
    with pytest.raises(DlrunError, match="computes the gradients of this update"):
        port(source)


TURNS = """
import tensorflow as tf
model, critic = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.Sequential([tf.keras.layers.Dense(1)])
first, second = tf.keras.optimizers.SGD(0.1), tf.keras.optimizers.SGD(0.1)
for {turn} in range(1000):
    for _ in range({critics}):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(critic(model(tf.random.normal([8, 2]))))
        first.apply_gradients(zip(tape.gradient(loss, critic.variables), critic.variables))
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(critic(model(tf.random.normal([8, 2]))))
        second.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
"""


def test_networks_that_take_turns_keep_their_ratio() -> None:
    text = port(TURNS.format(turn="step", critics=5)).text
    assert "for step in range(dl.steps(1000)):" in text
    assert "for _ in range(5):" in text and "for _ in range(2):" in text
    long = port(TURNS.format(turn="epoch", critics=500)).text
    assert "range(1000):" in long and "range(dl.steps(500)):" in long


def test_a_folder_that_the_clock_names_is_rank_0s() -> None:
    named = 'run = "runs/" + datetime.now().strftime("%H%M")\n{}writer = tf.summary.create_file_writer(run)'
    text = port(tape(before="from datetime import datetime\n" + named.format(""))).text
    assert 'run = "runs/" + dl.broadcast(datetime.now().strftime("%H%M"))' in text
    shown = port(tape(before="import time\nbegun = time.time()\nprint(begun)")).text
    assert "begun = time.time()" in shown
    # A rank that finds the folder that another has just made takes another way.
    asked = "import os\nfrom datetime import datetime\nrun = 'a'\nif os.path.exists(run):\n    {}\nos.makedirs(run)"
    line = 'run = datetime.now().strftime("%H")'
    assert line in port(tape(before=asked.format(line))).text


SESSION = """
import numpy as np
import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [None, 3])
loss = tf.reduce_mean(tf.layers.dense(x, 1) ** 2)
{before}
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(100):
        {run}
"""


def test_an_operation_that_takes_the_name_of_its_optimizer_is_no_optimizer() -> None:
    before = """
opt = tf.train.GradientDescentOptimizer(0.1)
grads, weights = zip(*opt.compute_gradients(loss))
opt = opt.apply_gradients(zip(grads, weights), global_step=tf.train.get_global_step())"""
    text = port(SESSION.format(before=before, run="sess.run(opt, feed_dict={x: np.random.rand(8, 3)})")).text
    assert "opt = opt.apply_gradients(zip(grads, weights), global_step=tf.train.get_global_step())" in text
    assert text.count("opt = dl.DistributedOptimizer(opt)") == 1


def test_an_operation_that_runs_itself_starts_alike_in_the_default_session() -> None:
    before = "train_step = tf.train.AdamOptimizer(0.1).minimize(loss)"
    text = port(SESSION.format(before=before, run="train_step.run(feed_dict={x: np.random.rand(8, 3)})")).text
    assert "    dl.broadcast_variables().run()" in text
    given = port(SESSION.format(before=before, run="train_step.run({x: np.random.rand(8, 3)}, session=sess)")).text
    assert "    sess.run(dl.broadcast_variables())" in given


def test_batches_drawn_at_several_places_at_once_are_doubted() -> None:
    before = """
class Batches:
    def __init__(self, text):
        self.text, self.at = text, [0, 99]
    def next(self):
        for i in range(2):
            self.at[i] = (self.at[i] + 1) % len(self.text)
        return self.text[self.at]
batches = Batches(np.load("x.npy"))
train_op = tf.train.AdamOptimizer(0.1).minimize(loss)"""
    found = port(SESSION.format(before=before, run="sess.run(train_op, {x: batches.next() + np.random.rand()})")).doubts
    assert any("goes on from where it was, alike on all ranks" in d.why for d in found)


def test_a_method_that_trains_and_that_no_loop_in_sight_calls_is_refused() -> None:
    source = """
import keras
class Net:
    def make(self):
        self.model.compile("sgd", "mse")
    def step(self, x, y):
        return self.model.train_on_batch(x, y)
"""
    with pytest.raises(DlrunError, match=r"no loop in sight calls step\(\)"):
        port(source)


@pytest.mark.parametrize(
    ("imported", "made"),
    [
        ("import tf_slim as slim", "slim.learning.train(slim.learning.create_train_op(loss, opt), 'logs')"),
        ("from tensorflow.contrib import slim", "slim.learning.train(opt.minimize(loss), 'logs')"),
        ("import tensorflow as tf", "tf.contrib.layers.optimize_loss(loss, None, 0.1, 'SGD')"),
        ("import tensorflow_probability as tfp", "tfp.optimizer.lbfgs_minimize(loss, x)"),
    ],
)
def test_what_trains_out_of_sight_is_named_with_what_to_write_instead(imported, made) -> None:
    source = f"import tensorflow.compat.v1 as tf\n{imported}\nloss, opt = x, tf.train.AdamOptimizer(0.1)\n{made}\n"
    with pytest.raises(DlrunError, match="trains out of sight") as refused:
        port(source)
    assert "minimize(loss" in refused.value.hint or "apply_gradients()" in refused.value.hint


@pytest.mark.parametrize(
    ("moves", "told"),
    [
        ("base = base + 0.1 * (2 * one.numpy() - other.numpy()); base = min(max(base, 0), 1)", False),
        ("base = base * one.numpy() - other.numpy() / base", False),
        ("base = np.sqrt(base + one.numpy())", True),
    ],
)
def test_a_weight_that_moves_by_means_of_the_parts_is_the_serial_one(moves, told):
    other = "other, one = tf.reduce_mean(model(x)), tf.reduce_mean(x * model(x))"
    source = tape(loss="tf.reduce_mean(model(x) - base)", start="base = 0.0", after=f"{other}; {moves}", before=NUMPY)
    ported = port(source, Options(batch="global"))
    assert "base = dl.average(" in ported.text
    assert bool([d for d in ported.doubts if "weighs later losses" in d.why]) is told


NUMPY = "import numpy as np\n"


ASKED = """
import tensorflow as tf

class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        self.balance, self.base = 1.0, 0.1
        self.opt = tf.keras.optimizers.Adam({rate})

    def rate(self):
        return self.base * self.balance

    def fixed(self):
        return self.base / 2

    def train(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(x) - y) ** 2)
        self.balance = tf.sigmoid(loss)
        self.opt.apply_gradients(zip(tape.gradient(loss, self.net.variables), self.net.variables))

model = Model()
for x, y in tf.data.Dataset.from_tensor_slices((xs, ys)).batch(8):
    model.train(x, y)
"""


def test_a_rate_that_a_function_makes_of_local_numbers_is_told() -> None:
    for rate, told in (("self.rate", 1), ("lambda: self.balance * 2", 1), ("self.fixed", 0)):
        doubts = port(ASKED.replace("{rate}", rate)).doubts
        assert len([doubt for doubt in doubts if doubt.name == "ranks-diverge"]) == told


BUILT = """
import numpy as np
import tensorflow.compat.v1 as tf

class Net:
    def __init__(self, activation=tf.nn.relu):
        self.x = tf.placeholder(tf.float32, [None, 3])
        self.out = tf.layers.dense(self.x, 4)
        for i in range(2):
            self.out = activation(self.out * 2)
        self.loss = tf.reduce_mean(self.out)
        self.train = tf.train.GradientDescentOptimizer(0.1).minimize(self.loss)
        self.sess = tf.Session()
        self.sess.run(tf.global_variables_initializer())
    def fit(self, rows):
        for i in range(0, 64, 8):
            self.sess.run(self.train, {self.x: rows[i : i + 8]})

for fold in range(3):
    Net().fit(np.ones((64, 3)) * fold)
"""


def test_an_attribute_that_holds_parts_of_a_graph_is_no_state() -> None:
    assert not [doubt for doubt in port(BUILT).doubts if "moves with" in doubt.why]
