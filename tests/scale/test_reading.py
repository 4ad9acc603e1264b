"""What scripts print is understood, and a script that prints otherwise can say how."""

import re

import pytest

from dlrun.scale.reading import Patterns, read

DIGITS = [
    "epoch 1 batch 0/24 loss 2.3034",
    "epoch 1 of 2: test loss 0.9114, accuracy 0.8161, 3950 samples/s",
    "epoch 2 of 2: test loss 0.3001, accuracy 0.9195, 4410 samples/s",
    "best accuracy 0.9195",
]


def test_the_digits_example_is_read_without_any_option() -> None:
    reading = read([(10.0 + i, text) for i, text in enumerate(DIGITS)], Patterns())
    assert reading.rates == (3950, 4410)
    assert reading.settled_rates == (4410,)
    assert [(p.seconds, p.accuracy, p.loss) for p in reading.points] == [(1, 0.8161, 0.9114), (2, 0.9195, 0.3001)]


@pytest.mark.parametrize(
    ("line", "accuracy", "loss"),
    [
        ("loss: 0.31 - accuracy: 0.90 - val_loss: 0.29 - val_accuracy: 0.91", 0.90, 0.29),
        ("Test set: Average loss: 0.0284, Accuracy: 9900/10000 (99%)", 0.99, 0.0284),
        ("val acc=91.5 %", 0.915, None),
    ],
)
def test_other_wordings(line: str, accuracy: float, loss: float | None) -> None:
    (point,) = read([(0, line)], Patterns()).points
    assert (point.accuracy, point.loss) == (accuracy, loss)


@pytest.mark.parametrize("line", ["1.5e3 images/sec", "Speed: 1500 samples per second", "at 1500.0 tokens / s now"])
def test_rates_in_other_words(line: str) -> None:
    assert read([(0, line)], Patterns()).rates == (1500,)


def test_epochs_are_timed_where_no_rate_is_printed() -> None:
    lines = [(0.0, "ready"), (2.0, "epoch 1: loss 2"), (6.0, "| epoch  2 | val 1"), (8.0, "Epoch [3/3] loss 1")]
    reading = read(lines, Patterns())
    assert (reading.rates, reading.unit) == ((0.25, 0.5), "epochs/s")
    for word in ("Epoche", "Época", "époque"):
        theirs = [(seconds, re.sub("[Ee]poch", word, text)) for seconds, text in lines]
        assert read(theirs, Patterns()) == reading
    assert read(lines[:2], Patterns()).rates == ()
    assert read([*lines, (9.0, "80 samples/s")], Patterns()).unit == "samples/s"
    assert read([*lines, (9.0, "epoch 1 of another fold")], Patterns()).rates == ()
    assert read(lines, Patterns(rate="speed ([0-9.]+)")).rates == ()


def test_a_pattern_of_ones_own() -> None:
    patterns = Patterns(rate=r"speed=(\d+)", accuracy=r"top1 (\d+)/100")
    reading = read([(0, "speed=7 top1 93/100")], patterns)
    assert reading.rates == (7,)
    assert reading.points[0].accuracy == 93


def test_a_script_that_says_nothing_gives_nothing() -> None:
    reading = read([(0, "hello"), (1, "lossless accuracies")], Patterns())
    assert (reading.rates, reading.points, reading.settled_rates) == ((), (), ())
