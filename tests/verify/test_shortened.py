"""Loaders that are cut to a few batches, as the tracer does it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlrun.verify.tracer.recorder import UNCUT, Orders

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
ORDERS = Orders("", "", "", "", 6, 3, few=2, shares=2)


def cut(samples: int, trains: bool = True, shuffle: bool = False, **orders: int) -> tuple[list[list[int]], int]:
    from torch.utils.data import DataLoader

    from dlrun.verify.tracer.shortened import shorten

    torch.manual_seed(0)
    loader = DataLoader(range(samples), batch_size=3, shuffle=shuffle)
    shorten(loader, replace(ORDERS, **orders), trains)
    batches = [batch.tolist() for batch in loader]
    assert len(batches) == len(loader)
    return batches, len(loader)


def test_a_loader_that_trains_gets_as_many_whole_batches_for_each_rank() -> None:
    assert cut(37) == ([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], 4)
    assert cut(11)[0] == [[0, 1, 2], [3, 4, 5]]  # 3 whole ones are not shared evenly
    assert cut(5)[0] == [[0, 1, 2], [3, 4]]  # nor is one


def test_another_keeps_a_shorter_last_batch_and_an_odd_number_of_them() -> None:
    assert [len(batch) for batch in cut(37, trains=False)[0]] == [3, 3, 3, 3, 3, 1]
    assert [len(batch) for batch in cut(7, trains=False)[0]] == [3, 3, 1]


def test_another_batch_of_those_that_ranks_take_together_comes_last() -> None:
    assert cut(37, turn=1)[0] == [[3, 4, 5], [0, 1, 2], [9, 10, 11], [6, 7, 8]]
    assert cut(10, turn=1, few=UNCUT)[0] == [[3, 4, 5], [0, 1, 2], [6, 7, 8], [9]]


def test_the_order_is_the_loaders_own() -> None:
    whole, first = cut(37, shuffle=True, few=UNCUT)[0], cut(37, shuffle=True)[0]
    assert len(whole) == 13
    assert first == whole[:4]
