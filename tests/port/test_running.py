"""Counts of the steps of all epochs so far, and steps that pick the samples, are told as what they are."""

import pytest

from dlrun.port import port

MADE = """import torch
from torch.utils.data import DataLoader, TensorDataset
size, x, y = 10, torch.randn(600, 2), torch.randn(600, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
batches = len(x) // size
"""
UPDATE = """        opt.zero_grad()
        (model(a) - b).pow(2).mean().backward()
        opt.step()
"""
BY_LOADER = "for epoch in range(5):\n    for i, (a, b) in enumerate(loader):\n"
BY_NUMBER = """for epoch in range(5):
    order = torch.randperm(len(x))
    for i in range(batches):
        a, b = x[order[i * size : (i + 1) * size]], y[order[i * size : (i + 1) * size]]
"""
BY_PLACE = BY_NUMBER.replace("range(batches)", "range(0, len(x), size)").replace(
    "i * size : (i + 1) * size", "i : i + size"
)
RATE = "        opt.param_groups[0]['lr'] = 0.1 * (1 - {})\n"


def ported(loop: str, before: str, after: str = "") -> str:
    return port(MADE + loop + before + UPDATE + after).text


@pytest.mark.parametrize("loop", [BY_LOADER, BY_NUMBER])
@pytest.mark.parametrize("sum_", ["epoch * batches + i", "i + batches * epoch", "(len(x) // size) * epoch + i"])
def test_the_batches_of_an_epoch_in_a_count_over_all_epochs_are_a_ranks_own(loop, sum_):
    text = ported(loop, f"        step = {sum_}\n" + RATE.format("step / (5 * batches)"))
    batches = "(len(x) // size)" if "//" in sum_ else "batches"
    assert f"step = {sum_.replace(batches, f'dl.steps({batches.strip(chr(40) + chr(41))})')}\n" in text
    assert "(1 - dl.serial_steps(step) / (5 * batches))" in text


def test_a_count_over_all_epochs_by_the_length_of_a_share_stays():
    step = "        step = epoch * len(loader) + i\n"
    text = ported(BY_LOADER, step + RATE.format("step / (5 * len(loader))"))
    assert step in text
    assert "(1 - step / (5 * len(loader)))" in text


def test_a_share_of_an_epoch_that_is_told_by_all_samples_follows_the_serial_ones():
    text = ported(BY_PLACE, "        part = epoch + i / len(x)\n" + RATE.format("part / 5"))
    assert "part = epoch + dl.serial_steps(i) / len(x)\n" in text
    assert "(1 - part / 5)" in text


def test_a_step_that_picks_the_samples_counts_a_ranks_own_where_rates_and_weights_follow_it():
    text = ported(BY_NUMBER, RATE.format("i / batches") + "        w = min(1.0, i / 30)\n        a = a * w\n")
    assert "(1 - dl.serial_steps(i) / batches)" in text
    assert "order[own_i * size : (own_i + 1) * size]" in text


def test_a_step_that_picks_the_samples_comes_to_a_ranks_last_one():
    text = ported(BY_NUMBER, "", "        if i == batches - 1:\n            torch.save(model.state_dict(), 'm.pt')\n")
    assert "if i == dl.steps(batches) - 1:" in text


def test_a_step_that_picks_the_samples_saves_as_often_an_epoch():
    save = "            torch.save(model.state_dict(), 'm.pt')\n"
    assert "if i % dl.steps(20) == 0:" in ported(BY_NUMBER, "", "        if i % 20 == 0:\n" + save)


def test_a_place_that_goes_in_strides_is_only_compared_with_fewer_steps():
    save = "            torch.save(model.state_dict(), 'm.pt')\n"
    assert "if i >= dl.steps(300):" in ported(BY_PLACE, "", "        if i >= 300:\n" + save)
    for test in ("i % 100 == 0", "i == 300"):
        assert f"if {test}:" in ported(BY_PLACE, "", f"        if {test}:\n" + save)


def test_what_a_module_is_set_to_by_the_steps_so_far_follows_the_serial_ones():
    text = ported(
        "drop = torch.nn.Dropout(0.0)\n" + BY_LOADER, "        drop.p = min(0.5, i / 400)\n        a = drop(a)\n"
    )
    assert "drop.p = min(0.5, dl.serial_steps(i) / 400)" in text
    shown = ported("model.seen = 0\n" + BY_LOADER, "        model.seen = i\n")
    assert "model.seen = i\n" in shown
