"""Rates that callbacks of libraries set in Keras' fit(), and the batches that they count."""

from __future__ import annotations

import pytest

from dlrun.port import Options, port

SCRIPT = """from tensorflow import keras
from keras_contrib.callbacks import CyclicLR
from elsewhere import SGDRScheduler, Recorder
{before}
model.compile(keras.optimizers.SGD(0.1), loss="mse")
model.fit(x, y, callbacks={callbacks})
"""
PLATEAU = "[keras.callbacks.ReduceLROnPlateau(factor=0.5, min_lr={})]"
CYCLE = "[CyclicLR(base_lr={}, max_lr={}, step_size={})]"


@pytest.mark.parametrize(
    ("callbacks", "written"),
    [
        (PLATEAU.format("1e-4"), PLATEAU.format("dl.lr_scale(1e-4)")),
        (PLATEAU.format("0"), PLATEAU.format("0")),
        (CYCLE.format("1e-4", "b", "2000"), CYCLE.format("dl.lr_scale(1e-4)", "dl.lr_scale(b)", "dl.steps(2000)")),
        (
            "[CyclicLR(0.1, 0.2, 90, 'exp_range', 0.9)]",
            "[CyclicLR(dl.lr_scale(0.1), dl.lr_scale(0.2), dl.steps(90), 'exp_range', dl.compound(0.9))]",
        ),
        ("[keras.callbacks.EarlyStopping(), Recorder()]", "[keras.callbacks.EarlyStopping(), Recorder()]"),
    ],
)
def test_rates_between_which_a_callback_moves_are_scaled_and_its_batches_divided(callbacks, written) -> None:
    ported = port(SCRIPT.format(before="", callbacks=callbacks))
    assert written in ported.text
    assert not [d for d in ported.doubts if "rates" in d.why]


def test_without_a_rule_for_the_rate_only_the_batches_are_divided() -> None:
    text = port(SCRIPT.format(before="", callbacks=CYCLE.format(1, 2, 3)), Options(lr_scaling="none")).text
    assert CYCLE.format(1, 2, "dl.steps(3)") in text


@pytest.mark.parametrize("before", ["made = [CyclicLR(step_size=90)]", "made = []\nmade.append(SGDRScheduler(1e-4))"])
def test_rates_out_of_sight_are_doubted(before) -> None:
    ported = port(SCRIPT.format(before=before, callbacks="made"))
    assert [d.danger for d in ported.doubts if "rates" in d.why] == ["high"]


def test_a_class_of_the_scripts_own_is_ported_itself() -> None:
    own = """class CyclicLR(keras.callbacks.Callback):
    def __init__(self, low):
        self.low, self.seen = low, 0
    def on_batch_end(self, batch, logs=None):
        self.seen += 1
        self.model.optimizer.learning_rate = self.low * (1 + self.seen % 90)
"""
    text = port(SCRIPT.format(before=own, callbacks="[CyclicLR(1e-4)]")).text
    assert "callbacks=[CyclicLR(1e-4)]" in text
    assert "dl.lr_scale(self.low * (1 + dl.serial_steps(self.seen) % 90))" in text
