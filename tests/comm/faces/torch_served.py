"""What ranks save is plain PyTorch: it loads and predicts where dl_comm is not installed."""

import copy
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import dl_comm.torch as dl
import torch
from dl_comm import _core
from torch import nn

_LOADS = """
import sys
sys.modules["dl_comm"] = None  # as if it were not installed
import torch
from torch import nn
folder = sys.argv[1]
x, expected = torch.load(folder + "/data.pt")
whole = torch.load(folder + "/whole.pt", weights_only=False)
made = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
made.load_state_dict(torch.load(folder + "/state.pt"))
for model in (whole, made):
    assert "dl_comm" not in str([type(layer).__module__ for layer in model])
    torch.testing.assert_close(model.eval()(x), expected, rtol=0, atol=0)
optimizer = torch.optim.SGD(made.parameters(), 0.1, momentum=0.9)
optimizer.load_state_dict(torch.load(folder + "/optimizer.pt"))
again = torch.load(folder + "/optimizer_whole.pt", weights_only=False)
assert len(again.state) == len(optimizer.state) == 6
made.train()(x).sum().backward()
optimizer.step()
"""


def what_is_saved_loads_without_dl_comm():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    model = dl.sync_batchnorm(model)
    optimizer = dl.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), overlap=True)
    dl.warmup(optimizer, 5)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 2, 4, 4)).square().mean().backward()
        optimizer.step()
    folder = Path(_core.broadcast_bytes(tempfile.mkdtemp().encode(), 0).decode())
    x = torch.randn(4, 2, 4, 4)
    dl.save(model.state_dict(), folder / "state.pt")
    dl.save(model, folder / "whole.pt")
    dl.save(optimizer.state_dict(), folder / "optimizer.pt")
    dl.save(optimizer, folder / "optimizer_whole.pt")
    dl.save((x, model.eval()(x).detach()), folder / "data.pt")
    if dl.is_rank0():
        alone = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDRA", "MPI"))}
        command = [sys.executable, "-c", _LOADS, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=alone, check=False)
        assert done.returncode == 0, done.stderr[-2000:]


def a_copy_of_a_synchronised_layer_stays_synchronised():
    layer = dl.sync_batchnorm(nn.BatchNorm1d(3))
    twin = copy.deepcopy(layer)
    assert type(twin) is dl.SyncBatchNorm
    assert twin.weight is not layer.weight
    x = torch.randn(4, 3) + dl.get_rank()
    torch.testing.assert_close(twin(x), layer(x))
    torch.testing.assert_close(twin.running_mean, layer.running_mean)
