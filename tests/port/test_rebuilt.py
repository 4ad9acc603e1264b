"""Optimizers that make the gradients anew within step() are refused by what they do, not by their names."""

import pytest
from small import HEAD, refused

from dlrun.port import port

LOOP = """opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, shuffle=True)
TAKEN
for x, y in loader:
    (model(x) - y).pow(2).mean().backward()
    opt.step()
"""
OWN = """class Own(torch.optim.SGD):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                REBUILT
        super().step()
"""


@pytest.mark.parametrize(
    "taken",
    [
        "model, opt, loader = lab.Engine().make_private(module=model, optimizer=opt, data_loader=loader)",
        "engine = lab.Engine(9)\nmodel, opt = engine.wrap(model, opt)",
        "lab.Engine(model, noise=1.0).attach(opt)",
    ],
)
def test_a_library_that_takes_over_the_optimizer_is_refused(taken):
    error = refused("import lab\n" + HEAD + LOOP.replace("TAKEN", taken))
    assert "averaged before it they would change nothing" in error.message
    assert error.message.startswith(f"train.py:{7 + taken.count(chr(10))}: ")


@pytest.mark.parametrize(
    "taken",
    [
        "model, opt = apex.amp.initialize(model, opt)",
        "model, opt = ipex.optimize(model, optimizer=opt)",
        "model, other = lab.wrap(model, 3)",
    ],
)
def test_what_leaves_the_gradients_as_they_are_is_not(taken):
    imports = "import apex, lab\nimport intel_extension_for_pytorch as ipex\n"
    assert "dl.gradients(" in port(imports + HEAD + LOOP.replace("TAKEN", taken)).text


@pytest.mark.parametrize(
    ("line", "anew"),
    [
        ("p.grad = p.summed_grad / self.batch", True),
        ("p.grad.data = self.state[p]['clipped'].clone()", True),
        ("p.grad.copy_(self.noisy[p] + 1)", True),
        ("p.grad = p.grad - p.grad.mean()", False),
        ("p.grad = None", False),
        ("p.data.add_(p.grad, alpha=-0.1)", False),
    ],
)
def test_a_step_of_ones_own_is_judged_by_what_it_sets_gradients_to(line, anew):
    script = HEAD + OWN.replace("REBUILT", line) + LOOP.replace("torch.optim.SGD(", "Own(").replace("TAKEN", "pass")
    if anew:
        assert "Own.step() makes the gradients anew here" in refused(script).message
    else:
        assert "dl.gradients(" in port(script).text


ENGINE = """import tensorflow as tf
class Engine:
    def __init__(self, step): self.step, self.hooks = step, []
    def run(self, data):
        for batch in data:
            self.step(batch)
            for hook in self.hooks: hook(self)
class Counter:
    def __init__(self): self.seen = 0
    def __call__(self, engine): self.seen += 1
    def attach(self, engine): engine.hooks.append(self)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
trainer = Engine(step)
Counter().attach(trainer)
trainer.run(tf.data.Dataset.from_tensor_slices(samples).batch(8))
"""


def test_a_trainer_of_the_programs_own_that_hooks_are_attached_to_is_no_optimizer():
    assert "dl.gradients(tape.gradient(" in port(ENGINE).text
