"""What changes behind a model's back: buffers, in functions of autograd, and what hooks tell an optimizer."""

import pytest

from dlrun.port import port

BANK = """import torch
from torch.autograd import Function
from torch.utils.data import DataLoader
class Lookup(Function):
    @staticmethod
    def forward(ctx, x, y, memory, params):
        {ahead}
        ctx.save_for_backward(x, y, memory, params)
        return x @ memory.t() / params[0]
    @staticmethod
    def backward(ctx, grad):
        x, y, memory, params = ctx.saved_tensors
        {change}
        return grad @ memory, None, None, None
class Bank(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("memory", torch.randn(64, 4))
        self.register_buffer("params", torch.tensor([0.07, 0.5]))
    def forward(self, x, y):
        return Lookup.apply(x, y, self.memory, self.params)
model, bank = torch.nn.Linear(4, 4), Bank()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, 8, shuffle=True):
    loss = torch.nn.functional.cross_entropy(bank(model(x), y), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
TOTAL = "was = self.memory.clone() before backward(), and self.memory.copy_(dl.broadcast("


@pytest.mark.parametrize(
    ("ahead", "change", "moved", "write"),
    [
        ("pass", "memory.index_copy_(0, y, x)", "self.memory", TOTAL),
        ("pass", "memory[y] = 0.5 * memory[y] + 0.5 * x", "self.memory", TOTAL),
        ("params[1] = x.mean()", "pass", "self.params", "and self.params.copy_(dl.average(self.params)) after it"),
    ],
)
def test_a_buffer_that_a_function_of_autograd_changes_is_doubted(ahead, change, moved, write) -> None:
    found = [
        d for d in port(BANK.format(ahead=ahead, change=change)).doubts if "each rank trains with another" in d.why
    ]
    assert [d.danger for d in found] == ["high"]
    assert f"Lookup moves {moved} with this rank's samples" in found[0].why
    assert write in found[0].write


def test_one_that_only_reads_them_is_not() -> None:
    text = port(BANK.format(ahead="near = memory.t()", change="new = memory[y] + x; new.mul_(2)")).report()
    assert "each rank trains with another" not in text


KFAC = """import torch
from torch.utils.data import DataLoader
class Curved(torch.optim.Optimizer):
    def __init__(self, model, lr):
        super().__init__(model.parameters(), dict(lr=lr))
        self.seen = {}
        for layer in model.modules():
            layer.register_forward_pre_hook(self.keep)
    def keep(self, layer, given):
        self.seen[layer] = given[0].t() @ given[0]
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-group["lr"])
model = torch.nn.Linear(4, 1)
opt = Curved(model, lr=0.1)
for x in DataLoader(data, 8, shuffle=True):
    opt.zero_grad()
    model(x).pow(2).mean().backward()
    opt.step()
"""


def test_an_optimizer_that_hooks_tell_what_layers_take_is_doubted() -> None:
    why = "Curved goes by what layers take and give"
    assert [d.danger for d in port(KFAC).doubts if why in d.why] == ["high"]
    assert why not in port(KFAC.replace("layer.register_forward_pre_hook(self.keep)", "pass")).report()
