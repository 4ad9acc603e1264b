"""Updates without an optimizer of the framework's: by momenta and classes of the script's own, of several losses."""

from __future__ import annotations

import pytest
import torch
from running import ran
from small import refused

from dlrun.port import Options, port

DATA = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(48, 4)
y = torch.stack([x.sum(1), -x[:, 0] + x[:, 1] ** 2], 1)
loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
"""
SAVE = 'torch.save(net.state_dict(), "last.pt")\n'
OWN = """
class Lion:
    def __init__(self, params, lr, betas=(0.9, 0.99), decay=0.0):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.betas, self.decay = lr, betas, decay
        self.momenta = [torch.zeros_like(p) for p in self.params]
    @torch.no_grad()
    def step(self):
        for p, m in zip(self.params, self.momenta):
            update = (self.betas[0] * m + (1 - self.betas[0]) * p.grad).sign()
            p.mul_(1 - self.lr * self.decay).add_(update, alpha=-self.lr)
            m.mul_(self.betas[1]).add_(p.grad, alpha=1 - self.betas[1])
            p.grad = None
opt = Lion(net.parameters(), lr=0.01, decay=0.1)
for a, b in loader:
    nn.functional.mse_loss(net(a), b).backward()
    opt.step()
"""
MOMENTA = """
params = dict(net.named_parameters())
velocity = {k: torch.zeros_like(v) for k, v in params.items()}
for a, b in loader:
    nn.functional.mse_loss(net(a), b).backward()
    with torch.no_grad():
        for k, p in params.items():
            velocity[k].mul_(0.9).add_(p.grad)
            p.sub_(0.05 * velocity[k])
            p.grad.zero_()
"""
PROJECTED = """
class Surgery:
    def __init__(self, optimizer):
        self.optimizer = optimizer
    def params(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]]
    def backward(self, losses):
        grads = [self.pack(loss) for loss in losses]
        one, two = grads
        dot = torch.dot(one, two)
        total = one + two if dot > 0 else one + two - dot * two / two.norm() ** 2
        at = 0
        for p in self.params():
            p.grad = total[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
    def pack(self, loss):
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward(retain_graph=True)
        return torch.cat([p.grad.flatten().clone() for p in self.params()])
surgery = Surgery(torch.optim.Adam(net.parameters(), lr=0.01))
for a, b in loader:
    surgery.backward([nn.functional.mse_loss(net(a)[:, k], b[:, k]) for k in range(2)])
    surgery.optimizer.step()
"""
IN_A_ROW = """
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for a, b in loader:
    out = net(a)
    opt.zero_grad()
    nn.functional.mse_loss(out[:, 0], b[:, 0]).backward(retain_graph=True)
    kept = [p.grad.clone() for p in net.parameters()]
    opt.zero_grad()
    nn.functional.mse_loss(out[:, 1], b[:, 1]).backward()
    for p, k in zip(net.parameters(), kept):
        p.grad = p.grad + k * (k * p.grad).sum().sign()
    opt.step()
"""


@pytest.mark.parametrize(
    "update", [OWN, MOMENTA, PROJECTED, IN_A_ROW], ids=["own class", "momenta", "projected", "in a row"]
)
def test_updates_of_what_is_made_of_gradients_leave_the_serial_parameters(update, tmp_path):
    (tmp_path / "serial.py").write_text(DATA + update + SAVE)
    ported = port(DATA + update + SAVE, Options(batch="global"))
    assert not [d for d in ported.doubts if d.danger != "low"]
    (tmp_path / "ranks.py").write_text(ported.text)
    _, serial = ran(tmp_path / "serial.py", tmp_path / "alone")
    _, two = ran(tmp_path / "ranks.py", tmp_path / "two", 2)
    for name, value in serial.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5)


def test_the_rate_of_an_update_by_hand_is_scaled_where_it_makes_weights_decay_too():
    text = port(DATA + OWN).text
    assert "p.mul_(1 - dl.lr_scale(self.lr) * self.decay).add_(update, alpha=-dl.lr_scale(self.lr))" in text
    assert "p.sub_(dl.lr_scale(0.05) * velocity[k])" in port(DATA + MOMENTA).text


def test_weights_that_are_updated_by_hand_in_place_are_saved_as_they_are():
    saved = MOMENTA.replace("\nvelocity", '\nw = params["0.weight"]\nvelocity')
    ported = port(DATA + saved + 'torch.save([w.detach(), params], "last.pt")\n')
    assert not [d for d in ported.doubts if d.danger != "low"]
    assert "dl.total" not in ported.text


def test_what_only_looks_at_gradients_is_no_update():
    assert "no step that uses them was found" in str(
        refused(DATA + "for a, b in loader:\n    net(a).mean().backward()\n    norms = [p.grad.norm() for p in net]\n")
    )


@pytest.mark.parametrize("cleared", ["w.grad = None", "for p in [w]:\n            p.grad = None"])
def test_gradients_that_are_taken_away_by_hand_make_no_loss_unknown(cleared):
    made = port(f"""
import torch
x = torch.randn(160, 7)
w = torch.zeros(7, requires_grad=True)
for epoch in range(3):
    order, total = torch.randperm(160), 0.0
    for start in range(0, 160, 8):
        loss = (x[order[start : start + 8]] @ w).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        {cleared}
        total += loss.item()
    print(total / 20)
""")
    assert "    total = dl.total(total)  # sums over all ranks' samples\n    print(total / 20)\n" in made.text
    assert "unknown-placement" not in [doubt.name for doubt in made.doubts]
