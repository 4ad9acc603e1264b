"""Moving averages of weights forget as in the serial run, whose steps n ranks make n of at once."""

import pytest

from dlrun.port import port
from dlrun.port.facts import Options

SCRIPT = """import copy
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
mean = copy.deepcopy(model)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
seen, step = 0.0, 0

MADE

for epoch in range(3):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        seen = loss.item()
        EVERY
    AFTER
"""
PAIRS = "for m, p in zip(mean.parameters(), model.parameters()):\n            "
VECTORS = "a, b = parameters_to_vector(mean.parameters()), parameters_to_vector(model.parameters())\n        "
TO_VECTORS = "from torch.nn.utils import parameters_to_vector, vector_to_parameters"
SHADOW = """class Shadow:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.kept = {n: p.data.clone() for n, p in model.named_parameters()}
    def update(self):
        for n, p in self.model.named_parameters():
            new = (1.0 - self.decay) * p.data + self.decay * self.kept[n]
            self.kept[n] = new.clone()
shadow = Shadow(model, 0.99)"""
MIXED = """def mixed(old, new, beta):
    return old * beta + (1 - beta) * new
def update(teacher, student, beta=0.99):
    for a, b in zip(teacher.parameters(), student.parameters()):
        a.data = mixed(a.data, b.data, beta)"""
SOFT = """def soft(target, source, tau):
    for t, p in zip(target.parameters(), source.parameters()):
        t.data.copy_(tau * p.data + (1.0 - tau) * t.data)"""


def lines(every, made="", after="", **options):
    """Return what the port changes in the lines that average weights."""
    source = SCRIPT.replace("MADE", made).replace("EVERY", every).replace("AFTER", after)
    ported = port(source, Options(**options))
    return [line.strip() for line in ported.text.splitlines() if "compound" in line], ported.doubts


@pytest.mark.parametrize(
    ("every", "made", "written"),
    [
        (
            f"{PAIRS}m.data.mul_(0.99).add_(p.data, alpha=1 - 0.99)",
            "",
            "m.data.mul_(dl.compound(0.99)).add_(p.data, alpha=1 - dl.compound(0.99))",
        ),
        (
            f"{PAIRS}m.data.mul_(0.9).add_(0.1 * p.data)",
            "",
            "m.data.mul_(dl.compound(0.9)).add_((1 - dl.compound(0.9)) * p.data)",
        ),
        (
            f"{PAIRS}m.data.mul_(0.99).add_(1 - 0.99, p.data)",
            "",
            "m.data.mul_(dl.compound(0.99)).add_(1 - dl.compound(0.99), p.data)",
        ),
        (f"{PAIRS}m.data.lerp_(p.data, share)", "share = 0.01", "m.data.lerp_(p.data, 1 - dl.compound(1 - share))"),
        (
            f"{PAIRS}m.data.sub_(rest * (m.data - p.data))",
            "d = 0.99\nrest = 1.0 - d",
            "m.data.sub_((1 - dl.compound(1 - rest)) * (m.data - p.data))",
        ),
        (f"{PAIRS}m.data += 0.01 * (p.data - m.data)", "", "m.data += (1 - dl.compound(1 - 0.01)) * (p.data - m.data)"),
        (
            f"{PAIRS}m.data.add_((1 - 0.99) * (p.data - m.data))",
            "",
            "m.data.add_((1 - dl.compound(0.99)) * (p.data - m.data))",
        ),
        (
            f"{PAIRS}m.data.add_(p.data - m.data, alpha=0.01)",
            "",
            "m.data.add_(p.data - m.data, alpha=1 - dl.compound(1 - 0.01))",
        ),
        (f"{PAIRS}m.data.copy_(p.data.lerp(m.data, 0.99))", "", "m.data.copy_(p.data.lerp(m.data, dl.compound(0.99)))"),
        (
            f"{PAIRS}m.data = torch.lerp(m.data, p.data, 0.01)",
            "",
            "m.data = torch.lerp(m.data, p.data, 1 - dl.compound(1 - 0.01))",
        ),
        (
            f"{PAIRS}m.data.mul_(0.99)\n            m.data.add_(p.data, alpha=1 - 0.99)",
            "",
            "m.data.mul_(dl.compound(0.99))|m.data.add_(p.data, alpha=1 - dl.compound(0.99))",
        ),
        (
            "torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), 0.01)",
            "",
            "torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), 1 - dl.compound(1 - 0.01))",
        ),
        (
            "torch._foreach_mul_(kept, 0.99)\n        torch._foreach_add_(kept, list(model.parameters()), alpha=0.01)",
            "kept = list(mean.parameters())",
            "torch._foreach_mul_(kept, dl.compound(0.99))|"
            "torch._foreach_add_(kept, list(model.parameters()), alpha=1 - dl.compound(0.99))",
        ),
        (
            f"{VECTORS}vector_to_parameters(0.99 * a + 0.01 * b, mean.parameters())",
            TO_VECTORS,
            "vector_to_parameters(dl.compound(0.99) * a + (1 - dl.compound(0.99)) * b, mean.parameters())",
        ),
        (
            f"{VECTORS}vector_to_parameters(tau * b + (1 - tau) * a, mean.parameters())",
            f"{TO_VECTORS}\ntau = 0.005",
            "vector_to_parameters((1 - dl.compound(1 - tau)) * b + dl.compound(1 - tau) * a, mean.parameters())",
        ),
        (
            "flat.lerp_(parameters_to_vector(model.parameters()), 0.01)",
            f"{TO_VECTORS}\nflat = parameters_to_vector(mean.parameters())",
            "flat.lerp_(parameters_to_vector(model.parameters()), 1 - dl.compound(1 - 0.01))",
        ),
        (
            "kept = {k: 0.99 * v + 0.01 * model.state_dict()[k] for k, v in kept.items()}",
            "kept = copy.deepcopy(model.state_dict())",
            "kept = {k: dl.compound(0.99) * v + (1 - dl.compound(0.99)) * model.state_dict()[k] "
            "for k, v in kept.items()}",
        ),
        (
            "shadow.update()",
            SHADOW,
            "new = (1.0 - dl.compound(self.decay)) * p.data + dl.compound(self.decay) * self.kept[n]",
        ),
        ("update(mean, model)", MIXED, "return old * dl.compound(beta) + (1 - dl.compound(beta)) * new"),
        (
            "soft(mean, model, 0.01)",
            SOFT,
            "t.data.copy_((1 - dl.compound(1.0 - tau)) * p.data + dl.compound(1.0 - tau) * t.data)",
        ),
        (
            "kept.update_parameters(model)",
            "kept = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))",
            "kept = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(dl.compound(0.99)))",
        ),
    ],
)
def test_an_average_of_weights_keeps_of_the_old_ones_what_n_serial_steps_keep(every, made, written):
    assert lines(every, made) == (written.split("|"), ())


