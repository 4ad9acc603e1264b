"""Full batches of which samples are drawn anew at times, or beside which others are drawn to look at."""

import torch
from running import ran

from dlrun.port import port

POINTS = """import torch

torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.02)

def draw(n):
    return torch.rand(n, 1)

points = draw(16)

def errors(x):
    x.requires_grad_(True)
    slope, = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return slope + x

for step in range(12):
    loss = errors(points).pow(2).mean() + net(torch.zeros(1, 1)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 4 == 3:
        torch.manual_seed(step)
        RENEWED
print("%.6f" % errors(points).pow(2).mean().item())
torch.save(net.state_dict(), "last.pt")
"""
DRAWN = "points = draw(16)"
JOINED = """more = draw(40)
        worst = errors(more).abs().squeeze(1).topk(6).indices
        points = torch.cat([points.detach(), more[worst].detach()])"""
SHOWN = """with torch.no_grad():
            print(float(net(draw(5)).mean()) < 9)"""


def test_points_that_are_drawn_anew_or_joined_at_times_are_shared_out_as_they_are(tmp_path):
    for number, renewed in enumerate((DRAWN, JOINED, SHOWN)):
        script = tmp_path / f"{number}.py"
        script.write_text(POINTS.replace("RENEWED", renewed))
        said, serial = ran(script, tmp_path / f"{number}s")
        found = port(script.read_text())
        assert "dl.lr_scale" not in found.text and "dl.steps" not in found.text
        script.write_text(found.text)
        on_ranks, parameters = ran(script, tmp_path / f"{number}p", 2)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(serial.values(), parameters.values(), strict=True))
        (*drawn, error), (*alone, serial_error) = on_ranks.split(), said.split()
        assert drawn == alone and abs(float(error) - float(serial_error)) < 2e-6


def test_what_is_made_of_a_ranks_share_is_not_cut_again():
    made = "x = torch.rand(16, 1)\n{0}y = x.sin()\n{0}"
    loop = "for step in range(12):\n    loss = error()\n    loss.backward()\n    opt.step()\n"
    error = "def error():\n    return (net(x) - y).pow(2).mean()\n"
    opt = "net = torch.nn.Linear(1, 1)\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    anew = f"    if step % 4 == 3:\n        {made.format(' ' * 8)}"
    text = port(f"import torch\n{made.format('')}{opt}{error}{loop}{anew}")
    assert 'x = dl.shard(dl.broadcast(torch.rand(16, 1)), batch="global")\n        y = x.sin()\n' in text.text


HELD = """import torch
class Solver:
    def __init__(self):
        self.net = torch.nn.Linear(1, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.draw()
    def draw(self):
        self.x = torch.rand(16, 1)
    def train(self):
        for step in range(12):
            if step % 4 == 3:
                self.draw()
            self.net(self.x).pow(2).mean().backward()
            self.opt.step()
Solver().train()
"""


def test_points_of_an_object_are_shared_where_one_method_draws_them_and_else_doubted():
    found = port(HELD)
    cut = 'self.x = torch.rand(16, 1)\n        self.x = dl.shard(dl.broadcast(self.x), batch="global")'
    assert cut in found.text and "dl.steps" not in found.text
    twice = port(HELD.replace("self.draw()\n    def", "self.x = torch.rand(16, 1)\n    def"))
    doubt = next(doubt for doubt in twice.doubts if doubt.danger == "high")
    assert "until then all ranks train on the same samples" in doubt.why
    first = HELD.replace("        self.draw()\n    def", "    def").replace("self.draw()", "self.x = torch.rand(16, 1)")
    assert "dl.steps(12)" in port(first.replace("== 3", "== 0")).text


def test_points_that_are_drawn_for_each_step_are_each_ranks_own():
    for test in ("step > 3", "step % 4 == 3:\n        pass\n    if step >= 0"):
        assert "dl.steps(12)" in port(POINTS.replace("step % 4 == 3", test).replace("RENEWED", DRAWN)).text
