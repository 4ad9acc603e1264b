"""Between hosts, the first steps decide whether averages overlap backward; the parameters are the same either way."""

from __future__ import annotations

import re
import textwrap

import pytest
from hosts import Slow, network
from mpis import find_mpi

PROGRAM = """
    import dl_comm.torch as dl, torch

    torch.set_num_threads(1)
    dl.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[m for _ in range(6) for m in (torch.nn.Linear(512, 512), torch.nn.ReLU())])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(dl.get_rank()))
    for step in range(24):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        dl.gradients(optimizer)
        optimizer.step()
    dl.print("norm", sum(p.double().square().sum().item() for p in model.parameters()))
    dl.finalize()
"""


def test_what_the_first_steps_decide_leaves_the_parameters_alone(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    norms = {}
    with network(tmp_path, 2, Slow(delay=0.002, rate=200e6)) as lab:
        for how in ("off", "on", "auto"):
            ended = lab.run(find_mpi("mpich 5").mpiexec, 1, program, 2, DL_COMM_OVERLAP=how)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            norms[how] = ended.stdout
            told = re.findall(r"averaging (?:overlaps|does not overlap) backward: a step took [\d.]+ ms", ended.stderr)
            assert len(told) == (how == "auto"), ended.stderr
    assert norms["off"].startswith("norm") and norms["on"] == norms["off"] == norms["auto"]
