"""Samples that are kept for later losses, in queues and memory banks, and the slow copy of a model beside them."""

import pytest

from dlrun.port import port

HEAD = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(512), torch.randn(512, 4)), batch_size=16, shuffle=True)
model = nn.Linear(4, 8)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
kept, at = {kept}, 0
for i, x in loader:
    z = model(x)
    with torch.no_grad():
        k = model(x)
    loss = (z @ {read}).logsumexp(1).mean()
    loss.backward()
    opt.step()
    {fill}
    at = (at + 16) % 256
"""


@pytest.mark.parametrize(
    ("kept", "read", "fill"),
    [
        ("torch.randn(256, 8)", "kept.t()", "kept[at : at + 16] = z.detach()"),
        ("torch.randn(8, 256)", "kept.clone()", "kept[:, at : at + 16] = k.t()"),
        ("torch.randn(256, 8)", "kept.t()", "kept = torch.cat([z.detach(), kept])[:256]"),
        ("[]", "torch.stack(kept).t()", "kept.extend(z.detach())"),
    ],
)
def test_a_queue_of_a_ranks_own_samples_is_said_to_be_one_and_is_not_averaged(kept, read, fill):
    (doubt,) = [d for d in port(HEAD.format(kept=kept, read=read, fill=fill)).doubts if "kept" in d.why]
    assert doubt.why.startswith("kept: each rank keeps those of its own samples")
    assert (doubt.danger, doubt.write) == ("low", "")


def test_the_entries_of_a_bank_that_each_rank_writes_for_its_own_samples_add_up():
    bank = HEAD.format(
        kept="torch.zeros(512, 8)", read="kept[i].t()", fill="kept[i] = 0.5 * kept[i] + 0.5 * z.detach()"
    )
    (doubt,) = [d for d in port(bank).doubts if d.why.startswith("kept moves with this rank's samples")]
    assert doubt.write.endswith("and kept.copy_(dl.broadcast(kept + (dl.total(kept - was) - (kept - was)))) after it")


MODEL = """import torch
from torch import nn
from torch.utils.data import DataLoader
class Pair(nn.Module):
    def __init__(self, m=0.99):
        super().__init__()
        self.m, self.quick, self.slow = m, nn.Linear(4, 8), nn.Linear(4, 8)
    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.quick.parameters(), self.slow.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)
    def forward(self, x):
        self.follow()
        return (self.quick(x) - self.slow(x).detach()).pow(2).mean()
model = Pair()
opt = torch.optim.SGD(model.quick.parameters(), lr=0.1)
for epoch in range(3):
    for x in DataLoader(data, batch_size=16, shuffle=True):
        loss = model(x)
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


def test_a_slow_copy_that_follows_in_the_forward_pass_forgets_as_in_the_serial_run():
    follows = "k.data = k.data * dl.compound(self.m) + q.data * (1.0 - dl.compound(self.m))"
    assert follows in port(MODEL).text
    shown = port(MODEL + "    print(model(data[:9]).item())\n")
    assert "compound" not in shown.text
    assert [d.write for d in shown.doubts if "averages weights" in d.why] == [
        "dl.compound(d), where d weighs the old ones"
    ]


SYNCED = """import copy, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
slow = copy.deepcopy(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def update(tau):
    for p, t in zip(model.parameters(), slow.parameters()):
        t.data.copy_(tau * p.data + (1.0 - tau) * t.data)
update(1.0)
for epoch in range(3):
    for x in DataLoader(data, batch_size=16, shuffle=True):
        (model(x) - slow(x).detach() - 1).pow(2).mean().backward()
        opt.step()
        update(0.005)
"""


def test_a_copy_that_is_made_once_by_the_same_function_changes_nothing():
    text = port(SYNCED).text
    assert "(1 - dl.compound(1.0 - tau)) * p.data + dl.compound(1.0 - tau) * t.data" in text
    twice = port(SYNCED + "    update(0.5)\n")
    assert "compound" not in twice.text
    assert "and elsewhere, too" in "".join(d.why for d in twice.doubts)