@pytest.mark.parametrize(
    ("every", "made", "written"),
    [
        ("p.data.mul_(1 - decay)", "decay = 0.02 * 0.05", "p.data.mul_(dl.compound(1 - decay))"),
        ("p.data *= 1 - 0.001", "", "p.data *= dl.compound(1 - 0.001)"),
        ("p.data.mul_(1 - opt.param_groups[0]['lr'] * 0.01)", "", ""),
        ("p.data.mul_(1 - loss.item())", "", ""),
        ("p.grad.mul_(1 - 0.1)", "", ""),
    ],
)
def test_weights_that_every_step_makes_smaller_are_made_so_by_as_much_an_epoch(every, made, written):
    each = f"for p in model.parameters():\n            {every}"
    assert lines(each, made)[0] == ([written] if written else [])


def test_what_weighs_an_average_follows_the_serial_steps():
    every = f"d = min(0.99, (1 + step) / (10 + step))\n        {PAIRS}m.data.mul_(d).add_(p.data, alpha=1 - d)"
    source = SCRIPT.replace("MADE", "").replace("EVERY", every).replace("AFTER", "")
    assert "d = min(0.99, (1 + dl.serial_steps(step)) / (10 + dl.serial_steps(step)))" in port(source).text


def test_where_it_is_not_known_which_weights_are_the_old_ones_the_average_is_doubted():
    written, doubts = lines("update(mean, model, x.mean())", MIXED)
    assert not written
    assert [d.write for d in doubts if "averages weights" in d.why] == ["dl.compound(d), where d weighs the old ones"]


@pytest.mark.parametrize(
    "every",
    [
        f"{PAIRS}m.data.mul_(0.9).add_(p.grad, alpha=1 - 0.9)",
        f"{PAIRS}g = p.grad.data\n            m.data.copy_(0.9 * m.data + 0.1 * g * g)",
        "made = torch.autograd.grad(loss, model.parameters())\n        for m, p, g in zip("
        "mean.parameters(), model.parameters(), made):\n            m.data.copy_(0.9 * m.data + 0.1 * g)",
    ],
)
def test_the_momentum_of_an_optimizer_stays(every):
    assert lines(every) == ([], ())


