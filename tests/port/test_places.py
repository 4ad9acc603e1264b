"""Positions that are sharded: what asks how far one lies from the end is asked by all ranks together."""

import pytest
from running import ran

from dlrun.port import port

SCRIPT = """import torch
torch.manual_seed(0)
source = torch.linspace(0, 1, 400).view(4, 100)
model = torch.nn.Linear(10, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for i in range(0, 99, 8):
        {guard}
        x = source[:, i:i + 10]
        {after}
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch)
torch.save(model.weight.detach(), "last.pt")
"""


@pytest.mark.parametrize(
    ("guard", "after", "written"),
    [
        ("if i + 10 > source.size(1): continue", "", "if dl.total(bool(i + 10 > source.size(1))) > 0: continue"),
        ("if i + 10 > 100: break", "", "if dl.total(bool(i + 10 > 100)) > 0: break"),
        ("", "if x.size(1) < 10: break", "if dl.total(bool(x.size(1) < 10)) > 0: break"),
    ],
)
def test_all_ranks_leave_out_what_lies_beyond_the_end_together(tmp_path, guard, after, written):
    text = port(SCRIPT.format(guard=guard, after=after)).text
    assert f"        {written}\n" in text
    (tmp_path / "train.py").write_text(text)
    said, _ = ran(tmp_path / "train.py", tmp_path / "2", 2)
    assert said.split() == ["0", "1"]


def test_a_test_that_chooses_between_slices_asks_for_the_ranks_own_place():
    guard = "if i + 8 > 100:\n            x = source[:, i:]\n        else:\n            x = source[:, i:i + 8]"
    source = SCRIPT.format(guard=guard, after="if i % 16 == 0: print(i)").replace(
        "        x = source[:, i:i + 10]\n", ""
    )
    text = port(source).text
    assert "if own_i + 8 > 100:\n            x = source[:, own_i:]\n" in text
    assert "if i % 16 == 0: print(dl.serial_steps(i))" in text


def test_where_the_number_counts_steps_too_the_ranks_own_place_is_asked_by_all():
    text = port(SCRIPT.format(guard="if i + 10 > 100: break", after="if i % 16 == 0: print(i)")).text
    assert "if dl.total(bool(own_i + 10 > 100)) > 0: break" in text
    text = port(SCRIPT.format(guard="if i >= 80: break", after="if i % 16 == 0: print(i)")).text
    assert "if i >= dl.steps(80): break" in text  # as many samples, of all ranks
