"""A data set whose one sample holds all has nothing to shard, and is refused before a rank waits for a batch."""

import pytest
from small import HEAD, refused

from dlrun.port import port

SET = """class Picture(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = torch.rand(64, 2), torch.rand(64, 1)
    def __len__(self):
        return LENGTH
    def __getitem__(self, i):
        return self.x, self.y
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = "(model(x) - y).pow(2).mean().backward()\n        opt.step()\n"
EPOCHS = f"for epoch in range(9):\n    for x, y in LOADER:\n        {STEP}"


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(Picture(), batch_size=1)",
        "DataLoader(dataset=data)",
        "loader",
    ],
)
def test_a_data_set_of_one_sample_is_refused_with_what_to_write_instead(loader):
    made = SET.replace("LENGTH", "1") + "data = Picture()\nloader = DataLoader(data, shuffle=True)\n"
    error = refused(HEAD + made + EPOCHS.replace("LOADER", loader))
    assert error.message.startswith("train.py:4: Picture has one sample, which holds all")
    assert "`x, y = data[0]`" in error.hint


def test_the_cure_shares_the_rows():
    cured = (
        SET.replace("LENGTH", "1") + "x, y = Picture()[0]\nfor epoch in range(9):\n    " + STEP.replace("    ", "", 1)
    )
    text = port(HEAD + cured).text
    assert 'x, y = dl.shard((dl.broadcast(x), dl.broadcast(y)), batch="global")' in text


def test_a_data_set_of_one_sample_that_does_not_train_stands_in_no_way():
    made = SET.replace("LENGTH", "1") + "shown = next(iter(DataLoader(Picture())))\n"
    assert "dl.shard(DataLoader(data" in port(HEAD + made + EPOCHS.replace("LOADER", "DataLoader(data)")).text
    assert (
        "dl.shard("
        in port(HEAD + SET.replace("LENGTH", "len(self.x)") + EPOCHS.replace("LOADER", "DataLoader(Picture())")).text
    )
