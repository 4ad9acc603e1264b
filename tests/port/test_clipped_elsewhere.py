"""Gradients are averaged before a method or a function of the script's own clips or reads them."""

import pytest
from running import started

from dlrun.port import Options, port

CLIPPED = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
def clipped(model, most):
    return nn.utils.clip_grad_norm_(model.parameters(), most)
class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
    def clip(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
    def clip_by_function(self):
        return clipped(self.model, 0.1)
    def norm(self):
        return sum(p.grad.norm().item() for p in self.model.parameters())
    def fit(self, loader):
        for x, y in loader:
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            READ
            self.opt.step()
X = torch.randn(96, 6)
trainer = Trainer(nn.Linear(6, 2), None)
trainer.opt = torch.optim.SGD(trainer.model.parameters(), 0.5)
trainer.fit(DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 12))
print(*[f"{w:.5f}" for w in trainer.model.weight.flatten().tolist()])
"""


@pytest.mark.parametrize(
    "read", ["self.clip()", "self.clip_by_function()", "norm = self.norm()", "clipped(self.model, 1)"]
)
def test_gradients_are_averaged_before_what_reads_them_out_of_sight(read):
    text = port(CLIPPED.replace("READ", read)).text
    assert f"            dl.gradients(self.opt)  # mean over the ranks\n            {read}\n" in text


def test_what_is_clipped_is_the_mean_as_in_the_serial_run(tmp_path):
    script = CLIPPED.replace("READ", "self.clip()")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "dist.py").write_text(port(script, Options(batch="global")).text)
    ours, theirs = started(tmp_path, ["dist.py"], ranks=2), started(tmp_path, ["train.py"])
    assert [float(w) for w in ours.split()] == pytest.approx([float(w) for w in theirs.split()], abs=2e-5)