def test_a_list_that_is_made_of_itself_holds_no_weights():
    search = """class Search:
    def __init__(self):
        self.rows = [{"w": 1.0}, {"w": 2.0}]
    def shrink(self, new):
        for row in self.rows:
            row["w"] = 0.9 * row["w"] + 0.1 * new
        self.rows = [self.rows[0], self.rows[1]]
search = Search()
"""
    text = port(SCRIPT.replace("MADE", search).replace("EVERY", "search.shrink(0.5)").replace("AFTER", "pass")).text
    assert "search.shrink(0.5)" in text


def test_an_average_in_a_function_that_nothing_is_seen_to_call_is_doubted():
    written, doubts = lines("registry['soft'](mean, model, 0.01)", SOFT)
    assert not written and [d.danger for d in doubts if "averages weights" in d.why] == ["low"]


@pytest.mark.parametrize(
    ("made", "every", "written"),
    [
        (
            "mean = 0.0",
            "mean = 0.9 * mean + 0.1 * seen",
            "mean = dl.compound(0.9) * mean + (1 - dl.compound(0.9)) * seen",
        ),
        ("mean = 0.0", "mean += 0.1 * (seen - mean)", "mean += (1 - dl.compound(1 - 0.1)) * (seen - mean)"),
        (
            "mean, beta = None, 0.9",
            "mean = seen if mean is None else beta * mean + (1 - beta) * seen",
            "mean = seen if mean is None else dl.compound(beta) * mean + (1 - dl.compound(beta)) * seen",
        ),
        (
            "mean, beta = 0.0, 0.9",
            "mean = beta * mean + (1 - beta) * seen / 2",
            "mean = dl.compound(beta) * mean + (1 - dl.compound(beta)) * seen / 2",
        ),
        ("mean = 0.0", "mean = 0.9 * seen + 0.1", "mean = 0.9 * seen + 0.1"),
        (
            "mean = 0.0",
            "if step % 10 == 0:\n            mean = 0.9 * mean + 0.1 * seen",
            "if step % dl.steps(10) == 0:|mean = 0.9 * mean + dl.average(0.1 * seen)",
        ),
    ],
)
def test_a_smoothed_loss_forgets_as_in_the_serial_run(made, every, written) -> None:
    source = SCRIPT.replace("MADE", made).replace("EVERY", every).replace("AFTER", "print(mean)")
    text = port(source).text
    assert all(line in text for line in written.split("|"))
    assert every in port(source, Options(batch="global")).text


def test_averages_between_epochs_at_divided_counts_or_with_the_serial_steps_stay():
    average = f"{PAIRS}m.data.mul_(0.99).add_(p.data, alpha=1 - 0.99)"
    inner = average.replace("            ", "                ")
    slower = "opt.param_groups[0]['lr'] = 0.01"
    assert lines("pass", after=average.replace("            ", "        ")) == ([], ())
    assert lines(f"if step % 10 == 0:\n            {slower}\n            {inner}")[0] == []
    assert len(lines(f"if step > 10:\n            {inner}")[0]) == 1
    assert lines(f"if step % 10 == 0:\n            {inner}")[0] == []  # at every 10th serial step
    text = port(SCRIPT.replace("MADE", "").replace("EVERY", f"if step % 10 == 0:\n            {inner}")).text
    assert "if step % dl.steps(10) == 0:\n" in text
    assert lines(average, batch="global")[0] == []


@pytest.mark.parametrize("turns", ["(loader if opt else held)", "[opt, mean]"])
def test_a_mixture_of_samples_is_no_average_of_weights(turns) -> None:
    mixed = f"for x, y in {turns}:\n            x = seen * x + (1 - seen) * x.flip(0)\n            "
    assert lines(mixed + "model(x).mean().backward()\n            opt.step()")[0] == []


TAPES = """import numpy as np
import tensorflow as tf
def made():
    return tf.keras.Sequential([tf.keras.layers.Dense(1)])
model, mean = made(), made()
kept = [tf.Variable(v, trainable=False) for v in model.trainable_variables]
opt = tf.keras.optimizers.SGD(0.01)

MADE

for x, y in tf.data.Dataset.from_tensor_slices((xs, ys)).shuffle(640).batch(32):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    EVERY
"""
SOFT_TAPE = """def soft(target, source, tau=0.01):
    for t, s in zip(target.variables, source.variables):
        t.assign(tau * s + (1.0 - tau) * t)"""
