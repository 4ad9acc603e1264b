"""Experiment trackers get the means over the ranks, from rank 0 alone."""

import pytest

from dlrun.port import port

SCRIPT = """import torch, mlflow, wandb
from comet_ml import Experiment
from torch.utils.data import DataLoader
class Meter:
    def __init__(self):
        self.total, self.n = 0.0, 0
    def add(self, value, n):
        self.total += value * n
        self.n += n
    @property
    def value(self):
        return self.total / max(self.n, 1)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
experiment = Experiment(project_name="net")
wandb.init(project="net")
losses = []
for epoch in range(3):
    meter = Meter()
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        meter.add(loss.item(), len(x))
    {log}
"""


METER = "meter.total, meter.n = dl.total(meter.total, meter.n)"
LOSSES = "losses = dl.gather(losses, since=losses_before)"


@pytest.mark.parametrize(
    ("log", "written", "reduced"),
    [
        (
            'mlflow.log_metric("loss", meter.value, step=epoch)',
            'dl.rank0(mlflow.log_metric)("loss", meter.value, step=epoch)',
            METER,
        ),
        ('mlflow.log_metrics({"loss": losses[-1]})', 'dl.rank0(mlflow.log_metrics)({"loss": losses[-1]})', LOSSES),
        ('mlflow.pytorch.log_model(model, "net")', 'dl.rank0(mlflow.pytorch.log_model)(model, "net")', ""),
        ('mlflow.pytorch.load_model("best")', 'mlflow.pytorch.load_model("best")', ""),
        ('wandb.log({"loss": meter.value})', 'wandb.log({"loss": meter.value})', METER),
        (
            'experiment.log_metric("loss", sum(losses) / len(losses))',
            'experiment.log_metric("loss", sum(losses) / len(losses))',
            LOSSES,
        ),
    ],
)
def test_a_tracker_gets_the_numbers_of_all_ranks_from_rank_0(log, written, reduced):
    text = port(SCRIPT.format(log=log)).text
    assert f"    {written}\n" in text
    assert reduced in text
    assert "experiment = dl.rank0(Experiment)(" in text
