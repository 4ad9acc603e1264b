"""What a large global batch asks for besides a scaled rate: warm-up, decay over the epochs, LARS."""

import pytest
from click.testing import CliRunner

from dlrun.cli.port import command
from dlrun.errors import DlrunError
from dlrun.port import Options, port
from dlrun.port.facts import Decay

TRAIN = """\
import torch
from torch.utils.data import DataLoader

loader = DataLoader(data, 8, shuffle=True)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)

def train(model, loader):
    for x, y in loader:
        opt.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        opt.step()

for epoch in range(1, 91):
    train(model, loader)
"""
GOYAL = Decay((30, 60, 80), 0.1)
TAPE = """\
import tensorflow as tf
data = tf.data.Dataset.from_tensor_slices(x).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
for epoch in range(9):
    for batch in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
"""
FIT = """\
import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit(x, y)
"""


def lines(source, **chosen):
    return [line.strip() for line in port(source, Options(**chosen)).text.splitlines()]


def test_the_recipe_for_imagenet_is_written_where_its_epochs_are():
    written = lines(TRAIN, warmup_epochs=5, lr_decay=GOYAL, lars=True)
    top = written.index("for epoch in range(1, 91):")
    assert written[top - 2 : top + 3] == [
        "dl.lars(opt)  # each layer gets a rate that its weights allow",
        "dl.warmup(opt, 5 * len(loader))  # ramp up to the scaled rate",
        "for epoch in range(1, 91):",
        "dl.decay(opt, epoch - 1, (30, 60, 80), 0.1)  # lower the rate as the training goes on",
        "train(model, loader)",
    ]


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        (
            "for x, y in loader:",
            "for i in range(0, 1437, 8):\n        x, y = xs[i:i + 8], ys[i:i + 8]",
            "4 * dl.steps(len(range(0, 1437, 8)))",
        ),
        ("        opt.step()", "        if i % 4 == 3:\n            opt.step()", "4 * (len(loader) // 4)"),
    ],
)
def test_an_epoch_has_as_many_steps_as_this_rank_takes(before, after, steps):
    flat = TRAIN.replace("def train(model, loader):\n", "for epoch in range(9):\n").partition("for epoch in range(1")[0]
    counted = flat.replace("for x, y in loader:", "for i, (x, y) in enumerate(loader):") if "%" in after else flat
    assert f"dl.warmup(opt, {steps})  # ramp up to the scaled rate" in lines(
        counted.replace(before, after), warmup_epochs=4
    )


def test_tapes_and_fits_get_their_own_forms():
    written = lines(TAPE, warmup_epochs=2, lr_decay=GOYAL)
    assert "dl.warmup(opt, 2 * dl.steps(len(data)))  # ramp up to the scaled rate" in written
    assert "dl.decay(opt, epoch, (30, 60, 80), 0.1)  # lower the rate as the training goes on" in written
    written = lines(FIT, warmup_epochs=2, lr_decay=GOYAL, lars=True)
    callbacks = "callbacks=[dl.WarmUp(epochs=2), dl.Decay((30, 60, 80), 0.1)]"
    assert any(line.startswith(f"dl.distribute(model, {callbacks}, use_lars=True)") for line in written)
    assert any(line.startswith("dl.distribute(model, callbacks=[dl.WarmUp(7)])") for line in lines(FIT, warmup_steps=7))


STEP_LR = "opt = torch.optim.SGD(model.parameters(), lr=0.1)\nsched = torch.optim.lr_scheduler.StepLR(opt, 3)\n"
BY_HAND = "opt = torch.optim.SGD(model.parameters(), lr=0.1)\nfor g in opt.param_groups:\n    g['lr'] *= 0.5\n"


@pytest.mark.parametrize(
    ("source", "chosen", "reason"),
    [
        (
            TRAIN.replace("opt = torch.optim.SGD(model.parameters(), lr=0.1)\n", STEP_LR),
            {"lr_decay": GOYAL},
            "7: --lr-decay: the script changes its rate itself",
        ),
        (
            TRAIN.replace("opt = torch.optim.SGD(model.parameters(), lr=0.1)\n", BY_HAND),
            {"lr_decay": GOYAL},
            "8: --lr-decay: the script changes its rate itself",
        ),
        (TRAIN.replace("torch.optim.SGD", "torch.optim.AdamW"), {"lars": True}, "the update of SGD, not of AdamW"),
        (TRAIN.replace("for epoch in range(1, 91):", "while True:"), {"lr_decay": GOYAL}, "the epochs have no number"),
        (TRAIN.replace("for epoch in range(1, 91):\n    train", "train"), {"lr_decay": GOYAL}, "no loop over epochs"),
        (TRAIN.replace("opt.step()", "model.weight.data -= model.weight.grad"), {"warmup_steps": 9}, "by hand"),
        (
            TRAIN.replace("    for x, y in loader:", "    for _ in range(9):\n        x, y = next(iter(loader))"),
            {"warmup_epochs": 2},
            "--warmup-steps N would do",
        ),
        (
            FIT.replace("model.fit", "for i in range(9): model.train_on_batch").replace("(x, y)", "(x[i], y[i])"),
            {"warmup_steps": 9},
            "where no callback runs",
        ),
        (
            FIT.replace("SGD(0.1)", "SGD(keras.optimizers.schedules.CosineDecay(0.1, 9))"),
            {"warmup_epochs": 1},
            "the rate is a schedule",
        ),
        (
            FIT.replace("(x, y)", "(x, y, callbacks=[keras.callbacks.ReduceLROnPlateau()])"),
            {"lr_decay": GOYAL},
            "changes its rate itself",
        ),
        (FIT.replace("keras.optimizers.SGD(0.1)", "'adam'"), {"lars": True}, "the update of SGD, not of adam"),
        (TAPE.replace("SGD(0.1)", "Adam(0.1)"), {"lars": True}, "the update of SGD, not of Adam"),
    ],
)
def test_an_option_without_sense_is_refused_with_the_reason(source, chosen, reason):
    assert port(source).text
    with pytest.raises(DlrunError, match=reason):
        port(source, Options(**chosen))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr-decay", "60,30:0.1"], "no list of rising epochs"),
        (["--lr-decay", "30:2"], "no list of rising epochs"),
        (["--warmup-steps", "3", "--warmup-epochs", "2"], "exclude each other"),
        (["--batch", "global", "--lars"], "--lars go with --batch local"),
        (["--from", "horovod", "--lr-decay", "30"], "--lr-decay: not with --from"),
    ],
)
def test_options_that_contradict_each_other_are_usage_errors(words, said, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    done = CliRunner().invoke(command, [*words, str(script)])
    assert done.exit_code == 2
    assert said in done.output