OWN_TAPE = """class Shadow:
    def __init__(self, model, decay=0.99):
        self.decay, self.model = decay, model
        self.kept = [tf.Variable(v, trainable=False) for v in model.trainable_variables]
    def update(self):
        for k, v in zip(self.kept, self.model.trainable_variables):
            k.assign_sub((1 - self.decay) * (k - v))
shadow = Shadow(model)"""
VARIABLES = "for m, v in zip(mean.weights, model.weights):\n        "


@pytest.mark.parametrize(
    ("every", "made", "written"),
    [
        (
            f"{VARIABLES}m.assign(0.99 * m + 0.01 * v)",
            "",
            "m.assign(dl.compound(0.99) * m + (1 - dl.compound(0.99)) * v)",
        ),
        (f"{VARIABLES}m.assign_add(0.01 * (v - m))", "", "m.assign_add((1 - dl.compound(1 - 0.01)) * (v - m))"),
        ("soft(mean, model)", SOFT_TAPE, "t.assign((1 - dl.compound(1.0 - tau)) * s + dl.compound(1.0 - tau) * t)"),
        ("shadow.update()", OWN_TAPE, "k.assign_sub((1 - dl.compound(self.decay)) * (k - v))"),
        (
            "mean.set_weights([0.9 * a + 0.1 * b for a, b in zip(mean.get_weights(), model.get_weights())])",
            "",
            "mean.set_weights([dl.compound(0.9) * a + (1 - dl.compound(0.9)) * b for a, b in zip(mean.get_weights(), "
            "model.get_weights())])",
        ),
        ("for m, g in zip(kept, grads):\n        m.assign(0.9 * m + 0.1 * g)", "", None),
    ],
)
def test_so_does_one_of_a_tape_loop_and_momentum_stays(every, made, written):
    text = port(TAPES.replace("MADE", made).replace("EVERY", every)).text
    assert [line.strip() for line in text.splitlines() if "compound" in line] == ([written] if written else [])


def test_copies_of_weights_that_are_made_before_the_training_start_alike():
    text = port(TAPES.replace("MADE", OWN_TAPE).replace("EVERY", "shadow.update()\n    kept[0].assign(mean(x))")).text
    assert "dl.broadcast_variables(model, mean, kept, shadow.kept, opt)" in text
    torch = SCRIPT.replace("MADE", "").replace("AFTER", "")
    torch = torch.replace("mean = copy.deepcopy(model)", "mean = [p.detach().clone() for p in model.parameters()]")
    assert "dl.broadcast(model, mean, opt)" in port(torch.replace("EVERY", "mean[0].mul_(0.9)")).text


FITTED = """import numpy as np
from tensorflow import keras
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = keras.layers.Dense(1)
        self.mean = keras.layers.Dense(1)
    def follow(self):
        for m, v in zip(self.mean.weights, self.net.weights):
            m.assign(AVERAGE)
    def train_step(self, data):
        self.follow()
        return {}
class Mean(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        for i, w in enumerate(self.model.get_weights()):
            self.kept[i] = 0.9 * self.kept[i] + 0.1 * w
    def on_epoch_end(self, epoch, logs=None):
        for i, w in enumerate(self.model.get_weights()):
            self.whole[i] = 0.5 * self.whole[i] + 0.5 * w
model = Net()
model.compile(optimizer="sgd")
model.fit(x, y, callbacks=[Mean()])
"""


def test_so_does_one_of_a_train_step_or_of_a_callback_of_batches():
    text = port(FITTED.replace("AVERAGE", "0.99 * m + (1 - 0.99) * v")).text
    assert "m.assign(dl.compound(0.99) * m + (1 - dl.compound(0.99)) * v)" in text
    assert "self.kept[i] = dl.compound(0.9) * self.kept[i] + (1 - dl.compound(0.9)) * w" in text
    assert "self.whole[i] = 0.5 * self.whole[i] + 0.5 * w" in text
    doubted = port(FITTED.replace("AVERAGE", "self.a * m + (1 - self.a) * v")).doubts
    assert not any("averages weights" in d.why for d in doubted)  # the old ones are where the mean goes


def test_an_average_of_a_library_that_is_updated_once_an_epoch_forgets_as_it_did():
    made = "kept = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))"
    assert lines("pass", made, "kept.update_parameters(model)")[0] == []
    assert len(lines("kept.update_parameters(model)", made)[0]) == 1
