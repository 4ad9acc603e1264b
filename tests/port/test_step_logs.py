"""What a Keras model's own ``train_step`` returns, shows and does of what it has counted itself."""

import pytest

from dlrun.port import Options, port

MODEL = """import keras
import tensorflow as tf


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen = tf.Variable(0, trainable=False)
        self.steps = tf.Variable(0, trainable=False)
        self.total = tf.Variable(0.0, trainable=False)
        self.worst = tf.Variable(0.0, trainable=False)
        self.done = 0

    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.dense(a) - b) ** 2)
        weights = self.dense.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.seen.assign_add(tf.shape(a)[0])
        self.steps.assign_add(1)
        self.total.assign_add(loss)
        self.worst.assign(tf.maximum(self.worst, loss))
        self.done += 1
        {body}

    def copy(self):
        self.other.assign(self.dense.kernel)


model = Own()
model.compile("sgd"{eagerly})
model.fit(x, y)
"""


def _port(body, batch="local", eagerly="", after=""):
    return port(MODEL.format(body=body, eagerly=eagerly) + after, Options(batch=batch))


@pytest.mark.parametrize(
    ("returned", "written"),
    [
        ("self.seen", "dl.serial_steps(self.seen)"),
        ("self.steps", "dl.serial_steps(self.steps)"),
        ("tf.cast(self.total, tf.float32)", "dl.serial_steps(tf.cast(self.total, tf.float32))"),
        ("tf.minimum(self.steps, 10)", "tf.minimum(dl.serial_steps(self.steps), 10)"),
        ("self.total / tf.cast(self.steps, tf.float32)", "self.total / tf.cast(self.steps, tf.float32)"),
        ("loss", "loss"),
    ],
)
def test_a_count_that_is_returned_is_that_of_all_ranks(returned, written) -> None:
    ported = _port(f'return {{"number": {returned}}}')
    assert f'return {{"number": {written}}}' in ported.text and not ported.doubts


@pytest.mark.parametrize(
    ("lines", "written"),
    [
        ('logs = {"loss": loss}; logs["seen"] = self.seen; return logs', 'logs["seen"] = dl.serial_steps(self.seen)'),
        ("logs = dict(); logs.update(seen=self.seen); return logs", "logs.update(seen=dl.serial_steps(self.seen))"),
        ('return {**{"seen": self.seen}, "loss": loss}', '{**{"seen": dl.serial_steps(self.seen)}, "loss": loss}'),
        ('return {"loss": loss} | {"seen": self.seen}', '{"loss": loss} | {"seen": dl.serial_steps(self.seen)}'),
    ],
)
def test_so_it_is_however_the_dict_is_made(lines, written) -> None:
    assert written in _port(lines).text


def test_what_is_neither_a_sum_nor_a_mean_is_told() -> None:
    told = [d.why for d in _port('return {"worst": self.worst}').doubts]
    assert told == ["self.worst: fit() shows the mean over the ranks of what each has kept of its own batches"]


def test_of_parts_of_batches_samples_add_up_and_steps_do_not() -> None:
    text = _port('return {"seen": self.seen, "steps": self.steps, "total": self.total}', "global").text
    assert '{"seen": dl.serial_steps(self.seen), "steps": self.steps, "total": self.total}' in text


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("if self.steps % 100 == 0: print(self.steps)", "if self.steps % dl.steps(100) == 0:"),
        ("if self.done % 100 == 0: print(self.done)", "if self.done % dl.steps(100) == 0:"),
        ("tf.cond(self.steps % 100 == 0, self.copy, lambda: None)", "tf.cond(self.steps % dl.steps(100) == 0,"),
    ],
)
def test_what_a_step_does_every_so_often_comes_as_often_as_in_the_serial_run(body, written) -> None:
    assert written in _port(body).text


def test_averages_of_weights_every_so_many_steps_forget_as_they_are_written() -> None:
    moved = "[t.assign(0.9 * t + 0.1 * s) for t, s in zip(self.copy.weights, self.dense.weights)]"
    assert "compound" not in _port(f"if self.steps % 4 == 0:\n            {moved}").text
    assert "t.assign(dl.compound(0.9) * t" in _port(moved).text


def test_attributes_that_steps_set_are_summed_up_where_steps_run_eagerly() -> None:
    after = "print(model.done)\n"
    assert "model.done = dl.total(model.done)" in _port("pass", eagerly=", run_eagerly=True", after=after).text
    assert "dl.total(model.done)" not in _port("pass", after=after).text  # traced once
