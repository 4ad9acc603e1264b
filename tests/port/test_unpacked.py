"""What calls unpack for their parameters: ``train(*pair, ratio)``."""

from dlrun.port import port

START = """import torch
from torch.utils.data import DataLoader
net, data = torch.nn.Linear(4, 2), torch.randn(64, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""
WEIGHED = (
    START
    + """
def train({params}):
    opt.zero_grad()
    loss = ratio * (net(x) - y).pow(2).mean()
    loss.backward()
    opt.step()

step = 0
for pair in DataLoader(data, batch_size=8, shuffle=True):
    ratio = min(1.0, step / 50)
    train({given})
    step += 1
"""
)


def test_what_stands_behind_an_unpacked_batch_is_followed_to_its_parameter():
    text = port(WEIGHED.format(params="x, y, ratio", given="*pair, ratio")).text
    assert "ratio = min(1.0, dl.serial_steps(step) / 50)" in text
    told = port(WEIGHED.format(params="x, y, other=1, ratio=2", given="*pair, ratio=ratio")).text
    assert "ratio = min(1.0, dl.serial_steps(step) / 50)" in told


def test_parts_of_a_tuple_come_to_their_parameters():
    text = port(f"""{START}
pair = (net, opt)

def train(model, optimizer, batches, epochs):
    for epoch in range(epochs):
        for x in batches:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

train(*pair, DataLoader(data, batch_size=8, shuffle=True), 2)
""").text
    assert "train(*pair, dl.shard(DataLoader(data, batch_size=8, shuffle=True)), 2)" in text


def test_a_loss_of_an_unpacked_batch_is_averaged_where_it_is_shown():
    text = port(f"""{START}
def hits(x, y):
    return (x.argmax(1) == y).sum().item()

right = 0
for batch in DataLoader(data, batch_size=8, shuffle=True):
    opt.zero_grad()
    net(batch[0]).sum().backward()
    opt.step()
    right += hits(*batch)
print(right)
""").text
    assert "right = dl.total(right)" in text
