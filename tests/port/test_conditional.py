"""Models and optimizers that are made on a condition are the same on all ranks, too."""

from __future__ import annotations

import pytest
import torch
from running import started

from dlrun.port import port

SCRIPT = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader

decodes, size = True, "small"
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
{made}
for epoch in range(2):
    for x in DataLoader(torch.arange(64.0).reshape(16, 4) / 64, batch_size=4, shuffle=True):
        loss = model(x).pow(2).mean()
        if decodes:
            loss = loss + (decoder(model(x)) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
ONE = "    decoder = nn.Linear(2, 4)\n    opt_decoder = torch.optim.SGD(decoder.parameters(), lr=0.1)\n"
BRANCHES = """if decodes:
    if size == "large":
        decoder = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 4))
    elif size == "small":
        decoder = nn.Linear(2, 4)
"""


@pytest.mark.parametrize(
    ("made", "condition", "things"),
    [
        ("if decodes:\n" + ONE, "decodes", "decoder, opt_decoder"),
        ("if decodes and size != 'none':\n" + ONE, "decodes and size != 'none'", "decoder, opt_decoder"),
        (BRANCHES, "decodes", "decoder"),
        ("if decodes:\n" + ONE + "    copy = decoder\n", "decodes", "decoder, opt_decoder"),
    ],
)
def test_what_is_made_on_a_condition_is_broadcast_on_it(made, condition, things) -> None:
    ported = port(SCRIPT.format(made=made))
    assert f"dl.broadcast(model, opt)  # every rank starts from rank 0's state\nif {condition}:\n" in ported.text
    assert f":\n    dl.broadcast({things})\ndl.reseed()" in ported.text
    assert not any("made on a condition" in d.why for d in ported.doubts)


NESTED = "if size:\n    print(size)\n    if decodes:\n" + ONE.replace("    ", 8 * " ")


@pytest.mark.parametrize("made", ["if input():\n" + ONE, "if decodes:\n" + ONE + "decodes = input()\n", NESTED])
def test_a_condition_that_may_come_out_otherwise_is_doubted(made) -> None:
    ported = port(SCRIPT.format(made=made))
    (doubt,) = [d for d in ported.doubts if "made on a condition" in d.why]
    assert doubt.danger == "high"
    assert doubt.write.startswith("dl.broadcast(decoder, opt_decoder) at the end of")
    assert "dl.broadcast(decoder" not in ported.text


@pytest.mark.parametrize(
    "made",
    [
        "decoder = nn.Linear(2, 4)\nif decodes:\n    decoder = nn.Linear(2, 4)\n",
        "if decodes:\n    rows = torch.zeros(4)\ndecoder = nn.Linear(2, 4)\n",
    ],
)
def test_what_is_made_anyhow_is_broadcast_with_the_others(made) -> None:
    ported = port(SCRIPT.format(made=made))
    assert "dl.broadcast(model, decoder, opt)" in ported.text
    assert "made on a condition" not in ported.report()
    assert "if decodes:\n    dl.broadcast" not in ported.text


@pytest.mark.parametrize(
    "made",
    [
        "if decodes:\n    for decoder in model.layers:\n        decoder.eval()\n",
        "if decodes:\n    decoder = model.layers[0]\n",
    ],
)
def test_a_layer_that_is_picked_on_a_condition_is_broadcast_with_its_model(made) -> None:
    net = (
        "class Part(nn.Linear):\n    pass\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    )
    net += "        self.layers = nn.ModuleList([Part(4, 4)])\n        self.layers = [Part(4, 4)]\n"
    net += "    def forward(self, x):\n        return self.layers[0](x)\nmodel = Net()"
    ported = port(SCRIPT.format(made=made).replace("model = nn.Linear(4, 2)", net))
    assert "dl.broadcast(model, opt)" in ported.text
    assert "if decodes:\n    dl.broadcast" not in ported.text
    assert "made on a condition" not in ported.report()


def test_a_model_made_on_a_condition_is_the_same_on_2_ranks(tmp_path) -> None:
    text = port(SCRIPT.format(made="if decodes:\n" + ONE)).text
    save = 'torch.save(decoder.state_dict(), f"{dl.get_rank()}.pt")\ndl.finalize()'
    (tmp_path / "train.py").write_text(text.replace("dl.finalize()", save))
    started(tmp_path, ["train.py"], ranks=2)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_layer_of_keras_made_on_a_condition_is_broadcast_on_it() -> None:
    text = port("""
import tensorflow as tf
from tensorflow import keras

decodes = True
model, opt = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
if decodes:
    decoder = keras.Sequential([keras.layers.Dense(1)])
    opt_decoder = keras.optimizers.SGD(0.1)
for x, y in tf.data.Dataset.from_tensor_slices((xs, ys)).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
        if decodes:
            loss += tf.reduce_mean((decoder(model(x)) - x) ** 2)
    weights = model.trainable_variables + (decoder.trainable_variables if decodes else [])
    opt.apply_gradients(zip(tape.gradient(loss, weights), weights))
""").text
    assert "dl.broadcast_variables(model, opt)" in text
    assert "if decodes:\n    dl.broadcast_variables(decoder, opt_decoder)\n" in text
