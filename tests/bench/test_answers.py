"""The exact answers that a bench compares with are exact, and a wrong number is seen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

PROGRAMS = Path(__file__).parents[2] / "dlrun" / "bench" / "programs"
TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    import answers

    yield answers
    del sys.modules["answers"]


def reduced(answers: ModuleType, ranks: int, dtype: str, mean: bool) -> list[np.ndarray]:
    """Two arrays as an allreduce should leave them, summed in float64 here."""
    counts, total = (70_000, 3), [0.0, 0.0]
    for rank in range(ranks):
        arrays = [np.zeros(c, answers.storage(dtype)) for c in counts]
        answers.fill(arrays, rank, dtype)
        total = [t + answers.decode(a, dtype) for t, a in zip(total, arrays, strict=True)]
    return [answers.encode(t / (ranks if mean else 1), dtype) for t in total]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_the_right_answer_passes(answers: ModuleType, ranks: int, dtype: str) -> None:
    mean = "float" in dtype
    assert answers.wrong(reduced(answers, ranks, dtype, mean), ranks, dtype, mean) == 0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_one_wrong_element_is_counted(answers: ModuleType, ranks: int, dtype: str) -> None:
    mean = "float" in dtype
    arrays = reduced(answers, ranks, dtype, mean)
    arrays[0][69_999] = answers.encode(answers.decode(arrays[0][69_999:], dtype) + 1, dtype)[0]
    assert answers.wrong(arrays, ranks, dtype, mean) == 1


def test_what_is_not_a_number_is_wrong(answers: ModuleType) -> None:
    arrays = reduced(answers, 3, "float32", True)
    arrays[1][:] = np.nan
    assert answers.wrong(arrays, 3, "float32", True) == 3


def test_exchanged_arrays_are_seen(answers: ModuleType) -> None:
    arrays = [np.zeros(1000, np.float32) for _ in range(2)]
    answers.fill(arrays, 0, "float32")
    assert answers.wrong(arrays, 1, "float32", True) == 0
    assert answers.wrong(arrays[::-1], 1, "float32", True) > 1000


def test_bfloat16_is_rounded_to_nearest_even(answers: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(size=10_000) * 10.0 ** np.arange(-10, 10).repeat(500)
    expected = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).view(torch.uint16).numpy()
    assert (answers.encode(values, "bfloat16") == expected).all()
